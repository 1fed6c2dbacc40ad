"""Build the image without a container engine: run the commands of the Dockerfile in a folder and use the result."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from hack.release import checks
from nodeagent import __version__
from nodeagent.commands.plan.controller_settings import REMEDY
from nodeagent_lab.sim.machine import Machine
from tests.support.manifests import ROOT
from tests.support.needs import lack, which

DOCKERFILE = (ROOT / "Dockerfile").read_text()
SITE_PACKAGES_MAX_MIB = 46
"""Measured: 45.5 MiB with byte code: 18 are gRPC, of which 16 are its one library; 12 are nodeagent."""
IMPORT_ALL = """
import importlib, pkgutil, nodeagent
names = [one.name for one in pkgutil.walk_packages(nodeagent.__path__, "nodeagent.")]
for name in names:
    if not name.endswith(".__main__"):
        importlib.import_module(name)
import gufo.snmp.aio, h11, pynvml, pyroute2, rich.console, rich.table, shtab  # what modules import when they need it
print(len(names))
"""


def instructions() -> list[tuple[str, str]]:
    """Yield keyword and arguments of each instruction, with continuation lines joined and without comments."""
    lines = "\n".join(line for line in DOCKERFILE.splitlines() if not line.lstrip().startswith("#"))
    joined = re.sub(r"\\\n", " ", lines)
    return [
        (word, rest)
        for word, _, rest in (line.partition(" ") for line in joined.splitlines() if line.strip())
    ]


def stages() -> list[list[tuple[str, str]]]:
    found: list[list[tuple[str, str]]] = [[]]
    for word, rest in instructions():
        if word == "FROM":
            found.append([])
        found[-1].append((word, rest))
    return found[1:]


def stage(name: str) -> list[tuple[str, str]]:
    (found,) = (one for one in stages() if one[0][1].endswith(f" AS {name}"))
    return found


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create ``/opt/nodeagent`` as the first stage does, with the paths of the image below a folder."""
    base = tmp_path_factory.mktemp("image")
    opt, tmp, bin_ = base / "opt" / "nodeagent", base / "tmp", base / "bin"
    for folder in (opt.parent, tmp, bin_):
        folder.mkdir()
    # Python and pip of the base image.
    for name, command in (("python", sys.executable), ("pip", f"{sys.executable} -m pip")):
        program = bin_ / name
        program.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        program.chmod(0o755)
    execute(stage("build"), base)
    return opt


