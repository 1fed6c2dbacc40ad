"""Find what is wrong with this node, why it matters and what to do. The doctor changes nothing.

Each part of the machine has a module: ``read`` collects facts, and ``findings``, which is pure, derives findings from
them. The reads run side by side, each with its own time limit (``reads``). A read that hangs, fails or crashes is
a finding and does not stop the others.

Of a captured or simulated machine only files are known. Facts that only a running machine has are reported as
unknown, which is not a fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nodeagent.agent_config import Config
from nodeagent.console.options import KUBELET_DIR
from nodeagent.doctor import (
    agent_checks,
    attach_checks,
    capabilities,
    cluster_checks,
    configuration_checks,
    dra_checks,
    gpu_checks,
    infiniband_checks,
    kubelet_checks,
    lldp_checks,
    machine_checks,
    mps_checks,
    nic_checks,
    nvsentinel_checks,
    reads,
    runtime_checks,
)
from nodeagent.doctor.cluster_checks import ClusterFacts, ClusterOptions
from nodeagent.doctor.configuration_checks import ConfigurationFacts
from nodeagent.doctor.finding import Advice, Finding, Level, Topic, as_object, finding_table
from nodeagent.doctor.nic_checks import StoredNics
from nodeagent.doctor.reads import ReadOutcome, ReadTask, Target
from nodeagent.facts.model import Snapshot
from nodeagent.host.sysfs import SysfsError, Tree, no_machine
from nodeagent.offering.offer import Offer
from nodeagent.sources import host_paths

__all__ = [
    "TIMEOUT_S",
    "TOPICS",
    "ClusterOptions",
    "DoctorOptions",
    "DoctorReport",
    "Finding",
    "Level",
    "as_object",
    "examine",
    "finding_table",
]

TIMEOUT_S = 15.0
"""Without persistence mode the NVIDIA driver initializes all GPUs at the first call, which takes seconds."""

DOCTOR = Topic(
    "doctor",
    "DOCTOR",
    {
        "check_hung": Advice(
            "The agent waits in the same place as the doctor: a driver, a disk or a socket hangs.",
            "check the kernel log (hung tasks, XIDs, I/O errors); --timeout gives the check more time",
        ),
        "check_failed": Advice(
            "This part of the machine could not be read, so there are no findings about it.",
            "the message names the file or socket; run as root on the host, or mount the missing path",
        ),
        "not_known": Advice(
            "A capture holds files only, not the answers of a running kernel, driver or kubelet.",
            "run the doctor on the machine itself",
        ),
    },
)

PLACE = Topic(
    "place",
    "THIS MACHINE",
    {
        "no_node": Advice(
            "Capabilities and writable folders matter where the agent runs, which is not here. Devices, drivers, the "
            "runtime and the configuration are checked.",
            "nothing; on a node run the doctor in the agent's pod, or as root",
        ),
    },
)

TOPICS = (
    PLACE,
    configuration_checks.CONFIGURATION_TOPIC,
    machine_checks.MACHINE_TOPIC,
    nic_checks.NICS_TOPIC,
    lldp_checks.LLDP_TOPIC,
    infiniband_checks.INFINIBAND_TOPIC,
    gpu_checks.GPUS_TOPIC,
    mps_checks.MPS_TOPIC,
    attach_checks.ATTACH_TOPIC,
    runtime_checks.RUNTIME_TOPIC,
    kubelet_checks.KUBELET_TOPIC,
    agent_checks.AGENT_TOPIC,
    nvsentinel_checks.NVSENTINEL_TOPIC,
    capabilities.RIGHTS_TOPIC,
    cluster_checks.CLUSTER_TOPIC,
    dra_checks.CLAIMS_TOPIC,
    DOCTOR,
)
"""In the order of the report."""


@dataclass(frozen=True, slots=True)
class DoctorOptions:
    """The options of the command line. ``kubelet_dir`` ``None``: the default directory. ``device_plugins_dir``
    ``None``: that below it."""

    root: Path = Path("/")
    config_file: Path | None = None
    kubelet_dir: Path | None = None
    device_plugins_dir: Path | None = None
    wait_s: float = 0.0
    timeout_s: float = TIMEOUT_S
    where: ClusterOptions = field(default_factory=ClusterOptions)


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """``hung``: threads still wait in calls that cannot be interrupted; the process must not join them at exit."""

    findings: tuple[Finding, ...]
    hung: bool = False

    @property
    def good(self) -> bool:
        return not any(finding.level is Level.FIX for finding in self.findings)


def examine(place: DoctorOptions) -> DoctorReport:
    """Run all checks. Raises ``SysfsError`` only where no machine is under the root."""
    tree = Tree(place.root)
    if not tree.exists("/sys"):
        raise SysfsError(no_machine(place.root))
    first = reads.run_reads(
        {
            "configuration": ReadTask(
                lambda: configuration_checks.read_configuration(place.config_file), place.timeout_s
            )
        }
    )
    configured = first["configuration"].value or ConfigurationFacts("the default configuration", Config())
    recorded = tree.recorded
    target = Target(
        tree,
        configured.config,
        recorded,
        place.kubelet_dir or _kubelet_dir(tree, recorded),
        place.wait_s,
        place.timeout_s,
        place.device_plugins_dir,
    )
    by_claim = any(getattr(entry, "mode", "") == "dra" for entry in configured.config.resources)
    outcomes = first | reads.run_reads(_tasks(target, replace(place.where, dra=by_claim)))
    findings = tuple(_findings(outcomes, target))
    return DoctorReport(findings, any(outcome.hung_s is not None for outcome in outcomes.values()))


def _kubelet_dir(tree: Tree, recorded: bool) -> Path | None:
    """The directory that `nodeagent run` uses, or the host's below ``--root``. A recorded machine has no kubelet."""
    if recorded:
        return None
    usual, below = Path(KUBELET_DIR), tree.path(KUBELET_DIR)
    return below if below.is_dir() and not usual.is_dir() else usual


