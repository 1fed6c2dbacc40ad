"""Checks of an installation on a cluster of yours: ``make test-cluster KUBECONFIG=FILE``.

They use the API server alone, and no code of nodeagent: what they see is what a user sees. ``python -m
tests.cluster_suite --help`` has the options.
"""
