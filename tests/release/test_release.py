"""hack/release: the version in every file, the checks with their remedies, and files with the same bytes each time."""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.release import __main__ as command
from hack.release import build, checks, notices, versions
from hack.release.versions import ReleaseError
from nodeagent import __version__
from tests.support.manifests import ROOT, parsed, pod_specs

DIGEST = f"sha256:{'5' * 64}"
RELEASE = build.Release(
    version=__version__,
    commit="c" * 40,
    created="2026-11-27T12:00:00+00:00",
    epoch=1_795_780_800,
    source="https://git.example/acme/nodeagent",
    registry="registry.example/acme",
    base=f"docker.io/library/python:3.11@sha256:{'b' * 64}",
    architectures=("amd64", "arm64"),
)


# The version


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def test_every_image_and_wheel_that_a_file_names_has_the_version() -> None:
    named = re.compile(
        r"(?:\bnodeagent(?:-lab)?(?::|-(?=\d+\.\d+\.\d+-py3))|\?ref=v|\bnewTag: )(\d+\.\d+\.\d+)"
    )
    found = {
        (path.relative_to(ROOT).as_posix(), version)
        for path in tracked()
        if path.suffix in (".md", ".yaml", ".sh", ".toml") or path.name == "Dockerfile"
        for version in named.findall(path.read_text())
        if path.parent.name != "release" and path.name not in ("CHANGELOG.md", "verified.md")
        if path != ROOT / build.CHART / "README.md"  # generated from Chart.yaml
    }
    assert {path for path, _ in found} <= {*versions.FILES}
    assert {version for _, version in found} == {__version__}


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    for file in (*versions.FILES, "CHANGELOG.md"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / file, tmp_path / file)
    return tmp_path


def test_a_new_version_is_written_into_each_file_and_heads_the_changelog(copied: Path) -> None:
    versions.write("7.8.9", copied, datetime.date(2030, 1, 2))
    assert versions.current(copied) == "7.8.9"
    for file in versions.FILES:
        text = (copied / file).read_text()
        assert "7.8.9" in text, file
        assert not re.search(rf"(?<![\d.]){re.escape(__version__)}(?![\d.])", text), file
    changelog = (copied / "CHANGELOG.md").read_text()
    assert "## [Unreleased]\n\n## [7.8.9] - 2030-01-02\n" in changelog
    assert f"## [{__version__}]" in changelog


@pytest.mark.parametrize("version", ["", "1", "v1.2.3", "1.2", "1.2.3.4", "1.2.3+x"])
def test_a_version_of_another_form_changes_nothing(version: str, copied: Path) -> None:
    before = {file: (copied / file).read_text() for file in versions.FILES}
    with pytest.raises(ReleaseError, match="MAJOR"):
        versions.write(version, copied)
    assert before == {file: (copied / file).read_text() for file in versions.FILES}


def test_a_commit_without_its_tag_or_section_is_refused_with_the_remedy() -> None:
    section = "## [1.2.3] - 2030-01-02\n"
    assert versions.complaints("1.2.3", section, ["v1.2.3"]) == []
    (tag,) = versions.complaints("1.2.3", section, ["v1.2.2"])
    assert "it has v1.2.2" in tag
    assert "git tag --annotate v1.2.3" in tag
    (log,) = versions.complaints("1.2.3", "## [1.2.30] - 2030-01-02\n", ["v1.2.3"])
    assert "CHANGELOG.md has no section [1.2.3]" in log


def test_the_notes_of_a_release_are_its_section() -> None:
    released = "## [1.2.3] - 2030-01-02\n\n- a\n- b\n\n## [1.2.2] - 2029-01-02\n\n- old\n"
    text = f"# C\n\n## [Unreleased]\n\n- new\n\n{released}"
    assert versions.notes("1.2.3", text) == "- a\n- b"
    assert versions.notes("1.2.2", text) == "- old"
    assert versions.notes(__version__, (ROOT / "CHANGELOG.md").read_text())


# The checks


