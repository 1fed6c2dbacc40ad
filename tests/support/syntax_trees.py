"""Syntax trees of many files, without the garbage collector, which takes most of the time."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """A tree has no garbage while it grows, and each collection would look at all trees again."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
