"""The health service: timers, records, unknown names of the cabling plan, logs. The file of the plan."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from nodeagent.facts.affinity import Affinity, affinity, root_port
from nodeagent.facts.model import HEALTHY, Function, Gpu, Identifier, Link, Neighbor, Rdma, State
from nodeagent.health.cabling import PlanError, Port
from nodeagent.health.health_settings import RuleSettings
from nodeagent.health.nic import roles
from nodeagent.health.record import READING_NEWS_S, GpuRecord, NicRecord
from nodeagent.health.service import HealthService
from nodeagent.health.state_file import HEALTH_FORM, StateFile
from nodeagent.health.structural import find_faults
from nodeagent.host.clock import boottime
from nodeagent.host.gpu_driver import GpuEvent, GpuReading
from nodeagent.measurements.sample import Sample, Source
from nodeagent.sources import cabling_plan
from tests.support.judged_machine import link, pf, vf, with_rules
from tests.support.waiting import LIMIT_S, until

PFS = (pf(1), pf(2))
ALL = (PFS[0], vf(PFS[0], 0), PFS[1], vf(PFS[1], 0))
UP = (link(PFS[0]), link(PFS[1]))
DOWN = (link(PFS[0], up=False), UP[1])


def judged(judge: HealthService, links: tuple[Link, ...]) -> tuple[Function, ...]:
    functions, faults = find_faults(ALL, links)
    return judge.judge_functions(functions, links, faults)


@pytest.mark.usefixtures("virtual_time")
async def test_facts_do_not_wait_for_samples_that_are_gathered() -> None:
    judge = HealthService(with_rules())
    published: asyncio.Queue[tuple[Function, ...]] = asyncio.Queue()
    judge.publish_functions(published.put_nowait)
    running = asyncio.create_task(judge.run())
    judged(judge, UP)
    judge.take_samples([Sample(boottime(), PFS[1].pci_address, Source.MODULE, {"module_celsius": 99.0})])
    states = {function.pci_address: function.health.state for function in judged(judge, DOWN)}
    assert states[PFS[0].pci_address] is State.DOWN
    assert states[PFS[1].pci_address] is State.HEALTHY
    later = {function.pci_address: function.health.state for function in await published.get()}
    assert later[PFS[1].pci_address] is State.DEGRADED
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


@pytest.mark.usefixtures("virtual_time")
async def test_facts_that_keep_coming_do_not_put_samples_off() -> None:
    judge = HealthService(with_rules())
    published: list[tuple[Function, ...]] = []
    judge.publish_functions(published.append)
    running = asyncio.create_task(judge.run())
    judged(judge, UP)
    judge.take_samples([Sample(boottime(), PFS[1].pci_address, Source.MODULE, {"module_celsius": 99.0})])
    for _ in range(200):
        judged(judge, UP)
        await asyncio.sleep(0.01)
    assert published
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


@pytest.mark.usefixtures("virtual_time")
async def test_a_hold_ends_by_time_alone() -> None:
    judge = HealthService(with_rules(RuleSettings(rule="carrier_down", clear_for_seconds=0.05)))
    published: asyncio.Queue[tuple[Function, ...]] = asyncio.Queue()
    judge.publish_functions(published.put_nowait)
    running = asyncio.create_task(judge.run())
    judged(judge, UP)
    assert judged(judge, DOWN)[0].health.state is State.DOWN
    assert judged(judge, UP)[0].health.state is State.DOWN
    async with asyncio.timeout(10):
        assert (await published.get())[0].health == HEALTHY
    assert published.empty(), "an equal result is not published"
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


def test_facts_are_evaluated_in_the_same_call_and_not_published_twice() -> None:
    judge = HealthService(with_rules(), clock=lambda: 1.0)
    published: list[tuple[Function, ...]] = []
    judge.publish_functions(published.append)
    judged(judge, UP)
    assert [function.health.allocatable for function in judged(judge, DOWN)] == [False, False, True, True]
    assert published == []
    judge.take_samples([Sample(1.0, PFS[1].pci_address, Source.LINK, {"carrier": 1})])
    assert published == []


def reasons_after_restart(folder: Path, links: tuple[Link, ...]) -> list[str]:
    """The reasons of the first PF for a next agent with these links."""
    judge = HealthService(with_rules(), state_file=StateFile.open(folder))
    return [reason.key for reason in judged(judge, links)[0].health.reasons]


async def test_a_fault_outlives_the_agent_and_does_not_apply_to_another_card(tmp_path: Path) -> None:
    state_file = StateFile.open(tmp_path)
    judge = HealthService(with_rules(), state_file=state_file)
    for links in (UP, DOWN, UP):
        judged(judge, links)
    judge.store()
    writing = asyncio.create_task(state_file.run())
    await asyncio.sleep(0)
    writing.cancel()
    with suppress(asyncio.CancelledError):
        await writing
    assert reasons_after_restart(tmp_path, UP) == ["carrier_down"]
    another = (replace(UP[0], mac="02:00:00:00:00:ff"), UP[1])
    assert reasons_after_restart(tmp_path, another) == []
    nameless = (replace(UP[0], mac=None), UP[1])
    assert reasons_after_restart(tmp_path, nameless) == ["carrier_down"], "an unknown identity matches any"


async def test_a_record_of_an_earlier_agent_with_the_address_of_ipoib_is_that_of_the_nic(
    tmp_path: Path,
) -> None:
    """The address begins with the number of a queue pair, which changes; now the node GUID identifies the card."""
    state_file = StateFile.open(tmp_path)
    judge = HealthService(with_rules(), state_file=state_file)
    for links in (UP, DOWN, UP):
        judged(judge, links)
    judge.store()
    content = state_file.content()
    ipoib = "00:00:10:49:fe:80:00:00:00:00:00:00:b8:3f:d2:03:00:00:00:01"
    stored = replace(content, entries=[replace(entry, identity=ipoib) for entry in content.entries])
    state_file.file.write(stored)
    infiniband = tuple(
        replace(function, link_type="infiniband", rdma=Rdma("mlx5_0", node_guid="0c42:a103:0016:054c"))
        for function in find_faults(ALL, UP)[0]
    )
    after = HealthService(with_rules(), state_file=StateFile.open(tmp_path))
    found = after.judge_functions(infiniband, tuple(replace(link, mac=ipoib) for link in UP))
    assert [reason.key for reason in found[0].health.reasons] == ["carrier_down"]
    after.store()
    identities = {entry.identity for entry in after.state_file.content().entries}
    assert identities == {"0c42:a103:0016:054c"}


class Agents:
    """One agent after the other, with one state file. ``at`` is the time of each look."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.at = folder, 100.0
        self.start()

    def start(self) -> None:
        state_file = StateFile.open(self.folder)
        self.health = HealthService(with_rules(), state_file=state_file, clock=lambda: self.at)

    def restart(self) -> None:
        """The last agent is killed after its last write."""
        self.health.store()
        file = self.health.state_file
        (self.folder / "health.json").write_bytes(HEALTH_FORM.encode(file.content()))
        self.start()


