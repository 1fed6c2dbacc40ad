"""The settings of the web server: who may scrape, and how much a page may hold."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec

from nodeagent.config.faults import Conflict
from nodeagent.config.setting import AbsolutePath, Address, Settings, setting


class WebSettings(Settings, frozen=True, kw_only=True):
    """How /metrics, /healthz and /readyz are served at the address of `listen`."""

    certificate_file: Annotated[
        AbsolutePath | None,
        setting(
            "Serve TLS with this certificate, in PEM with its chain. It is looked at again every 10 s; one that is "
            "missing, half written or expired does not replace the one in use."
        ),
    ] = None
    key_file: Annotated[
        AbsolutePath | None, setting("The certificate's private key; null: it is in certificateFile too.")
    ] = None
    client_ca_file: Annotated[
        AbsolutePath | None, setting("Ask for a client certificate that one of these CAs has signed (mTLS).")
    ] = None
    token_file: Annotated[
        AbsolutePath | None,
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

    @property
    def restricted(self) -> bool:
        """Whether clients need TLS, a client certificate or a token."""
        return any((self.certificate_file, self.client_ca_file, self.token_file))


def web_conflicts(web: WebSettings) -> Iterator[Conflict]:
    """Settings that have no effect, or an unsafe one, without a certificate."""
    if web.certificate_file is not None:
        return
    for key, value, message in (
        ("clientCaFile", web.client_ca_file, "needs certificateFile: client certificates exist in TLS only"),
        ("keyFile", web.key_file, "needs certificateFile, the certificate of this key"),
        (
            "tokenFile",
            web.token_file,
            "needs certificateFile: without TLS the token can be read on the network",
        ),
    ):
        if value is not None:
            yield Conflict(((key,), ("certificateFile",)), message)
