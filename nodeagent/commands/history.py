"""The verb `history`: what has changed on a node or in the fabric, and when."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from nodeagent.console.log_lines import log_to_stderr
from nodeagent.console.options import GOOD, USAGE, Add, agent_option, config_option, json_option, load_config

if TYPE_CHECKING:
    from nodeagent.base.change_log import Change
    from nodeagent.console.terminal import Screen
    from nodeagent.web.history_page import HistoryDocument

SINCE = "24h"
_LIMIT = 10_000
SAVED = "the output of `nodeagent history --json`"


def add(add: Add) -> None:
    parser = add(
        "history",
        _history,
        "what has changed, and when: health, links, switch ports, sources, the agent",
        "  nodeagent history                            the last 24 hours of this node, the oldest change first\n"
        "  nodeagent history nic3 --since 2h            one device; also by netdev, PCI address, UUID or switch\n"
        "  nodeagent history --since 02:40 --until 03:00\n"
        "  nodeagent history --between 02:40 03:00      the difference of two moments: each thing once\n"
        "  nodeagent history leaf3 --agent :9809       of the fabric: in the controller's pod\n\n"
        "The agent keeps its newest 1,000 changes, the controller 100,000, until they restart; `history.file` keeps\n"
        "them longer. Times are when a change was seen: in the controller when the report arrived.",
    )
    config_option(parser)
    json_option(parser)
    parser.add_argument("name", nargs="?", metavar="NAME", default="", help="a node, a device or a switch")
    when = parser.add_mutually_exclusive_group()
    when.add_argument("--since", metavar="TIME", default=SINCE, help="from then on (default: %(default)s)")
    when.add_argument(
        "--between", nargs=2, metavar=("TIME", "TIME"), help="what differs from one to the other"
    )
    parser.add_argument(
        "--until", metavar="TIME", help="up to then (default, and if it has not come yet: now)"
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--from", dest="source", metavar="FILE|-", help="what --json printed, or a history.file"
    )
    agent_option(source)


def _history(options: argparse.Namespace) -> int:
    from nodeagent.console.moments import end, moment
    from nodeagent.console.terminal import note, screen

    log_to_stderr(options.log_level or "error")
    now = time.time()
    try:
        first, last = options.between or (options.since, options.until)
        since = moment(first, now, past=True)
        until = math.inf if last is None else end(last, since, now)
    except ValueError as error:
        print(f"nodeagent: {error}", file=sys.stderr)
        return USAGE
    if until < since:
        print("nodeagent: the second time is before the first", file=sys.stderr)
        return USAGE
    document = _saved(options.source) if options.source else _asked(options, since)
    if document is None:
        return USAGE
    changes = [it for it in document.changes if since <= it.at <= until]
    if options.source and options.name:
        changes = [it for it in changes if it.is_about(options.name.lower())]
    if options.between:
        changes = differences(changes)
    if options.json:
        print(json.dumps(as_document(document, changes, since), indent=2))
    else:
        print("\n".join(_as_text(changes, since, screen(), times=not options.between)))
    if not document.complete:
        note("older changes are not kept; see --since, and history.file of the configuration")
    return GOOD


def _asked(options: argparse.Namespace, since: float) -> HistoryDocument | None:
    from urllib.parse import urlencode

    import msgspec

    from nodeagent.console.agent_query import AgentQueryError, fetch_page
    from nodeagent.console.terminal import note
    from nodeagent.web.history_page import HistoryDocument

    asked = urlencode({"since": since, "limit": _LIMIT, "name": options.name})
    answer = fetch_page(
        f"/ui/history.json?{asked}", load_config(options.config), options.root, options.listen
    )
    if answer.body is None:
        note(f"no agent runs here ({answer.source}); give --agent for a controller, or --from FILE")
        return None
    try:
        return msgspec.json.decode(answer.body, type=HistoryDocument)
    except msgspec.MsgspecError as error:
        raise AgentQueryError(f"the daemon at {answer.source} is not of this version: {error}") from error


def _saved(source: str) -> HistoryDocument:
    """Raises ``UserFileError``."""
    from datetime import datetime

    import msgspec

    from nodeagent.base.change_log import Change
    from nodeagent.console.user_files import UserFileError, read_user_file, source_name
    from nodeagent.web.history_page import HistoryDocument

    try:
        saved: Any = msgspec.json.decode(read_user_file(source, SAVED))
        changes = saved["changes"]
        for change in changes:
            if isinstance(change["at"], str):
                change["at"] = datetime.fromisoformat(change["at"]).timestamp()
        node, found = str(saved.get("node", "")), msgspec.convert(changes, list[Change])
        return HistoryDocument(0.0, source, node, 0.0, saved.get("complete", True) is not False, found)
    except (msgspec.MsgspecError, KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        fault = f"it has no list of changes ({error})"
        raise UserFileError(source_name(source), fault, SAVED) from error


def differences(changes: Iterable[Change]) -> list[Change]:
    """Each thing once, as it was before the first change and after the last; nothing that is again as it was."""
    import msgspec

    first: dict[tuple[str, str, str], Change] = {}
    last: dict[tuple[str, str, str], Change] = {}
    for change in changes:
        key = (change.node, change.what, change.where)
        first.setdefault(key, change)
        last[key] = change
    return [
        msgspec.structs.replace(change, before=first[key].before)
        for key, change in last.items()
        if change.after != first[key].before
    ]


def as_document(document: HistoryDocument, changes: Iterable[Change], since: float) -> dict[str, Any]:
    """The list for programs, in an envelope that says what was asked and when."""
    import msgspec

    from nodeagent.base.rfc3339 import rfc3339

    return {
        "time": rfc3339(time.time()),
        "source": document.source,
        "node": document.node,
        "since": rfc3339(since),
        "complete": document.complete,
        "changes": [
            {**msgspec.to_builtins(change), "at": rfc3339(change.at, "milliseconds")} for change in changes
        ],
    }


def _as_text(changes: Sequence[Change], since: float, on: Screen, *, times: bool = True) -> Iterator[str]:
    """A line for each change with its reasons below, and the day where it begins."""
    from nodeagent.console.moments import local
    from nodeagent.console.terminal import wrapped

    day = ""
    for change in changes:
        if times and (today := local(change.at, "%A, %Y-%m-%d, %Z")) != day:
            day = today
            yield day
        where = f"{change.node} {change.where}".lstrip()
        where += "" if change.what in ("nic", "gpu", "agent") else f", {change.what}"
        text = f"{where}: {change.before} → {change.after}" if change.before else f"{where}: {change.after}"
        yield from wrapped(f"{local(change.at, '%H:%M:%S')}  {text}" if times else text, on)
        for detail in change.details:
            yield from wrapped(detail, on, "          ")
    if not changes:
        yield f"Nothing has changed since {local(since)}."
