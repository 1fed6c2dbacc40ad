"""What the measured values of a GPU say against it: when it comes, that it stays, and how it goes."""

import math
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.health.gpu_record import lasting, same, sound
from nodeagent.health.gpu_rules import GRAVE, Limits, Mark
from nodeagent.health.xids import Fault, Latch, Rules, judge, verdict
from nodeagent.host.gpu_driver import GpuEvent, GpuReading, GpuVitals
from nodeagent.model import HEALTHY, State

SOUND = {
    "gpu_row_remap_pending": 0,
    "gpu_row_remap_failed": 0,
    "gpu_remapped_uncorrectable": 0,
    "gpu_ecc_uncorrectable_sram": 0,
    "gpu_sram_threshold_exceeded": 0,
    "gpu_fabric_degraded_bandwidth": 0,
    "gpu_fabric_route_unhealthy": 0,
    "gpu_pcie_width": 16,
    "gpu_pcie_width_max": 16,
    "gpu_pcie_generation": 5,
    "gpu_pcie_generation_max": 5,
    "gpu_performance_state": 0,
    "gpu_utilization": 0.9,
    **{f"gpu_nvlink_up/{link}": 1 for link in range(18)},
}


def gpu(index=0, **parts):
    known = {"minor": index, "name": "H100", "pci_address": f"0000:{index:02x}:00.0", "memory_mib": 81559}
    return GpuReading(**({"index": index, "uuid": f"GPU-{index}", "recovery_action": "none"} | known | parts))


class Case:
    """A GPU that is read and measured every 15 s, as the source does."""

    def __init__(self, limits=None, reading=None, every=15.0):
        self.rules = Rules(limits=limits or Limits())
        self.reading = reading or gpu()
        self.latches, self.now, self.every = (), 0.0, every

    def tick(self, **changes):
        """One step further, with these values in place of sound ones; ``None`` is not told."""
        told = {**SOUND, **{name.replace("__", "/"): value for name, value in changes.items()}}
        values = {name: value for name, value in told.items() if value is not None}
        vitals = [GpuVitals("GPU-0", values)]
        self.latches = judge(self.latches, self.now, self.rules, readings=[self.reading], vitals=vitals)
        self.now += self.every
        return self

    def for_s(self, seconds, **changes):
        """Readings whose first and last are so many seconds apart."""
        for _ in range(math.ceil(seconds / self.every) + 1):
            self.tick(**changes)
        return self

    def read(self, **parts):
        self.reading = gpu(**parts)
        self.latches = judge(self.latches, self.now, self.rules, readings=[self.reading])
        return self

    @property
    def health(self):
        return verdict(self.latches[0], self.rules)

    @property
    def keys(self):
        return [reason.key for reason in self.health.reasons]


AT_ONCE = [
    ("remap_failed", {"gpu_row_remap_failed": 1}),
    ("remap_limit", {"gpu_remapped_uncorrectable": 513}),
    ("sram_uncorrectable", {"gpu_ecc_uncorrectable_sram": 1}),
    ("sram_threshold", {"gpu_sram_threshold_exceeded": 1}),
    ("remap_pending", {"gpu_row_remap_pending": 1}),
]
HELD = [
    ("nvlink_down", {"gpu_nvlink_up__17": 0}, 30),
    ("fabric_unhealthy", {"gpu_fabric_route_unhealthy": 1}, 30),
    ("fabric_degraded", {"gpu_fabric_degraded_bandwidth": 1}, 30),
    ("pcie_width", {"gpu_pcie_width": 8}, 10),
    ("pcie_speed", {"gpu_pcie_generation": 1}, 900),
]
ALL = [*AT_ONCE, *((key, bad) for key, bad, _ in HELD)]


def test_a_sound_gpu_is_healthy_and_every_mark_is_tested_here():
    assert Case().for_s(3600).health == HEALTHY
    assert {key for key, _ in ALL} == {mark.value for mark in Mark}


@pytest.mark.parametrize(("key", "bad"), AT_ONCE)
def test_what_counts_at_once_does(key, bad):
    case = Case().tick().tick(**bad)
    assert case.keys == [key]
    grave = Mark(key) in GRAVE
    assert case.health.state is (State.UNHEALTHY if grave else State.DEGRADED)
    assert case.health.allocatable is not grave


