"""The settings of the web server: who may scrape, and how much a page may hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec

from nodeagent.config import formats
from nodeagent.config.setting import Address, Settings, setting

File = Annotated[str, formats.DIRECTORY]


class WebSettings(Settings, frozen=True, kw_only=True):
    """How /metrics, /healthz and /readyz are served at the address of `listen`."""

    certificate_file: Annotated[
        File | None,
        setting(
            "Serve TLS with this certificate, in PEM with its chain. It is looked at again every 10 s; one that is "
            "missing, half written or expired does not replace the one in use."
        ),
    ] = None
    key_file: Annotated[
        File | None, setting("The certificate's private key; null: it is in certificateFile too.")
    ] = None
    client_ca_file: Annotated[
        File | None, setting("Ask for a client certificate that one of these CAs has signed (mTLS).")
    ] = None
    token_file: Annotated[
        File | None,
        setting("Ask for one of the bearer tokens in this file, one a line: two while they are exchanged."),
    ] = None
    probes_open: Annotated[
        bool,
        setting(
            "Answer /healthz and /readyz without token and client certificate, which the kubelet does not have."
        ),
    ] = True
    probe_listen: Annotated[
        Address | None,
        setting(
            "A second address where /healthz and /readyz alone are served, without TLS: a certificate that is "
            "late then restarts no agent."
        ),
    ] = None
    series_max: Annotated[
        Annotated[int, msgspec.Meta(ge=100, le=1_000_000)],
        setting("The most series of one metric family; the rest is left out and counted."),
    ] = 10_000


def complaints(web: WebSettings) -> Iterator[tuple[tuple[str, ...], str]]:
    """Settings that mean nothing, or less than they seem to, without another: their names and what to do."""
    if web.certificate_file is None:
        if web.client_ca_file is not None:
            yield ("clientCaFile", "certificateFile"), "needs certificateFile: without TLS nobody is asked"
        if web.key_file is not None:
            yield ("keyFile", "certificateFile"), "needs certificateFile, the certificate that it belongs to"
        if web.token_file is not None:
            message = "needs certificateFile: without TLS everybody on the way could read the token"
            yield ("tokenFile", "certificateFile"), message
