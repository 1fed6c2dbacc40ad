"""Print what is wrong in a fabric: the list of ``fabric.troubles``, for people or for programs."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from nodeagent.base.duration import duration
from nodeagent.base.plain_text import few
from nodeagent.base.rfc3339 import rfc3339
from nodeagent.commands.plan.preview import Preview, SourceError, jobs_of_pods, read_preview
from nodeagent.config.file_errors import ConfigError
from nodeagent.console.options import FAILED, GOOD, USAGE
from nodeagent.console.terminal import PLAIN, Screen, note, screen, watching, wrapped
from nodeagent.console.user_files import UserFileError
from nodeagent.fabric.troubles import FabricTrouble, troubles, with_jobs
from nodeagent.kube.client import ApiError

_WATCH_MIN_S = 1.0


def show_trouble(options: argparse.Namespace, now: Callable[[], float] = time.time) -> int:
    """Print the list once, or with ``--watch`` until it is ended. Return the exit code."""

    def look() -> tuple[str, int]:
        preview = read_preview(
            options, whole_reports=True, with_pods=options.source is not None, with_agents=True
        )
        found = troubles(preview.plan, 0.0, now(), preview.held)
        if options.namespace is not None:
            found = [one for one in found if any(is_in(options.namespace, pod) for pod in one.pods)]
        jobs = jobs_of_pods(options, preview, [pod for one in found for pod in one.pods])
        found = [with_jobs(one, lambda pod: jobs.get(pod, "")) for one in found]
        if options.json:
            text = json.dumps(trouble_document(preview, found, options.source, now()), indent=2)
        else:
            text = as_text(preview, found, now(), screen())
        return text, USAGE if not preview.reports else FAILED if found else GOOD

    return repeated(options, look)


def is_in(namespace: str, pod: str) -> bool:
    """Whether ``pod``, ``namespace/name``, is in the namespace."""
    return pod.startswith(f"{namespace}/")


def repeated(options: argparse.Namespace, look: Callable[[], tuple[str, int]]) -> int:
    """Print what ``look`` returns, with ``--watch`` again and again. Its second value is the exit code."""
    if options.watch is None:
        text, code = look()
        print(text)
        return code
    text = ""
    with watching(in_place=not options.json) as paint:
        while True:
            try:
                text, _ = look()
            except (ApiError, ConfigError, SourceError, UserFileError, OSError) as error:
                paint(f"{text}\n\nnodeagent: {error}") if sys.stdout.isatty() else note(str(error))
            else:
                paint(text)  # a reader who has gone ends it
            time.sleep(max(options.watch, _WATCH_MIN_S))
    return GOOD


def trouble_document(
    preview: Preview, found: Iterable[FabricTrouble], source: str | None, now: float
) -> dict[str, Any]:
    """The list for programs, in an envelope that says what was read and when."""
    return {
        **preview.origin(source, now),
        "nodes": len(preview.reports),
        "links": sum(len(report.links) for report in preview.reports.values()),
        "troubles": [
            {
                **one._asdict(),
                "since": None if one.since is None else rfc3339(one.since),
                "links": [{"node": node, "link": link} for node, link in one.links],
                "gpus": [{"node": node, "gpu": gpu} for node, gpu in one.gpus],
            }
            for one in found
        ],
    }


def as_text(preview: Preview, found: Sequence[FabricTrouble], now: float, on: Screen = PLAIN) -> str:
    """A block of lines for each trouble, and a last line with the counts."""
    links = sum(len(report.links) for report in preview.reports.values())
    count = f"{len(found)} {'trouble' if len(found) == 1 else 'troubles'}" if found else "No trouble"
    last = f"{count} in {len(preview.reports)} nodes with {links} links."
    return "\n".join((*blocks(found, now, on), *wrapped(last, on)))


def blocks(found: Iterable[FabricTrouble], now: float, on: Screen = PLAIN) -> Iterator[str]:
    """The lines of each trouble, and an empty one below them."""
    for one in found:
        since = "" if one.since is None else f", for {duration(now - one.since)}"
        yield from wrapped(f"{one.where}: {one.what}{since}", on)
        for detail in few(one.details):
            yield from wrapped(detail, on, "  ")
        if one.pods:
            yield from wrapped(f"pods: {', '.join(few(one.pods))}", on, "  ")
        if one.jobs:
            yield from wrapped(f"jobs: {', '.join(few(one.jobs))}", on, "  ")
        if one.maintenance:
            yield from wrapped(f"planned: {one.maintenance}", on, "  ")
        yield from (*wrapped(f"do: {one.remedy}", on, "  "), "")