@pytest.mark.parametrize(("key", "bad", "hold_s"), HELD)
def test_what_must_last_counts_when_it_has_and_not_before(key, bad, hold_s):
    case = Case(every=5).tick()
    case.for_s(hold_s - 5, **bad)
    assert case.keys == []
    assert case.tick(**bad).keys == [key]


@pytest.mark.parametrize(("key", "bad", "hold_s"), HELD)
def test_what_goes_in_between_begins_anew(key, bad, hold_s):
    case = Case(every=5).tick()
    for _ in range(3):
        case.for_s(hold_s - 5, **bad).tick()
    assert case.keys == []
    assert case.for_s(hold_s, **bad).keys == [key]


@pytest.mark.parametrize(("key", "bad"), ALL)
def test_every_fault_goes_after_a_clean_time(key, bad):
    case = Case().tick().for_s(900, **bad)
    clear_s = 60 if key.startswith("pcie") else 600
    assert case.for_s(clear_s - 15).keys == [key]
    assert case.tick().health == HEALTHY


@pytest.mark.parametrize(("key", "bad"), ALL)
def test_every_fault_goes_at_once_after_a_reset_that_mended_it(key, bad):
    case = Case().tick().for_s(900, **bad).read(recovery_action="gpu_reset").tick(**bad)
    assert case.keys == ["recovery_gpu_reset", key]
    case.read()
    assert case.keys == [key]  # nobody has looked yet
    assert case.tick().health == HEALTHY


@pytest.mark.parametrize(("key", "bad"), ALL)
def test_a_reset_that_mended_nothing_clears_nothing(key, bad):
    case = Case().tick().for_s(900, **bad).read(recovery_action="gpu_reset").read().tick(**bad)
    assert case.keys == [key]


@pytest.mark.parametrize(("key", "bad"), ALL)
def test_a_gpu_that_was_lost_and_is_found_was_reset(key, bad):
    case = Case().tick().for_s(900, **bad).read(lost=True)
    assert case.keys[0] == "gpu_lost"
    assert case.read().tick().health == HEALTHY


@pytest.mark.parametrize(("key", "bad"), ALL)
def test_what_is_no_longer_told_changes_nothing(key, bad):
    case = Case().tick().for_s(900, **bad)
    case.for_s(5000, **dict.fromkeys(bad))
    assert case.keys == [key]
    assert Case().tick().for_s(5000, **dict.fromkeys(bad)).health == HEALTHY


@pytest.mark.parametrize(("key", "bad"), ALL)
def test_a_value_that_swings_toggles_at_most_once_in_a_hold(key, bad):
    case = Case().tick().for_s(900, **bad)
    for _ in range(100):
        case.tick().tick(**bad)
        assert case.keys == [key]


@pytest.mark.parametrize(("key", "bad"), ALL)
def test_what_is_ignored_is_not_looked_for_and_what_is_unhealthy_is_a_choice(key, bad):
    assert Case(Limits(ignore=frozenset({Mark(key)}))).tick().for_s(900, **bad).health == HEALTHY
    light = Case(Limits(grave=frozenset())).tick().for_s(900, **bad).health
    assert (light.state, light.allocatable) == (State.DEGRADED, True)
    hard = Case(Limits(grave=frozenset(Mark))).tick().for_s(900, **bad).health
    assert (hard.state, hard.allocatable) == (State.UNHEALTHY, False)


@pytest.mark.parametrize("link", range(18))
def test_each_of_eighteen_links_is_looked_at(link):
    case = Case().tick().for_s(30, **{f"gpu_nvlink_up__{link}": 0})
    assert case.health.reasons[0].detail == f"NVLink {link} is down; 17 are up."


def test_a_link_that_was_never_up_is_no_fault_unless_it_is_expected():
    off = {f"gpu_nvlink_up__{link}": 0 for link in range(18)}
    assert Case().for_s(3600, **off).health == HEALTHY
    case = Case(Limits(nvlinks=18)).for_s(30, gpu_nvlink_up__3=0)
    assert case.health.reasons[0].detail == "17 NVLinks are up where 18 should be."
    assert Case(Limits(nvlinks=17)).for_s(3600, gpu_nvlink_up__3=0).health == HEALTHY


