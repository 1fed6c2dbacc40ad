"""Netlink sockets and codecs for the frequent messages; a general library takes ten times as long for a dump."""
