"""Attributes of sysfs that are read again and again.

On a kernel's own sysfs a file that stays open costs a tenth of one that is opened for each reading. In a capture
or a simulation files are replaced, and are opened anew.
"""

from __future__ import annotations

import os
from errno import ENODEV

from nodeagent.host.sriov import is_live
from nodeagent.host.sysfs import SysfsError, Tree

_SIZE_MAX = 4096  # an attribute is a page


class Attributes:
    """For one thread at a time."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self._live = is_live(tree)
        self._open: dict[str, int] = {}

    def close(self) -> None:
        for fd in self._open.values():
            os.close(fd)
        self._open.clear()

    def text(self, path: str) -> str | None:
        """As ``Tree.text``."""
        if not self._live:
            return self.tree.text(path)
        fd = self._open.get(path)
        if fd is None:
            try:
                fd = self._open[path] = os.open(self.tree.path(path), os.O_RDONLY | os.O_CLOEXEC)
            except (FileNotFoundError, NotADirectoryError):
                return None
            except OSError as error:
                raise SysfsError(f"{path} cannot be read: {error.strerror}") from error
        try:
            return os.pread(fd, _SIZE_MAX, 0).decode("utf-8", "surrogateescape").rstrip("\n")
        except OSError as error:
            os.close(self._open.pop(path))
            if error.errno == ENODEV:  # the device went; another may have its name by now
                return self.tree.text(path)
            raise SysfsError(f"{path} cannot be read: {error.strerror}") from error

    def forget(self, prefix: str) -> None:
        """Close what is below a path."""
        for path in [path for path in self._open if path.startswith(prefix)]:
            os.close(self._open.pop(path))