def test_the_links_that_are_down_are_named_as_they_are_now():
    case = Case().tick().for_s(30, gpu_nvlink_up__3=0).tick(gpu_nvlink_up__3=0, gpu_nvlink_up__4=0)
    assert case.health.reasons[0].detail == "NVLinks 3, 4 are down; 16 are up."


def test_links_that_mig_switched_off_are_no_fault():
    case = Case().tick()
    case.reading = gpu(mig=True)
    assert case.for_s(3600, gpu_nvlink_up__3=0).keys == ["mig_enabled"]


def test_a_number_that_counts_on_wakes_nobody():
    case = Case().tick().tick(gpu_ecc_uncorrectable_sram=1)
    first = case.health
    for count in range(2, 50):
        assert case.tick(gpu_ecc_uncorrectable_sram=count).health == first


def test_an_idle_gpus_slow_link_is_no_fault_and_its_idle_time_no_evidence():
    idle = {"gpu_performance_state": 8, "gpu_utilization": 0, "gpu_pcie_generation": 1}
    assert Case().for_s(7200, **idle).health == HEALTHY
    case = Case()
    for _ in range(20):  # a minute of load in each ten: twenty make 900 s only together
        case.for_s(600, **idle).for_s(45, gpu_pcie_generation=1)
    assert case.keys == ["pcie_speed"]
    case = (
        Case().for_s(600, gpu_pcie_generation=1).for_s(600, **idle).tick().for_s(600, gpu_pcie_generation=1)
    )
    assert case.health == HEALTHY


def test_hours_without_a_reading_are_no_evidence():
    case = Case().tick().tick(gpu_nvlink_up__3=0)
    case.now += 3600
    assert case.tick(gpu_nvlink_up__3=0).health == HEALTHY
    case.for_s(30, gpu_nvlink_up__3=0)
    assert case.keys == ["nvlink_down"]
    case.tick()
    case.now += 3600
    assert case.tick().keys == ["nvlink_down"]


def test_the_limits_are_what_they_are_set_to():
    assert Case(Limits(remapped_rows=513)).tick(gpu_remapped_uncorrectable=513).health == HEALTHY
    assert Case(Limits(remapped_rows=0)).tick(gpu_remapped_uncorrectable=1).keys == ["remap_limit"]
    assert Case(Limits(sram_uncorrectable=2)).tick(gpu_ecc_uncorrectable_sram=1).health == HEALTHY
    assert Case(Limits(nvlink_down_s=120)).tick().for_s(105, gpu_nvlink_up__3=0).health == HEALTHY


def test_an_unavailable_gpu_is_unhealthy_until_a_reset_or_a_clean_time():
    rules = Rules(clear_after_s=600)
    gone = [GpuEvent("GPU-0", None, unavailable=True)]
    for after_s, action in ((10, "gpu_reset"), (600, "none")):
        latches = judge((), 0, rules, readings=[gpu(0), gpu(1)])
        latches = judge(latches, 1, rules, events=gone)
        said = [verdict(latch, rules) for latch in latches]
        assert [[reason.key for reason in one.reasons] for one in said] == [["gpu_unavailable"], []]
        assert not said[0].allocatable
        latches = judge(latches, 2, rules, readings=[gpu(0, recovery_action=action), gpu(1)])
        assert verdict(latches[0], rules) != HEALTHY
        latches = judge(latches, 1 + after_s, rules, readings=[gpu(0), gpu(1)])
        assert [verdict(latch, rules) for latch in latches] == [HEALTHY, HEALTHY]


def test_vitals_of_a_gpu_that_was_never_read_are_nobodys():
    assert judge((), 0, Rules(), vitals=[GpuVitals("GPU-9", {"gpu_row_remap_failed": 1})]) == ()


# Over a restart


def recalled(latches, now):
    text = msgspec.json.encode([lasting(latch) for latch in latches])
    found = msgspec.json.decode(text, type=tuple[Latch, ...])
    assert all(sound(latch, now) for latch in found)
    return found


