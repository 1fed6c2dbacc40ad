"""The tables of ``docs/reference/metrics.md`` and ``samples.md``, made from the measurements and families."""

from __future__ import annotations

from collections.abc import Iterable

from hack.docs import metric_notes
from hack.docs.markdown import table
from hack.docs.metric_notes import Note
from hack.docs.sample_texts import RECORDED_ONLY, TEXTS
from nodeagent.agent_features import families_of_agent
from nodeagent.controller_features import families_of_controller
from nodeagent.measurements.family import Family, Measurement
from nodeagent.measurements.sample import Source
from nodeagent.measurements.table import MEASUREMENTS
from nodeagent.sampling.sampling_settings import SamplesSettings

CATALOG: dict[str, Family] = {family.name: family for family in families_of_agent()}
"""Every metric family of the agent, in the order of the page."""
TOPICS = {
    "Links": ("link",),
    "Transceivers": ("transceiver",),
    "PCIe, firmware and kernel": ("pcie", "devlink", "kernel"),
    "RDMA and InfiniBand": ("rdma", "infiniband"),
    "VFs": ("vf", "pf", "attach"),
    "Neighbors": ("lldp",),
    "Probes over the rails": ("rail",),
    "GPUs": (
        "gpu",
        "gpus",
        "nvswitch",
    ),
    "Pods and free devices": ("device", "resource"),
    "The agent": (
        "build",
        "claim",
        "claims",
        "cluster",
        "file",
        "state",
        "rpc",
        "rpcs",
        "kubelet",
        "source",
        "hanging",
        "task",
        "collector",
        "configuration",
        "netlink",
        "series",
        "web",
    ),
}
"""Heading, and the first words of its families' names."""

_RATES = SamplesSettings()
_ETHTOOL_RATE = (
    f"{_RATES.ethtool_seconds:g} s; {_RATES.link_seconds:g} s with a faulty link; at once after a change"
)
READERS: dict[Source, tuple[str, str, str]] = {
    Source.LINK: ("one RTM_GETLINK dump", f"{_RATES.link_seconds:g} s, and at once after an event", "-"),
    Source.MODES: ("ethtool netlink LINKMODES_GET", _ETHTOOL_RATE, "-"),
    Source.STATE: ("ethtool netlink LINKSTATE_GET", _ETHTOOL_RATE, "-"),
    Source.FEC: ("ethtool netlink FEC_GET", _ETHTOOL_RATE, "-"),
    Source.PAUSE: ("ethtool netlink PAUSE_GET", _ETHTOOL_RATE, "-"),
    Source.STANDARD: ("ethtool netlink STATS_GET, Linux 5.13", f"{_RATES.driver_seconds:g} s", "-"),
    Source.DRIVER: ("ETHTOOL_GSTATS; names of mlx5, bnxt_en and ice", f"{_RATES.driver_seconds:g} s", "-"),
    Source.RDMA: ("sysfs; NETLINK_RDMA for hardware counters", f"{_RATES.rdma_seconds:g} s", "-"),
    Source.PCIE: ("sysfs", f"{_RATES.pcie_seconds:g} s", "-"),
    Source.DEVLINK: ("devlink HEALTH_REPORTER_GET", f"{_RATES.devlink_seconds:g} s", "-"),
    Source.MODULE: (
        "ethtool netlink MODULE_EEPROM_GET, of NICs with a netdev",
        f"{_RATES.module_seconds:g} s",
        "CAP_NET_ADMIN",
    ),
    Source.ADMINISTRATION: ("notices of rtnetlink and ethtool netlink", "at each change", "none"),
    Source.KERNEL: ("/dev/kmsg", "as the kernel writes it", "CAP_SYSLOG, the host's /dev/kmsg"),
    Source.RAILS: ("probes over the rails (`rails.probe`)", "5 s", "CAP_NET_RAW before Linux 5.7"),
    Source.ATTACH: ("the files of `nodeagent attach`", "5 s", "-"),
    Source.VF: ("RTM_GETLINK of one PF", f"{_RATES.vf_seconds:g} s", "-"),
    Source.GPU: ("NVML", "15 s (`gpu.health.readSeconds`)", "-"),
}
"""The interface, the interval and the required capability of each reader."""

_UNITS = {
    "bytes_per_second": "bytes/s",
    "bytes": "bytes",
    "seconds": "s",
    "celsius": "°C",
    "volts": "V",
    "watts": "W",
    "amperes": "A",
    "mbps": "Mbit/s",
    "gts": "GT/s",
    "bits": "bits",
}


