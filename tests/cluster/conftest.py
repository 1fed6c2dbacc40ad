"""The fixtures of these tests."""

from tests.support.api_server_fixtures import client, running, server

__all__ = ["client", "running", "server"]
