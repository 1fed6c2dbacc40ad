"""The HTTP server of the agent: authentication, health probes, the metrics page, and the pages of the verbs."""
