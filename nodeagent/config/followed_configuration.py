"""Follow a configuration file: read it when it changes, and keep the running configuration if it cannot be used.

The kubelet updates a ConfigMap by renaming a link in the folder of the files, so folders are watched. While the file
cannot be used it is read again after ``CONFIG_RETRY_S`` too: its folder may have been replaced, or the reason of the
refusal may have ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

from nodeagent.base.bounded_calls import BoundedCalls, Unanswered, within
from nodeagent.base.regular_file import read_regular
from nodeagent.base.supervise import Fatal, either
from nodeagent.config.config_files import read_config_files
from nodeagent.config.file_errors import ConfigError, FileError
from nodeagent.config.merged_tree import ConfigText
from nodeagent.host.inotify import CONTENT, FolderWatch, InotifyError

log = logging.getLogger(__name__)
T = TypeVar("T")

_READ_S = 2.0
_START_S = 10.0
CONFIG_RETRY_S = 10.0


def configuration_text(path: Path) -> str:
    """Read the text of one file. Blocks. Raises ``ConfigError``."""
    try:
        return read_regular(path).decode("utf-8", "surrogateescape")
    except OSError as error:
        why = f"cannot be read: {error.strerror}"
        raise ConfigError(str(path), [FileError("", None, None, why)]) from error


def configuration_files(path: Path) -> ConfigText:
    """Read the files of a configuration: a file and its fragments, or a folder. Blocks. Raises ``ConfigError``."""
    try:
        return read_config_files(path)
    except OSError as error:
        name = str(error.filename or path)
        raise ConfigError(name, [FileError("", None, None, f"cannot be read: {error.strerror}")]) from error


def read_at_start(path: Path, read: Callable[[], T]) -> T:
    """Return what ``read`` makes of the file, before the event loop runs. Raises ``ConfigError``, also if the file does
    not answer: a process that hangs here would show no reason, and SIGTERM does not end the first process of a pod."""
    try:
        return within("configuration", _START_S, read)
    except Unanswered as error:
        why = f"cannot be read: no answer within {_START_S:g} s; mount its file system again"
        raise ConfigError(str(path), [FileError("", None, None, why)]) from error


class FollowedConfiguration(Generic[T]):
    """One configuration. ``error`` is the first error of its file, and empty while the file's content is in force.
    ``waiting`` are the paths of the settings whose change takes effect at a restart."""

    def __init__(
        self,
        in_force: T,
        read: Callable[[], T],
        adopt: Callable[[T], tuple[str, ...]],
        folders: Callable[[], Iterable[Path]],
    ) -> None:
        """``read`` may block, and raises ``ConfigError``. ``adopt`` applies another configuration and returns the
        settings that wait, or refuses it with ``ConfigError`` or ``Fatal``. ``folders`` are those of the files, at
        present.
        """
        self.error = ""
        self.waiting: tuple[str, ...] = ()
        self._in_force = in_force
        self._read, self._adopt, self._folders = read, adopt, folders
        self._reads = BoundedCalls("configuration", _READ_S, self.reload)
        self._reload = asyncio.Event()
        self._logged: list[str] = []

    def remarks(self) -> Iterator[str]:
        """Return the lines about the file for ``/readyz``."""
        if self.error:
            yield f"configuration: refused, the running one stays: {self.error}"
        if self.waiting:
            yield f"configuration: changed settings take effect at a restart: {', '.join(self.waiting)}"

    def reload(self) -> None:
        """Read the file now (SIGHUP)."""
        self._reload.set()

    async def run(self) -> None:
        """Follow the file until cancelled."""
        try:
            with FolderWatch() as watching:
                while True:
                    with suppress(InotifyError, Unanswered):  # a folder that is missing: reading names it
                        await self._reads.run(self._watch, watching)
                    await self._apply()  # at first too: the file may have changed since the start
                    with suppress(TimeoutError):
                        async with asyncio.timeout(CONFIG_RETRY_S if self.error else None):
                            await either(watching.changes(), self._reload.wait())
                    self._reload.clear()
        except InotifyError as error:
            raise OSError(str(error)) from error

    def _watch(self, watching: FolderWatch) -> None:
        for folder in self._folders():
            watching.add(folder, CONTENT)

    async def _apply(self) -> None:
        lines: list[str] = []
        try:
            read = await self._reads.run(self._read)
            if read != self._in_force:
                self.waiting = self._adopt(read)
                self._in_force = read
                log.info("The changed configuration is in force.")
            elif self.error:
                log.info("The configuration file is valid again, as it was before.")
        except (ConfigError, Fatal, OSError) as error:
            lines = str(error).splitlines() or [type(error).__name__]
        if lines != self._logged:
            for line in lines:
                log.error("The changed configuration is refused, the running one stays. error=%r", line)
        self._logged, self.error = lines, lines[0] if lines else ""