def test_a_base_without_a_digest_is_refused_with_the_command_that_pins_it() -> None:
    text = "# about\ndocker.io/library/python:3.11-slim-bookworm\n"
    (complaint,) = checks.base_complaints(checks.base_image(text))
    assert "hack/base-image.txt has no digest" in complaint
    assert "make release ARGS=base" in complaint
    once = checks.pinned(text, DIGEST)
    assert checks.base_complaints(checks.base_image(once)) == []
    newer = f"sha256:{'6' * 64}"
    assert checks.pinned(once, newer) == text.replace("bookworm", f"bookworm@{newer}")


@pytest.mark.parametrize("digest", ["", "@sha256:", "@sha256:123", f"@sha256:{'z' * 64}", f"@md5:{'1' * 64}"])
def test_half_a_digest_is_none(digest: str) -> None:
    assert checks.base_complaints(f"python:3.11{digest}")


def test_a_release_needs_somebody_who_answers_for_it() -> None:
    (complaint,) = checks.maintainer_complaints(
        "| *to be filled in by the owner of the repository* | | all |"
    )
    assert "enter who answers" in complaint
    assert checks.maintainer_complaints("| A. Person | @person | all |") == []
    assert checks.MAINTAINERS.exists()


def test_the_file_of_the_base_names_the_default_of_the_dockerfile() -> None:
    name = checks.base_image(checks.BASE.read_text()).partition("@")[0]
    (default,) = re.findall(r"^ARG BASE=(.+)$", (ROOT / "Dockerfile").read_text(), re.M)
    assert name == f"docker.io/library/{default}"


def test_packages_without_a_wheel_for_an_architecture_are_named_with_it() -> None:
    pins = {"a": "1", "b": "2", "c": "3"}

    def has_wheels(names: list[str], architecture: str) -> bool:
        return architecture == "amd64" or not {"b", "c"} & {*names}

    assert checks.wheel_complaints(pins, ("amd64",), has_wheels) == []
    (complaint,) = checks.wheel_complaints(pins, ("amd64", "arm64"), has_wheels)
    assert "on arm64" in complaint
    assert "b 2, c 3." in complaint
    assert "make lock" in complaint


# Third-party notices


def test_the_notices_are_those_of_the_lock() -> None:
    made = notices.notices(notices.LOCK.read_text())
    assert notices.NOTICES.read_text() == made, "make release ARGS=notices"
    heads = set(re.findall(rf"^{notices.RULE}\n(\S+) (\S+)$", made, re.M))
    pins = notices.pins(notices.LOCK.read_text())
    assert len(heads) == len(pins) - len(notices.REMOVED) > 10
    assert {version for _, version in heads} <= {*pins.values()}


def test_packages_that_the_dockerfile_removes_have_no_notice() -> None:
    removed = re.findall(r"-name '([a-z_]+)\*'", (ROOT / "Dockerfile").read_text())
    assert {one.replace("-", "_") for one in notices.REMOVED} == {
        {"markdown_it": "markdown_it_py"}.get(one, one) for one in removed
    }


def test_a_package_of_another_version_is_refused() -> None:
    with pytest.raises(ReleaseError, match="is installed as"):
        notices.installed("msgspec", "0.0.1")
    with pytest.raises(ReleaseError, match="is not installed"):
        notices.installed("no-such-package", "1")


# The files


