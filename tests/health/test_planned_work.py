"""Planned work on a NIC: its losses are no flaps, its faults stay, and the state says what is planned."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.cli import main
from nodeagent.facts.model import CORDONED, HEALTHY, MAINTENANCE, Health, Reason, State
from nodeagent.health.cordons import PlannedWork, with_cordon, with_planned_work
from nodeagent.health.service import HealthService
from nodeagent.measurements.sample import Source
from nodeagent_lab.sim.apiserver import ApiServer
from tests.commands.test_plan_live import kubeconfig
from tests.support.judged_machine import Bench, link, pf
from tests.support.running_agent import node

LINK = Source.LINK


def planned(bench: Bench, begin: float, end: float, at: float | None = None) -> Bench:
    work = PlannedWork(begin, end, "maintenance until then by ann: optics")
    bench.now = bench.now if at is None else at
    bench.engine.take_planned({bench.pfs[0].pci_address: work})
    return bench.wait(0)


def losses(bench: Bench, *counts: tuple[float, float]) -> Bench:
    for at, count in counts:
        bench.sample(LINK, at=at, carrier=1, carrier_down=count)
    return bench


def test_losses_in_the_time_of_planned_work_are_no_flaps_and_later_ones_are() -> None:
    bench = losses(planned(Bench(2).look(), 1000, 2000), (1001, 0), (1500, 9))
    assert bench.reasons() == [MAINTENANCE]
    assert (bench.health().state, bench.health().allocatable) == (State.HEALTHY, True)
    assert losses(bench, (2001, 9)).health() == HEALTHY, "the remark ends with the work"
    assert losses(bench, (2030, 12)).reasons() == ["flapping"]


def test_work_that_is_known_late_ends_what_its_losses_have_started() -> None:
    """The agent learns of it with the answer to its next report: after the first loss."""
    bench = losses(Bench(2).look(), (1001, 0), (1010, 4))
    assert bench.reasons() == ["flapping"]
    assert planned(bench, 1005, 2000).reasons() == [MAINTENANCE]
    assert bench.engine.devices[bench.pfs[0].pci_address].losses.times == []


def test_losses_before_the_work_keep_their_penalty() -> None:
    bench = losses(Bench(2).look(), (1001, 0), (1010, 4))
    planned(losses(bench, (1020, 5)), 1015, 2000)
    assert bench.reasons() == ["flapping", MAINTENANCE]
    assert bench.engine.devices[bench.pfs[0].pci_address].losses.within_day(1020) == 4


def test_a_fault_is_not_hidden_and_another_link_counts() -> None:
    bench = planned(Bench(2).look(), 1000, 5000).down(at=1100)
    assert bench.reasons() == ["carrier_down", MAINTENANCE]
    assert bench.health().allocatable is False
    for at, count in ((1101, 0), (1110, 4)):
        bench.sample(LINK, 2, at=at, carrier=1, carrier_down=count)
    assert "flapping" in bench.reasons(2)


def test_work_that_ends_early_counts_from_then_on() -> None:
    bench = losses(planned(Bench(2).look(), 1000, 5000), (1001, 0), (1010, 4))
    bench.engine.take_planned({})
    assert losses(bench, (1100, 4)).health() == HEALTHY
    assert losses(bench, (1110, 8)).reasons() == ["flapping"]


@given(
    st.lists(st.tuples(st.floats(1, 25), st.integers(0, 3)), min_size=1, max_size=12),
    st.integers(0, 11),
    st.floats(1000, 1300),
    st.floats(0, 300),
)
def test_it_does_not_matter_when_the_agent_learns_of_the_work(
    steps: list[tuple[float, int]], learnt: int, begin: float, length: float
) -> None:
    """The losses that count are the same whether the work is known before or in between."""
    found = []
    for known_at in (0, min(learnt, len(steps) - 1)):
        bench, count = Bench(1).look().sample(LINK, at=1000.5, carrier=1, carrier_down=0), 0.0
        for number, (pause, lost) in enumerate(steps):
            if number == known_at:
                planned(bench, begin, begin + length)
            count += lost
            bench.sample(LINK, at=bench.now + pause, carrier=1, carrier_down=count)
        found.append(bench.engine.devices[bench.pfs[0].pci_address].losses.times)
    assert found[0] == found[1]


@pytest.mark.parametrize(("now", "said"), [(9.9, True), (10.0, False)])
def test_the_remark_changes_neither_state_nor_cordon(now: float, said: bool) -> None:
    cordoned = with_cordon(HEALTHY, Reason(CORDONED, "by ann"))
    after = with_planned_work(cordoned, PlannedWork(0, 10, "work"), now)
    assert after == Health(
        State.HEALTHY,
        (*cordoned.reasons, *[Reason(MAINTENANCE, "work", warning=True)] * said),
        allocatable=False,
    )
    assert after.only_cordoned


def test_the_service_takes_times_from_now() -> None:
    health = HealthService(clock=lambda: 500.0)
    health.judge_functions([pf(1)], [link(pf(1))])
    health.take_planned_work({pf(1).pci_address: (-100.0, 100.0, "work")})
    assert health.nics.planned == {pf(1).pci_address: PlannedWork(400.0, 600.0, "work")}
    assert [it.key for it in health.judge_functions([pf(1)], [link(pf(1))])[0].health.reasons] == [
        MAINTENANCE
    ]
    assert health.nics.due() == 600.0
    health.take_planned_work({})
    assert health.judge_functions([pf(1)], [link(pf(1))])[0].health == HEALTHY


@pytest.mark.slow
async def test_the_agent_learns_of_the_work_from_its_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole way: the verb with a kubeconfig, the annotations, the agent without a right to read Nodes."""
    server = await ApiServer().start()
    links = [{"name": "nic0", "pciAddress": "0000:18:00.0", "rail": 0, "state": "healthy"}]
    server.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu-0"}})
    server.put({"apiVersion": "nodeagent.io/v1alpha1", "kind": "NodeLinks", "nodeName": "gpu-0", "links": links,
                "metadata": {"name": "gpu-0", "namespace": "nodeagent"}})  # fmt: skip
    file = kubeconfig(server, tmp_path / "kubeconfig")
    file.write_text(file.read_text().replace("    user: u\n", "    user: u\n    namespace: nodeagent\n", 1))

    async def verb(*words: str) -> str:
        assert await asyncio.to_thread(main, list(words)) == 0
        return capsys.readouterr().out

    try:
        async with node() as n:
            settings = n.configure(f"cluster: {{access: kubeconfig, kubeconfig: {file}}}\n")
            await n.kubelet.start()
            words = ["--until", "2h", "--reason", "optics", "--author", "ann", "--kubeconfig", str(file)]
            await verb("maintain", "gpu-0/nic0", *words)
            before = len(server.requests)
            await n.start_agent(settings, node_name="gpu-0")
            await n.allocatable("two-gpus-and-two-nics/nic0", 4)
            await n.until(lambda: n.agent is not None and bool(n.agent.health.nics.planned))
            said = await verb("health", "nic0", "--root", str(n.root), "--config", str(n.config_file))
            assert "by ann: optics" in " ".join(said.split())
            metrics = (await n.get("/metrics"))[1]
            assert 'reason="maintenance",severity="warning"} 1' in metrics
            seen = {(it.verb, it.resource) for it in list(server.requests)[before:]}
            assert "nodelinks" in {resource for _, resource in seen}
            assert ("get", "nodes") not in seen
    finally:
        await server.stop()
