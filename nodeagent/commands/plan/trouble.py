"""Print what is wrong in a fabric: the list of ``fabric.troubles``, for people or for programs."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from nodeagent.base.duration import duration
from nodeagent.base.rfc3339 import rfc3339
from nodeagent.commands.options import FAILED, GOOD
from nodeagent.commands.plan.preview import Preview, SourceError, read_preview
from nodeagent.commands.terminal import PLAIN, Screen, note, screen, watching, wrapped
from nodeagent.commands.user_files import UserFileError
from nodeagent.config.faults import ConfigError
from nodeagent.fabric.troubles import FabricTrouble, few, troubles
from nodeagent.kube.client import ApiError

WATCH_MIN_S = 1.0


def show(options: argparse.Namespace, now: Callable[[], float] = time.time) -> int:
    """Print the list once, or with ``--watch`` until it is ended. Return the exit code."""
    if options.watch is None:
        preview = read_preview(options, whole_reports=True)
        found = troubles(preview.plan)
        print(_written(options, preview, found, now()))
        return GOOD if preview.reports and not found else FAILED
    text = ""
    with watching(in_place=not options.json) as paint:
        while True:
            try:
                preview = read_preview(options, whole_reports=True)
                text = _written(options, preview, troubles(preview.plan), now())
                paint(text)
            except (ApiError, ConfigError, SourceError, UserFileError, OSError) as error:
                paint(f"{text}\n\nnodeagent: {error}") if sys.stdout.isatty() else note(str(error))
            time.sleep(max(options.watch, WATCH_MIN_S))
    return GOOD


def _written(options: argparse.Namespace, preview: Preview, found: list[FabricTrouble], now: float) -> str:
    if options.json:
        return json.dumps(document(preview, found, options.source or "cluster", now), indent=2)
    return as_text(preview, found, now, screen())


def document(preview: Preview, found: Iterable[FabricTrouble], source: str, now: float) -> Mapping[str, Any]:
    """The list for programs, in an envelope that says what was read and when."""
    return {
        "time": rfc3339(now),
        "source": source,
        "nodes": len(preview.reports),
        "links": sum(len(report.links) for report in preview.reports.values()),
        "troubles": [
            {
                **one._asdict(),
                "since": None if one.since is None else rfc3339(one.since),
                "links": [{"node": node, "link": link} for node, link in one.links],
            }
            for one in found
        ],
    }


def as_text(preview: Preview, found: Sequence[FabricTrouble], now: float, on: Screen = PLAIN) -> str:
    """A block of lines for each trouble, and a last line with the counts."""
    lines: list[str] = []
    for one in found:
        since = "" if one.since is None else f", for {duration(now - one.since)}"
        lines += wrapped(f"{one.where}: {one.what}{since}", on)
        lines += (part for detail in few(one.details) for part in wrapped(detail, on, "  "))
        if one.pods:
            lines += wrapped(f"pods: {', '.join(few(one.pods))}", on, "  ")
        lines += [*wrapped(f"do: {one.remedy}", on, "  "), ""]
    links = sum(len(report.links) for report in preview.reports.values())
    count = f"{len(found)} {'trouble' if len(found) == 1 else 'troubles'}" if found else "No trouble"
    lines += wrapped(f"{count} in {len(preview.reports)} nodes with {links} links.", on)
    return "\n".join(lines)
