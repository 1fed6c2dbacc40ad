"""Each measurement that the table declares has a reader: a module that makes its sample name.

The driver's statistics have a test of their own in ``test_driver_counters.py``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from nodeagent.host.eeprom.image import AlarmThresholds, Lane, Module
from nodeagent.host.netlink.netdevs import VfTraffic
from nodeagent.host.pcie_link import SEVERITIES
from nodeagent.measurements.sample import Source
from nodeagent.measurements.table import MEASUREMENTS
from nodeagent.sampling.adapter_readers import INFINIBAND_NAMES
from nodeagent.sampling.driver_names import DRIVERS
from nodeagent.sampling.link_readers import vf_values
from nodeagent.sampling.transceiver_reader import module_values
from tests.support.findings import one_item

PACKAGE = Path(__file__).parents[2] / "nodeagent"
LIMITS = AlarmThresholds(1.0, 1.0, 1.0, 1.0)
MODULE = Module(
    *("OSFP", "optical", "vendor", "part", "serial", "A"),
    state="ready",
    celsius=40.0,
    volts=3.3,
    lanes={0: Lane(0.001, 0.001, 0.006)},
    limits=dict.fromkeys(("celsius", "volts", "rx_power", "tx_power", "bias"), LIMITS),
)
READERS = {
    **dict.fromkeys(
        (Source.LINK, Source.MODES, Source.STATE, Source.FEC, Source.PAUSE, Source.STANDARD),
        ("sampling/link_readers",),
    ),
    **dict.fromkeys((Source.RDMA, Source.PCIE, Source.DEVLINK), ("sampling/adapter_readers",)),
    Source.MODULE: (),
    Source.VF: (),
    Source.KERNEL: ("sampling/event_readers",),
    Source.ADMINISTRATION: ("sampling/event_readers",),
    Source.RAILS: ("features/rail_probing/rail_probes", "features/rail_probing/rail_watch"),
    Source.ATTACH: ("features/netdevs_in_pods/attach_watch",),
    Source.GPU: ("host/nvml_vitals", "host/nvml_profiling", "sources/nvml_session", "sources/gpu_publisher"),
}
"""The modules that make the sample names of a source."""
COMPUTED = {
    Source.RDMA: {
        *(name for names in DRIVERS.values() for name in names.rdma.values()),
        *INFINIBAND_NAMES.values(),
    },
    Source.PCIE: {f"aer_{severity}" for severity in SEVERITIES},
    Source.MODULE: set(module_values(MODULE)[0]),
    Source.VF: set(vf_values([VfTraffic(0, 1, 1, 1, 1, 1, 1, {})])),
}
"""The sample names that a reader makes from values."""


def words(node: ast.AST) -> Iterator[str]:
    """Yield the texts and the names of arguments. ``LIMITS`` only checks values that another line makes."""
    if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "LIMITS":
        return
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    if isinstance(node, ast.keyword) and node.arg is not None:
        yield node.arg
    for child in ast.iter_child_nodes(node):
        yield from words(child)


@one_item("source", [source for source in Source if source is not Source.DRIVER])
def test_a_reader_makes_each_declared_name(source: Source) -> None:
    declared = {name for name, datum in MEASUREMENTS.items() if datum.source is source}
    made = COMPUTED.get(source, set()) | {
        word
        for module in READERS[source]
        for word in words(ast.parse((PACKAGE / f"{module}.py").read_text()))
    }
    assert declared
    unmade = declared - {word.partition("/")[0] for word in made}
    assert unmade == set(), f"add these names to the reader of {source}: {READERS[source] or 'sampling/'}"
