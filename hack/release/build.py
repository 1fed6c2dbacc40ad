"""Build every file of a release from an export of the commit, so that the same commit gives the same bytes.

The files get the time of the commit. Nothing of the working tree is used, and nothing is written to a registry.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from hack.release import notices, versions
from hack.release.versions import ReleaseError, git

CHART = Path("daemonset/chart")
OVERLAYS = ("controller", "observe")
"""The overlays that a release has as files. That of kind has an image of its own."""
SUMS = "SHA256SUMS"
PROVENANCE = "provenance.json"
CHART_PUSHED = "CHART"
"""Names the chart in the registry: `push` writes it, since the registry's answer has its digest."""
IMAGE = "image"
"""The folder of the image in OCI's layout: it is pushed from there, and its index names the digest."""


@dataclass(frozen=True)
class Release:
    """The values on which the files of a release depend, beside the commit."""

    version: str
    commit: str
    created: str
    epoch: int
    source: str
    registry: str
    base: str
    architectures: tuple[str, ...]
    build_options: tuple[str, ...] = ()

    @property
    def image(self) -> str:
        return f"{self.registry}/nodeagent"


def build(release: Release, stage: Path, out: Path) -> None:
    """Make all files of the release in the empty folder ``out``; ``stage`` is an empty folder for work."""
    tree, lock = stage / "tree", stage / "lock"
    export(release.commit, tree)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(release.epoch)}
    packages(tree, out, environment)
    digest = image(release, tree, out / IMAGE, environment)
    manifests(release, tree, digest, out)
    chart(release, tree, digest, out)
    sbom(release, tree, lock, out, environment)
    shutil.copyfile(notices.NOTICES, out / "THIRD_PARTY_NOTICES")
    (out / "RELEASE_NOTES.md").write_text(
        versions.notes(release.version, (tree / "CHANGELOG.md").read_text()) + "\n"
    )
    (out / "IMAGE").write_text(f"{release.image}:{release.version}@{digest}\n")
    (out / SUMS).write_text("".join(f"{sum_}  {name}\n" for name, sum_ in sums(out).items()))
    statement = provenance(release, sums(out) | {release.image: digest.partition(":")[2]})
    (out / PROVENANCE).write_text(json.dumps(statement, indent=1, sort_keys=True) + "\n")


def run(command: list[str | Path], **options: Any) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    if done.returncode:
        raise ReleaseError(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}".strip())
    return done.stdout.strip()


def export(commit: str, tree: Path) -> None:
    archive = subprocess.run(
        ["git", "-c", "tar.umask=0022", "archive", commit], cwd=versions.ROOT, capture_output=True, check=True
    )
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as opened:
        opened.extractall(tree, filter="tar")


def packages(tree: Path, out: Path, environment: Mapping[str, str]) -> None:
    """The wheels of the packages, and the source of the product."""
    for folder, kinds in (("", ("wheel", "sdist")), ("hack/lab", ("wheel",))):
        for kind in kinds:
            run(
                [sys.executable, "-m", "hatchling", "build", "--target", kind, "--directory", out.resolve()],
                cwd=tree / folder,
                env=environment,
            )
    for ignored in out.glob(".gitignore"):
        ignored.unlink()


def image(release: Release, tree: Path, folder: Path, environment: Mapping[str, str]) -> str:
    """Build the image for each architecture, and return the digest of their index."""
    listed = f"localhost/nodeagent-release-{release.commit[:12]}"
    subprocess.run(["buildah", "manifest", "rm", listed], capture_output=True, check=False)
    run(["buildah", "manifest", "create", listed])
    given = {
        "NODEAGENT_BUILDER": "buildah",
        "NODEAGENT_REVISION": release.commit,
        "NODEAGENT_CREATED": release.created,
        "NODEAGENT_SOURCE": release.source,
        "NODEAGENT_BASE": release.base,
    }
    for architecture in release.architectures:
        name = f"{listed}:{architecture}"
        options = ["--platform", f"linux/{architecture}", "--timestamp", str(release.epoch), "--no-cache"]
        run(
            [tree / "hack/image.sh", name, *options, *release.build_options],
            cwd=tree,
            env={**environment, **given},
        )
        run(["buildah", "manifest", "add", listed, name])
    run(["buildah", "manifest", "push", "--all", listed, f"oci:{folder}:{release.version}"])
    run(["buildah", "manifest", "rm", listed])
    return image_digest(folder)


def image_digest(folder: Path) -> str:
    (index,) = json.loads((folder / "index.json").read_text())["manifests"]
    found: str = index["digest"]
    return found


def manifests(release: Release, tree: Path, digest: str, out: Path) -> None:
    """One file for the base and each overlay, with the image by its digest: `kubectl apply -f` needs nothing else."""
    for name in ("base", *OVERLAYS):
        folder = tree / f"release-{name}"
        folder.mkdir()
        below = "daemonset" if name == "base" else f"daemonset/overlays/{name}"
        newest = {"name": "nodeagent", "newName": release.image, "digest": digest}
        (folder / "kustomization.yaml").write_text(
            yaml.safe_dump({"resources": [f"../{below}"], "images": [newest]})
        )
        text = run([kubectl(), "kustomize", folder])
        (out / f"nodeagent-{release.version}-{name}.yaml").write_text(text + "\n")


def kubectl() -> str:
    beside = Path(sys.executable).with_name("kubectl")
    return str(beside) if beside.exists() else "kubectl"


