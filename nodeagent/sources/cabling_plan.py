"""Read the cabling plan from its file, and again when it changes.

If the plan cannot be read, the last one stays in force and the log has one warning. A missing file is an error of
the configuration, which names the file; an empty file is an empty plan.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

from nodeagent.base.bounded_calls import BoundedCalls, in_thread
from nodeagent.base.regular_file import read_regular
from nodeagent.config.bounded_yaml import Limits, load_document
from nodeagent.health.cabling import PlanError, Port, of_node

log = logging.getLogger(__name__)

_SIZE_MAX = 64 * 1024 * 1024
_READ_S = 5.0
LIMITS = Limits(size=_SIZE_MAX, values=20_000_000)
"""A hundred thousand nodes with eight links each hold six million values."""


def read_plan(text: bytes, node: str | None) -> dict[str, Port]:
    """Raises ``PlanError``."""
    try:
        document = load_document(text, LIMITS)
    except ValueError as error:
        raise PlanError(f"it is not YAML: {error}") from error
    return of_node(document, node)


async def watch_plan(
    path: Path, node: str | None, publish: Callable[[dict[str, Port]], object], interval_s: float
) -> None:
    """Publish this node's part of the plan now and at every change, until cancelled."""
    before: bytes | None = None
    logged = ""
    reads = BoundedCalls("cabling plan", _READ_S)
    while True:
        try:
            text = await reads.run(read_regular, path, _SIZE_MAX)
            if text != before:
                plan = await in_thread(partial(read_plan, text, node))
                before = text
                if not plan:
                    log.warning("The cabling plan does not list this node. file=%s node=%r", path, node)
                publish(plan)
            logged = ""
        except (OSError, PlanError) as error:
            reason = error.strerror or str(error) if isinstance(error, OSError) else str(error)
            if reason != logged:
                log.warning("The cabling plan cannot be read. file=%s reason=%r", path, reason)
            logged = reason
        await asyncio.sleep(interval_s)
