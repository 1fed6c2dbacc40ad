"""Any history of NICs and GPUs through the health service: devices recover, unknown values change nothing, and the
guard delays without forbidding."""

from __future__ import annotations

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec.structs import replace

from nodeagent.facts.model import HEALTHY, Function, Link, State
from nodeagent.health.service import HealthService
from nodeagent.health.state_file import StateFile
from nodeagent.health.structural import find_faults
from nodeagent.host.gpu_driver import GpuEvent, GpuVitals
from nodeagent.measurements.sample import Sample, Source
from tests.support.examples import examples
from tests.support.judged_gpus import SOUND, gpu
from tests.support.judged_machine import link, pf, vf

COUNT = 3
NUMBERS = st.integers(0, COUNT - 1)
READINGS = st.sampled_from(
    [
        {},
        {"lost": True},
        {"fault": "Unknown Error"},
        {"recovery_action": "gpu_reset"},
        {"mig": True},
        {"uuid": None, "fault": "GPU is lost"},
    ]
)
BAD_VALUES = st.sampled_from(
    [
        {"gpu_row_remap_failed": 1},
        {"gpu_row_remap_pending": 1},
        {"gpu_nvlink_up/3": 0},
        {"gpu_pcie_width": 8},
        {"gpu_pcie_generation": 3},
    ]
)
GUARD_S = 60.0
WITHDRAWN = "a device with a fault is still allocatable after the time of the guard"


