"""The version: static text in the repository, equal in every file, and checked against the tag of a release.

A checkout is applied as it is (`kubectl apply -k https://…?ref=v0.2.0`), so its manifests name the tag of the image. A
version that is computed from tags could not stand there, and a clone without tags would have none.
"""

from __future__ import annotations

import datetime
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = "nodeagent/__init__.py"
FILES = (
    PACKAGE,
    "Dockerfile",
    "README.md",
    "daemonset/README.md",
    "daemonset/base/node/kustomization.yaml",
    "daemonset/chart/Chart.yaml",
    "daemonset/controller/kustomization.yaml",
    "daemonset/components/attach/objects/kustomization.yaml",
    "daemonset/components/gpu-mps/objects/kustomization.yaml",
    "daemonset/examples/cluster/README.md",
    "daemonset/examples/kube-scheduler/ranks.yaml",
    "daemonset/overlays/kind/README.md",
    "daemonset/overlays/kind/kustomization.yaml",
    "docs/install.md",
    "docs/rail-probes.md",
    "docs/runbook.md",
    "docs/troubleshooting.md",
    "docs/tutorial.md",
    "hack/lab/nodeagent_lab/__init__.py",
    "hack/lab/pyproject.toml",
)
"""Each names the version, and names no other version of anything that equals it."""
UNRELEASED = "## [Unreleased]"
FORM = re.compile(r"\d+\.\d+\.\d+(?:-(?:alpha|beta|rc)\.\d+)?")


class ReleaseError(Exception):
    """A reason not to release, with its remedy."""


def current(root: Path = ROOT) -> str:
    found = re.search(r'^__version__ = "(.+)"$', (root / PACKAGE).read_text(), re.M)
    assert found, PACKAGE
    return found[1]


def write(version: str, root: Path = ROOT, today: datetime.date | None = None) -> list[str]:
    """Replace the version in every file and give it a section in the changelog; return the changed files."""
    if not FORM.fullmatch(version):
        raise ReleaseError(f"{version!r} is no version: write MAJOR.MINOR.PATCH, or with -rc.N after it")
    old = current(root)
    named = re.compile(rf"(?<![\d.]){re.escape(old)}(?![\d.]*\d)")
    texts = {file: (root / file).read_text() for file in FILES}
    if lacking := [file for file, text in texts.items() if not named.search(text)]:
        raise ReleaseError(f"no {old} in {', '.join(lacking)}: take it off FILES in {Path(__file__).name}")
    changelog = (root / "CHANGELOG.md").read_text()
    if UNRELEASED not in changelog:
        raise ReleaseError(f"CHANGELOG.md has no {UNRELEASED}: a release needs a section of its changes")
    date = today or datetime.datetime.now(datetime.UTC).date()
    texts["CHANGELOG.md"] = changelog.replace(UNRELEASED, f"{UNRELEASED}\n\n## [{version}] - {date}", 1)
    for file, text in texts.items():
        changed = text if file == "CHANGELOG.md" else named.sub(version, text)
        (root / file).write_text(changed)
    return list(texts)


def complaints(version: str, changelog: str, tags: list[str]) -> list[str]:
    """The reasons why a commit with these tags is no release of ``version``."""
    found = []
    if f"v{version}" not in tags:
        others = f" (it has {', '.join(tags)})" if tags else ""
        found.append(
            f"the commit has no tag v{version}{others}: git tag --annotate v{version}, "
            'or write another version: make release ARGS="version X.Y.Z"'
        )
    if not re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", changelog, re.M):
        found.append(f"CHANGELOG.md has no section [{version}] with a date: write one")
    return found


def notes(version: str, changelog: str) -> str:
    """The section of the version."""
    found = re.search(rf"^## \[{re.escape(version)}\].*?\n(.*?)(?=^## \[|\Z)", changelog, re.M | re.S)
    return found[1].strip() if found else ""


def git(*words: str, root: Path = ROOT) -> str:
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ReleaseError(f"git {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout.strip()
