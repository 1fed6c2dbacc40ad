"""What a service account's token says of itself: on which Node its pod runs.

A bound token names the Node since Kubernetes 1.30 (KEP-4193), and the admission policy compares with the same
claim. It is read here without being verified: the server does that, and a forged one only deceives the forger.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

import msgspec


@dataclass(frozen=True, slots=True)
class NodeClaim:
    name: str
    uid: str


class _Named(msgspec.Struct):
    name: str
    uid: str


class _Kubernetes(msgspec.Struct):
    node: _Named | None = None


class _Claims(msgspec.Struct):
    kubernetes: _Kubernetes = msgspec.field(name="kubernetes.io", default_factory=_Kubernetes)


def node_of(token: str | None) -> NodeClaim | None:
    """The Node in a token, with or without ``Bearer`` before it; ``None`` where it names none or is no JWT."""
    parts = (token or "").removeprefix("Bearer ").split(".")
    if len(parts) != 3:
        return None
    try:
        payload = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
        node = msgspec.json.decode(payload, type=_Claims).kubernetes.node
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        return None
    return None if node is None else NodeClaim(node.name, node.uid)
