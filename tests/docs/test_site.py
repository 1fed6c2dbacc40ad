"""The site: each page is in its navigation, and links lead to files of the repository. `make site` builds it."""

import pytest
import yaml

from hack.site import build
from tests.support.manifests import ROOT


def pages(part):
    for value in part if isinstance(part, list) else part.values():
        if isinstance(value, str):
            yield value
        else:
            yield from pages(value)


def test_each_page_is_in_the_navigation_once():
    nav = yaml.safe_load((ROOT / "hack/site/mkdocs.yml").read_text())["nav"]
    listed = list(pages(nav))
    assert len(set(listed)) == len(listed)
    assert [page for page in listed if not (ROOT / page).is_file()] == []
    assert {str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md")} <= set(listed)


def test_no_page_has_a_diagram_that_the_site_would_show_as_text():
    """Mermaid needs a script, which the theme loads from the internet."""
    paths = [path for part in build.PARTS for path in (ROOT / part, *(ROOT / part).rglob("*"))]
    pages = [path for path in paths if path.suffix == ".md"]
    assert len(pages) > 60
    assert [str(page) for page in pages if "```mermaid" in page.read_text()] == []


def test_a_link_to_a_folder_leads_to_its_readme_and_one_to_nothing_is_text(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "SOURCE", tmp_path / "source")
    build.stage()
    page = tmp_path / "source" / "docs" / "page.md"
    link = build.LINK.search("see [the manifests](../daemonset) and [code](../nodeagent/cli.py)")
    assert link is not None
    assert build._linked(page, link) == "[the manifests](../daemonset/README.md)"
    code = build.LINK.search("[code](../nodeagent/cli.py)")
    assert code is not None
    assert build._linked(page, code) == "code"


def test_each_page_begins_with_its_title():
    """A comment before it would make "Index" or "README" the title, and the name in the navigation."""
    nav = yaml.safe_load((ROOT / "hack/site/mkdocs.yml").read_text())["nav"]
    assert [page for page in pages(nav) if not (ROOT / page).read_text().startswith("# ")] == []


def test_the_search_works_from_the_disk_and_asks_no_server_for_its_worker():
    settings = yaml.safe_load((ROOT / "hack/site/mkdocs.yml").read_text())
    assert settings["plugins"] == ["search", "offline"]
    assert settings["extra"]["polyfills"] == ["iframe-worker.js"]


def test_another_archive_of_the_worker_is_refused():
    with pytest.raises(SystemExit, match="another content than WORKER_SHA512 in build"):
        build.unpacked(b"")
