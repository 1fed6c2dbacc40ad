"""The logs: one record is one line, whatever foreign text it contains, and a daemon writes it in a thread.

GPU names, file names, answers of the API server, texts of LLDP frames and of the kubelet reach the log. A newline in
such a text would forge a record, and an escape sequence would reach the terminal of its reader. So control characters,
bidirectional marks and stray bytes of every record are escaped here, in one place. Messages also quote foreign values
(``%r``), to show where they begin and end.

The log of a daemon is usually a pipe. If its reader does not read, a write blocks: on the event loop it would stop the
agent's answers to the kubelet. Lines that find no room are counted and dropped.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from copy import copy
from queue import Full, Queue

from nodeagent.base.plain_text import one_line

FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"
TRACE = "  | "
"""Before each line of a traceback: no text in it can look like a record."""
LINES_MAX = 10_000
END_S = 0.3
"""The end of the process waits this long for the last lines."""


class LogLines(logging.Formatter):
    """Format a record as one line, and its traceback as lines that begin with ``TRACE``."""

    def __init__(self) -> None:
        super().__init__(FORMAT)

    def format(self, record: logging.LogRecord) -> str:
        own = copy(record)
        own.exc_text = None  # another handler may have stored a traceback without the marks
        return super().format(own)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name of logging
        return one_line(super().formatMessage(record))

    def formatException(self, ei: object) -> str:  # noqa: N802
        return _indented(super().formatException(ei))  # type: ignore[arg-type]

    def formatStack(self, stack_info: str) -> str:  # noqa: N802
        return _indented(super().formatStack(stack_info))


def of_a_caller_that_went(record: logging.LogRecord) -> bool:
    """Whether gRPC reports that a caller, such as a kubelet that restarts, went before it had the whole answer.

    gRPC has a traceback for it, of each stream. The end of the kubelet's streams is logged by who serves them.
    """
    error = record.exc_info[1] if record.exc_info else None
    return (
        record.name.startswith("grpc")
        and type(error).__name__ == "ExecuteBatchError"
        and str(error).startswith('Failed "execute_batch"')
    )


def log_to_stderr(level: str, *, daemon: bool = False) -> None:
    """Log to stderr. A ``daemon`` writes in a thread, because its log may block."""
    handler = logging.StreamHandler(LogThread(sys.stderr.fileno()) if daemon else sys.stderr)
    handler.setFormatter(LogLines())
    handler.addFilter(lambda record: not of_a_caller_that_went(record))
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    threading.excepthook = _log_thread


def _log_thread(ended: threading.ExceptHookArgs) -> None:
    """Log the end of a thread by a defect; Python's own hook prints the text of the error as it is."""
    if ended.exc_type is SystemExit or ended.exc_value is None:
        return
    name = ended.thread.name if ended.thread is not None else "-"
    log = logging.getLogger("nodeagent.threads")
    log.error("A thread ended by a defect. thread=%r", name, exc_info=ended.exc_value)


def _indented(text: str) -> str:
    return "\n".join(TRACE + one_line(line) for line in text.split("\n"))


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
