"""The tests of this room may have virtual time."""

from tests.support.virtual_time import pytest_asyncio_loop_factories, virtual_time

__all__ = ["pytest_asyncio_loop_factories", "virtual_time"]
