"""Probes over the rails: agents send them, and the controller names the place that loses packets."""