class HealthHistory(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.state_file = StateFile()
        self.pfs = [pf(number) for number in range(1, COUNT + 1)]
        self.vfs = [vf(nic, 0) for nic in self.pfs]
        self.start()
        self.make_sound()

    def start(self) -> None:
        self.health = HealthService(state_file=self.state_file, clock=lambda: self.now)
        self.known: tuple[Function, ...] = ()
        self.functions: tuple[Function, ...] = ()
        self.health.publish_functions(self.publish)

    def publish(self, functions: tuple[Function, ...]) -> None:
        self.functions = functions

    def make_sound(self) -> None:
        self.links: dict[str, Link] = {nic.pci_address: link(nic) for nic in self.pfs}
        self.readings = [gpu(number) for number in range(COUNT)]
        self.values = [dict(SOUND) for _ in range(COUNT)]
        self.missing: set[str] = set()
        self.losses = [0.0] * COUNT
        self.pcie_width = [16.0] * COUNT
        self.look()

    def look(self) -> None:
        """Scan the PCI bus, read and measure the GPUs, and sample the NICs."""
        present = [f for f in (*self.pfs, *self.vfs) if f.pci_address not in self.missing]
        links = [link for address, link in self.links.items() if address not in self.missing]
        self.known, faults = find_faults(present, links, self.known)
        self.functions = self.health.judge_functions(self.known, links, faults)
        self.health.judge_gpus(readings=self.readings)
        vitals = [GpuVitals(f"GPU-{number}", values) for number, values in enumerate(self.values)]
        self.health.judge_gpus(vitals=vitals)
        self.sample()

    def sample(self) -> None:
        for number, nic in enumerate(self.pfs):
            values = {"pcie_width": self.pcie_width[number], "pcie_expected_width": 16.0}
            losses = {"carrier_down": self.losses[number]}
            self.health.take_samples(
                [
                    Sample(self.now, nic.pci_address, Source.PCIE, values),
                    Sample(self.now, nic.pci_address, Source.LINK, losses),
                ]
            )

    def pass_time(self, seconds: float, step_s: float = 15.0) -> None:
        """Let time pass, with timers and readings."""
        until = self.now + seconds
        while self.now < until:
            due = self.health.nics.due()
            self.now = min(until, self.now + step_s, max(self.now + 0.01, due) if due else until)
            self.health.judge_nics()
            self.look()

    def allocatable(self) -> dict[str, bool]:
        nics = {function.pci_address: function.health.allocatable for function in self.functions}
        return nics | {uuid: self.health.gpus.health(uuid).allocatable for uuid in self.health.gpus.devices}

    # --- events ---------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([1.0, 15.0, 70.0, 700.0]))
    def wait(self, seconds: float) -> None:
        self.pass_time(seconds)

    @rule(number=NUMBERS, up=st.booleans())
    def change_carrier(self, number: int, up: bool) -> None:
        address = self.pfs[number].pci_address
        self.links[address] = replace(self.links[address], carrier=up, operstate="up" if up else "down")
        self.losses[number] += not up
        self.look()

    @rule(number=NUMBERS, losses=st.integers(1, 4))
    def flap(self, number: int, losses: int) -> None:
        self.losses[number] += losses
        self.now += 1
        self.look()

    @rule(number=NUMBERS, width=st.sampled_from([8.0, 16.0]))
    def change_pcie_width(self, number: int, width: float) -> None:
        self.pcie_width[number] = width
        self.look()

    @rule(number=NUMBERS, vf_too=st.booleans())
    def remove_device(self, number: int, vf_too: bool) -> None:
        self.missing |= {self.vfs[number].pci_address}
        self.missing |= {self.pfs[number].pci_address} if vf_too else set()
        self.look()

    @rule(number=NUMBERS, reading=READINGS)
    def change_reading(self, number: int, reading: dict[str, object]) -> None:
        self.readings[number] = gpu(number, **reading)
        self.look()

    @rule(number=NUMBERS, values=BAD_VALUES)
    def change_values(self, number: int, values: dict[str, float]) -> None:
        self.values[number] = {**SOUND, **values}
        self.look()

    @rule(number=NUMBERS, xid=st.sampled_from([None, 13, 63, 79, 4242]))
    def raise_xid(self, number: int, xid: int | None) -> None:
        before = self.allocatable()
        self.health.judge_gpus(events=[GpuEvent(f"GPU-{number}", xid, unavailable=xid is None)])
        if xid in (None, 79):
            assert not self.allocatable()[f"GPU-{number}"], "an event is never held back"
        others = {key for key in before if key != f"GPU-{number}"}
        assert all(self.allocatable()[key] == before[key] for key in others)

    @rule()
    def restart(self) -> None:
        before = self.allocatable()
        held_back = {uuid for uuid in self.health.gpus.devices if self.is_held_back(uuid)}
        self.health.store()
        self.start()
        restored = {uuid: self.health.gpus.health(uuid).allocatable for uuid in self.health.gpus.devices}
        assert all(before[uuid] == now for uuid, now in restored.items() if uuid not in held_back)
        self.look()

    def is_held_back(self, uuid: str) -> bool:
        return any(reason.key == "guard" for reason in self.health.gpus.health(uuid).reasons)

    # --- unknown values change nothing ----------------------------------------------------------------

    @rule(number=NUMBERS)
    def hide_link(self, number: int) -> None:
        """A PF whose netdev is in another network namespace."""
        before = self.allocatable()
        address = self.pfs[number].pci_address
        hidden = self.links.pop(address)
        self.look()
        if address not in self.missing:
            assert self.allocatable()[address] == before[address]
        self.links[address] = hidden
        self.look()

    @rule()
    def lose_driver(self) -> None:
        before = self.allocatable()
        self.health.lose_gpu_driver("the driver hangs")
        assert self.allocatable() == before
        assert {self.health.gpus.health(uuid).state for uuid in self.health.gpus.devices} == {State.UNKNOWN}

    @rule(number=NUMBERS)
    def measure_nothing(self, number: int) -> None:
        self.health.judge_gpus()
        if self.health.gpus.devices[f"GPU-{number}"].record().reset:
            return  # after a reset, values that are no longer read have no fault
        before = self.allocatable()
        self.health.judge_gpus(vitals=[GpuVitals(f"GPU-{number}", {})])
        assert self.allocatable() == before

    # --- invariants -----------------------------------------------------------------------------------

    @invariant()
    def health_is_consistent(self) -> None:
        verdicts = [function.health for function in self.functions]
        verdicts += [self.health.gpus.health(uuid) for uuid in self.health.gpus.devices]
        for health in verdicts:
            keys = [reason.key for reason in health.reasons]
            assert health == HEALTHY or keys
        assert len(self.health.explain()) == len(self.health.nics.devices) + len(self.health.gpus.devices)

    def teardown(self) -> None:
        self.recover()
        self.fail_everything()
        self.recover()

    def recover(self) -> None:
        """All holds end within two hours; only the losses of a day count for longer."""
        self.make_sound()
        self.pass_time(2 * 3600.0, step_s=50.0)
        assert all(self.allocatable().values())
        self.pass_time(24 * 3600.0, step_s=1800.0)
        assert {function.health for function in self.functions} == {HEALTHY}
        assert {self.health.gpus.health(uuid) for uuid in self.health.gpus.devices} == {HEALTHY}

    def fail_everything(self) -> None:
        """Every device has a fault by a single witness."""
        for address, known in self.links.items():
            self.links[address] = replace(known, carrier=False, operstate="down")
        self.readings = [gpu(number, lost=True) for number in range(COUNT)]
        self.look()
        assert any(self.allocatable().values()), "the guard delays"
        self.pass_time(GUARD_S + 1)
        assert not any(self.allocatable().values()), WITHDRAWN


TestHealthHistory = pytest.mark.timeout(180)(HealthHistory.TestCase)
TestHealthHistory.settings = settings(
    max_examples=examples(12),
    stateful_step_count=15,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # a history is long: shrinking one takes minutes
)
