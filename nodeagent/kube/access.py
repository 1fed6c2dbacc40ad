"""Where the API server is and how we prove who we are: the pod's service account, or a kubeconfig.

The law of this file:

* Outside a cluster is no error: ``in_cluster`` is ``None``. Half of a service account is one.
* A kubeconfig with a token, certificates or files is read here. One that starts a program or asks an identity
  provider is handed to the official client (the extra ``kubeconfig``), which knows all of them.
* Nothing secret stands in a message.
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

SERVICE_ACCOUNT = "var/run/secrets/kubernetes.io/serviceaccount"
_PLAIN = {
    "token", "tokenFile", "client-certificate", "client-certificate-data", "client-key", "client-key-data",
}  # fmt: skip


class AccessError(Exception):
    """No way to the API server can be made of what is there; the message names the file and the remedy."""


@dataclass(frozen=True, slots=True)
class Access:
    """How one API server is reached.

    ``server`` is a URL. ``ca_file`` and ``token_file`` are read again, for the kubelet renews them. ``ca``,
    ``certificate`` and ``key`` are PEM text; without a CA the system's are trusted. ``renew`` says the whole
    Authorization header anew, where somebody else sees to it.
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
        """The Authorization header as of now; reads the token's file. Raises ``AccessError``."""
        if self.renew is not None:
            return self.renew()
        if self.token_file is not None:
            token = _read(self.token_file).strip()
            if not token:
                raise AccessError(f"{self.token_file}: the token is empty; is the volume mounted?")
            return f"Bearer {token}"
        return None if self.token is None else f"Bearer {self.token}"


def in_cluster(root: Path = Path("/")) -> Access | None:
    """The way of a pod: ``None`` outside a cluster. Raises ``AccessError`` for half of it.

    ``root`` is where the pod's own files are, which is not the host's root.
    """
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    folder = root / SERVICE_ACCOUNT
    token, ca, namespace = (folder / name for name in ("token", "ca.crt", "namespace"))
    if not host or not token.exists():
        return None  # a cluster's service is named to every pod, a service account is given to some
    if not ca.exists():
        raise AccessError(f"{ca}: missing, so the API server cannot be trusted; mount the service account")
    return Access(
        f"https://{_bracketed(host)}:{port}",
        _read(namespace).strip() if namespace.exists() else "default",
        ca_file=ca,
        token_file=token,
    )


def kubeconfig(path: Path | None = None, context: str | None = None) -> Access:
    """The way that a kubeconfig tells; ``None`` is ``$KUBECONFIG`` or ``~/.kube/config``."""
    import yaml  # noqa: PLC0415 - a pod has no kubeconfig, and need not pay for YAML here

    if path is None:
        found = [one for one in os.environ.get("KUBECONFIG", "").split(os.pathsep) if one]
        path = Path(found[0] if found else "~/.kube/config").expanduser()
        if len(found) > 1:
            return _official(None, context)
    text = _read(path)
    try:
        return _kubeconfig(yaml.safe_load(text), path, context)
    except yaml.YAMLError as error:
        raise AccessError(f"{path}: no YAML: {str(error).splitlines()[0]}") from error


def _kubeconfig(root: Any, path: Path, context: str | None) -> Access:
    if not isinstance(root, dict):
        raise AccessError(f"{path}: no kubeconfig; `kubectl config view` shows what one looks like")
    chosen = context or root.get("current-context")
    if not chosen:
        raise AccessError(f"{path}: no current-context; set one with `kubectl config use-context`")
    context_ = _named(root, "contexts", "context", chosen, path)
    cluster = _named(root, "clusters", "cluster", context_.get("cluster"), path)
    user = _named(root, "users", "user", context_["user"], path) if context_.get("user") else {}
    if not isinstance(cluster.get("server"), str):
        raise AccessError(f"{path}: cluster {context_.get('cluster')!r} has no server")
    if cluster.get("proxy-url"):
        raise AccessError(f"{path}: proxy-url is not supported; reach the API server of {chosen!r} directly")
    if set(user) - _PLAIN:
        return _official(path, chosen)
    token_file = user.get("tokenFile")
    return Access(
        cluster["server"].rstrip("/"),
        context_.get("namespace") or "default",
        ca=_text(cluster, "certificate-authority", path),
        token=user.get("token") if not token_file else None,
        token_file=(path.parent / token_file) if token_file else None,
        certificate=_text(user, "client-certificate", path),
        key=_text(user, "client-key", path),
        verify=not cluster.get("insecure-skip-tls-verify", False),
        server_name=cluster.get("tls-server-name"),
    )


def _named(root: dict[str, Any], list_: str, key: str, name: Any, path: Path) -> dict[str, Any]:
    for entry in root.get(list_) or ():
        if isinstance(entry, dict) and entry.get("name") == name and isinstance(entry.get(key), dict):
            found: dict[str, Any] = entry[key]
            return found
    known = ", ".join(sorted(str(e.get("name")) for e in root.get(list_) or () if isinstance(e, dict)))
    raise AccessError(f"{path}: {list_} has no {name!r}; it has {known or 'none'}")


def _text(holder: dict[str, Any], key: str, path: Path) -> str | None:
    """``<key>-data``, or the file that ``<key>`` names, as the file's folder sees it."""
    data = holder.get(f"{key}-data")
    if data:
        try:
            return base64.b64decode(data, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError, TypeError) as error:
            raise AccessError(f"{path}: {key}-data is no base64 of a PEM text") from error
    return _read(path.parent / holder[key]) if holder.get(key) else None


def _official(path: Path | None, context: str | None) -> Access:
    """What the official client makes of a kubeconfig: programs, identity providers, several files."""
    where = path or "$KUBECONFIG"
    try:
        config = import_module("kubernetes.config")
        client = import_module("kubernetes.client")
    except ImportError as error:
        raise AccessError(
            f"{where}: this user logs in by a program or an identity provider, which the Python package kubernetes "
            "does; install nodeagent[kubeconfig], or give the user a token or a client certificate"
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
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise AccessError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise AccessError(f"{path}: no text") from error


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
