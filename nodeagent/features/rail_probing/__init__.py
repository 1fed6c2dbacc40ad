"""Probes over the rails: the controller names the place that loses packets."""
