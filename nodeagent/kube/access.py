"""Where the API server is and how we prove who we are: the pod's service account, or a kubeconfig."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


class AccessError(Exception):
    """No way to the API server can be made of what is there; the message names the file and the remedy."""


@dataclass(frozen=True, slots=True)
class Access:
    """``server`` is a URL. ``ca`` is PEM text, ``None`` trusts what the system trusts. ``token_file`` is
    read again as the kubelet renews it; ``certificate`` and ``key`` name PEM files."""

    server: str
    namespace: str = "default"
    ca: str | None = None
    token: str | None = None
    token_file: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    verify: bool = True


def in_cluster(root: Path = Path("/")) -> Access | None:
    """The way of a pod: ``None`` outside a cluster. Raises ``AccessError`` for half of it."""
    raise NotImplementedError


def kubeconfig(path: Path | None = None, context: str | None = None) -> Access:
    """The way that a kubeconfig tells; ``None`` is ``$KUBECONFIG`` or ``~/.kube/config``."""
    raise NotImplementedError
