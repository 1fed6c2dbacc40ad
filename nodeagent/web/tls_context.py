"""The TLS context of the web server, made of texts in memory. Imported when a certificate is configured: with it comes
OpenSSL."""

from __future__ import annotations

import ssl

from nodeagent.memory_file import MemoryFile
from nodeagent.web.x509 import CertificateError


def server_context(certificate: bytes, key: bytes) -> ssl.SSLContext:
    """Make the context of a certificate and its key, both in PEM. Raises ``CertificateError``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    # OpenSSL reads files only. These are in memory, so they cannot change between two reads.
    with MemoryFile(certificate) as first, MemoryFile(key) as second:
        try:
            context.load_cert_chain(first.path, second.path, password=_encrypted)
        except ssl.SSLError as error:
            why = error.reason or error
            raise CertificateError(
                f"certificate and key are broken or do not belong together: {why}"
            ) from error
    return context


def verify_clients(context: ssl.SSLContext, authorities: bytes, path: str, *, optional: bool) -> None:
    """Have the context verify clients by these CAs. Raises ``CertificateError``, which names ``path``."""
    try:
        context.load_verify_locations(
            cadata=authorities.decode("ascii", "ignore")
        )  # comments may stand between them
    except (ssl.SSLError, ValueError) as error:
        raise CertificateError(f"{path} holds no certificates of CAs in PEM: {error}") from error
    context.verify_mode = ssl.CERT_OPTIONAL if optional else ssl.CERT_REQUIRED


def _encrypted() -> str:
    raise CertificateError("the key is encrypted; use a key without a password")
