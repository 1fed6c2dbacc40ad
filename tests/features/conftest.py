"""The stand-in API server and a client."""

from tests.support.api_server_fixtures import client, server

__all__ = ["client", "server"]
