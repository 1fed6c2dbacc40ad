"""The health of NICs and GPUs as health events of NVSentinel (github.com/NVIDIA/NVSentinel).

``health_events`` derives the events from the facts. ``platform_connector`` sends them to the platform connector of
this node.
"""
