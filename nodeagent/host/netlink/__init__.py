"""Netlink sockets of our own, where a general library costs more than the message is worth."""
