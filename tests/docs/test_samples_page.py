"""docs/samples.md lists the sources with their intervals, and every sample.

``NODEAGENT_GOLDEN=write`` renews the list.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from nodeagent.agent_config import Config
from nodeagent.health.samples import DATA, HEARD, TEXTS, Source

PAGE = Path(__file__).parents[2] / "docs" / "samples.md"
BEGIN, END = "<!-- samples: begin -->\n", "<!-- samples: end -->\n"
SETTING = {
    Source.LINK: "link_seconds",
    Source.MODES: "link_seconds",
    Source.STATE: "link_seconds",
    Source.FEC: "link_seconds",
    Source.PAUSE: "link_seconds",
    Source.DRIVER: "driver_seconds",
    Source.RDMA: "rdma_seconds",
    Source.PCIE: "pcie_seconds",
    Source.DEVLINK: "devlink_seconds",
    Source.VF: "vf_seconds",
    Source.MODULE: "module_seconds",
}


def samples() -> str:
    rows = ["", "| sample | source | type | per | meaning |", "|---|---|---|---|---|"]
    for name, datum in DATA.items():
        kind = "counter" if datum.counter else "gauge"
        rows.append(f"| `{name}` | `{datum.source}` | {kind} | {datum.per or '-'} | {datum.meaning} |")
    rows += ["", "Texts:", "", "| text | meaning |", "|---|---|"]
    rows += [f"| `{name}` | {meaning} |" for name, meaning in TEXTS.items()]
    rows += ["", "In recordings only:", "", "| name | meaning |", "|---|---|"]
    rows += [f"| `{name}` | {meaning} |" for name, meaning in HEARD.items()]
    return "\n".join([*rows, "", ""])


def test_the_page_lists_every_sample_of_the_code() -> None:
    text = PAGE.read_text()
    assert BEGIN in text
    current = f"{text.partition(BEGIN)[0]}{BEGIN}{samples()}{END}{text.partition(END)[2]}"
    if os.environ.get("NODEAGENT_GOLDEN") == "write":
        PAGE.write_text(current)
    assert PAGE.read_text() == current


def test_the_page_has_every_source_with_its_default_interval() -> None:
    table = PAGE.read_text().partition("## Sources")[2].partition("## ")[0]
    rows = [
        [cell.strip() for cell in line.split("|")] for line in table.splitlines() if line.startswith("| `")
    ]
    intervals = {row[1].strip("`"): row[3] for row in rows}
    assert intervals.keys() == set(Source)
    config = Config()
    for source, setting in SETTING.items():
        assert intervals[source].startswith(f"{getattr(config.samples, setting):g} s"), source
    assert intervals[Source.GPU].startswith(f"{config.gpu.health.read_seconds:g} s")


def test_every_name_in_the_text_is_a_sample() -> None:
    prose = PAGE.read_text().partition("## All samples")[0]
    named = re.findall(r"`((?:gpu|rx|tx|crc|fec|carrier)_\w+)", prose)
    assert named
    assert set(named) <= {*DATA, *TEXTS, *HEARD}
