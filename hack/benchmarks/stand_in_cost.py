"""The CPU time that the agent pays for a simulated tree and not on a node.

A path below another root is resolved for each reading, and a simulated file is opened each time because it may be
replaced. On a node the kernel resolves the path, and the counters' files stay open.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from nodeagent.agent_config import Config
from nodeagent.host.sysfs import Tree
from nodeagent.sampling.adapter_readers import PcieReader, RdmaReader
from nodeagent.sampling.sampling_settings import SamplesSettings
from nodeagent.sources import pci_source

_TIMES = 15


class PlainTree(Tree):
    """A simulated tree whose paths are opened as those of a node: the kernel resolves the links, which are relative."""

    def _full(self, path: str) -> str:
        return self._prefix + path


def excess_share(root: Path) -> float:
    """The share of a core in percent: PCI scan, RDMA and PCIe counters at their default intervals."""
    return 100 * sum(ms / 1000 / every for ms, every in _excess(root))


def _excess(root: Path) -> list[tuple[float, float]]:
    """The milliseconds of each kind of reading that a node would not pay, and the seconds between two of them."""
    simulated, plain = Tree(root), PlainTree(root)
    facts = pci_source.scan(simulated)
    if pci_source.scan(plain) != facts:
        raise RuntimeError(
            "the simulated tree has absolute links: it reads differently when the kernel resolves them"
        )
    pfs = [function for function in facts.functions if function.parent is None]
    rates = SamplesSettings()
    scans = _ms(lambda: pci_source.scan(simulated)) - _ms(lambda: pci_source.scan(plain))
    found = [(scans, Config().scan_seconds)]
    for make, every in ((_rdma, rates.rdma_seconds), (PcieReader, rates.pcie_seconds)):
        one, other = make(simulated), make(plain)
        other.attributes._live = True
        if every is not None:
            found.append((_ms(partial(one.read, pfs)) - _ms(partial(other.read, pfs)), every))
        other.close()
    return found


def _rdma(tree: Tree) -> RdmaReader:
    return RdmaReader(tree, live=False)


def _ms(work: Callable[[], object]) -> float:
    took = []
    for _ in range(_TIMES):
        began = time.process_time()
        work()
        took.append(1000 * (time.process_time() - began))
    return statistics.median(took)
