"""Read the files of one configuration: a file with the fragments beside it, or a folder of fragments.

* The fragments of ``nodeagent.yaml`` are the files of the folder ``nodeagent.d`` beside it; those of ``fabric.yaml``
  are in ``fabric.d``. Without this folder the file is the whole configuration. A folder in place of the file has all of
  it.
* A fragment's name ends in ``.yaml``. A name that begins with a dot, another ending, and a folder are not read.
* The kubelet replaces all files of a ConfigMap at once, by the link ``..data``. They are read behind this link, so that
  former and present files never mix.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from nodeagent.base.regular_file import read_regular
from nodeagent.config.merged_tree import ConfigFile, ConfigText

FRAGMENT = ".yaml"
"""How the name of a fragment ends."""
FRAGMENTS_MAX = 64
"""Files in one folder."""
CONFIG_BYTES_MAX = 4 << 20
"""Of all files of a configuration together: the characters that they may have, of up to four bytes each."""
_DATA = "..data"
"""The kubelet's link to the folder with the present files (``pkg/volume/util/atomic_writer.go``)."""
_TRIES = 2
_LEFT_OUT_MAX = 10


def fragment_folder(path: Path) -> Path:
    """Return the folder of the fragments of a configuration file; a folder is its own. It may not exist."""
    return path if path.is_dir() else path.with_suffix(".d")


def folder_of(path: Path) -> Path:
    """Return the folder from which a configuration names other files."""
    return path if path.is_dir() else path.parent


def watched_folders(path: Path) -> Iterator[Path]:
    """Yield the folders in which a change may change the configuration. Blocks."""
    yield path.parent
    if (folder := fragment_folder(path)).is_dir():
        yield folder


def read_config_files(path: Path) -> ConfigText:
    """Read a file and its fragments, or a folder of fragments. Blocks. Raises ``OSError`` with the file's name."""
    files: list[ConfigFile] = []
    if not path.is_dir():
        _add(files, path, path)
    if (folder := fragment_folder(path)).is_dir():
        files += _present_fragments(folder, files)
    if not files:
        why = (
            f"no file in this folder ends in {FRAGMENT}; `nodeagent config defaults` prints one to start from"
        )
        raise OSError(errno.ENOENT, why, str(path))
    return tuple(files)


def left_out(path: Path) -> list[str]:
    """Return the names in the folder of fragments that are not hidden and not read; no more than a few. Blocks."""
    if not (folder := fragment_folder(path)).is_dir():
        return []
    names = [
        entry.name
        for entry in os.scandir(folder)
        if not entry.name.startswith(".") and not _is_fragment(entry)
    ]
    return sorted(names)[:_LEFT_OUT_MAX]


def _present_fragments(folder: Path, before: Sequence[ConfigFile]) -> list[ConfigFile]:
    """Read the fragments, again if the kubelet has replaced them meanwhile. ``before``: what counts for the bound."""
    for _ in range(_TRIES):
        place = _place(folder)
        try:
            return _read_fragments(place, folder, before)
        except FileNotFoundError:
            if _place(folder) == place:
                raise
    return _read_fragments(_place(folder), folder, before)


def _place(folder: Path) -> Path:
    """The folder that holds the files."""
    present = folder / _DATA
    return Path(os.path.realpath(present)) if present.is_dir() else folder


def _read_fragments(place: Path, folder: Path, before: Sequence[ConfigFile]) -> list[ConfigFile]:
    names = _fragments(place)
    if len(names) > FRAGMENTS_MAX:
        why = f"it has more than {FRAGMENTS_MAX} files that end in {FRAGMENT}; put several into one"
        raise OSError(errno.EFBIG, why, str(folder))
    files = list(before)
    for name in names:
        _add(files, place / name, folder / name)
    return files[len(before) :]


def _add(files: list[ConfigFile], place: Path, shown: Path) -> None:
    """Read a file, whose name in messages is ``shown``, within the bound of all files."""
    left = CONFIG_BYTES_MAX - sum(len(file.text) for file in files)
    try:
        content = read_regular(place, max(left, 0))
    except OSError as error:
        if error.errno == errno.EFBIG:
            why = f"the files of the configuration have more than {CONFIG_BYTES_MAX} bytes together; give smaller ones"
            raise OSError(errno.EFBIG, why, str(shown)) from error
        error.filename = str(shown)
        raise
    files.append(ConfigFile(str(shown), content.decode("utf-8", "surrogateescape")))


def _fragments(folder: Path) -> list[str]:
    """The names of the fragments, sorted. One above the bound is enough."""
    names = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if _is_fragment(entry):
                names.append(entry.name)
                if len(names) > FRAGMENTS_MAX:
                    break
    return sorted(names)


def _is_fragment(entry: os.DirEntry[str]) -> bool:
    if entry.name.startswith(".") or not entry.name.endswith(FRAGMENT):
        return False
    try:
        return not stat.S_ISDIR(entry.stat().st_mode)
    except OSError:
        return True  # reading it names the fault