def test_a_failure_counts_from_its_begin_over_restarts_of_the_agent(tmp_path: Path) -> None:
    agents, pf_address, vf_address = Agents(tmp_path), PFS[0].pci_address, ALL[1].pci_address
    judged(agents.health, UP)
    assert agents.health.failed_s([pf_address, vf_address]) is None
    agents.at = 200.0
    judged(agents.health, DOWN)
    for at in (230.0, 260.0):
        agents.at = at
        agents.restart()
        judged(agents.health, DOWN)
        assert (
            agents.health.failed_s([pf_address])
            == agents.health.failed_s([vf_address, pf_address])
            == at - 200
        )
        assert agents.health.failed_s([PFS[1].pci_address]) is None
    agents.at = 270.0
    judged(agents.health, UP)
    agents.at = 400.0  # clear for 60 s
    agents.health.judge_nics()
    assert agents.health.failed_s([pf_address]) is None
    agents.restart()
    judged(agents.health, DOWN)
    agents.at = 401.0
    assert agents.health.failed_s([pf_address]) == 1.0, "it came back in between"


def test_a_vf_that_disappears_has_failed_since_then_also_for_an_agent_that_never_saw_it(
    tmp_path: Path,
) -> None:
    agents, gone = Agents(tmp_path), ALL[1].pci_address
    judged(agents.health, UP)
    without = [one for one in ALL if one.pci_address != gone]
    functions, faults = find_faults(without, UP, known=ALL)
    agents.health.judge_functions(functions, UP, faults)
    agents.at += 30
    agents.restart()
    functions, faults = find_faults(without, UP)
    agents.health.judge_functions(functions, UP, faults)
    assert agents.health.failed_s([gone]) == 30.0
    judged(agents.health, UP)
    assert agents.health.failed_s([gone]) is None


