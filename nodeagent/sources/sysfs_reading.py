"""One look at sysfs that never raises: what cannot be read counts as absent, and is said in a sentence."""

from __future__ import annotations

import re
from collections.abc import Callable
from errno import EINVAL, ENODEV, EOPNOTSUPP
from typing import TypeVar

from nodeagent.host.sysfs import SysfsError, Tree

T = TypeVar("T")

NET = "/sys/class/net"


class Look:
    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self._said: set[str] = set()

    def say(self, sentence: str) -> None:
        self._said.add(sentence)

    def sentences(self) -> tuple[str, ...]:
        return tuple(sorted(self._said))

    def read(self, get: Callable[[str], T | None], path: str) -> T | None:
        try:
            return get(path)
        except SysfsError as error:
            self.say(str(error))
            return None

    def names(self, path: str) -> tuple[str, ...]:
        return self.read(self.tree.names, path) or ()

    def netdev(self, get: Callable[[str], T | None], name: str, attribute: str) -> T | None:
        """An attribute that the kernel refuses where it does not apply: that is an answer, not a fault.

        EINVAL for carrier and speed while admin down and for any attribute of a netdev that is being
        unregistered, EOPNOTSUPP where the driver lacks it (net/core/net-sysfs.c).
        """
        try:
            return get(f"{NET}/{name}/{attribute}")
        except SysfsError as error:
            cause = error.__cause__
            if not (isinstance(cause, OSError) and cause.errno in (EINVAL, ENODEV, EOPNOTSUPP)):
                self.say(str(error))
            return None


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """``eth2`` before ``eth10``, ``ib0`` before its child ``ib0.8001``."""
    parts = re.findall(r"\d+|\D+", name)
    return tuple((0, int(part), part) if part.isdecimal() else (1, 0, part) for part in parts)
