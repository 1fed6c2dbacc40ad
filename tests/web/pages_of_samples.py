"""Pages as files, of the demo's fabric and of a machine's model."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from nodeagent.cli import main
from nodeagent_lab.demo.sample_reports import FILE, write_reports
from nodeagent_lab.sim.machine import Machine


def map_file(folder: Path) -> Path:
    """The map of the demo's reports: 64 nodes in two units, with one wrong cable."""
    write_reports("dgx-h100", folder, 64)
    return _written(folder / "map.html", "topology", "--from", str(folder / FILE), "--format", "html")


def node_file(folder: Path) -> Path:
    """The page of a DGX H100 without an agent."""
    Machine.load("dgx-h100").write(folder / "root")
    (folder / "root" / "etc").mkdir(exist_ok=True)
    (folder / "root" / "etc" / "hostname").write_text("gpu-17\n")
    return _written(folder / "node.html", "health", "--html", "--root", str(folder / "root"))


def node_document(folder: Path) -> str:
    return node_file(folder).read_text().partition('id="document">')[2].partition("</script>")[0]


def _written(file: Path, *command: str) -> Path:
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", printed)
        assert main(list(command)) == 0
    file.write_text(printed.getvalue())
    return file
