"""The fixtures of these tests."""

from tests.support.api_server_fixtures import client, server

__all__ = ["client", "server"]
