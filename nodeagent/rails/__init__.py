"""Probes over the rails: small packets to the partners that the controller chose, and what they say of each link."""
