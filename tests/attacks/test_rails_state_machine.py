"""Any history of a node: NICs are pulled, moved and replaced, agent, kubelet and node restart, pods come and go.

The machine is simulated in files. The scanner, the health service, the offer, the memory of rails and the kinds are
those of the agent, which does one pass after each step. The kubelet is a model of its rules: it counts by the name of
the resource, takes any healthy device that it counts as free, and keeps the holdings over its own death and a reboot.
It may be away or not answer podresources. After each step no VF is in two pods, and no card has another rail than
before.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from nodeagent.agent_config import Config, load
from nodeagent.facts.inventory import Inventory
from nodeagent.facts.model import Holding, HostPaths, Snapshot
from nodeagent.health.service import HealthService
from nodeagent.host.sysfs import Tree
from nodeagent.kinds import DeviceKind, Refused
from nodeagent.kinds.rail_numbers import selection
from nodeagent.kubelet.cdi_files import CdiSpecFiles
from nodeagent.kubelet.device_info import DeviceInfoFiles
from nodeagent.kubelet.device_list import DeviceList
from nodeagent.kubelet.offer_files import OfferFiles
from nodeagent.kubelet.rail_memory import RAILS_FORM, RailMemory
from nodeagent.kubelet.slice_sizes import SliceSizes
from nodeagent.offering.device_offering import DeviceOffering
from nodeagent.sources.bounded_scan import BoundedScan
from nodeagent.sources.nic_identity import NicIdentities
from nodeagent.sources.pci_source import PciScanner
from tests.support.examples import examples
from tests.support.rail_machine import SLOTS, machine
from tests.support.running_agent import HEAD, IN_MEMORY, PROMPT

NUMBERS = st.integers(0, len(SLOTS) - 1)
STATE = "var/lib/nodeagent"


class KubeletModel:
    """The kubelet's account of devices. It lives longer than each agent."""

    def __init__(self) -> None:
        self.up = True
        self.answers = True
        self.just_started = False
        self.held: dict[str, tuple[str, frozenset[str]]] = {}
        """By pod: the resource and the VFs. This is the checkpoint."""
        self.allocated_once = False
        self.connect()

    def connect(self) -> None:
        """A new agent: the lists of the old one are gone."""
        self.kinds: dict[str, DeviceKind] = {}
        self.lists: dict[str, DeviceList] = {}
        self.snapshot = Snapshot()

    def update(self, kinds: Iterable[DeviceKind], snapshot: Snapshot, removed: frozenset[str]) -> None:
        self.kinds = {kind.resource: kind for kind in kinds}
        self.snapshot = snapshot
        for name, kind in self.kinds.items():
            known = [holding for holding in snapshot.holdings or () if holding.resource == name]
            held = [id_ for holding in known for id_ in holding.device_ids]
            self.lists.setdefault(name, DeviceList()).update(kind.devices(snapshot), held, removed)

    def free(self, resource: str) -> list[str]:
        taken = {id_ for name, ids in self.held.values() if name == resource for id_ in ids}
        return sorted(
            id_
            for entry in self.lists[resource].devices
            if entry.health.allocatable
            for id_ in entry.ids
            if id_ not in taken
        )

    def admit(self, pod: str, resource: str, count: int, *, ask: bool, chance: random.Random) -> None:
        """Admit a pod. Unless it may ``ask`` for a preference, the kubelet takes any free devices."""
        free = self.free(resource)
        if len(free) < count:
            return
        kind = self.kinds[resource]
        try:
            ids = kind.prefer(self.snapshot, free, (), count) if ask else chance.sample(free, count)
            kind.allocate(self.snapshot, ids)
        except Refused:
            return
        self.held[pod] = resource, frozenset(ids)
        self.allocated_once = True

    def holdings(self) -> tuple[Holding, ...]:
        return tuple(
            Holding("default", pod, "main", resource, tuple(sorted(ids)))
            for pod, (resource, ids) in sorted(self.held.items())
        )