def agent_families() -> str:
    """Return a table of families for each topic."""
    return "\n".join(
        f"### {topic}\n\n{_family_table(family for family in CATALOG.values() if topic_of(family) == topic)}"
        for topic in TOPICS
    )


def controller_families() -> str:
    """Return the families of the controller in one table."""
    return _table(
        ("name", "labels", "type, unit", "meaning", "what to do with it"),
        ((*_cells(family), note_of(family, controller=True).use) for family in families_of_controller()),
    )


def note_of(family: Family, *, controller: bool = False) -> Note:
    """Return what the documentation says of a family. Raises ``ValueError`` if it says nothing."""
    name = family.name.removeprefix("nodeagent_")
    table_name, notes = (
        ("CONTROLLER", metric_notes.CONTROLLER) if controller else ("AGENT", metric_notes.AGENT)
    )
    if name not in notes:
        raise ValueError(f"{family.name}: add {name!r} to {table_name} in hack/docs/metric_notes.py")
    return notes[name]


def topic_of(family: Family) -> str:
    """Return the heading. Raises ``ValueError`` if ``TOPICS`` lacks the first word of the name."""
    word = family.name.split("_")[1]
    for topic, words in TOPICS.items():
        if word in words:
            return topic
    raise ValueError(f"{family.name}: add {word!r} to a topic of TOPICS in hack/docs/metrics.py")


def _family_table(families: Iterable[Family]) -> str:
    return _table(
        ("name", "labels", "type, unit", "meaning", "source", "what to do with it", "elsewhere"),
        ((*_cells(family), _source(family), *note_of(family)[:2]) for family in families),
    )


def _source(family: Family) -> str:
    """Where the numbers come from."""
    origins = (f"{number.source}: {number.origin}" for number in family.measurements)
    return "; ".join(dict.fromkeys(origins)) or note_of(family).origin or "the agent"


def _cells(family: Family) -> tuple[str, ...]:
    return (
        f"`{family.name}`",
        ", ".join(f"`{label}`" for label in family.labels if label != "le"),
        f"{family.type}, {family.unit}" if family.unit else family.type,
        family.help,
    )


def readers() -> str:
    """Return a table of the readers."""
    return _table(
        ("source", "reads", "every", "needs"),
        ((f"`{source}`", *_reader(source)) for source in Source),
    )


def _reader(source: Source) -> tuple[str, str, str]:
    """Return the cells of a reader. Raises ``ValueError`` if ``READERS`` lacks it."""
    if source not in READERS:
        raise ValueError(f"{source!r}: add it to READERS in hack/docs/metrics.py")
    return READERS[source]


def sample_names() -> str:
    """Return a table of sample names for each reader, and one of the names that only recordings have."""
    recorded = _table(
        ("name", "meaning"), ((f"`{name}`", meaning) for name, meaning in RECORDED_ONLY.items())
    )
    tables = [f"### `{source}`\n\n{_sample_table(source)}" for source in Source]
    return "\n".join((*tables, f"### In recordings only\n\n{recorded}"))


def _sample_table(source: Source) -> str:
    family_of = {
        measurement.name: family for family in CATALOG.values() for measurement in family.measurements
    }
    rows = []
    for measurement in MEASUREMENTS.values():
        if measurement.source is source:
            family = family_of.get(measurement.name)
            key = f"/{measurement.per}" if measurement.per else ""
            rows.append(
                (
                    f"`{measurement.name}{key}`",
                    f"{'counter' if measurement.counter else 'gauge'}{unit_of(measurement)}",
                    measurement.origin,
                    f"`{family.name}`" if family else "",
                    ", ".join(f"`{rule}`" for rule in note_of(family).rules.split()) if family else "",
                )
            )
    rows += [
        (f"`{text.name}`", "text", text.meaning, f"`{text.family}`" if text.family else "", "")
        for text in TEXTS.values()
        if text.source is source
    ]
    return _table(("name", "type, unit", "meaning", "metric", "rules"), rows)


def unit_of(measurement: Measurement) -> str:
    """Return the unit at the end of a sample's name; other numbers are counts, flags or ratios."""
    return next(
        (f", {unit}" for suffix, unit in _UNITS.items() if f"_{suffix}_" in f"_{measurement.name}_"),
        "",
    )


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    return table(heads, (tuple(map(_cell, cells)) for cells in rows))


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*") or "-"