@pytest.fixture(scope="module")
def laboratory(image: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``/opt/nodeagent`` of the target ``lab``: its stage adds to a copy of the first one."""
    base = tmp_path_factory.mktemp("laboratory")
    subprocess.run(
        ["cp", "-r", *(image.parents[1] / name for name in ("bin", "opt", "tmp")), base], check=True
    )
    opt = base / "opt" / "nodeagent"
    program = opt / "bin" / "nodeagent"
    program.write_text(program.read_text().replace(str(image), str(opt)))
    execute(stage("build-lab"), base)
    return opt


def execute(commands: list[tuple[str, str]], base: Path) -> None:
    """Run COPY and RUN of a stage, with the paths of the image below a folder."""
    bin_ = base / "bin"
    for word, rest in commands:
        if word == "COPY":
            source, target = rest.split()
            into = base / target.lstrip("/")
            subprocess.run(["cp", "-r", ROOT / source, into], check=True)
        if word == "RUN":
            script = re.sub(r"(?<![\w/])/(opt|tmp)/", rf"{base}/\1/", rest)
            environment = {**os.environ, "PATH": f"{bin_}:{os.environ['PATH']}", "VERSION": __version__}
            environment.pop("PYTHONPATH", None)
            done = subprocess.run(
                ["sh", "-ec", script], env=environment, capture_output=True, text=True, check=False, cwd=base
            )
            if "No matching distribution" in done.stderr or "ConnectionError" in done.stderr:
                lack("index", "a package index, to install what the image holds")
            assert done.returncode == 0, done.stderr


def run(image: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the entry point with the environment of the image only."""
    settings = dict(
        pair.split("=", 1)
        for word, rest in stage("runtime")
        if word == "ENV"
        for pair in shlex.split(rest.replace("/opt/nodeagent", str(image)).replace("$PATH", "/usr/bin:/bin"))
    )
    (entry,) = (re.findall(r'"([^"]+)"', rest) for word, rest in stage("runtime") if word == "ENTRYPOINT")
    program = image / "bin" / entry[0]
    return subprocess.run(
        [program, *arguments], env=settings, capture_output=True, text=True, check=False, cwd="/"
    )


def files(image: Path) -> dict[str, int]:
    return {
        str(path.relative_to(image)): path.lstat().st_mtime_ns
        for path in image.rglob("*")
        if not path.is_dir()
    }


@pytest.mark.slow
def test_the_image_runs_and_writes_nothing_into_itself(image: Path, tmp_path: Path) -> None:
    before = files(image)
    assert run(image, "--version").stdout == f"nodeagent {__version__}\n"
    (default,) = (re.findall(r'"([^"]+)"', rest) for word, rest in stage("runtime") if word == "CMD")
    assert "verbs" in run(image, *default).stdout
    Machine.load("dgx-h100").write(tmp_path / "host")
    done = run(image, "scan", "--root", str(tmp_path / "host"))
    assert done.returncode == 0, done.stderr
    assert "nvidia-dgx-h100/nic7" in done.stdout
    sample = str(ROOT / "docs/samples/nodelinks.yaml")
    done = run(image, "trouble", "--from", sample)
    assert done.returncode == 1, "the other verbs are in the image"
    assert done.stderr == f"nodeagent: {sample} has no ConfigMap of the controller: {REMEDY}\n"
    assert files(image) == before


@pytest.mark.slow
def test_each_module_of_the_product_can_be_imported_in_the_image(image: Path) -> None:
    """No module misses a part of a package that the image leaves out."""
    done = subprocess.run(
        [image / "bin" / "python", "-I", "-c", IMPORT_ALL],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 300


def test_no_module_needs_the_certificates_of_grpc_which_the_image_leaves_out() -> None:
    """All of its connections are UNIX sockets. Another one would bring ``root_certificates`` of its own."""
    users = [
        path
        for path in (ROOT / "nodeagent").rglob("*.py")
        if re.search(r"\b(ssl_channel_credentials|secure_channel)\b", path.read_text())
    ]
    assert not users


@pytest.mark.slow
def test_the_image_of_the_laboratory_has_the_demo_and_the_product_has_not(
    image: Path, laboratory: Path, tmp_path: Path
) -> None:
    words = ["demo", "--machine", "two-gpu-two-nic", "--write", str(tmp_path / "machine")]
    done = run(laboratory, *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "machine/sys").is_dir()
    refused = run(image, *words)
    assert refused.returncode == 2
    assert "./hack/lab" in refused.stderr


@pytest.mark.parametrize("made", ["image", "laboratory"])
def test_every_module_is_compiled_without_source_check(made: str, request: pytest.FixtureRequest) -> None:
    site = next(request.getfixturevalue(made).glob("lib/python3*/site-packages"))
    sources = list(site.rglob("*.py"))
    assert len(sources) > 300
    for source in sources:
        compiled = source.parent / "__pycache__" / f"{source.stem}.{sys.implementation.cache_tag}.pyc"
        flags = int.from_bytes(compiled.read_bytes()[4:8], "little")
        assert flags == 1, f"{compiled}: not an unchecked hash"  # PEP 552: hash-based, check_source clear


def test_the_image_holds_no_tool_and_is_small(image: Path) -> None:
    site = next(image.glob("lib/python3*/site-packages"))
    names = {path.name for path in site.iterdir()}
    assert not names & {
        "pip",
        "setuptools",
        "wheel",
        "pytest",
        "kubernetes",
        "scapy",
        "tests",
        "nodeagent_lab",
    }
    assert {"nodeagent", "grpc", "msgspec", "pynvml.py"} <= names
    absent = ("pygments", "markdown_it", "mdurl")
    assert not [name for name in names if name.startswith(absent)], "nor the record of a removed package"
    assert not list(site.rglob("*.pyi"))
    assert not list(site.rglob("roots.pem"))
    size = sum(path.lstat().st_size for path in site.rglob("*") if not path.is_dir())
    assert size < SITE_PACKAGES_MAX_MIB << 20, f"{size >> 20} MiB"


@pytest.mark.parametrize("made", ["image", "laboratory"])
def test_the_licenses_are_in_the_image(made: str, request: pytest.FixtureRequest) -> None:
    opt = request.getfixturevalue(made)
    assert (opt / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    assert "grpcio" in (opt / "THIRD_PARTY_NOTICES").read_text()


def test_the_product_has_nothing_of_the_laboratory() -> None:
    """Each stage from the first to the last one, without those of the target ``lab``."""
    for one in stages():
        if not one[0][1].endswith(("AS lab", "AS build-lab")):
            assert not [rest for _, rest in one if "lab" in re.split(r"[^a-z]+", rest)], one


def test_the_last_stage_copies_only_the_result_of_the_first() -> None:
    assert stages()[-1] == [("FROM", "runtime"), ("COPY", "--from=build /opt/nodeagent /opt/nodeagent")]
    copied = [rest for word, rest in stage("lab") if word == "COPY"]
    assert copied == ["--from=build-lab /opt/nodeagent /opt/nodeagent"]
    last = stage("runtime")
    assert [rest for word, rest in last if word == "USER"] == ["65532:65532"]
    assert {word for word, _ in last} <= {
        "FROM",
        "ARG",
        "LABEL",
        "RUN",
        "ENV",
        "USER",
        "ENTRYPOINT",
        "CMD",
    }
    for word, rest in last:
        if word == "RUN":
            programs = [one.split()[0] for one in rest.split(" && ")]
            assert programs == ["pip", "python"]
            assert rest.startswith("pip uninstall ")
            assert " -m compileall " in rest, "the base has no byte code of the standard library"
    own = {"build", "runtime"}
    assert all(rest.split()[0] in {"${BASE}", *own} for word, rest in instructions() if word == "FROM")


def test_the_labels_follow_oci_and_this_version() -> None:
    labels = " ".join(rest for word, rest in stage("runtime") if word == "LABEL")
    named = set(re.findall(r"org\.opencontainers\.image\.([\w.]+)=", labels))
    # All keys of OCI's annotations for an image but `ref.name`, which belongs to an index.
    assert named == {
        *("title", "description", "licenses", "version", "revision", "created", "authors", "vendor"),
        *("url", "source", "documentation", "base.name", "base.digest"),
    }
    assert set(re.findall(r"ARG VERSION=(.*)\n", DOCKERFILE)) == {__version__}


def test_the_packages_of_the_image_are_the_tested_versions() -> None:
    def pins(name: str) -> set[str]:
        return set(re.findall(r"^([a-z0-9-]+==\S+)", (ROOT / "hack" / name).read_text(), re.M))

    assert pins("requirements-run.txt") <= pins("requirements.txt")
    assert pins("requirements-run.txt") < pins("requirements-demo.txt") < pins("requirements.txt")
    assert len(pins("requirements-run.txt")) > 6


def test_the_build_context_holds_only_copied_files() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    kept = {line[1:] for line in lines if line.startswith("!")}
    assert "*" in lines
    copied = {rest.split()[0] for word, rest in instructions() if word == "COPY"}
    assert kept == {path for path in copied if not path.startswith("--from=")}


@pytest.mark.needs("hadolint")
def test_hadolint_reports_nothing() -> None:
    done = subprocess.run(
        [which("hadolint"), ROOT / "Dockerfile"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")


def built_with(
    builder: str, folder: Path, *arguments: str, environment: Mapping[str, str] | None = None
) -> str:
    """Run the script with a program of this name that prints its own name and its arguments, one on a line."""
    program = folder / builder
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$0" "$@"\n')
    program.chmod(0o755)
    done = subprocess.run(
        [ROOT / "hack" / "image.sh", *arguments],
        env={"PATH": f"{folder}:/usr/bin:/bin", "NODEAGENT_BUILDER": builder, **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


BUILDERS = ("docker", "podman", "buildah", "buildctl")
PINNED = f"registry.example/python:3.11@sha256:{'a' * 64}"


@pytest.mark.parametrize("builder", BUILDERS)
def test_each_builder_gets_the_base_its_digest_and_the_address(builder: str, tmp_path: Path) -> None:
    plain = built_with(builder, tmp_path)
    base = checks.base_image(checks.BASE.read_text())
    assert f"BASE={base}" in plain.replace("build-arg:", "").splitlines()
    more = {"NODEAGENT_BASE": PINNED, "NODEAGENT_SOURCE": "https://git.example/o/nodeagent"}
    said = built_with(builder, tmp_path, environment=more).replace("build-arg:", "").splitlines()
    for wanted in (f"BASE={PINNED}", f"BASE_DIGEST=sha256:{'a' * 64}", f"SOURCE={more['NODEAGENT_SOURCE']}"):
        assert wanted in said


@pytest.mark.parametrize("builder", BUILDERS)
def test_the_script_works_with_each_builder(builder: str, tmp_path: Path) -> None:
    output = built_with(builder, tmp_path, "registry.example/nodeagent:1", "--extra")
    said = output.splitlines()
    assert Path(said[0]).name == builder
    assert "--extra" in said
    assert f"VERSION={__version__}" in output
    assert "registry.example/nodeagent:1" in output


@pytest.mark.parametrize("builder", BUILDERS)
def test_each_builder_makes_the_name_that_the_kubelet_looks_for(builder: str, tmp_path: Path) -> None:
    """docker and buildctl complete a short name themselves; podman and buildah would put localhost/ before it."""
    completed = "docker.io/" if builder in ("podman", "buildah") else ""
    library = "docker.io/library/" if completed else ""
    for name, wanted in (
        (f"nodeagent:{__version__}", f"{library}nodeagent:{__version__}"),
        ("team/nodeagent:1", f"{completed}team/nodeagent:1"),
        ("registry.example/nodeagent:1", "registry.example/nodeagent:1"),
        ("localhost:5000/nodeagent:1", "localhost:5000/nodeagent:1"),
        ("localhost/nodeagent:1", "localhost/nodeagent:1"),
        ("registry:5000/team/nodeagent:1", "registry:5000/team/nodeagent:1"),
    ):
        lines = built_with(builder, tmp_path, name).splitlines()
        assert wanted in lines or f"type=image,name={wanted}" in lines


@pytest.mark.parametrize("builder", BUILDERS)
def test_the_script_builds_the_laboratory_with_each_builder(builder: str, tmp_path: Path) -> None:
    lines = built_with(builder, tmp_path, "--lab").splitlines()
    assert any(line.endswith(f"nodeagent-lab:{__version__}") for line in lines)
    option = ["--opt", "target=lab"] if builder == "buildctl" else ["--target", "lab"]
    assert option in [lines[number : number + 2] for number in range(len(lines))]
    assert "lab" not in built_with(builder, tmp_path).replace(str(tmp_path), "")


@pytest.mark.parametrize("name", ["", " ", "a b", "--push", "a;b", "$(id)", "a:1\nb"])
def test_what_is_no_name_of_an_image_is_refused(name: str) -> None:
    done = subprocess.run([ROOT / "hack/image.sh", name], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f'"{name}" is no NAME:TAG' in done.stderr


PROBES = {"docker": "version", "podman": "info", "buildah": "info", "buildctl": "debug"}


def chosen(answering: tuple[str, ...], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the script with all builders installed, of which these answer. The one that builds prints its name."""
    for name in ("dirname", "sed", "git"):
        (folder / name).symlink_to(which(name) or name)
    for builder, probe in PROBES.items():
        program = folder / builder
        answer = 0 if builder in answering else 1
        program.write_text(f'#!/bin/sh\n[ "$1" = {probe} ] && exit {answer}\necho "$0 $1"\n')
        program.chmod(0o755)
    script = ["/bin/sh", ROOT / "hack" / "image.sh"]
    return subprocess.run(script, env={"PATH": str(folder)}, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("builder", BUILDERS)
def test_the_first_builder_that_answers_builds(builder: str, tmp_path: Path) -> None:
    """The command of docker is often there without its daemon."""
    done = chosen(BUILDERS[BUILDERS.index(builder) :], tmp_path)
    assert (done.returncode, done.stdout) == (0, f"{tmp_path}/{builder} build\n"), done.stderr


def test_builders_that_do_not_answer_are_named(tmp_path: Path) -> None:
    done = chosen((), tmp_path)
    assert done.returncode == 1
    assert "docker podman buildah buildctl cannot be used here. Start its daemon" in done.stderr


def test_without_a_builder_the_script_names_those_it_can_use(tmp_path: Path) -> None:
    for name in ("dirname", "sed", "git"):
        (tmp_path / name).symlink_to(which(name) or name)
    done = subprocess.run(
        ["/bin/sh", ROOT / "hack" / "image.sh"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "docker, podman, buildah or buildctl" in done.stderr


@pytest.mark.parametrize(("base", "said"), [(PINNED.partition("@")[0], True), (PINNED, False)])
def test_a_base_without_a_digest_is_told(base: str, said: bool, tmp_path: Path) -> None:
    (tmp_path / "docker").write_text("#!/bin/sh\n")
    (tmp_path / "docker").chmod(0o755)
    done = subprocess.run(
        [ROOT / "hack" / "image.sh"],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "NODEAGENT_BUILDER": "docker", "NODEAGENT_BASE": base},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert (f"The base {base} has no digest" in done.stderr) is said
