"""What the sources tell of NICs, judged: the way from facts, samples and neighbors to the health that is stated.

All times of health live here: holds expire, penalties decay, data grows stale. The engine (``nodeagent.health``)
says when it next wants to be asked, and ``run`` asks it then. Facts are judged in the call that brings them, so a
lost carrier waits for nothing, and so are samples that say something new of a link. Other samples come source by
source within milliseconds, and are judged together ``GATHER_S`` after the first.

Belongs to one event loop. Times are CLOCK_BOOTTIME, which samples bear and which no step of the clock moves.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping

from nodeagent.affinity import Affinity, affinity
from nodeagent.health.cabling import Plan, is_switch
from nodeagent.health.explain import DeviceView, explain_nics
from nodeagent.health.judged_device import DeviceFigures
from nodeagent.health.nic_judge import NicJudge, NicTerms
from nodeagent.health.record import NicRecord
from nodeagent.health.structural import NO_FAULTS, Faults
from nodeagent.measurements.sample import Sample
from nodeagent.model import HEALTHY, Function, Gpu, Health, Link, Neighbor
from nodeagent.sources.state_file import Memory, Who

log = logging.getLogger(__name__)

ROOM = "nic"
GATHER_S = 0.1
_LEAST_S = 0.01
"""Between two questions that only time asks."""


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Verdicts:
    """``state`` hears the functions with their health when time or a sample has changed it."""

    def __init__(
        self,
        terms: NicTerms,
        memory: Memory | None = None,
        *,
        clock: Callable[[], float] = boottime,
    ) -> None:
        self.engine = NicJudge(terms)
        self.memory = memory or Memory.none()
        self._clock = clock
        self._kept = self._believed(self.memory.recall(ROOM, NicRecord))
        self._state: Callable[[tuple[Function, ...]], object] = lambda _functions: None
        self._judged: tuple[Function, ...] = ()
        self._health: dict[str, Health] = {}
        self._identities: Mapping[str, str | None] = {}
        self._asked = asyncio.Event()
        self._named: set[str] = set()
        self._plan: Plan = {}
        self._neighbors: tuple[Neighbor, ...] = ()
        self._gathered_at: float | None = None
        """When samples that nobody has judged yet are to be."""

    def tell(self, state: Callable[[tuple[Function, ...]], object]) -> None:
        """Who is to hear of verdicts from now on."""
        self._state = state

    def identify(self, identities: Mapping[str, str | None]) -> None:
        """The permanent MAC addresses, by PCI address; elsewhere a link's own is taken."""
        self._identities = identities

    # --- what comes in --------------------------------------------------------------------------------

    def adopt(self, terms: NicTerms) -> None:
        """Judge by other terms from now on."""
        if terms != self.engine.terms:
            self.engine.adopt(terms)
            self._rejudge()

    def facts(
        self,
        functions: Iterable[Function],
        links: Iterable[Link],
        faults: Faults = NO_FAULTS,
        gpus: Iterable[Gpu] = (),
    ) -> tuple[Function, ...]:
        """The functions as judged, now. They are not stated besides."""
        functions, links = tuple(functions), tuple(links)
        self._recall(functions, links)
        self.engine.now = max(self.engine.now, self._clock())
        self.engine.take_facts(functions, links, faults)
        self.engine.take_roles(roles(functions, tuple(gpus)))
        return self._judge()

    def gpus(self, gpus: Iterable[Gpu]) -> None:
        """Which PFs are near a GPU, and so which are alike."""
        found = roles((pf.function for pf in self.engine.nics.values()), tuple(gpus))
        if found != self.engine.role_of:
            self.engine.take_roles(found)
            self._rejudge()

    def samples(self, samples: Iterable[Sample]) -> None:
        if self.engine.take_samples(samples):
            self._rejudge()
        elif self._gathered_at is None and self.engine.has_news:
            self._gathered_at = self._clock() + GATHER_S
            self._asked.set()

    def neighbors(self, neighbors: Iterable[Neighbor]) -> None:
        self._neighbors = tuple(neighbors)
        self.engine.take_neighbors(self._neighbors)
        self._rejudge()
        self._name_strangers()

    def plan(self, plan: Plan) -> None:
        """The cabling plan of this node."""
        self._plan = plan
        self.engine.take_plan(plan)
        self._rejudge()
        self._name_strangers()

    async def run(self) -> None:
        """Judge again whenever time alone may have changed a verdict, and remember, until cancelled. What is kept
        is kept here: whoever brings a fact does not wait for it."""
        try:
            while True:
                self._asked.clear()
                self.keep()
                due = min(filter(None, (self._gathered_at, self.engine.due())), default=None)
                try:
                    async with asyncio.timeout(None if due is None else max(_LEAST_S, due - self._clock())):
                        await self._asked.wait()
                except TimeoutError:
                    self._rejudge()
        finally:
            self.keep()

    # --- what comes out -------------------------------------------------------------------------------

    def explained(self) -> tuple[DeviceView, ...]:
        return explain_nics(self.engine, self._health, self._clock())

    def figures(self) -> dict[str, DeviceFigures]:
        """By PCI address."""
        now = self._clock()
        return {address: nic.figures(now) for address, nic in self.engine.nics.items()}

    # --- the way ------------------------------------------------------------------------------------

    def _rejudge(self) -> None:
        before = self._judged
        if self._judge() != before:
            self._state(self._judged)

    def _judge(self) -> tuple[Function, ...]:
        self._gathered_at = None
        self._judged = self.engine.judge(self._clock())
        for function in self._judged:
            if function.parent is None:
                self._note(function)
        self._asked.set()
        return self._judged

    def keep(self) -> None:
        """Remember what must survive a restart."""
        kept = {self._who(address): what for address, what in self.engine.records().items()}
        strangers = {who: what for who, what in self._kept.items() if not any(who.is_(one) for one in kept)}
        self.memory.keep(ROOM, {**strangers, **kept})

    def _note(self, pf: Function) -> None:
        before = self._health.get(pf.pci_address)
        if before == pf.health:
            return
        self._health[pf.pci_address] = pf.health
        was = before.state if before is not None else None
        if before is None and pf.health == HEALTHY:
            return  # a good start is no news
        log.log(
            logging.INFO if before is None or pf.health.allocatable else logging.WARNING,
            "The health of a NIC is now %s. pci=%s netdev=%s devices=%s before=%s reasons=%s",
            pf.health.state.value,
            pf.pci_address,
            pf.netdev or "-",
            "Healthy" if pf.health.allocatable else "Unhealthy",
            was.value if was is not None else "-",
            [reason.detail for reason in pf.health.reasons],
        )

    def _who(self, address: str) -> Who:
        link = self.engine.nics[address].link if address in self.engine.nics else None
        return Who(address, self._identities.get(address) or (link.mac if link is not None else None))

    def _recall(self, functions: Iterable[Function], links: Iterable[Link]) -> None:
        """What is kept of those that are seen for the first time."""
        macs = {link.pci_address: link.mac for link in links}
        recalled: dict[str, NicRecord] = {}
        for function in functions:
            address = function.pci_address
            if function.parent is not None or address in self.engine.nics:
                continue
            here = Who(address, self._identities.get(address) or macs.get(address))
            for who, what in self._kept.items():
                if here.is_(who):
                    recalled[address] = what
        if recalled:
            self._kept = {who: what for who, what in self._kept.items() if who.pci_address not in recalled}
            self.engine.restore(recalled)

    def _believed(self, kept: Mapping[Who, NicRecord]) -> dict[Who, NicRecord]:
        believed = {who: what for who, what in kept.items() if what.is_possible(self._clock())}
        for who in kept.keys() - believed.keys():
            log.warning("What was remembered of a NIC cannot be so and is left out. pci=%s", who.pci_address)
        return believed

    def _name_strangers(self) -> None:
        """What the plan names and nobody here is: each once."""
        netdevs = {pf.netdev for pf in self.engine.nics.values()} | set(self.engine.nics)
        heard = [neighbor for neighbor in self._neighbors if not neighbor.stale]
        spoken = {neighbor.link for neighbor in heard}
        for link, port in self._plan.items():
            if self.engine.nics and link not in netdevs and link not in self._named:
                self._named.add(link)
                log.warning("The cabling plan names a link that this node does not have. link=%r", link)
            known = any(is_switch(port.switch, neighbor) for neighbor in heard)
            if link in spoken and not known and port.switch not in self._named:
                self._named.add(port.switch)
                log.warning(
                    "The cabling plan names a switch that no link of this node hears. switch=%r link=%r",
                    port.switch,
                    link,
                )


def roles(functions: Iterable[Function], gpus: tuple[Gpu, ...]) -> dict[str, str]:
    """Of each PF: its model, and whether it is behind a GPU's PCIe switch (compute) or not (storage, frontend)."""
    found = {}
    for pf in functions:
        if pf.parent is None:
            near = any(
                affinity(gpu.pci_path, gpu.numa_node, pf.pci_path, pf.numa_node) <= Affinity.PXB
                for gpu in gpus
            )
            found[pf.pci_address] = f"{pf.vendor}:{pf.device} {'compute' if near else 'other'}"
    return found