def _tasks(target: Target, where: ClusterOptions) -> dict[str, ReadTask]:
    usual, margin = target.timeout_s, 2.0
    tasks = {
        "machine": ReadTask(lambda: machine_checks.read_machine(target), usual),
        "nics": ReadTask(lambda: nic_checks.read_nics(target), usual),
        # The process that it starts has the usual time and must end first.
        "gpus": ReadTask(lambda: gpu_checks.read_gpus(target), usual + margin),
        "attach": ReadTask(lambda: attach_checks.read_attach(target), usual),
        "mps": ReadTask(lambda: mps_checks.read_mps(target), usual),
        "runtime": ReadTask(lambda: runtime_checks.read_runtimes(target), usual),
        "paths": ReadTask(
            lambda: host_paths.find(target.tree, target.config.cdi.directory, target.config.gpu.driver_root),
            usual,
        ),
        "rails": ReadTask(lambda: nic_checks.read_stored_nics(target), usual),
        "kubelet": ReadTask(lambda: kubelet_checks.read_kubelet(target), usual),
        "agent": ReadTask(lambda: agent_checks.read_agent(target), usual),
        "nvsentinel": ReadTask(lambda: nvsentinel_checks.read_nvsentinel(target), usual),
        "infiniband": ReadTask(lambda: infiniband_checks.read_infiniband(target), usual),
        "lldp": ReadTask(lambda: lldp_checks.read_lldp(target), usual + target.wait_s),
    }
    if not target.recorded:
        tasks["rights"] = ReadTask(lambda: capabilities.read_rights(target), usual)
    if not target.recorded or where.kubeconfig is not None or where.context is not None:
        tasks["cluster"] = ReadTask(lambda: cluster_checks.read_cluster_facts(where), 2 * usual)
    return tasks


