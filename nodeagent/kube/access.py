"""Where the API server is and how we authenticate: the pod's service account, or a kubeconfig.

Rules:

* Outside a cluster ``in_cluster`` returns ``None``; half of a service account is an error.
* A kubeconfig with a token, certificates or files is read here. One that needs a program or an identity provider is
  left to the official client (the extra ``kubeconfig``), which supports all of them.
* No message contains a secret.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import yaml

from nodeagent.base.regular_file import read_regular

SERVICE_ACCOUNT = "var/run/secrets/kubernetes.io/serviceaccount"
_FILE_MAX = 1 << 20
_PLAIN = {
    "token", "tokenFile", "client-certificate", "client-certificate-data", "client-key", "client-key-data",
}  # fmt: skip


class AccessError(Exception):
    """The API server cannot be accessed with these files; the message names the file and the remedy."""


@dataclass(frozen=True, slots=True)
class Access:
    """How one API server is reached.

    ``server`` is a URL. ``ca_file`` and ``token_file`` are read again and again, because the kubelet renews them.
    ``ca``, ``certificate`` and ``key`` are PEM text; without a CA the system's CAs are trusted. ``renew`` returns
    the whole Authorization header where another library obtains it.
    """

    server: str
    namespace: str = "default"
    ca: str | None = None
    ca_file: Path | None = None
    token: str | None = None
    token_file: Path | None = None
    certificate: str | None = None
    key: str | None = None
    verify: bool = True
    server_name: str | None = None
    renew: Callable[[], str | None] | None = None

    def authorization(self) -> str | None:
        """The present Authorization header; reads the token's file. Raises ``AccessError``."""
        if self.renew is not None:
            return self.renew()
        if self.token_file is not None:
            token = _read(self.token_file).strip()
            if not token:
                raise AccessError(f"{self.token_file}: the token is empty; is the volume mounted?")
            return f"Bearer {token}"
        return None if self.token is None else f"Bearer {self.token}"

    def authorities(self) -> str | None:
        """The certificates of the trusted CAs in PEM; reads their file. Raises ``OSError``."""
        if self.ca_file is None:
            return self.ca
        return read_regular(self.ca_file, _FILE_MAX).decode(
            "ascii", "ignore"
        )  # comments may have other letters


def in_cluster(root: Path = Path("/")) -> Access | None:
    """The access of a pod: ``None`` outside a cluster. Raises ``AccessError`` for half of a service account.

    ``root`` contains the pod's own files; it is not the host's root.
    """
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    folder = root / SERVICE_ACCOUNT
    token, ca, namespace = (folder / name for name in ("token", "ca.crt", "namespace"))
    if not host or not token.exists():
        return None  # every pod has the service's address; only some have a service account
    if not ca.exists():
        raise AccessError(f"{ca}: missing, so the API server cannot be trusted; mount the service account")
    return Access(
        f"https://{_bracketed(host)}:{port}",
        _read(namespace).strip() if namespace.exists() else "default",
        ca_file=ca,
        token_file=token,
    )


# --- a kubeconfig -----------------------------------------------------------------------------------------


def kubeconfig(path: Path | None = None, context: str | None = None) -> Access:
    """The access of a kubeconfig; ``None`` is ``$KUBECONFIG`` or ``~/.kube/config``."""
    if path is None:
        files = [file for file in os.environ.get("KUBECONFIG", "").split(os.pathsep) if file]
        path = Path(files[0] if files else "~/.kube/config").expanduser()
        if len(files) > 1:
            return _by_official_client(None, context)
    text = _read(path)
    try:
        return _kubeconfig(yaml.safe_load(text), path, context)
    except (yaml.YAMLError, RecursionError) as error:
        raise AccessError(f"{path}: no YAML: {str(error).splitlines()[0]}") from error


