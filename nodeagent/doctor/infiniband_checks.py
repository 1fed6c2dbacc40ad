"""Check whether the agent may ask the peers of the InfiniBand ports. Opens and registers, and sends no packet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from nodeagent.agent_config import Config
from nodeagent.doctor.finding import FACT, Advice, Finding, Topic, count, shortened_list
from nodeagent.doctor.reads import Target
from nodeagent.host.umad import REMEDIES, UmadError, UmadPort, UmadReason
from nodeagent.sources.ib_ports import IbPort, read_ib_ports
from nodeagent.sources.pci_source import scan

_WHY = "The switch port at the other end of an InfiniBand link is known only if the port may ask its peer."
INFINIBAND_TOPIC = Topic(
    "infiniband",
    "INFINIBAND",
    {
        "ib_ready": FACT,
        "ib_not_asked": Advice(
            "There is no LLDP on InfiniBand: without questions these links have no place in the fabric.",
            "add daemonset/components/infiniband, which sets infiniband.query: auto; read docs/infiniband.md first",
        ),
        "ib_no_module": Advice(
            _WHY, "load the module: modprobe ib_umad, and at each boot /etc/modules-load.d"
        ),
        "ib_no_device": Advice(_WHY, REMEDIES[UmadReason.NO_DEVICE]),
        "ib_device_cgroup": Advice(_WHY, REMEDIES[UmadReason.CGROUP]),
        "ib_device_mode": Advice(_WHY, REMEDIES[UmadReason.MODE]),
        "ib_no_smi": Advice(_WHY, REMEDIES[UmadReason.NO_SMI]),
        "ib_device_fails": Advice(_WHY, REMEDIES[UmadReason.FAILED]),
    },
)


@dataclass(frozen=True, slots=True)
class InfinibandFacts:
    """``failures`` has the reason and the message for each link whose device cannot be used. ``None``: not tried, as on
    a captured machine, whose devices are files."""

    ports: tuple[IbPort, ...] = ()
    failures: Mapping[str, tuple[UmadReason, str]] | None = None


def read_infiniband(target: Target) -> InfinibandFacts:
    facts = scan(target.tree)
    ports = read_ib_ports(target.tree, facts.functions, facts.links)
    if not target.config.infiniband.asks or target.recorded:
        return InfinibandFacts(ports)
    failures: dict[str, tuple[UmadReason, str]] = {}
    for port in ports:
        if port.umad is None:
            continue
        try:
            with UmadPort.open(target.tree.path(port.umad)):
                pass
        except UmadError as error:
            failures[port.link] = (error.reason, str(error))
    return InfinibandFacts(ports, failures)


def infiniband_findings(facts: InfinibandFacts, config: Config) -> Iterator[Finding]:
    if not facts.ports:
        return
    if not config.infiniband.asks:
        ports = count(len(facts.ports), "InfiniBand port")
        yield INFINIBAND_TOPIC.note(
            "ib_not_asked", f"infiniband.query is {config.infiniband.query}: {ports} without a switch"
        )
        return
    good = 0
    by_reason: dict[UmadReason, list[str]] = {}
    for port in facts.ports:
        reason, message = _failure(port, facts.failures or {})
        if reason is None:
            good += 1
        else:
            by_reason.setdefault(reason, []).append(f"{port.link} ({message})" if message else port.link)
    for reason, links in by_reason.items():
        yield _cannot_ask(reason, f"{shortened_list(links, 1)} cannot ask")
    if good and facts.failures is not None:
        yield INFINIBAND_TOPIC.ok(
            "ib_ready", f"{good} of {count(len(facts.ports), 'InfiniBand port')} may ask their switch"
        )


def _failure(port: IbPort, failures: Mapping[str, tuple[UmadReason, str]]) -> tuple[UmadReason | None, str]:
    if port.umad is not None:
        return failures.get(port.link, (None, ""))
    return UmadReason.NO_SMI if port.has_mads else UmadReason.NO_MODULE, ""


def _cannot_ask(reason: UmadReason, what: str) -> Finding:
    match reason:
        case UmadReason.NO_MODULE:
            return INFINIBAND_TOPIC.fix("ib_no_module", what)
        case UmadReason.NO_DEVICE:
            return INFINIBAND_TOPIC.fix("ib_no_device", what)
        case UmadReason.CGROUP:
            return INFINIBAND_TOPIC.fix("ib_device_cgroup", what)
        case UmadReason.MODE:
            return INFINIBAND_TOPIC.fix("ib_device_mode", what)
        case UmadReason.NO_SMI:
            return INFINIBAND_TOPIC.fix("ib_no_smi", what)
        case _:
            return INFINIBAND_TOPIC.fix("ib_device_fails", what)
