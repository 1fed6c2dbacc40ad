from tests.needs import pytest_runtest_setup

__all__ = ["pytest_runtest_setup"]
