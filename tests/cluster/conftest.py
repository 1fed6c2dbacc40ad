"""The stand-in API server, an agent's client, and tasks that end with the test."""

from tests.support.api_server_fixtures import client, running, server

__all__ = ["client", "running", "server"]
