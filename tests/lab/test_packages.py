"""Two packages from one repository: the product works without the laboratory, which adds its verbs."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

import nodeagent
import nodeagent_lab
from nodeagent import cli
from nodeagent.commands import SEPARATE, VERBS, joined
from nodeagent.commands.plan.controller_settings import REMEDY
from tests.support.manifests import ROOT

pytestmark = pytest.mark.slow

PATH = "import sys; sys.path[:0] = sys.argv.pop(1).split(':'); "
IMPORT_ALL = (
    PATH
    + """
from importlib import import_module
from pathlib import Path

site = Path(sys.path[0])
for path in sorted(site.rglob("*.py")):
    if path.name != "__main__.py":
        import_module(".".join(path.relative_to(site).with_suffix("").parts).removesuffix(".__init__"))
print(*sys.modules)
"""
)
MAIN = PATH + "from nodeagent import cli; sys.exit(cli.main())"


@pytest.fixture(scope="module")
def dependencies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages of this environment without those of this repository."""
    folder = tmp_path_factory.mktemp("dependencies")
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if "nodeagent" not in path.name:
            (folder / path.name).symlink_to(path)
    return folder


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheels, built from the files of a clean clone, each in a folder of its own."""
    base = tmp_path_factory.mktemp("packages")
    tracked = [
        "git",
        "ls-files",
        "-z",
        "nodeagent",
        "hack/lab",
        "pyproject.toml",
        "README.md",
        "LICENSE",
    ]
    names = subprocess.run(tracked, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        target = base / "clone" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    build += ["--wheel-dir", str(base), ".", "./hack/lab"]
    subprocess.run(build, cwd=base / "clone", check=True, timeout=170)
    folders = {}
    for wheel in base.glob("*.whl"):
        folders[wheel.name.partition("-")[0]] = base / wheel.stem
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(base / wheel.stem)
    return folders


def run(code: str, path: list[Path], *words: str) -> subprocess.CompletedProcess[str]:
    """In Python with the standard library and these folders alone."""
    return subprocess.run(
        [sys.executable, "-ISc", code, ":".join(map(str, path)), *words],
        cwd=path[0], capture_output=True, text=True, check=False, timeout=170,
    )  # fmt: skip


def test_each_module_of_the_wheel_is_imported_without_the_laboratory(
    installed: dict[str, Path], dependencies: Path
) -> None:
    done = run(IMPORT_ALL, [installed["nodeagent"], dependencies])
    assert (done.returncode, done.stderr) == (0, "")
    modules = {name for name in done.stdout.split() if name.partition(".")[0] == "nodeagent"}
    assert len(modules) > 300
    assert "nodeagent_lab" not in done.stdout.split()


def test_the_wheel_of_the_product_holds_no_stand_in(installed: dict[str, Path]) -> None:
    assert {path.name for path in installed["nodeagent"].iterdir()} == {
        "nodeagent",
        f"nodeagent-{nodeagent.__version__}.dist-info",
    }
    folders = {path.name for path in installed["nodeagent"].rglob("*") if path.is_dir()}
    assert not folders & {"sim", "demo", "machines", "lab"}


@pytest.mark.parametrize("verb", SEPARATE)
def test_a_verb_of_a_package_that_is_missing_is_one_line_that_says_how_to_install_it(
    verb: str, installed: dict[str, Path], dependencies: Path
) -> None:
    path = [installed["nodeagent"], dependencies]
    done = run(MAIN, path, verb, "--help")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "pip install . ./hack/lab," in done.stderr


def test_the_help_of_the_product_lists_its_own_verbs_and_names_those_that_are_missing(
    installed: dict[str, Path], dependencies: Path
) -> None:
    shown = run(MAIN, [installed["nodeagent"], dependencies], "--help")
    assert shown.returncode == 0
    assert not [verb for verb in SEPARATE if f"\n    {verb}  " in shown.stdout]
    missing = shown.stdout.partition("not installed: ")[2].partition("each says")[0]
    assert tuple(re.findall(r"\w+", missing)) == SEPARATE


def test_the_product_alone_reads_the_reports_of_a_fabric(
    installed: dict[str, Path], dependencies: Path
) -> None:
    path = [installed["nodeagent"], dependencies]
    sample = ROOT / "docs/samples/nodelinks.yaml"
    done = run(MAIN, path, "plan", "--from", str(sample))
    assert done.returncode == 0
    assert done.stderr == f"nodeagent: {sample} has no ConfigMap of the controller: {REMEDY}\n"


def test_with_the_laboratory_the_demo_is_a_verb_like_the_others(
    installed: dict[str, Path], dependencies: Path, tmp_path: Path
) -> None:
    path = [*installed.values(), dependencies]
    assert "  nodeagent demo  " in run(MAIN, path, "--help").stdout
    done = run(MAIN, path, "demo", "--nodes", "4", "--write", str(tmp_path / "out"))
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "out/nodelinks.yaml").exists()


def test_both_packages_have_one_version() -> None:
    project = tomllib.loads((ROOT / "hack/lab/pyproject.toml").read_text())["project"]
    assert nodeagent_lab.__version__ == nodeagent.__version__
    assert project["dependencies"] == [f"nodeagent=={nodeagent.__version__}"]


def test_the_verbs_of_other_packages_are_those_whose_absence_is_explained() -> None:
    found = {name: verb.module.partition(".")[0] for name, verb in joined().items()}
    assert found == dict.fromkeys(SEPARATE, "nodeagent_lab")
    assert not {*SEPARATE} & {*VERBS}


def test_a_verb_of_the_product_looks_for_no_other_package() -> None:
    """Reading the metadata of all packages would delay the start of the daemons."""
    code = "import sys; from nodeagent import cli; cli._parser('run'); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert "nodeagent.commands.run" in done.stdout.split()
    assert "importlib.metadata" not in done.stdout.split()
    assert "demo" in cli._parser().format_help()