def test_the_chart_of_a_release_names_image_and_addresses(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    shutil.copytree(ROOT / build.CHART, tree / build.CHART)
    build.chart(RELEASE, tree, DIGEST, tmp_path)
    with tarfile.open(tmp_path / f"nodeagent-{__version__}.tgz") as packed:
        assert packed.getnames()[0] == "nodeagent/Chart.yaml"
        texts = {one.name: packed.extractfile(one).read().decode() for one in packed}  # type: ignore[union-attr]
    values = yaml.safe_load(texts["nodeagent/values.yaml"])
    assert values["image"] == {
        "repository": "registry.example/acme/nodeagent",
        "tag": "",
        "digest": DIGEST,
        "pullPolicy": "IfNotPresent",
    }
    assert values["monitoring"]["runbookUrl"] == f"{RELEASE.source}/blob/v{__version__}/docs/runbook.md"
    about = yaml.safe_load(texts["nodeagent/Chart.yaml"])
    assert about["home"] == RELEASE.source
    assert about["sources"] == [RELEASE.source]
    assert all(one["url"] for one in about["maintainers"])
    notes = about["annotations"]
    assert all(isinstance(one, str) for one in notes.values())
    (image,) = yaml.safe_load(notes["artifacthub.io/images"])
    assert image["image"] == f"registry.example/acme/nodeagent:{__version__}@{DIGEST}"
    assert all(one["url"].startswith("https://") for one in yaml.safe_load(notes["artifacthub.io/links"]))


@pytest.mark.needs("helm_python")
def test_helm_reads_the_packed_chart(tmp_path: Path) -> None:
    import helm_python as helm

    tree = tmp_path / "tree"
    shutil.copytree(ROOT / build.CHART, tree / build.CHART)
    build.chart(RELEASE, tree, DIGEST, tmp_path)
    archive = tmp_path / f"nodeagent-{__version__}.tgz"
    assert helm.lint(str(archive))["errors"] == []
    with helm.Chart.load(str(archive)) as loaded:
        files = loaded.render({"controller": {"enabled": True}}, name="nodeagent", namespace="nodeagent")
    assert images(yaml_of(files)) == {f"registry.example/acme/nodeagent@{DIGEST}"}


def yaml_of(files: Mapping[str, str]) -> str:
    return "\n---\n".join(text for name, text in files.items() if name.endswith(".yaml"))


def images(text: str) -> set[str]:
    return {
        one["image"]
        for manifest in parsed(text)
        for spec in pod_specs(manifest)
        for one in (*spec.get("initContainers", ()), *spec["containers"])
    }


@pytest.mark.slow
@pytest.mark.needs("kubectl")
def test_the_manifests_of_a_release_name_the_image_by_digest(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    shutil.copytree(ROOT / "daemonset", tree / "daemonset")
    build.manifests(RELEASE, tree, DIGEST, tmp_path)
    made = {path.name for path in tmp_path.glob("*.yaml")}
    assert made == {f"nodeagent-{__version__}-{name}.yaml" for name in ("base", "controller", "observe")}
    for path in tmp_path.glob("*.yaml"):
        assert images(path.read_text()) == {f"registry.example/acme/nodeagent@{DIGEST}"}, path.name


def test_an_archive_depends_on_names_contents_and_the_time_of_the_commit_alone(tmp_path: Path) -> None:
    made = []
    for number, (name, mode) in enumerate((("a", 0o600), ("b", 0o755))):
        folder = tmp_path / name
        folder.mkdir()
        for file in ("z.yaml", "Chart.yaml") if number else ("Chart.yaml", "z.yaml"):
            (folder / file).write_text(file)
            (folder / file).chmod(mode)
            os.utime(folder / file, (number, number))
        build.pack(folder, "nodeagent", 1_700_000_000, tmp_path / f"{name}.tgz")
        made.append((tmp_path / f"{name}.tgz").read_bytes())
    assert made[0] == made[1]


@pytest.mark.slow
def test_wheels_and_source_of_one_tree_have_the_same_bytes_each_time(tmp_path: Path) -> None:
    found = []
    for name in ("one", "another"):
        tree, out = tmp_path / name / "tree", tmp_path / name / "out"
        for file in tracked():
            path = file.relative_to(ROOT)
            if (
                path.parts[0] in ("nodeagent", "protos")
                or path.parts[:2] == ("hack", "lab")
                or len(path.parts) == 1
            ):
                (tree / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, tree / path)
        out.mkdir()
        build.packages(tree, out, {**os.environ, "SOURCE_DATE_EPOCH": str(RELEASE.epoch)})
        found.append(build.sums(out))
    assert found[0] == found[1]
    wheel = "-py3-none-any.whl"
    assert found[0].keys() == {
        f"nodeagent-{__version__}{wheel}",
        f"nodeagent_lab-{__version__}{wheel}",
        f"nodeagent-{__version__}.tar.gz",
    }


def test_the_sums_are_those_that_sha256sum_checks(tmp_path: Path) -> None:
    (tmp_path / "a.whl").write_bytes(b"wheel")
    (tmp_path / build.PROVENANCE).write_text("{}")
    (tmp_path / build.IMAGE).mkdir()
    assert build.sums(tmp_path) == {"a.whl": hashlib.sha256(b"wheel").hexdigest()}


def test_the_provenance_names_commit_base_packages_and_each_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_WORKFLOW_REF", raising=False)
    statement = build.provenance(RELEASE, {"a.whl": "1" * 64, RELEASE.image: "5" * 64})
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == "https://slsa.dev/provenance/v1"
    assert {one["name"]: one["digest"]["sha256"] for one in statement["subject"]} == {
        "a.whl": "1" * 64,
        "registry.example/acme/nodeagent": "5" * 64,
    }
    definition: dict[str, Any] = statement["predicate"]["buildDefinition"]
    commit, base, *packages = definition["resolvedDependencies"]
    assert commit["digest"] == {"gitCommit": RELEASE.commit}
    assert base == {"uri": "docker://docker.io/library/python:3.11", "digest": {"sha256": "b" * 64}}
    assert {one["uri"].rpartition("@")[0] for one in packages} >= {"pkg:pypi/grpcio", "pkg:pypi/msgspec"}
    assert statement["predicate"]["runDetails"]["builder"]["id"].startswith(RELEASE.source)
    monkeypatch.setenv("GITHUB_SERVER_URL", "https://git.example")
    monkeypatch.setenv("GITHUB_WORKFLOW_REF", "acme/nodeagent/.github/workflows/release.yml@refs/tags/v1")
    statement = build.provenance(RELEASE, {})
    assert statement["predicate"]["runDetails"]["builder"]["id"].endswith("release.yml@refs/tags/v1")
    assert json.dumps(statement)


# The command line


@pytest.mark.parametrize(
    ("remote", "address"),
    [
        ("https://git.example/acme/nodeagent.git", "https://git.example/acme/nodeagent"),
        ("https://git.example/acme/nodeagent", "https://git.example/acme/nodeagent"),
        ("git@git.example:acme/nodeagent.git", "https://git.example/acme/nodeagent"),
        ("ssh://git@git.example/acme/nodeagent.git", "https://git.example/acme/nodeagent"),
    ],
)
def test_the_address_of_the_repository_comes_from_its_remote(remote: str, address: str) -> None:
    assert command.https(remote) == address


@pytest.mark.parametrize("remote", ["", "/srv/git/nodeagent", "http://git.example/a/b"])
def test_a_remote_without_an_https_address_asks_for_one(remote: str) -> None:
    with pytest.raises(ReleaseError, match="--source"):
        command.https(remote)


def test_a_folder_with_other_files_is_never_emptied(tmp_path: Path) -> None:
    command.empty(tmp_path / "new")
    command.empty(tmp_path / "new")
    (tmp_path / "new" / "IMAGE").write_text("x")
    command.empty(tmp_path / "new")
    assert not list((tmp_path / "new").iterdir())
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(ReleaseError, match="--out"):
        command.empty(tmp_path)
    assert (tmp_path / "mine.txt").exists()


def test_a_missing_tool_is_named_with_the_way_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ReleaseError, match="apt-get install buildah"):
        command.need("buildah")


def test_the_help_teaches_the_steps() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hack.release", "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    for verb in ("version", "base", "notices", "check", "build", "push"):
        assert verb in done.stdout
    assert "docs/project.md" in done.stdout


def test_the_tools_of_a_release_have_the_versions_of_the_tests() -> None:
    """They are installed into the same environment."""

    def pins(name: str) -> dict[str, str]:
        return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", (ROOT / "hack" / name).read_text(), re.M))

    tested, release = pins("requirements.txt"), pins("requirements-release.txt")
    assert "cyclonedx-bom" in release
    assert "cyclonedx-bom" not in tested
    assert {name: tested[name] for name in release if name in tested}.items() <= release.items()
