"""The devices that the kubelet counts under our names, compared with those that were sent.

A kubelet never says that it has given a name to another plugin. It counts the list that came last from any plugin of
the name, asks the one that registered last, and keeps the streams of all (``plugin/v1beta1/handler.go`` and
``manager.go`` of 1.36). So the agent asks podresources which devices are counted. A look may fall between our message
and its effect, so that only two looks in a row decide. A busy kubelet may need longer for a message: while all counted
IDs are ours, or none is counted, looks of ``OWN_IDS_S`` decide.

Not seen is a plugin that offers the same IDs in the same health, and one whose list was replaced by a message of ours
before the first look.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Protocol

LOOK_S = 20.0
AGAIN_S = 3.0
"""To the second look. The kubelet takes milliseconds for a message, and 80,000 devices some hundred."""
OWN_IDS_S = 30.0
"""IDs that are all ours, or none, mostly mean a kubelet that has not taken our last message yet. With ``LOOK_S`` and
``AGAIN_S`` another plugin that offers some of them, or that has come and gone, is told within a minute."""


class Verdict(Enum):
    OURS = "the kubelet counts what was sent"
    DOUBT = "it counts something else, or nothing, for the first time"
    OTHERS = "it counts devices that this plugin has not sent"
    NONE = "it counts no device"


class Comparison:
    """The looks at one resource. Pure."""

    def __init__(self) -> None:
        self._before: tuple[int, frozenset[str], float] | None = None
        """Of the last look, if it differed: the revision of the device list, the IDs that were counted, and the time
        of the first look that differed at this revision."""

    def judge(
        self,
        counted: frozenset[str],
        healthy: frozenset[str],
        known: frozenset[str],
        revision: int,
        now: float,
    ) -> Verdict:
        """``counted`` by the kubelet at ``now``, in seconds; ``healthy`` in the list of this ``revision``, ``known``:
        healthy or not in this or an earlier one."""
        if counted == healthy:
            self._before = None
            return Verdict.OURS
        before = self._before
        since = now if before is None or before[0] != revision else before[2]
        self._before = (revision, counted, since)
        if before is None:
            return Verdict.DOUBT
        if (counted & before[1]) - known:
            return Verdict.OTHERS
        if before[0] != revision:  # our own message may have come between
            return Verdict.DOUBT
        if counted <= known and now - since < OWN_IDS_S:
            return Verdict.DOUBT
        return Verdict.OTHERS if counted else Verdict.NONE

    def judge_taken(self, counted: frozenset[str], sent: frozenset[str]) -> Verdict:
        """Of a name whose stream is silent: ``OTHERS`` while devices are counted, ``NONE`` when they are gone for good.
        ``OURS`` if they are the healthy ones of the list that was ``sent`` last: the kubelet was slow. Our present list
        proves nothing: it changes without a message, and may become what the other plugin has.

        A plugin that restarts is back before the second look. One whose devices are all Unhealthy looks like one that
        has ended.
        """
        if counted:
            self._before = None
            return Verdict.OURS if counted == sent else Verdict.OTHERS
        before, self._before = self._before, (0, counted, 0.0)
        return Verdict.DOUBT if before is None else Verdict.NONE

    def reset(self) -> None:
        self._before = None


class Observed(Protocol):
    def observe(self, counted: Mapping[str, frozenset[str]], asked_at: float) -> bool: ...


async def watch(socket: Path, plugins: Observed, *, look_s: float = LOOK_S, again_s: float = AGAIN_S) -> None:
    """Tell the plugins what the kubelet counts, until cancelled. A kubelet without an answer is no evidence."""
    from nodeagent.kubelet import holdings  # noqa: PLC0415 - protobuf: 24 ms and 1.2 MiB

    pause_s = look_s
    while True:
        await asyncio.sleep(pause_s)
        asked_at = time.monotonic()
        try:
            counted = await holdings.offered(socket)
        except holdings.PodResourcesError:  # the holdings' reader logs it
            pause_s = look_s
            continue
        doubt = plugins.observe({name: frozenset(ids) for name, ids in counted.items()}, asked_at)
        pause_s = again_s if doubt else look_s
