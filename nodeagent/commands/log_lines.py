"""The form of the logs: one record is one line, whatever foreign text it contains.

GPU names, file names, answers of the API server, texts of LLDP frames and of the kubelet reach the log. A newline in
such a text would forge a record, and an escape sequence would reach the terminal of its reader. So control characters,
bidirectional marks and stray bytes of every record are escaped here, in one place. Messages also quote foreign values
(``%r``), to show where they begin and end.
"""

from __future__ import annotations

import logging
import sys
import threading
from copy import copy

from nodeagent.base.plain_text import one_line
from nodeagent.commands.log_thread import LogThread

FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"
TRACE = "  | "
"""Before each line of a traceback: no text in it can look like a record."""


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


def log_to_stderr(level: str, *, daemon: bool = False) -> None:
    """Log to stderr. A ``daemon`` writes in a thread, because its log may block."""
    handler = logging.StreamHandler(LogThread(sys.stderr.fileno()) if daemon else sys.stderr)
    handler.setFormatter(LogLines())
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
