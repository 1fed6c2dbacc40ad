"""Read the end of an X.509 certificate, which the ssl module does not give a server for its own one. Pure."""

from __future__ import annotations

import ssl
from binascii import Error as Base64Error
from datetime import UTC, datetime

_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
_SEQUENCE, _UTC_TIME, _GENERALIZED_TIME, _VERSION = 0x30, 0x17, 0x18, 0xA0


class CertificateError(Exception):
    """A file cannot be used; the message names the file and the cause."""


def ends_at(pem: bytes, name: str) -> float:
    """Return the notAfter of the first certificate in a PEM file, as Unix time. RFC 5280, 4.1."""
    text = pem.decode("ascii", "replace")
    begin = text.find(_BEGIN)
    end = text.find(_END, begin)
    if begin < 0 or end < 0:
        raise CertificateError(f"{name} has no complete certificate in PEM")
    try:
        der = ssl.PEM_cert_to_DER_cert(text[begin : end + len(_END)] + "\n")
        certificate = _inside(der, 0, _SEQUENCE)
        fields = _Fields(_inside(der, certificate[0], _SEQUENCE), der)
        if fields.tag() == _VERSION:
            fields.skip()
        for _ in ("serial number", "algorithm", "issuer"):
            fields.skip()
        validity = _Fields(_inside(der, fields.at, _SEQUENCE), der)
        validity.skip()
        return _time(validity.tag(), der[slice(*_inside(der, validity.at, validity.tag()))])
    except (Base64Error, ValueError, IndexError) as error:
        raise CertificateError(f"{name} has a certificate that cannot be read: {error}") from error


class _Fields:
    """The elements of a DER sequence, in order."""

    def __init__(self, bounds: tuple[int, int], der: bytes) -> None:
        self.at, self._end = bounds
        self._der = der

    def tag(self) -> int:
        return self._der[self.at]

    def skip(self) -> None:
        self.at = _inside(self._der, self.at, self.tag())[1]
        if self.at > self._end:
            raise ValueError("an element is longer than its sequence")


def _inside(der: bytes, at: int, tag: int) -> tuple[int, int]:
    """Return where the content of the element begins and ends."""
    if der[at] != tag:
        raise ValueError(f"tag {der[at]:#x} where {tag:#x} was expected")
    length, at = der[at + 1], at + 2
    if length & 0x80:
        size = length & 0x7F
        length, at = int.from_bytes(der[at : at + size]), at + size
    if at + length > len(der):
        raise ValueError("it is truncated")
    return at, at + length


def _time(tag: int, text: bytes) -> float:
    if tag not in (_UTC_TIME, _GENERALIZED_TIME):
        raise ValueError(f"tag {tag:#x} where a time was expected")
    digits = text.decode("ascii")
    if tag == _UTC_TIME:  # a year of two digits: 50 and above means 19xx
        digits = ("19" if int(digits[:2]) >= 50 else "20") + digits
    return datetime.strptime(digits, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()
