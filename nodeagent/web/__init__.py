"""The HTTP server of the agent: authentication, health probes and the metrics page."""
