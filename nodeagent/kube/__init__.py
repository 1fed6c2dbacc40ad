"""Clients of the API server and of the kubelet's podresources API, and the kubelet's messages."""