def chart(release: Release, tree: Path, digest: str, out: Path) -> None:
    """The chart, which names the image by its digest and has the addresses of the project."""
    folder = tree / CHART
    values = (folder / "values.yaml").read_text()
    for old, new in (
        ("  repository: nodeagent\n", f"  repository: {release.image}\n"),
        ('  digest: ""\n', f"  digest: {digest}\n"),
        ('  runbookUrl: ""\n', f"  runbookUrl: {page(release, 'docs/runbook.md')}\n"),
    ):
        if values.count(old) != 1:
            raise ReleaseError(f"{CHART}/values.yaml has no line {old.strip()!r}, which a release replaces")
        values = values.replace(old, new)
    (folder / "values.yaml").write_text(values)
    about = chart_about(release, yaml.safe_load((folder / "Chart.yaml").read_text()), digest)
    (folder / "Chart.yaml").write_text(
        yaml.safe_dump(about, sort_keys=False, allow_unicode=True, width=1_000_000)
    )
    pack(folder, "nodeagent", release.epoch, out / f"nodeagent-{release.version}.tgz")


def page(release: Release, path: str) -> str:
    return f"{release.source}/blob/v{release.version}/{path}"


def chart_about(release: Release, about: dict[str, Any], digest: str) -> dict[str, Any]:
    links = [
        {"name": "documentation", "url": page(release, "docs/README.md")},
        {"name": "changes", "url": page(release, "CHANGELOG.md")},
        {"name": "how to verify a release", "url": page(release, "docs/project.md")},
    ]
    images = [{"name": "nodeagent", "image": f"{release.image}:{release.version}@{digest}"}]
    return about | {
        "home": release.source,
        "sources": [release.source],
        "maintainers": [{**one, "url": release.source} for one in about["maintainers"]],
        "annotations": about["annotations"]
        | {
            "artifacthub.io/images": yaml.safe_dump(images, sort_keys=False),
            "artifacthub.io/links": yaml.safe_dump(links, sort_keys=False),
            "artifacthub.io/prerelease": str("-" in release.version).lower(),
        },
    }


def pack(folder: Path, name: str, epoch: int, archive: Path) -> None:
    """A .tgz whose bytes depend on names, contents and ``epoch`` alone; Chart.yaml comes first, as Helm packs it."""

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname = epoch, 0, 0, "", ""
        entry.mode = 0o644
        return entry

    files = sorted(
        (path for path in folder.rglob("*") if path.is_file()),
        key=lambda path: (path.name != "Chart.yaml", path),
    )
    with (
        archive.open("wb") as raw,
        gzip.GzipFile(fileobj=raw, mode="wb", filename="", mtime=epoch) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as made,
    ):
        for path in files:
            made.add(path, f"{name}/{path.relative_to(folder)}", filter=plain)


def sbom(release: Release, tree: Path, lock: Path, out: Path, environment: Mapping[str, str]) -> None:
    """The packages of the lock with versions and licenses, by CycloneDX's own tool, which validates its result."""
    run([sys.executable, "-m", "venv", "--without-pip", lock])
    python = lock / "bin" / "python"
    requirements = tree / "hack/requirements-run.txt"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-compile"]
    run([*pip, "--require-hashes", "--only-binary", ":all:", "--requirement", requirements])
    run([*pip, "--no-index", *out.glob(f"nodeagent-{release.version}-*.whl")])
    file = out / f"nodeagent-{release.version}.cdx.json"
    run(
        [
            *(
                sys.executable,
                "-m",
                "cyclonedx_py",
                "environment",
                python,
                "--output-reproducible",
                "--of",
                "JSON",
            ),
            *("--pyproject", tree / "pyproject.toml", "--mc-type", "application", "--output-file", file),
        ],
        env=environment,
    )
    made = json.loads(file.read_text())
    # The version of the project is not in pyproject.toml, so the tool does not know it.
    made["metadata"]["component"]["version"] = release.version
    file.write_text(json.dumps(made, indent=2, sort_keys=True) + "\n")


def sums(out: Path) -> dict[str, str]:
    """Of all files but the two that are made from the sums. A file of its own names the image by its digest."""
    files = [
        path
        for path in sorted(out.iterdir())
        if path.is_file() and path.name not in (SUMS, PROVENANCE, CHART_PUSHED)
    ]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def provenance(release: Release, subjects: Mapping[str, str]) -> dict[str, Any]:
    """An in-toto statement with SLSA's predicate: what was built, from which commit, on which base and packages."""
    base, _, base_sum = release.base.partition("@sha256:")
    pins = notices.pins(notices.LOCK.read_text())
    workflow = os.environ.get("GITHUB_WORKFLOW_REF")
    builder = (
        f"{os.environ.get('GITHUB_SERVER_URL')}/{workflow}" if workflow else page(release, "docs/project.md")
    )
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": sum_}} for name, sum_ in subjects.items()],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": page(release, "hack/release/build.py"),
                "externalParameters": {
                    "source": release.source,
                    "ref": f"refs/tags/v{release.version}",
                    "registry": release.registry,
                    "architectures": list(release.architectures),
                },
                "resolvedDependencies": [
                    {
                        "uri": f"git+{release.source}@refs/tags/v{release.version}",
                        "digest": {"gitCommit": release.commit},
                    },
                    {"uri": f"docker://{base}", "digest": {"sha256": base_sum}},
                    *({"uri": f"pkg:pypi/{name}@{version}"} for name, version in pins.items()),
                ],
            },
            "runDetails": {"builder": {"id": builder}},
        },
    }


def described(commit: str) -> tuple[str, str, int]:
    """The full name of a commit, and its time as text and as a number."""
    full, created, epoch = git("log", "-1", "--format=%H %cI %ct", commit).split()
    return full, created, int(epoch)
