"""The Event about a state folder that cannot be written, on the Node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from nodeagent.base.unwritable_memory import UnwritableMemory, unwritable_remark
from nodeagent.cluster.event_writer import EventTarget, Notice
from nodeagent.cluster.notice_board import NoticeBoard

REASON = "StateUnwritable"
LOOK_S = 10.0


async def follow(unwritable: Callable[[], Sequence[UnwritableMemory]], node: str, board: NoticeBoard) -> None:
    """Post the notice that stands, every ``LOOK_S``, until cancelled."""
    target = EventTarget("Node", "", node)
    while True:
        notices = []
        if files := unwritable():
            folder, text = files[0].path.rpartition("/")[0], unwritable_remark(files)
            notices.append(
                Notice(target, folder, REASON, f"{text[0].upper()}{text[1:]}", title=f"Folder {folder}")
            )
        board.post("state", *notices)
        await asyncio.sleep(LOOK_S)