def restarted(case, after_s=0.0):
    """The same case in a new process: what a file would have held is read back."""
    case.now += after_s
    case.latches = recalled(case.latches, case.now)
    return case


@pytest.mark.parametrize(("key", "bad"), ALL)
def test_a_fault_outlives_a_restart_and_goes_as_ever(key, bad):
    case = Case().tick().for_s(900, **bad)
    before = case.health
    assert restarted(case, 3600).tick(**bad).health == before
    assert restarted(case).for_s(600).health == HEALTHY


def test_an_xid_outlives_a_restart_and_a_reset_meanwhile_clears_it():
    for action, keys in (("none", ["xid_79"]), ("gpu_reset", [])):
        case = Case().tick()
        case.latches = judge(case.latches, case.now, case.rules, events=[GpuEvent("GPU-0", 79)])
        case.now += 1
        case.read(recovery_action=action)
        restarted(case, 30)
        assert "xid_79" in case.keys
        assert case.read().keys == keys


def test_a_gpu_that_was_lost_before_the_restart_and_no_longer_names_itself_is_known():
    case = restarted(Case().tick(), 60)
    lost = GpuReading(0, lost=True, fault="nvmlDeviceGetHandleByIndex: GPU is lost")
    case.latches = judge(case.latches, case.now, case.rules, readings=[lost])
    assert case.keys == ["gpu_lost"]
    assert case.latches[0].reading.memory_mib == 81559


def test_the_links_that_were_up_before_the_restart_are_looked_for_after_it():
    case = restarted(Case().tick(), 10)
    assert case.for_s(30, gpu_nvlink_up__13=0).keys == ["nvlink_down"]


def test_what_was_on_its_way_begins_anew_and_what_is_kept_changes_only_with_the_faults():
    case = Case().tick()
    first = case.latches[0]
    case.for_s(15, gpu_nvlink_up__3=0)
    assert same(first, case.latches[0])
    restarted(case)
    assert case.for_s(15, gpu_nvlink_up__3=0).health == HEALTHY
    assert not same(first, case.tick(gpu_nvlink_up__3=0).latches[0])
    assert not same(None, first)


@pytest.mark.parametrize(
    "parts",
    [
        {"read_at": 1e9},
        {"read_at": -1.0},
        {"read_at": math.nan},
        {"faults": (Fault(79, 1e9),)},
        {"unreadable_since": math.inf},
        {"reading": GpuReading(0)},
    ],
)
def test_what_cannot_have_been_so_is_no_memory(parts):
    latch = Case().tick().latches[0]
    assert sound(latch, 100)
    assert not sound(replace(latch, **parts), 100)


VALUES = st.dictionaries(
    st.sampled_from([*SOUND, "gpu_utilization", "unknown"]),
    st.sampled_from([0, 1, 5, 16, 513, 0.5, 1e300, -1]),
    max_size=len(SOUND),
)
STEPS = st.lists(
    st.tuples(st.floats(0, 700), VALUES, st.sampled_from(["none", "gpu_reset", None]), st.booleans()),
    max_size=12,
)


@given(steps=STEPS)
def test_from_whatever_was_measured_every_gpu_recovers_and_remembers(steps):
    rules, latches, now = Rules(), (), 0.0
    for wait, values, action, restart in steps:
        now += wait
        reading = gpu(recovery_action=action)
        latches = judge(latches, now, rules, readings=[reading, gpu(1)], vitals=[GpuVitals("GPU-0", values)])
        if restart:
            before = [verdict(latch, rules) for latch in latches]
            latches = recalled(latches, now)
            assert [verdict(latch, rules) for latch in latches] == before
        assert verdict(latches[1], rules) == HEALTHY
        keys = [reason.key for reason in verdict(latches[0], rules).reasons]
        assert len(keys) == len(set(keys))
    sound = {**SOUND, **{f"gpu_nvlink_up/{link}": 1 for link in range(18)}}
    for _ in range(45):
        now += 15
        vitals = [GpuVitals("GPU-0", sound)]
        latches = judge(latches, now, rules, readings=[gpu(), gpu(1)], vitals=vitals)
    assert all(verdict(latch, rules) == HEALTHY for latch in latches)