def test_a_gpu_has_failed_from_its_first_xid_on_while_its_driver_is_silent_too(tmp_path: Path) -> None:
    agents, reading = Agents(tmp_path), GpuReading(0, "GPU-0", 0, "H100", "0000:21:00.0", 81559)
    agents.health.judge_gpus(readings=[reading])
    agents.at = 200.0
    agents.health.judge_gpus(events=[GpuEvent("GPU-0", 79)])
    agents.at = 250.0
    agents.health.judge_gpus(events=[GpuEvent("GPU-0", 79)])
    assert agents.health.failed_s(["GPU-0"]) == 50.0, "a second event is no new begin"
    agents.restart()
    agents.health.lose_gpu_driver("it hangs")
    agents.at = 300.0
    agents.health.judge_gpus(events=[GpuEvent("GPU-0", 79)])
    assert agents.health.failed_s(["GPU-0"]) == 100.0
    agents.health.forget_gpu("GPU-0")
    assert agents.health.failed_s(["GPU-0"]) is None


def test_a_change_of_health_is_one_log_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    judge = HealthService(with_rules(RuleSettings(rule="carrier_down", clear_for_seconds=0)))
    for links in (UP, UP, DOWN, DOWN, UP, UP):
        judged(judge, links)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert "now down. pci=0000:01:00.0 netdev=eth1 devices=Unhealthy before=healthy" in lines[0]
    assert "now healthy" in lines[1]
    figures = judge.figures()["0000:01:00.0"]
    assert figures.transitions == {("healthy", "down"): 1, ("down", "healthy"): 1}
    assert "carrier_down" not in figures.values, "a rule without a threshold has no value"
    assert figures.values["expected_speed_mbps"] == 400_000
    assert figures.since is not None


def test_unknown_names_of_the_plan_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    judge = HealthService(with_rules())
    judged(judge, UP)
    judge.take_cabling_plan(
        {"eth1": Port("leaf-9", "1"), "eth7": Port("leaf-1", "1"), "0000:02:00.0": Port("leaf-1", "2")}
    )
    neighbor = Neighbor("eth1", Identifier("mac", "02:00:00:00:00:99"), Identifier("ifname", "1"), "leaf-1")
    for _ in range(3):
        judge.take_neighbors([neighbor])
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert "a link that this node does not have. link='eth7'" in lines[0]
    assert "switch='leaf-9' link='eth1'" in lines[1]


def test_pfs_behind_the_switch_of_a_gpu_have_another_role() -> None:
    switch = ("pci0000:00", "0000:00:01.0", "0000:01:00.0")
    gpu = Gpu("GPU-1", 0, 0, "H100", "0000:19:00.0", 80_000, 0, (*switch, "0000:17:00.0", "0000:19:00.0"))
    near = replace(PFS[0], pci_path=(*switch, "0000:17:01.0", "0000:01:00.0"))
    far = replace(PFS[1], pci_path=("pci0000:80", "0000:80:01.0", "0000:02:00.0"))
    judge = HealthService(with_rules())
    functions, faults = find_faults([near, far], UP)
    judge.judge_functions(functions, UP, faults)
    assert set(judge.nics.role_of.values()) == {"15b3:1021 other"}
    judge.take_gpus([gpu])
    assert sorted(judge.nics.role_of.values()) == ["15b3:1021 compute", "15b3:1021 other"]
    role_of = roles([near, far], (gpu,))
    assert role_of == {near.pci_address: "15b3:1021 compute", far.pci_address: "15b3:1021 other"}


_PATHS = st.lists(st.sampled_from("abc"), max_size=4).map(tuple)


@given(_PATHS, _PATHS)
def test_functions_with_one_root_port_are_those_without_a_host_bridge_between_them(
    a: tuple[str, ...], b: tuple[str, ...]
) -> None:
    shared = root_port(a) is not None and root_port(a) == root_port(b)
    assert shared == (affinity(a, 0, b, 0) <= Affinity.PXB)


# --- the plan's file ---------------------------------------------------------------------------------------