def _kubeconfig(root: Any, path: Path, context: str | None) -> Access:
    if not isinstance(root, dict):
        raise AccessError(f"{path}: no kubeconfig; `kubectl config view` shows what one looks like")
    chosen = context or root.get("current-context")
    if not chosen:
        raise AccessError(f"{path}: no current-context; set one with `kubectl config use-context`")
    context_ = _entry(root, "contexts", "context", chosen, path)
    cluster = _entry(root, "clusters", "cluster", context_.get("cluster"), path)
    user = _entry(root, "users", "user", context_["user"], path) if context_.get("user") else {}
    if not isinstance(cluster.get("server"), str):
        raise AccessError(f"{path}: cluster {context_.get('cluster')!r} has no server")
    if cluster.get("proxy-url"):
        raise AccessError(f"{path}: proxy-url is not supported; reach the API server of {chosen!r} directly")
    if set(user) - _PLAIN:
        return _by_official_client(path, chosen)
    token_file = user.get("tokenFile")
    return Access(
        cluster["server"].rstrip("/"),
        context_.get("namespace") or "default",
        ca=_pem(cluster, "certificate-authority", path),
        token=user.get("token") if not token_file else None,
        token_file=(path.parent / token_file) if token_file else None,
        certificate=_pem(user, "client-certificate", path),
        key=_pem(user, "client-key", path),
        verify=not cluster.get("insecure-skip-tls-verify", False),
        server_name=cluster.get("tls-server-name"),
    )


def _entry(root: dict[str, Any], list_: str, key: str, name: Any, path: Path) -> dict[str, Any]:
    """The entry of this name in one of the kubeconfig's lists."""
    for entry in root.get(list_) or ():
        if isinstance(entry, dict) and entry.get("name") == name and isinstance(entry.get(key), dict):
            value: dict[str, Any] = entry[key]
            return value
    known = ", ".join(
        sorted(str(entry.get("name")) for entry in root.get(list_) or () if isinstance(entry, dict))
    )
    raise AccessError(f"{path}: {list_} has no {name!r}; it has {known or 'none'}")


def _pem(holder: dict[str, Any], key: str, path: Path) -> str | None:
    """``<key>-data``, or the file that ``<key>`` names, relative to the kubeconfig's folder."""
    data = holder.get(f"{key}-data")
    if data:
        try:
            return base64.b64decode(data, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError, TypeError) as error:
            raise AccessError(f"{path}: {key}-data is no base64 of a PEM text") from error
    return _read(path.parent / holder[key]) if holder.get(key) else None


def _by_official_client(path: Path | None, context: str | None) -> Access:
    """The access as the official client reads it: with programs, identity providers or several files."""
    where = path or "$KUBECONFIG"
    try:
        config = import_module("kubernetes.config")
        client = import_module("kubernetes.client")
    except ImportError as error:
        raise AccessError(
            f"{where}: this user logs in by a program or an identity provider, which needs the Python package "
            "kubernetes; pip install kubernetes, or give the user a token or a client certificate"
        ) from error
    settings = client.Configuration()
    try:
        config.load_kube_config(str(path) if path else None, context, settings)
    except config.ConfigException as error:
        raise AccessError(f"{where}: {error}") from error

    def renew() -> str | None:
        token: str | None = settings.get_api_key_with_prefix("authorization") or (
            settings.get_api_key_with_prefix("BearerToken")
        )
        return token

    return Access(
        settings.host.rstrip("/"),
        ca=_read(Path(settings.ssl_ca_cert)) if settings.ssl_ca_cert else None,
        certificate=_read(Path(settings.cert_file)) if settings.cert_file else None,
        key=_read(Path(settings.key_file)) if settings.key_file else None,
        verify=settings.verify_ssl,
        server_name=settings.tls_server_name,
        renew=renew,
    )


def _read(path: Path) -> str:
    try:
        return read_regular(path, _FILE_MAX).decode()
    except OSError as error:
        raise AccessError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise AccessError(f"{path}: no text") from error


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


# --- the Node in a token ----------------------------------------------------------------------------------


class NodeClaim(msgspec.Struct, frozen=True):
    """The Node that a service account's token is bound to."""

    name: str
    uid: str


class _KubernetesClaims(msgspec.Struct):
    node: NodeClaim | None = None


class _TokenClaims(msgspec.Struct):
    kubernetes: _KubernetesClaims = msgspec.field(name="kubernetes.io", default_factory=_KubernetesClaims)


def node_of(token: str | None) -> NodeClaim | None:
    """The Node of a token, with or without ``Bearer``; ``None`` for a token without a Node or another text.

    A bound token names its Node since Kubernetes 1.30 (KEP-4193), and the admission policy compares the same claim.
    The signature is not verified here: the API server does that.
    """
    parts = (token or "").removeprefix("Bearer ").split(".")
    if len(parts) != 3:
        return None
    try:
        payload = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
        return msgspec.json.decode(payload, type=_TokenClaims).kubernetes.node
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        return None
