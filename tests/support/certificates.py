"""Keys and certificates for tests, created by openssl: ``pytestmark = pytest.mark.needs("openssl")``."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

_EC = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class Authority:
    """A CA in a folder. It signs certificates for 127.0.0.1."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.certificate = folder / f"{name}.crt"
        self._key = folder / f"{name}.key"
        _openssl(
            "req",
            "-x509",
            *_EC,
            "-keyout",
            self._key,
            "-out",
            self.certificate,
            "-subj",
            f"/CN={name}",
            "-days",
            "2",
        )

    def sign(self, name: str, days: int = 2) -> tuple[Path, Path]:
        """Certificate and key; with negative days the certificate has expired."""
        certificate, key, request = (self.folder / f"{name}.{end}" for end in ("crt", "key", "csr"))
        extensions = self.folder / "extensions"
        extensions.write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
        _openssl("req", "-new", *_EC, "-keyout", key, "-out", request, "-subj", f"/CN={name}")
        _openssl(
            *(
                "x509",
                "-req",
                "-in",
                request,
                "-CA",
                self.certificate,
                "-CAkey",
                self._key,
                "-CAcreateserial",
            ),
            *("-out", certificate, "-days", str(days), "-extfile", extensions),
        )
        return certificate, key

    def client(self, identity: tuple[Path, Path] | None = None) -> ssl.SSLContext:
        """The context of a client that trusts this CA, with or without a client certificate."""
        context = ssl.create_default_context(cafile=str(self.certificate))
        if identity is not None:
            context.load_cert_chain(*identity)
        return context


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
