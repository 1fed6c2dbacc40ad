"""Check whether the agent may ask the peers of the InfiniBand ports. Opens and registers, and sends no packet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nodeagent import discovery
from nodeagent.agent_config import Config
from nodeagent.doctor.finding import FACT, Advice, Finding, Topic, count, shortened
from nodeagent.doctor.target import Target
from nodeagent.host.umad import REMEDIES, UmadError, UmadPort, UmadReason
from nodeagent.sources.ib_ports import IbPort, read_ib_ports
from nodeagent.sources.pci_source import scan

_WHY = "The switch port at the other end of an InfiniBand link is known only if the port may ask its peer."
TOPIC = Topic(
    "infiniband",
    "INFINIBAND",
    {
        "ib_ready": FACT,
        "ib_not_asked": Advice(
            "There is no LLDP on InfiniBand: without questions these links have no place in the fabric.",
            "apply daemonset/overlays/infiniband, which sets infiniband.query: auto; read docs/infiniband.md first",
        ),
        "ib_no_module": Advice(
            _WHY, "load the module: modprobe ib_umad, and at each boot /etc/modules-load.d"
        ),
        "ib_no_device": Advice(_WHY, "give the container the host's /dev/infiniband"),
        "ib_device_cgroup": Advice(_WHY, REMEDIES[UmadReason.CGROUP]),
        "ib_device_mode": Advice(_WHY, REMEDIES[UmadReason.MODE]),
        "ib_no_smi": Advice(_WHY, REMEDIES[UmadReason.NO_SMI]),
        "ib_device_fails": Advice(_WHY, REMEDIES[UmadReason.FAILED]),
    },
)
_KEYS = {
    UmadReason.CGROUP: "ib_device_cgroup",
    UmadReason.MODE: "ib_device_mode",
    UmadReason.NO_SMI: "ib_no_smi",
    UmadReason.NO_DEVICE: "ib_no_device",
}


@dataclass(frozen=True, slots=True)
class InfinibandFacts:
    """``failures`` has the reason and the message for each link whose device cannot be used. ``None``: not tried."""

    ports: tuple[IbPort, ...] = ()
    failures: dict[str, tuple[UmadReason, str]] | None = None


def read(target: Target) -> InfinibandFacts:
    facts = scan(target.tree)
    ports = read_ib_ports(target.tree, facts.functions, facts.links)
    if not discovery.asks_infiniband(target.config.infiniband):
        return InfinibandFacts(ports)
    failures: dict[str, tuple[UmadReason, str]] = {}
    for port in ports:
        if port.umad is None:
            continue
        try:
            with UmadPort.open(target.tree.path(port.umad), recorded=target.recorded):
                pass
        except UmadError as error:
            failures[port.link] = (error.reason, str(error))
    return InfinibandFacts(ports, failures)


def findings(facts: InfinibandFacts, config: Config) -> Iterator[Finding]:
    if not facts.ports:
        return
    if facts.failures is None:
        ports = count(len(facts.ports), "InfiniBand port")
        yield TOPIC.note(
            "ib_not_asked", f"infiniband.query is {config.infiniband.query}: {ports} without a switch"
        )
        return
    bad: dict[str, list[str]] = {}
    for port in facts.ports:
        if port.umad is None:
            bad.setdefault("ib_no_smi" if port.has_mads else "ib_no_module", []).append(port.link)
        elif (failure := facts.failures.get(port.link)) is not None:
            bad.setdefault(_KEYS.get(failure[0], "ib_device_fails"), []).append(port.link)
    for key, links in sorted(bad.items()):
        messages = {facts.failures[link][1] for link in links if link in facts.failures}
        reason = f": {min(messages)}" if messages else ""
        yield TOPIC.fix(key, f"{shortened(links)} cannot ask{reason}")
    good = len(facts.ports) - sum(map(len, bad.values()))
    if good:
        yield TOPIC.ok(
            "ib_ready", f"{good} of {count(len(facts.ports), 'InfiniBand port')} may ask their switch"
        )
