"""The feature file for the worker of Node Feature Discovery (NFD), and the files of others beside it. Calls block.

NFD's worker watches the folder. It skips names that begin with a dot, which replacing a file passes through, and files
above 64 KiB. The line `# +expiry-time=` holds for the lines below it: after that time they are no labels.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from nodeagent.base.file_writing import PUBLIC_FOLDER, Leftovers, replace_file
from nodeagent.base.regular_file import read_regular
from nodeagent.base.rfc3339 import rfc3339

FEATURES_FOLDER = "/etc/kubernetes/node-feature-discovery/features.d"
"""The only one that NFD's worker reads."""
FEATURE_FILE = "nodeagent-gpus"
FEATURE_FILE_MAX = 65536
"""Bytes that NFD's worker reads of a file."""
_FILES_MAX = 1000
_EXPIRES = "# +expiry-time="
_HEAD = "# Labels of this node's GPUs, written by nodeagent (nfd.gpuLabels). Do not edit.\n"


class WrittenLabels(NamedTuple):
    """``expires`` is Unix time."""

    labels: Mapping[str, str]
    expires: float


class FeatureFile:
    """``folder`` is the worker's."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FEATURE_FILE
        self._leftovers = Leftovers(folder, FEATURE_FILE)

    def read(self) -> WrittenLabels | None:
        """The labels of the file and their end; ``None`` if there is none, or it is not as ``write`` leaves it."""
        try:
            text = read_regular(self.path, FEATURE_FILE_MAX).decode()
        except (OSError, UnicodeDecodeError):
            return None
        expiries = [time for line in text.splitlines() if (time := _expiry(line)) is not None]
        labels = dict(label for label, _ in _lines(text))
        if len(expiries) != 1 or text != _text(labels, expiries[0]):
            return None
        return WrittenLabels(labels, expiries[0])

    def write(self, labels: Mapping[str, str], expires: float) -> None:
        """Replace the file in one step. Raises ``OSError``, ``FileNotFoundError`` if there is no folder."""
        self.path.parent.stat()
        self._leftovers.sweep()
        replace_file(
            self.path, _text(labels, expires).encode(), mode=0o644, folder_mode=PUBLIC_FOLDER
        )  # NFD's worker is another user

    def remove(self) -> bool:
        """Return whether there was a file. Raises ``OSError``."""
        try:
            self.path.unlink()
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def other_file(self, keys: Container[str], now: float) -> str | None:
        """The name of another file that sets one of these labels now. One that cannot be read sets none: the worker
        cannot read it either. Raises ``OSError``."""
        names = (
            entry.name
            for entry in islice(self.path.parent.iterdir(), _FILES_MAX)
            if not entry.name.startswith(".") and entry.name != FEATURE_FILE
        )
        for name in sorted(names):
            with suppress(OSError):
                text = read_regular(self.path.parent / name, FEATURE_FILE_MAX).decode(errors="replace")
                if any(key in keys and (until is None or until >= now) for (key, _), until in _lines(text)):
                    return name
        return None


def _text(labels: Mapping[str, str], expires: float) -> str:
    lines = "".join(f"{key}={labels[key]}\n" for key in sorted(labels))
    return f"{_HEAD}{_EXPIRES}{rfc3339(expires)}\n{lines}"


def _lines(text: str) -> Iterator[tuple[tuple[str, str], float | None]]:
    """The labels of a file as NFD's worker reads them, each with the Unix time until which it is one; ``None``: no
    end."""
    until = None
    for line in map(str.strip, text.split("\n")):
        if line.startswith("#"):
            if (time := _expiry(line)) is not None:
                until = time
        elif line:
            key, equal, value = line.partition("=")
            yield (key, value if equal else "true"), until


def _expiry(line: str) -> float | None:
    if not line.startswith(_EXPIRES):
        return None
    try:
        time = datetime.fromisoformat(line.removeprefix(_EXPIRES).strip())
    except ValueError:
        return None
    return (time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp()
