"""The files that a forge shows to whoever reports, contributes or decides. GitHub reads them from .github."""

import re

import pytest
import yaml

from nodeagent import __version__
from tests.support.manifests import ROOT

FORGE = ROOT / ".github"


def linked(page):
    return [target.partition("#")[0] for target in re.findall(r"\]\(([^)]+)\)", page.read_text())]


@pytest.mark.parametrize("name", ["SECURITY", "CODE_OF_CONDUCT", "MAINTAINERS", "GOVERNANCE"])
def test_a_community_file_is_found_from_the_index_and_its_links_lead_somewhere(name):
    page = FORGE / f"{name}.md"
    assert f"../.github/{name}.md" in linked(ROOT / "docs" / "README.md")
    local = [target for target in linked(page) if not target.startswith("https://")]
    assert [target for target in local if not (FORGE / target).resolve().exists()] == []


def test_each_issue_form_asks_only_questions_that_the_forge_knows():
    """Elements and keys of GitHub's syntax for issue forms."""
    keys = {
        "markdown": {"value"},
        "textarea": {"label", "description", "placeholder", "value", "render"},
        "input": {"label", "description", "placeholder", "value"},
        "dropdown": {"label", "description", "multiple", "options", "default"},
        "checkboxes": {"label", "description", "options"},
    }
    forms = [path for path in (FORGE / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml"]
    assert forms
    for path in forms:
        form = yaml.safe_load(path.read_text())
        assert form.keys() <= {"name", "description", "title", "labels", "assignees", "body"}
        assert form["name"]
        assert form["description"]
        asked = [part for part in form["body"] if part["type"] != "markdown"]
        assert len({part["id"] for part in asked}) == len(asked)
        for part in form["body"]:
            assert part["attributes"].keys() <= keys[part["type"]], (path.name, part)


def test_versions_with_fixes_are_stated_for_the_version_of_this_tree():
    assert f"({__version__.partition('.')[0]}.x)" in (FORGE / "SECURITY.md").read_text()
