"""README.md, CONTRIBUTING.md, CHANGELOG.md and docs/ agree with the code."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from hack.docs.settings import settings_table
from nodeagent import cli
from nodeagent.agent_config import Config
from nodeagent.commands import VERBS, joined_verbs
from tests.support import golden
from tests.support.findings import one_item
from tests.support.kubernetes_schemas import NEWEST, OLDEST, complaints
from tests.support.manifests import Manifest, parsed, rendered

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
COMMANDS = ROOT / "docs" / "reference" / "commands.md"
SETTINGS = ROOT / "docs" / "reference" / "configuration.md"
TABLE = re.compile(r"(?<=<!-- configuration: begin -->\n).*?(?=<!-- configuration: end -->)", re.S)


@pytest.mark.golden("docs/reference/configuration.md")
def test_the_configuration_table_is_current() -> None:
    table = f"\n{settings_table(Config)}\n"
    golden.same_between(SETTINGS, "<!-- configuration: begin -->\n", "<!-- configuration: end -->", table)


def test_the_first_screen_has_both_pictures_and_the_first_command_shows_the_map() -> None:
    first, command = README.read_text().split("```")[:2]
    assert re.findall(r"!\[.+\]\((.+)\)", first) == ["docs/pictures/map.png", "docs/pictures/node.png"]
    assert len(first.splitlines()) < 30
    assert command.strip().startswith('make demo ARGS="--nodes 64 --ui"')
    assert command.strip().count("\n") == 2, "three commands"


def test_the_commands_to_try_are_there_after_the_first_of_them_in_a_fresh_copy() -> None:
    """`make demo` makes an environment of its own where that of the tests is not there."""
    block = README.read_text().split("```")[1]
    (place,) = re.findall(r"^DEMO := .*,(\S+)\)$", (ROOT / "Makefile").read_text(), re.M)
    started = [line.split()[0] for line in block.strip().splitlines()]
    assert started == ["make", "make", f"{place}/bin/nodeagent"]


def test_the_front_pages_are_short() -> None:
    words = {name: len((ROOT / name).read_text().split()) for name in ("README.md", "CONTRIBUTING.md")}
    assert words["README.md"] <= 900, words
    assert words["CONTRIBUTING.md"] <= 1500, words


def limits(pod: Manifest) -> dict[str, int]:
    (container,) = pod["spec"]["containers"]
    found: dict[str, int] = container["resources"]["limits"]
    return found


@pytest.mark.needs("kubernetes_validate")
def test_the_pod_of_the_readme_is_valid() -> None:
    (text,) = re.findall(r"^kubectl apply -f - <<EOF\n(.*?)^EOF$", README.read_text(), re.M | re.S)
    pod = yaml.safe_load(text.replace("$prefix", "nvidia-dgx-h100"))
    for version in (OLDEST, NEWEST):
        assert complaints(pod, version) == []
    rails = {f"nvidia-dgx-h100/nic{rail}": 1 for rail in range(8)}
    assert limits(pod) == {"nvidia-dgx-h100/gpu-mem": 16, **rails}


def test_the_prefix_of_the_readme_is_that_of_the_resource_and_not_of_a_label() -> None:
    """`node-conditions` sets the label nodeagent.io/gpu-mem-enforcement, which stands before the resources."""
    (command,) = re.findall(r"^prefix=\$\(kubectl get nodes -o json \| (.*)\)$", README.read_text(), re.M)
    plain = {"metadata": {"labels": {}}, "status": {"allocatable": {"cpu": "8"}}}
    labels = {"nodeagent.io/gpu-mem-enforcement": "none", "nodeagent.io/gpu-mem-largest": "79"}
    offered = {"allocatable": {"cpu": "8", "gpu.example.com/gpu-mem": "632", "gpu.example.com/nic0": "8"}}
    nodes = {"items": [plain, {"metadata": {"labels": labels}, "status": offered}]}
    done = subprocess.run(
        ["sh", "-c", command], input=json.dumps(nodes, indent=4), capture_output=True, text=True, check=True
    )
    assert done.stdout == "gpu.example.com\n"


@pytest.mark.needs("kubernetes_validate")
def test_the_claim_of_the_readme_asks_for_the_devices_of_its_pod(capsys: pytest.CaptureFixture[str]) -> None:
    (words,) = re.findall(r"-- nodeagent (claim [^|]+)", README.read_text())
    assert cli.main(shlex.split(words)) == 0
    template, pod = yaml.safe_load_all(capsys.readouterr().out)
    assert complaints(template, NEWEST) == complaints(pod, NEWEST) == []
    requests = [one["exactly"] for one in template["spec"]["spec"]["devices"]["requests"]]
    assert requests[0]["capacity"] == {"requests": {"memory": "16Gi"}}
    assert [one["deviceClassName"] for one in requests] == ["gpu-share", *(f"nic{rail}" for rail in range(8))]
    (by_name,) = re.findall(r"^metadata: \{name: (\w+)\}$", README.read_text(), re.M)
    assert pod["metadata"]["name"] == by_name, "one command waits for either of them"


@pytest.mark.needs("kubectl")
def test_the_readme_names_what_its_example_of_a_cluster_needs_first() -> None:
    """An API server refuses the objects whose definition it lacks, and kubectl ends with an error."""
    objects = parsed(rendered(ROOT / "daemonset/examples/cluster"))
    defined = {one["spec"]["group"] for one in objects if one["kind"] == "CustomResourceDefinition"}
    groups = {one["apiVersion"].partition("/")[0] for one in objects if "/" in one["apiVersion"]}
    others = {group for group in groups - defined if "." in group and not group.endswith(".k8s.io")}
    assert others == {"monitoring.coreos.com"}
    text = " ".join(README.read_text().split())
    assert "Install the Prometheus Operator first" in text


def test_the_commands_of_the_page_exist(capsys: pytest.CaptureFixture[str]) -> None:
    lines = re.findall(r"^nodeagent ((?:[a-z]+ ?)+)", COMMANDS.read_text(), re.M)
    assert len(lines) > 5
    for line in lines:
        with pytest.raises(SystemExit) as end:
            cli._parser().parse_args([*line.split(), "--help"])
        assert end.value.code == 0, line
    assert "usage: nodeagent" in capsys.readouterr().out


def test_the_page_of_commands_lists_every_verb() -> None:
    commands = COMMANDS.read_text().partition("\n## Exit codes\n")[0]
    listed = re.findall(r"^nodeagent ([a-z]+)", commands, re.M)
    (verbs,) = (one for one in cli._parser()._actions if isinstance(one, argparse._SubParsersAction))
    assert list(verbs.choices) == [*VERBS, *joined_verbs()]
    assert set(verbs.choices) == set(listed), "list it in docs/reference/commands.md"


@one_item(
    "page",
    [
        *("README.md", "CONTRIBUTING.md", "CHANGELOG.md"),
        *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")),
        *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "daemonset").rglob("README.md")),
    ],
)
def test_links_between_the_documents_exist(page: str) -> None:
    path = ROOT / page
    for target in re.findall(r"\]\(([^)#\s]+)", path.read_text()):
        assert "://" in target or (path.parent / target).exists(), f"{page}: {target}"


@one_item(
    "page",
    ["CONTRIBUTING.md", "docs/design.md", "docs/invariants.md", "docs/recipes.md"],
)
def test_the_files_that_the_documents_name_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    named = re.findall(r"`((?:nodeagent|tests|hack|protos|docs|daemonset)/[\w./-]+)`", text)
    assert named
    assert not [name for name in named if not (ROOT / name).exists()]


def test_no_text_names_the_project_in_a_package_index() -> None:
    """`pip install nodeagent` would install the package of another owner."""
    files = [
        README,
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "nodeagent").rglob("*.py"),
        *(ROOT / "hack/lab").rglob("*.py"),
    ]
    named = re.compile(
        r"(?<!helm )(?<!un)install nodeagent(\[|\b(?![/-]))|nodeagent\[(gpu|snmp|kubeconfig)\]"
    )
    assert len(files) > 100
    assert not {
        (file.name, line) for file in files for line in file.read_text().splitlines() if named.search(line)
    }


def test_the_wheel_of_the_page_of_installation_has_the_whole_command(tmp_path: Path) -> None:
    """Built as on the page, but without a download; its file runs from a folder of its own."""
    from nodeagent import __version__

    assert (ROOT / "docs/install.md").read_text().count(f"dist/*-{__version__}-*.whl") == 1
    words = [
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(tmp_path),
        str(ROOT),
    ]
    subprocess.run([sys.executable, *words], check=True, timeout=240)
    (wheel,) = tmp_path.glob(f"*-{__version__}-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    code = "import sys; sys.path.insert(0, sys.argv.pop(1)); from nodeagent import cli; print(cli.__file__); cli.main()"
    words = ["-Pc", code, str(tmp_path / "site"), "plan", "--from", str(ROOT / "docs/samples/nodelinks.yaml")]
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=True, timeout=240, cwd=tmp_path
    )
    assert done.stdout.startswith(str(tmp_path / "site"))
    assert "leaf" in done.stdout


def test_every_package_has_a_reason() -> None:
    """The table of dependencies and pyproject.toml name the same packages."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["gpu"]]
    dependencies = (ROOT / "docs" / "decisions" / "dependencies.md").read_text()
    rows = "\n".join(line.split("|")[1] for line in dependencies.splitlines() if line.startswith("|"))
    for requirement in wanted:
        assert f"`{re.split('[<>=]', requirement)[0].lower()}`" in rows.lower(), requirement
    for requirement in project["optional-dependencies"]["dev"]:
        name = re.split("[<>=]", requirement)[0]
        assert name.startswith("types-") or f"`{name}`" in dependencies, requirement