def test_the_plan_of_one_node_is_read() -> None:
    text = b"n1:\n  eth1: {switch: leaf-1, port: 1/1}\n  eth2: {switch: leaf-2, port: 7}\nn2: {}\n"
    assert cabling_plan.read_plan(text, "n1") == {"eth1": Port("leaf-1", "1/1"), "eth2": Port("leaf-2", "7")}
    assert (
        cabling_plan.read_plan(text, "n2")
        == cabling_plan.read_plan(text, "n3")
        == cabling_plan.read_plan(b"", "n1")
        == {}
    )


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (b"- a\n", "must map nodes"),
        (b"n1: [a]\n", "n1: must map links"),
        (b"n1: {eth1: leaf-1}\n", "n1: eth1: must be {switch"),
        (b"n1: {eth1: {switch: leaf-1}}\n", "must be"),
        (b"n1: {eth1: {switch: leaf-1, port: 1, x: y}}\n", "must be"),
        (b"n1: {", "it is not YAML"),
        (b"\xff\xfe\x00", "it is not YAML"),
        (b"&a [*a]", "no anchor that ends before it"),
        (b"n1: !!python/object:os.system {}", "it is not YAML"),
        (b"n1: {eth1: !!bool x}", "a tag does not fit"),
        (b"n1: !!timestamp x", "a tag does not fit"),
        (b"n1: !!int ''", "a tag does not fit"),
        (b"[" * 100_000, "nested more than 64 deep"),
    ],
)
def test_a_fault_of_the_plan_is_reported_with_its_place(text: bytes, complaint: str) -> None:
    with pytest.raises(PlanError, match=complaint.replace("{", r"\{")):
        cabling_plan.read_plan(text, "n1")


async def test_a_changed_plan_is_read_and_a_broken_one_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "plan.yaml"
    published: asyncio.Queue[dict[str, Port]] = asyncio.Queue()
    watching = asyncio.create_task(cabling_plan.watch_plan(path, "n1", published.put_nowait, 0.005))
    async with asyncio.timeout(LIMIT_S):
        await until(lambda: "cannot be read" in caplog.text)
        path.write_text("n1: {eth1: {switch: a, port: b}}")
        assert await published.get() == {"eth1": Port("a", "b")}
        path.write_text("n1: [")
        await until(lambda: "it is not YAML" in caplog.text)
        path.write_text("n1: {eth1: {switch: a, port: c}}")
        assert await published.get() == {"eth1": Port("a", "c")}
    watching.cancel()
    with suppress(asyncio.CancelledError):
        await watching
    assert published.empty()
    assert caplog.text.count("No such file") == 1


@pytest.mark.usefixtures("virtual_time")
async def test_a_reading_of_a_quiet_link_reaches_the_state_file_without_any_news(tmp_path: Path) -> None:
    state_file = StateFile.open(tmp_path)
    loop = asyncio.get_running_loop()
    judge = HealthService(with_rules(), state_file=state_file, clock=loop.time)
    judged(judge, UP)
    address = PFS[0].pci_address

    def read() -> None:
        values = {"carrier": 1.0, "carrier_down": 4.0}
        judge.take_samples([Sample(loop.time(), address, Source.LINK, values)])

    def stored() -> float:
        records = state_file.load("nic", NicRecord)
        return max(
            record.read_at or 0.0 for device, record in records.items() if device.pci_address == address
        )

    running = asyncio.create_task(judge.run())
    for _ in range(100):
        read()
        await asyncio.sleep(10.0)
    assert loop.time() - stored() < READING_NEWS_S + 30.0
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


@pytest.mark.usefixtures("virtual_time")
async def test_a_later_reading_alone_of_a_gpu_does_not_change_the_state_file(tmp_path: Path) -> None:
    state_file = StateFile.open(tmp_path)
    loop = asyncio.get_running_loop()
    judge = HealthService(with_rules(), state_file=state_file, clock=loop.time)
    reading = GpuReading(0, "GPU-0", 0, "H100", "0000:21:00.0", 81559)

    def stored() -> list[GpuRecord]:
        judge.store()
        return list(state_file.load("gpu", GpuRecord).values())

    judge.gpus.take_readings([reading], loop.time())
    (first,) = stored()
    await asyncio.sleep(3600.0)
    judge.gpus.take_readings([reading], loop.time())
    assert stored() == [first]
    judge.gpus.take_readings([replace(reading, recovery_action="gpu_reset")], loop.time())
    assert stored() != [first]


@pytest.mark.usefixtures("virtual_time")
async def test_figures_and_explanations_have_the_value_beside_the_own_threshold_of_the_module() -> None:
    loop = asyncio.get_running_loop()
    judge = HealthService(with_rules(), clock=loop.time)
    judged(judge, UP)
    running = asyncio.create_task(judge.run())
    module = {"module_celsius": 61.5, "module_celsius_high_alarm": 80.0}
    judge.take_samples([Sample(loop.time(), PFS[0].pci_address, Source.MODULE, module)])
    await asyncio.sleep(60.0)
    values = judge.figures()[PFS[0].pci_address].values
    assert values["optics_temperature"] == -18.5
    assert "carrier_down" not in values
    view = next(view for view in judge.explain() if view.device == PFS[0].pci_address)
    shown = {rule.rule: (rule.measured, rule.threshold) for rule in view.rules}
    assert shown["optics_temperature"] == ("61.5 °C", "80 °C")
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
