"""A file in memory, for libraries that load keys and certificates from a path alone."""

from __future__ import annotations

import os


class MemoryFile:
    """Bytes with a ``path`` inside the ``with`` block. They are never on a disk."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def __enter__(self) -> MemoryFile:
        self._descriptor = os.memfd_create("nodeagent", os.MFD_CLOEXEC)
        os.write(self._descriptor, self._content)
        self.path = f"/proc/self/fd/{self._descriptor}"
        return self

    def __exit__(self, *_exc: object) -> None:
        os.close(self._descriptor)
