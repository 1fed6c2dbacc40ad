"""Keep the C library's heap small in a program that holds much and computes in one thread at a time.

glibc gives each thread a heap of its own, and frees memory at the end of a heap alone. A short thread that reads a page
of a list then leaves a heap behind. Other C libraries have neither function, and nothing is done.
"""

from __future__ import annotations

import ctypes

_M_ARENA_MAX = -8
"""malloc.h of glibc."""


def use_one_heap() -> None:
    """Let all threads use the first heap. Call it before threads start."""
    _call("mallopt", _M_ARENA_MAX, 1)


def return_free_memory() -> None:
    """Return the free pages of the heap to the system, those between other values too."""
    _call("malloc_trim", 0)


def _call(name: str, *arguments: int) -> None:
    function = getattr(ctypes.CDLL(None), name, None)
    if function is not None:
        function(*arguments)