def _findings(outcomes: dict[str, ReadOutcome], target: Target) -> Iterator[Finding]:
    config = target.config
    stored: StoredNics = outcomes["rails"].value or StoredNics()
    snapshot = _snapshot(outcomes, stored)

    def found_by(name: str, findings: Callable[[Any], Iterable[Finding]]) -> Iterator[Finding]:
        """The findings of one read; none where the read has no value."""
        outcome = outcomes.get(name)
        if outcome is not None and outcome.value is not None:
            yield from findings(outcome.value)

    gpus = snapshot.gpus if snapshot else ()
    bare = _is_bare(outcomes)
    if bare:
        yield PLACE.note("no_node", "no node, no root: no kubelet runs here, and this is an ordinary user")
    yield from found_by(
        "configuration",
        lambda facts: configuration_checks.configuration_findings(facts, snapshot, stored.numbering),
    )
    yield from found_by("machine", lambda facts: machine_checks.machine_findings(facts, config))
    lldp = outcomes["lldp"].value or lldp_checks.LldpFacts()
    yield from found_by(
        "nics",
        lambda facts: nic_checks.nic_findings(facts, config, {neighbor.link for neighbor in lldp.neighbors}),
    )
    yield from found_by("lldp", lambda facts: lldp_checks.lldp_findings(facts, config))
    yield from found_by("infiniband", lambda facts: infiniband_checks.infiniband_findings(facts, config))
    machine: machine_checks.MachineFacts | None = outcomes["machine"].value
    kernel = None if machine is None else machine.kernel
    yield from found_by("gpus", lambda facts: gpu_checks.gpu_findings(facts, config, kernel))
    yield from found_by("mps", mps_checks.mps_findings)
    yield from found_by("attach", attach_checks.attach_findings)
    yield from found_by("runtime", lambda facts: runtime_checks.runtime_findings(facts, config, gpus))
    yield from found_by(
        "kubelet", lambda facts: kubelet_checks.kubelet_findings(facts, config, snapshot, stored.numbering)
    )
    yield from found_by("agent", lambda facts: agent_checks.agent_findings(facts, recorded=target.recorded))
    yield from found_by("nvsentinel", nvsentinel_checks.nvsentinel_findings)
    if not bare:
        yield from found_by("rights", lambda facts: capabilities.rights_findings(facts, config))
    cluster = outcomes.get("cluster", ReadOutcome(error=LookupError()))
    if cluster.error is None and cluster.hung_s is None:
        yield from cluster_checks.cluster_findings(cluster.value, config, snapshot, stored.numbering)
        yield from _node(cluster.value, outcomes["kubelet"].value, config, snapshot, stored)
    for name, outcome in outcomes.items():
        if outcome.hung_s is not None:
            yield DOCTOR.fix("check_hung", f"{name}: no answer within {outcome.hung_s:g} s")
        elif outcome.error is not None:
            yield DOCTOR.fix("check_failed", f"{name}: {_described(outcome.error)}")
    if target.recorded:
        unknown = ["clock", "capabilities", "network namespace", "LLDP"]
        unknown += ["kubelet"] if target.kubelet_dir is None else []
        yield DOCTOR.note("not_known", f"captured or simulated machine; not known: {', '.join(unknown)}")


def _node(
    facts: ClusterFacts | None,
    kubelet: kubelet_checks.KubeletFacts | None,
    config: Config,
    snapshot: Snapshot | None,
    stored: StoredNics,
) -> Iterator[Finding]:
    """Compare the cluster's view of this node with the kubelet and the machine."""
    numbering = stored.numbering
    yield from cluster_checks.phantoms(facts, kubelet, config, snapshot, numbering, stored.prefixes)
    if facts is not None and facts.dra is not None:
        node = facts.node
        hardware = (
            dra_checks.hardware_words(Offer(config, numbering), snapshot) if snapshot is not None else {}
        )
        yield from dra_checks.claim_findings(
            facts.dra, config, node.allocatable if node else None, node.kubelet if node else "", hardware
        )


def _is_bare(outcomes: dict[str, ReadOutcome]) -> bool:
    """Whether this is an ordinary user's process on a machine without a kubelet: a laptop, a build host."""
    kubelet: kubelet_checks.KubeletFacts | None = outcomes["kubelet"].value
    rights: capabilities.ProcessRights | None = outcomes["rights"].value if "rights" in outcomes else None
    if kubelet is None or rights is None:
        return False
    return rights.uid != 0 and kubelet.folder is not None and not kubelet.exists and not kubelet.forbidden


def _snapshot(outcomes: dict[str, ReadOutcome], stored: StoredNics) -> Snapshot | None:
    """The devices of the machine as the agent sees them; ``None`` where a part is not known."""
    nics: nic_checks.NicFacts | None = outcomes["nics"].value
    gpus: gpu_checks.GpuFacts | None = outcomes["gpus"].value
    paths = outcomes["paths"].value
    if nics is None or gpus is None or paths is None or gpus.answer is None:
        return None
    facts = nic_checks.completed(nics.facts, stored)
    return Snapshot(
        product=facts.product,
        guest=facts.guest,
        functions=facts.functions,
        links=facts.links,
        gpus=gpus.gpus,
        gpu_functions=nics.facts.gpus,
        paths=paths,
        gpu_driver=gpus.answer.version,
        limit_support=gpus.support,
    )


def _described(error: BaseException) -> str:
    """The text of an error; an error that is not from nodeagent also with its type."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    ours = type(error).__module__.startswith("nodeagent.")
    return str(error) if ours and str(error) else f"{type(error).__name__}: {error}"
