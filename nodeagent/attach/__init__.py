"""Move the netdevs of VFs into the pods that hold them, with a name and an address for each rail."""
