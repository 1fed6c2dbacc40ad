"""Run nodeagent and count the tasks of its event loop, for a process that asks from outside.

counted.py FILE VERB ...   as `nodeagent VERB ...`; each second FILE holds the number of tasks

With ``NODEAGENT_TRACE=1`` the memory is traced: while FILE.asked exists, FILE.memory gets what is allocated, as
``tracemalloc`` dumps it, and FILE.asked goes.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import time
import tracemalloc
from pathlib import Path

from nodeagent.cli import main

EVERY_S = 1.0
LOOPS: list[asyncio.AbstractEventLoop] = []


class RecordingPolicy(asyncio.DefaultEventLoopPolicy):
    """Keeps each event loop that it makes: the agent excludes its objects from garbage collection, and from a search
    through them."""

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        LOOPS.append(super().new_event_loop())
        return LOOPS[-1]


def report(file: Path) -> None:
    part = file.with_suffix(".part")
    asked = file.with_suffix(".asked")
    while True:
        if asked.exists():
            gc.collect()
            tracemalloc.take_snapshot().dump(str(file.with_suffix(".memory")))
            asked.unlink()
        part.write_text(f"{sum(len(asyncio.all_tasks(loop)) for loop in LOOPS)}\n")
        part.replace(file)
        time.sleep(EVERY_S)


if __name__ == "__main__":
    if os.environ.get("NODEAGENT_TRACE"):
        tracemalloc.start()
    asyncio.set_event_loop_policy(RecordingPolicy())
    threading.Thread(target=report, args=(Path(sys.argv[1]),), daemon=True).start()
    sys.exit(main(sys.argv[2:]))
