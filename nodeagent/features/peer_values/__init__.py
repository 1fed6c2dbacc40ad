"""The values that a node should share with its peers: read, and put into its report (``fabric.odd_nodes`` judges)."""
