"""The pages name existing files, commands, overlays and messages, and valid configurations."""

from __future__ import annotations

import argparse
import ast
import fnmatch
import os
import pkgutil
import re
import shlex
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml

from nodeagent import cli
from nodeagent.agent_config import load
from nodeagent.commands.feature_table import FEATURES
from tests.support.findings import one_item
from tests.support.kubernetes_schemas import NEWEST, OLDEST, complaints
from tests.support.manifests import (
    DAEMONSET,
    OVERLAYS,
    ROOT,
    Manifest,
    configurations,
    parsed,
    pod_specs,
    rendered,
)
from tests.support.syntax_trees import no_garbage_collection

PAGES = sorted(
    [
        *(ROOT / "docs").rglob("*.md"),
        *(path for path in DAEMONSET.rglob("*.md")),
    ]
)
OURS = ("install", "migration", "security", "troubleshooting", "upgrade")


def verbs() -> set[str]:
    (parts,) = (one for one in cli._parser()._actions if isinstance(one, argparse._SubParsersAction))
    return set(parts.choices)


@one_item("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_its_links_exist(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


ANCHORED = [*PAGES, *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG"))]


def anchors(page: Path) -> set[str]:
    """The anchor of each heading, as GitHub makes it from the heading's text."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)
    heads = (re.sub(r"[^\w\s-]", "", head).strip().lower() for head in re.findall(r"^#+ (.+)$", text, re.M))
    return {re.sub(r"\s", "-", head) for head in heads}


@one_item("page", ANCHORED, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_headings_that_its_links_name_exist(page: Path) -> None:
    for path, anchor in re.findall(r"\]\((?!https?://)([^)#\s]*)#([^)\s]+)\)", page.read_text()):
        assert anchor in anchors(page.parent / path if path else page), f"{path}#{anchor}"


def test_every_page_is_one_click_from_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    linked = {(ROOT / "docs" / path).resolve() for path in re.findall(r"\]\(([^)#\s]+)", index)}
    assert {page for page in (ROOT / "docs").rglob("*.md") if page.name != "README.md"} <= linked


@one_item("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_that_it_names_exist(page: Path) -> None:
    text = page.read_text()
    named = set(re.findall(r"(?:^|`|-- )nodeagent ([a-z][a-z-]+)\b", text, re.M))
    assert named <= verbs()


@one_item("name", OURS)
def test_the_folders_that_it_names_exist(name: str) -> None:
    text = (ROOT / "docs" / f"{name}.md").read_text()
    for path in re.findall(r"`((?:daemonset|hack|tests|overlays)/[\w./-]+)`", text):
        found = DAEMONSET / path if path.startswith("overlays") else ROOT / path
        assert found.exists(), path


@one_item("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_code_that_it_names_exists(page: Path) -> None:
    for path in re.findall(r"`((?:nodeagent|tests|hack|protos)/[\w./-]+)`", page.read_text()):
        assert (ROOT / path).exists(), path


@one_item("page", [ROOT / "README.md", *PAGES], ids=lambda page: str(page.relative_to(ROOT)))
def test_the_command_lines_that_it_shows_are_valid(page: Path) -> None:
    """Lines that start with ``nodeagent`` and a command, up to the explanation beside it."""
    for line in re.findall(r"^nodeagent [^\n]*$", page.read_text(), re.M):
        command = re.split(r" {2,}| \|", line, maxsplit=1)[0]
        if not re.match(r"nodeagent \w+(?:[.:]| is | has | are )", command):  # a sentence
            cli._parser().parse_args(shlex.split(command)[1:])


@one_item("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_python_names_that_it_names_exist(page: Path) -> None:
    for name in re.findall(r"`(nodeagent(?:_hall|_lab)?(?:\.\w+)+)`", page.read_text()):
        if not name.startswith(("nodeagent.io", "nodeagent.yaml", "nodeagent.lock")):
            pkgutil.resolve_name(name)


@cache
def messages() -> dict[Path, list[str]]:
    """The text literals of each module without docstrings, and the messages of the admission policies.

    Each is on one line; a field of an f-string is ``…``. Adjacent literals are one text, as in Python.
    """
    texts: dict[Path, list[str]] = {}
    for path in sorted(
        path for folder in ("nodeagent", "hack/lab") for path in (ROOT / folder).rglob("*.py")
    ):
        with no_garbage_collection():
            texts[path] = [*literals(ast.parse(path.read_text()))]
    for path in sorted((DAEMONSET / "base").rglob("*.yaml")):
        texts[path] = re.findall(r"messageExpression: '(.*)'", path.read_text())
    return texts


def literals(tree: ast.Module) -> Iterator[str]:
    documentation = set()
    for node in ast.walk(tree):  # a statement comes before its expression
        if isinstance(node, ast.Expr):
            documentation.add(id(node.value))
        elif id(node) in documentation:
            continue
        elif isinstance(node, ast.JoinedStr):
            parts = [str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values]
            yield " ".join("".join(parts).split())
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield " ".join(node.value.split())


def quotations(text: str) -> list[str]:
    """Texts in double quotes, outside code, in the cells of tables."""
    cells = [cell for line in text.splitlines() if line.startswith("|") for cell in line.split(" | ")]
    return [quote for cell in cells for quote in re.findall(r'"([^"]+)"', re.sub(r"`[^`]*`", "", cell))]


@one_item("page", ["troubleshooting.md", "switches.md"])
def test_the_messages_that_it_quotes_exist(page: str) -> None:
    """A quotation may leave out parts (``…``); each part of it stands in a text of the same module."""
    quoted = quotations((ROOT / "docs" / page).read_text())
    assert len(quoted) > 4
    modules = messages().values()
    for quote in quoted:
        parts = [part.strip(" .") for part in quote.split("…") if part.strip(" .")]
        assert any(all(any(part in text for text in texts) for part in parts) for texts in modules), (
            f"docs/{page} quotes {quote!r}, which is no message of the program"
        )


def test_every_configuration_in_the_migration_notes_is_valid() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "migration.md").read_text(), re.S)
    assert len(blocks) == 4
    for block in blocks:
        head = "apiVersion: nodeagent.io/v1alpha1\nkind: NodeAgentConfig\n"
        assert load(head + block, name="migration.md").resources
        assert yaml.safe_load(block)["resourcePrefix"]


def objects(page: Path) -> list[Manifest]:
    """The whole objects in the YAML blocks of a page; a part of one has no apiVersion."""
    blocks = re.findall(r"```yaml\n(.*?)```", page.read_text(), re.S)
    every = [one for block in blocks for one in yaml.safe_load_all(block)]
    return [one for one in every if isinstance(one, dict) and {"apiVersion", "kind"} <= one.keys()]


READ_BY_OTHERS = (
    "kustomize.config.k8s.io/",
    "config.kueue.x-k8s.io/",
    "kubelet.config.k8s.io/",
    "nodeagent.io/",
)
"""Files of programs, which no API server stores."""


@pytest.mark.needs("kubernetes_validate")
def test_each_object_on_a_page_is_valid_as_it_is_written() -> None:
    found = [(page, one) for page in PAGES for one in objects(page)]
    stored = [(page, one) for page, one in found if not one["apiVersion"].startswith(READ_BY_OTHERS)]
    assert {"docs/tutorial.md", "docs/first-pod.md"} <= {str(page.relative_to(ROOT)) for page, _ in stored}
    for page, one in stored:
        is_new = one["kind"] == "PodGroup"
        for version in (NEWEST,) if is_new else (OLDEST, NEWEST):
            assert complaints(one, version) == [], f"{page}: {one['kind']}"


@pytest.mark.needs("kubectl")
def test_the_tutorial_writes_a_valid_configuration_and_asks_for_what_the_overlay_offers(
    tmp_path: Path,
) -> None:
    page = ROOT / "docs" / "tutorial.md"
    written = dict(re.findall(r"^cat >(\S+) <<'EOF'\n(.*?)^EOF$", page.read_text(), re.M | re.S))
    for name, text in written.items():
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text.replace("../daemonset", os.path.relpath(DAEMONSET, file.parent.resolve())))
    assert "\nkubectl apply -k try\n" in page.read_text()
    config, _ = configurations(parsed(rendered(tmp_path / "try")))
    assert config.cluster.evict.after_seconds == 20
    assert (config.cluster.evict.enabled, config.cluster.evict.taint) == (True, True)
    (job,) = objects(page)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    prefixes = {name.partition("/")[0] for name in container["resources"]["limits"]}
    assert prefixes == {config.resource_prefix}
    names = {one.name for one in config.resources}
    for name in container["resources"]["limits"]:
        word = name.partition("/")[2]
        assert word in names or re.sub(r"[0-9]+$", "{rail}", word) in names, name


@pytest.mark.needs("kubectl")
@pytest.mark.parametrize("page", ["README.md", "docs/install.md"])
def test_the_applied_manifests_run_the_pushed_image(page: str) -> None:
    text = (ROOT / page).read_text()
    (pushed,) = set(re.findall(r"docker push (\S+)", text))
    (line,) = set(re.findall(r"^(kubectl kustomize .*) \| kubectl apply -f -$", text, re.M))
    done = subprocess.run(["sh", "-ec", line], cwd=ROOT, capture_output=True, text=True, check=True)
    images = {
        one["image"]
        for spec in (spec for manifest in parsed(done.stdout) for spec in pod_specs(manifest))
        for one in (*spec.get("initContainers", ()), *spec["containers"])
    }
    assert images == {pushed}
    assert f"--set image.repository={pushed.rpartition(':')[0]}" in text


def test_every_overlay_and_component_is_listed() -> None:
    for page in ("daemonset/README.md", "docs/install.md"):
        text = (ROOT / page).read_text()
        for overlay in OVERLAYS:
            assert overlay in text, f"{page} does not list {overlay}"
        for row in FEATURES:
            assert re.search(rf"^\|.*`{row.name}`", text, re.M), f"{page} does not list {row.name}"


ENDED = re.compile(rf"overlays/(?:{'|'.join(row.name for row in FEATURES)}|node-pool)(?![\w-])")


def test_only_the_page_of_upgrades_and_the_evidence_name_an_overlay_that_has_ended() -> None:
    """The evidence names what ran at its date."""
    here = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    allowed = ("docs/upgrade.md", "docs/reference/verified.md", "daemonset/overlays/", "tests/")
    named = [
        path
        for path in here
        if not path.startswith(allowed) and path.endswith((".md", ".py", ".yaml", ".yml", ".sh", ".tpl"))
        if ENDED.search((ROOT / path).read_text())
    ]
    assert named == []


VAGUE = re.compile(r"(?<!Node )\b(?:problem|issue|complaint)s?\b(?! \d| Detector)", re.I)


@one_item("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_it_says_fault_reason_anomaly_finding_or_remark_and_no_vaguer_word(page: Path) -> None:
    """``docs/glossary.md`` has these words. Code, links and names of other programs are left out."""
    if page.name == "glossary.md" or "node-problem-detector" in str(page):
        return
    text = re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)|[\w-]+-detector", "", page.read_text(), flags=re.S)
    if page.parent.name != "decisions":  # a form for issues of the forge
        assert VAGUE.findall(text) == []


def test_reports_are_read_in_their_namespace() -> None:
    """NodeLinks are in the namespace of the agents, so `kubectl get nodelinks` alone shows nothing."""
    shown = [line for page in PAGES for line in re.findall(r"kubectl get nodelinks[^`\n]*", page.read_text())]
    assert len(shown) > 5
    assert [line for line in shown if not re.search(r" -n nodeagent| -A", line)] == []


def test_the_page_of_hack_has_each_file_of_it_and_no_other() -> None:
    page = (ROOT / "hack" / "README.md").read_text()
    named = {
        one for row in re.findall(r"^\| (`[^|]+) \|", page, re.M) for one in re.findall(r"`([^`]+)`", row)
    }
    files = subprocess.run(["git", "ls-files", "hack"], cwd=ROOT, capture_output=True, text=True, check=True)
    entries = {line.split("/")[1] + "/" * (line.count("/") > 1) for line in files.stdout.splitlines()}
    matched = {name: {one for one in entries if fnmatch.fnmatchcase(one, name)} for name in named}
    assert set().union(*matched.values()) == entries - {"README.md", "__init__.py"}
    assert all(matched.values()), matched
