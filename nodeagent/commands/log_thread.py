"""Write the log of a daemon in a thread.

The log is usually a pipe. If its reader does not read, a write blocks: on the event loop it would stop the agent's
answers to the kubelet. Lines that find no room are counted and dropped.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
import time
from contextlib import suppress
from queue import Full, Queue

LINES_MAX = 10_000
END_S = 0.3
"""The end of the process waits this long for the last lines."""


class LogThread:
    """A stream for ``logging.StreamHandler``. It has no ``flush``, because that would wait."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lines: Queue[str] = Queue(LINES_MAX)
        self._lost = 0
        threading.Thread(target=self._write_all, name="log", daemon=True).start()
        atexit.register(self.drain)

    def write(self, line: str) -> None:
        try:
            self._lines.put_nowait(line)
        except Full:
            self._lost += 1

    def drain(self, limit_s: float = END_S) -> None:
        """Return when all lines are written, or after ``limit_s``."""
        until = time.monotonic() + limit_s
        while self._lines.unfinished_tasks and time.monotonic() < until:
            time.sleep(0.002)

    def _write_all(self) -> None:
        # A signal goes to any thread that does not block it, and the daemon waits for signals in another one.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while True:
            line = self._lines.get()
            if lost := self._lost:
                self._lost = 0
                line = f"{lost} lines of the log were lost: its reader did not read.\n{line}"
            with suppress(OSError):  # its reader has ended
                # Not through sys.stderr: a thread that holds the lock of a stream at the end aborts the process.
                rest = line.encode("utf-8", "backslashreplace")
                while rest:
                    rest = rest[os.write(self._descriptor, rest) :]
            self._lines.task_done()
