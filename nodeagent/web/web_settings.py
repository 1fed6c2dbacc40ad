"""The settings of the web server: who may scrape, and how much a page may hold."""

from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec

from nodeagent.config import formats
from nodeagent.config.faults import Conflict
from nodeagent.config.setting import AbsolutePath, Address, HostName, Settings, listed, setting

WebAddress = Annotated[
    str, formats.form(r"https?://[^\s\"<>]+", "an address that begins with https:// or http://", at_most=2000)
]


class AccessSettings(Settings, frozen=True, kw_only=True):
    """The access to a web server, and whether it has pages for people."""

    certificate_file: Annotated[
        AbsolutePath | None,
        setting(
            "Serve TLS with this certificate: a PEM file with the whole chain. The file is read again every "
            "10 s; a file that is missing, incomplete or expired does not replace the certificate in use. "
            "null: no TLS."
        ),
    ] = None
    key_file: Annotated[
        AbsolutePath | None,
        setting("Path of the certificate's private key; null: certificateFile holds the key too."),
    ] = None
    client_ca_file: Annotated[
        AbsolutePath | None,
        setting(
            "Require a client certificate signed by a CA in this file (mTLS); null: no client certificate."
        ),
    ] = None
    token_file: Annotated[
        AbsolutePath | None,
        setting(
            "Require a bearer token from this file, one token on a line, so that two are valid during an "
            "exchange; null: no token."
        ),
    ] = None
    probes_open: Annotated[
        bool,
        setting(
            "Answer /healthz and /readyz without token and client certificate. On by default, because the "
            "kubelet's probes have neither."
        ),
    ] = True
    probe_listen: Annotated[
        Address | None,
        setting(
            "A second address that serves /healthz and /readyz alone, without TLS: a missing certificate then "
            "does not restart the agent. null: no second address."
        ),
    ] = None
    host_names: Annotated[
        tuple[HostName, ...],
        listed(
            "Further names for which a port without TLS answers, as of a proxy: the name in the address that a "
            "browser shows, without the port. Addresses, localhost, names without a dot, names that end in .svc or "
            ".svc.cluster.local, and the name of the node are known. Others get 421, because a page of another "
            "site can make its own name an address of this node."
        ),
    ] = ()
    ui: Annotated[
        bool,
        setting(
            "Serve pages for people below /ui/, behind the same certificate, token and client certificate as "
            "/metrics. A browser asks for the token as a password; any user name will do."
        ),
    ] = True
    runbook: Annotated[
        WebAddress | None,
        setting(
            "The address of docs/runbook.md of this version in your copy of the repository, as monitoring.runbook "
            "of the chart: each reason on the pages is a link to its section. null: no links."
        ),
    ] = None

    @property
    def restricted(self) -> bool:
        """Whether clients need TLS, a client certificate or a token."""
        return any((self.certificate_file, self.client_ca_file, self.token_file))


class HistorySettings(Settings, frozen=True, kw_only=True):
    """The newest changes, for `nodeagent history` and the pages: 1,000 in an agent, 100,000 in a controller."""

    file: Annotated[
        AbsolutePath | None,
        setting(
            "Absolute path of a file that keeps the newest changes over a restart, 1,000 of an agent and 10,000 of a "
            "controller; null: they are lost then. "
            "Its folder must be a volume of the pod. It is written at most every 30 s."
        ),
    ] = None


class WebSettings(AccessSettings, frozen=True, kw_only=True):
    """The web server at the address of `listen`: /metrics, /health, /ui/, /healthz and /readyz."""

    series_max: Annotated[
        Annotated[int, msgspec.Meta(ge=100, le=1_000_000)],
        setting(
            "Maximum number of series in one metric family. Further series are left out and counted. The "
            "default is above the largest node's."
        ),
    ] = 10_000
    optics_limits: Annotated[
        Literal["alerts", "all"],
        setting(
            "The limits of transceivers on /metrics. alerts: the two with which alerts and dashboards compare; all: "
            "20 of each module, for dashboards of your own. Rules and `nodeagent health` always use all."
        ),
    ] = "alerts"


def web_conflicts(web: AccessSettings) -> Iterator[Conflict]:
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
