"""Run nodeagent and count the tasks of its event loop, for a process that asks from outside.

counted.py FILE VERB ...   as `nodeagent VERB ...`; each second FILE holds the figures of ``inside``, as JSON

With ``NODEAGENT_TRACE=1`` the memory is traced: while FILE.asked exists, FILE.memory gets what is allocated, as
``tracemalloc`` dumps it, and FILE.asked goes.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
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


_MALLINFO2 = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"


class Mallinfo2(ctypes.Structure):
    """``struct mallinfo2`` of glibc 2.33 and newer: sums over all its arenas, in bytes."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in _MALLINFO2.split())


def inside() -> dict[str, float]:
    """Tasks of the event loops; MiB that glibc has given out, its mappings included, and MiB that it keeps for later;
    thousands of blocks of Python's own allocator."""
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = Mallinfo2
    heap = libc.mallinfo2()
    return {
        "tasks": sum(len(asyncio.all_tasks(loop)) for loop in LOOPS),
        "malloc_mib": (heap.uordblks + heap.hblkhd) / 2**20,
        "kept_mib": heap.fordblks / 2**20,
        "blocks_k": sys.getallocatedblocks() / 1000,
    }


def report(file: Path) -> None:
    part = file.with_suffix(".part")
    asked = file.with_suffix(".asked")
    while True:
        if asked.exists():
            gc.collect()
            tracemalloc.take_snapshot().dump(str(file.with_suffix(".memory")))
            asked.unlink()
        part.write_text(json.dumps(inside()))
        part.replace(file)
        time.sleep(EVERY_S)


if __name__ == "__main__":
    if os.environ.get("NODEAGENT_TRACE"):
        tracemalloc.start()
    asyncio.set_event_loop_policy(RecordingPolicy())
    threading.Thread(target=report, args=(Path(sys.argv[1]),), daemon=True).start()
    sys.exit(main(sys.argv[2:]))
