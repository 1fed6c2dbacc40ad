"""Certificates from the ``openssl`` program: a CA, the server's, and clients'."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

_CA = """\
[req]
distinguished_name = dn
prompt = no
[dn]
CN = standin-ca
[ca]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
{identifiers}
[server]
basicConstraints = critical, CA:FALSE
subjectAltName = IP:127.0.0.1, DNS:localhost, DNS:kubernetes.default.svc
extendedKeyUsage = serverAuth
[client]
basicConstraints = critical, CA:FALSE
extendedKeyUsage = clientAuth
"""
_IDENTIFIERS = "subjectKeyIdentifier = hash\nauthorityKeyIdentifier = keyid"
_EC = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class Certificates:
    """Files in ``folder``. Without ``identifiers`` the CA lacks the key identifiers, as in many clusters, which
    Python 3.13 requires by default."""

    def __init__(self, folder: Path, *, identifiers: bool = True) -> None:
        self._folder = folder
        self._config = folder / "openssl.cnf"
        self._config.write_text(_CA.format(identifiers=_IDENTIFIERS if identifiers else ""), encoding="utf-8")
        self.ca = folder / "ca.crt"
        self._run(
            "req", "-x509", *_EC, "-days", "2", "-keyout", str(folder / "ca.key"), "-out", str(self.ca),
            "-extensions", "ca",
        )  # fmt: skip
        self._issue("server", "/CN=kube-apiserver", "server")

    def client(self, user: str, *groups: str) -> tuple[Path, Path]:
        """A client certificate and its key; the groups are its organizations."""
        subject = "".join(f"/O={group}" for group in groups) + f"/CN={user}"
        return self._issue("client", subject, "client")

    def server(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._folder / "server.crt", self._folder / "server.key")
        context.load_verify_locations(self.ca)
        context.verify_mode = ssl.CERT_OPTIONAL
        return context

    def _issue(self, name: str, subject: str, extensions: str) -> tuple[Path, Path]:
        certificate, key, request = (self._folder / f"{name}.{end}" for end in ("crt", "key", "csr"))
        self._run("req", "-new", *_EC, "-keyout", str(key), "-out", str(request), "-subj", subject)
        self._run(
            "x509", "-req", "-in", str(request), "-CA", str(self.ca), "-CAkey", str(self._folder / "ca.key"),
            "-CAcreateserial", "-days", "2", "-out", str(certificate),
            "-extfile", str(self._config), "-extensions", extensions, configured=False,
        )  # fmt: skip
        return certificate, key

    def _run(self, *arguments: str, configured: bool = True) -> None:
        extra = ["-config", str(self._config)] if configured else []
        subprocess.run(["openssl", *arguments, *extra], check=True, capture_output=True, timeout=60)