class NodeHistory(RuleBasedStateMachine):
    """The rules are the events; ``look`` is what the agent does after each."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = TemporaryDirectory(prefix="rails-", dir=IN_MEMORY)
        self.folder = Path(self._folder.name)
        self.root = self.folder / "r"
        self.machine = machine(self.folder)
        self.runner = asyncio.Runner()
        self.kubelet = KubeletModel()
        self.checkpoint = self.folder / "checkpoint"
        self.cards = [f"b8:3f:d2:00:00:{number:02x}" for number in range(len(SLOTS))]
        self.names = ["nic{rail}", "rail{rail}"]
        self.spare = 0x40
        self.rail_of: dict[str, int] = {}
        """The rail of each card that has one."""
        self.pods = 0
        self.away: set[str] = set()
        for slot, card in zip(SLOTS, self.cards, strict=True):
            if self.machine.nic(slot).present:
                self.machine.unplug(slot)
                self.machine.insert_card(slot, card)
                self.machine.plug(slot)
        self.cards[4] = ""
        self.start_agent()

    def teardown(self) -> None:
        self.runner.close()
        self._folder.cleanup()

    # --- the agent ------------------------------------------------------------------------------------

    def config(self) -> Config:
        return load(f"{HEAD}{PROMPT}resources: [{{kind: vf, name: '{self.names[0]}'}}]\n", name="test")

    def start_agent(self) -> None:
        tree, config = Tree(self.root), self.config()
        self.kubelet.connect()
        self.reading_asked = False
        self.inventory = Inventory()
        self.health = HealthService(config.health)
        rails = RailMemory(self.root / STATE, self.checkpoint, read_holdings=self.ask)
        self.nics = NicIdentities()
        known = rails.known_nics(config.resources)
        self.scanner = PciScanner(
            tree, known, BoundedScan("pci", tree), BoundedScan("links", tree), self.nics
        )
        files = OfferFiles(DeviceInfoFiles(self.folder / "devinfo"), CdiSpecFiles(self.folder / "cdi"))
        self.offering = DeviceOffering(
            config,
            self.inventory,
            self.kubelet,
            files,
            SliceSizes(self.root / STATE),
            rails,
            self.nics.forgotten.update,
        )
        self.inventory.publish("paths", paths=HostPaths())
        self.look()

    def ask(self) -> None:
        self.reading_asked = True

    def look(self) -> None:
        """Scan the machine and offer the devices."""
        facts = self.runner.run(self.scanner.scan())
        functions = self.health.judge_functions(facts.functions, facts.links, facts.faults)
        self.inventory.publish("pci", product=facts.product, functions=functions, links=facts.links)
        self.runner.run(self.offering.offer_now())
        if self.kubelet.up and any(self.kubelet.lists.values()):
            self.checkpoint.touch()  # the kubelet writes it at each list

    def read_pods(self) -> None:
        """Read the holdings as the agent does: an empty answer of a kubelet that has just started does not count."""
        if self.kubelet.up and self.kubelet.answers:
            holdings = self.kubelet.holdings()
            if holdings or not self.kubelet.just_started:
                self.inventory.publish("pods", holdings=holdings)
                self.offering.holdings_read()
            self.kubelet.just_started = False
            self.look()

    # --- events: hardware -----------------------------------------------------------------------------

    @rule(number=NUMBERS)
    def unplug(self, number: int) -> None:
        if self.cards[number]:
            self.machine.unplug(SLOTS[number])
            self.away.add(self.cards[number])
            self.cards[number] = ""
            self.look()

    @rule(number=NUMBERS, data=st.data())
    def plug(self, number: int, data: st.DataObject) -> None:
        """A card that was here before, into any slot that is empty."""
        away = sorted(self.away)
        if not self.cards[number] and away:
            card = data.draw(st.sampled_from(away))
            self.away.discard(card)
            self._insert(number, card)
            self.look()

    @rule(number=NUMBERS)
    def replace_card(self, number: int) -> None:
        """A new card in a slot takes the rail over, if the old card is nowhere else."""
        old = self.cards[number]
        if old:
            self.machine.unplug(SLOTS[number])
            self.spare += 1
            card = f"b8:3f:d2:00:00:{self.spare:02x}"
            self._insert(number, card)
            if old in self.rail_of:
                self.rail_of[card] = self.rail_of.pop(old)
            self.look()

    @rule(shift=st.integers(1, len(SLOTS) - 1))
    def reboot_with_other_bus_numbers(self, shift: int) -> None:
        """The node restarts, and each card has the address of another slot."""
        self.kubelet.just_started = True
        cards = self.cards[-shift:] + self.cards[:-shift]
        for slot in SLOTS:
            if self.machine.nic(slot).present:
                self.machine.unplug(slot)
        self.cards = [""] * len(SLOTS)
        for number, card in enumerate(cards):
            if card:
                self._insert(number, card)
        self.start_agent()

    def _insert(self, number: int, card: str) -> None:
        self.machine.insert_card(SLOTS[number], card)
        self.machine.plug(SLOTS[number])
        self.cards[number] = card

    # --- events: processes ----------------------------------------------------------------------------

    @rule()
    def restart_agent(self) -> None:
        self.start_agent()

    @rule()
    def restart_agent_under_another_name(self) -> None:
        self.names.reverse()
        self.start_agent()

    @rule(rename=st.booleans())
    def lose_the_file_and_restart(self, rename: bool) -> None:
        """The rails start over; the names that the kubelet counts are still its own."""
        if rename:
            self.names.reverse()
        (self.root / STATE / RAILS_FORM.name).unlink(missing_ok=True)
        self.rail_of = {}
        self.start_agent()

    @rule()
    def reload_with_another_name(self) -> None:
        self.names.reverse()
        self.offering.replace(self.config(), "test")
        self.look()

    @rule()
    def stop_kubelet(self) -> None:
        self.kubelet.up = False

    @rule()
    def start_kubelet(self) -> None:
        if not self.kubelet.up:
            self.kubelet.up = self.kubelet.just_started = True
            self.look()

    @rule(answers=st.booleans())
    def let_podresources_answer(self, answers: bool) -> None:
        self.kubelet.answers = answers

    @rule()
    def read(self) -> None:
        self.read_pods()

    # --- events: pods ---------------------------------------------------------------------------------

    @rule(which=st.integers(0, 9), count=st.integers(1, 2), ask=st.booleans(), seed=st.integers(0, 99))
    def admit(self, which: int, count: int, ask: bool, seed: int) -> None:
        resources = sorted(self.kubelet.kinds)
        if self.kubelet.up and resources:
            self.pods += 1
            resource = resources[which % len(resources)]
            chance = random.Random(seed)
            self.kubelet.admit(f"pod-{self.pods}", resource, count, ask=ask, chance=chance)

    @rule(which=st.integers(0, 9))
    def end_pod(self, which: int) -> None:
        if self.kubelet.held:
            self.kubelet.held.pop(sorted(self.kubelet.held)[which % len(self.kubelet.held)])

    # --- properties -----------------------------------------------------------------------------------

    @invariant()
    def no_vf_is_in_two_pods(self) -> None:
        held = [id_ for _, ids in self.kubelet.held.values() for id_ in ids]
        assert len(held) == len(set(held)), self.kubelet.held

    @invariant()
    def no_rail_moves(self) -> None:
        (entry,) = self.config().resources
        numbering = self.offering._offer.numbering
        now = {rail.identity: rail.number for rail in numbering[selection(entry)] if rail.identity}
        for card, number in self.rail_of.items():
            assert now.get(card, number) == number, (card, now)
        present = set(self.cards) - {""}
        self.rail_of |= {card: number for card, number in now.items() if card in present}


NodeHistory.TestCase.settings = settings(
    max_examples=examples(20),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestAnyHistoryOfANode = NodeHistory.TestCase
