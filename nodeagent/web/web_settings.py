"""The settings of the web server: who may scrape, and how much a page may hold."""

from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec

from nodeagent.config import formats
from nodeagent.config.file_errors import Conflict
from nodeagent.config.setting import AbsolutePath, Address, HostName, Settings, listed, setting

WebAddress = Annotated[
    str, formats.form(r"https?://[^\s\"<>]+", "an address that begins with https:// or http://", at_most=2000)
]


FILE_NAME = "history.json"
"""The name for the file of the changes that pages and messages show."""


class AccessSettings(Settings, frozen=True, kw_only=True):
    """The access to a web server, and whether it has pages for people."""

    certificate_file: Annotated[
        AbsolutePath | None,
        setting(
            "Serve TLS with this certificate: a PEM file of the container with the whole chain. The file is read again "
            "every 10 s; a file that is missing, incomplete or expired does not replace the certificate in use. "
            "null: no TLS."
        ),
    ] = None
    key_file: Annotated[
        AbsolutePath | None,
        setting(
            "Path in the container of the certificate's private key; null: certificateFile holds the key too."
        ),
    ] = None
    client_ca_file: Annotated[
        AbsolutePath | None,
        setting(
            "Require a client certificate signed by a CA in this file of the container (mTLS); null: no client "
            "certificate."
        ),
    ] = None
    token_file: Annotated[
        AbsolutePath | None,
        setting(
            "Require a bearer token from this file of the container, one token on a line, so that two are valid during "
            "an exchange; null: no token."
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


StateFileName = Annotated[
    str,
    formats.form(
        r"/[^\x00-\x1f]*|[A-Za-z0-9][A-Za-z0-9_.-]*",
        "a name such as history.json, below health.stateDirectory, or an absolute path",
        at_most=4095,
    ),
]
OWN_NAMES = (
    "agent.sock", "claims", "cordons.json", "cordons.json.broken", "gpus.json", "health.json", "infiniband.json", "mps",
    "neighbors.json", "over-uses.json", "rails.json", "requests.json", "slices.json", "tell.sh",
)  # fmt: skip
"""The other files and folders of the agent in its state folder."""


class AgentHistorySettings(Settings, frozen=True, kw_only=True):
    """The newest 1,000 changes of a node, for `nodeagent history` and the node page."""

    file: Annotated[
        StateFileName | None,
        setting(
            "File that keeps the newest 1,000 changes over a restart: a name, such as history.json, in "
            "health.stateDirectory; or an absolute path of the agent's container, whose folder must be a volume. null: "
            "a restart loses them. It is written at most every 30 s."
        ),
    ] = None


class HistorySettings(Settings, frozen=True, kw_only=True):
    """The newest 100,000 changes of a fabric, for `nodeagent history` and the fabric map."""

    file: Annotated[
        AbsolutePath | None,
        setting(
            "Absolute path of a file of the controller's container that keeps the newest 10,000 changes over a "
            "restart; null: they are lost then. Its folder must be a volume of the pod. It is written at most every "
            "30 s."
        ),
    ] = None


def history_conflicts(history: AgentHistorySettings, state_directory: str) -> Iterator[Conflict]:
    """The file of the history in the place of another file of the agent."""
    folder, _, name = (history.file or "").rpartition("/")
    # An absolute path is one of the container: the state folder is there below a prefix such as /host.
    if name in OWN_NAMES and (not folder or folder.endswith(state_directory.rstrip("/"))):
        yield Conflict(
            (("history", "file"), ("health", "stateDirectory")),
            f"the agent has another file of this name in its state folder; write {FILE_NAME}",
        )


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


class MapSettings(AccessSettings, frozen=True, kw_only=True):
    """The web server of the controller."""

    node_page: Annotated[
        WebAddress | None,
        setting(
            "The address of the page of a node, with {node} in place of its name, as your browsers reach it: "
            "http://{node}:9808/ui/ where names of nodes resolve, or that of a proxy. The fabric map links to it; "
            "null: it shows a command in place of the link."
        ),
    ] = None


def map_conflicts(web: MapSettings) -> Iterator[Conflict]:
    """An address of the nodes' pages that is the same for each node, and what ``web_conflicts`` finds."""
    if web.node_page is not None and "{node}" not in web.node_page:
        yield Conflict((("nodePage",),), "must contain {node}: each node has a page of its own")
    yield from web_conflicts(web)


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
