"""Cordoned devices: no new pod gets them, pods that hold them keep them, and not a fault is hidden."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from msgspec.structs import replace

from nodeagent.agent_config import Config, load
from nodeagent.base.stored_file import StoredFile
from nodeagent.cli import main
from nodeagent.cluster.affected_devices import affected_pods, failed_devices, reported_devices
from nodeagent.doctor import capabilities
from nodeagent.doctor.reads import Target
from nodeagent.facts.model import CORDONED, HEALTHY, Health, Reason, Snapshot, State
from nodeagent.features.nvsentinel.health_events import event_of
from nodeagent.health.cordons import Cordon, cordon_reasons, with_cordon
from nodeagent.health.service import HealthService
from nodeagent.host.sysfs import Tree
from nodeagent.kinds import unhealthy
from nodeagent.kinds.rail_numbers import Rail, selection
from nodeagent.kinds.resource_settings import VfResource
from nodeagent.kubelet import rail_memory
from nodeagent.kubelet.rail_memory import NumberedSelection
from nodeagent.sources.cordons_file import CORDONS_FORM, CordonsFile, one_at_a_time
from nodeagent_lab.sim.kubelet import PodSpec
from tests.support.judged_machine import link, pf, vf
from tests.support.running_agent import Node, node

HEAD = "two-gpus-and-two-nics"
NIC0, NIC1, MEMORY = f"{HEAD}/nic0", f"{HEAD}/nic1", f"{HEAD}/gpu-mem"
PF0 = "0000:18:00.0"
WHY = Reason(CORDONED, "cordoned by ann")
DOWN = Health(State.DOWN, (Reason("carrier_down", "no carrier"),), allocatable=False)
DEGRADED = Health(State.DEGRADED, (Reason("crc_errors", "many"),))
NIC = pf(1)
CORDON = Cordon(NIC.pci_address, "nic0", "2026-11-27T12:00:00Z", "ann", "optics")


async def verb(n: Node, *words: str) -> int:
    words = (*words, "--root", str(n.root), "--config", str(n.config_file))
    return await asyncio.to_thread(main, list(words))


@pytest.mark.slow
async def test_a_cordoned_device_gets_no_new_pod_and_its_pods_stay(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with node() as n:
        await n.kubelet.start()
        await n.start_agent(n.configure("scanSeconds: 600\n"))
        await n.allocatable(NIC0, 4)
        await n.kubelet.until(lambda: n.kubelet.allocatable().get(MEMORY, 0) > 0)
        free = n.kubelet.allocatable()[MEMORY]
        held = await n.kubelet.admit(PodSpec.single("held", {NIC0: 1, MEMORY: 2}))
        assert held.admitted
        assert await verb(n, "cordon", "nic0", "gpu1", "--reason", "swap the optics", "--author", "ann") == 0
        await n.allocatable(NIC0, 0)
        await n.allocatable(MEMORY, free // 2)
        assert n.kubelet.allocatable()[NIC1] == 4
        assert n.kubelet.capacity()[NIC0] == 4  # the devices stay on the list: a pod holds one
        assert not (await n.kubelet.admit(PodSpec.single("new", {NIC0: 1}))).admitted
        capsys.readouterr()
        assert await verb(n, "cordon", "--json") == 0
        listed = json.loads(capsys.readouterr().out)["cordons"]
        assert [(it["name"], it["author"], it["reason"]) for it in listed] == [
            (name, "ann", "swap the optics") for name in ("gpu1", "nic0")
        ]
        await n.stop_agent()
        await n.start_agent(n.configure("scanSeconds: 600\n"))
        await n.allocatable(NIC1, 4)
        assert n.kubelet.allocatable()[NIC0] == 0  # never offered, from the first message on
        assert n.agent is not None
        snapshot = n.agent.inventory.snapshot
        assert {it.health.state for it in (*snapshot.functions, *snapshot.gpus)} == {State.HEALTHY}
        assert await verb(n, "uncordon", "NIC0", "gpu1") == 0
        await n.allocatable(NIC0, 4)
        await n.allocatable(MEMORY, free)
        capsys.readouterr()
        assert await verb(n, "history", "nic0", "--json", "--since", "1h") == 0
        changes = json.loads(capsys.readouterr().out)["changes"]
        assert [(it["before"], it["after"]) for it in changes] == [
            ("", "healthy (cordoned)"),
            ("healthy (cordoned)", "healthy"),
        ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["cordon", "nic0"], "give --reason"),
        (["cordon", "nic9", "--reason", "x"], "nic9: no such device here; there are: none"),
        (["uncordon", "nic0"], "nic0: it is not cordoned; cordoned are: none"),
    ],
)
def test_a_wrong_cordon_names_the_remedy(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in ("sys/bus/pci/devices", "sys/class/net"):
        (tmp_path / folder).mkdir(parents=True)
    assert main([*words, "--root", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("before", "state", "warning", "alone"),
    [
        (HEALTHY, State.HEALTHY, False, True),
        (DEGRADED, State.DEGRADED, False, True),
        (DOWN, State.DOWN, True, False),
        (
            Health(State.DEGRADED, (Reason("optics_low", "dark"),), allocatable=False),
            State.DEGRADED,
            True,
            False,
        ),
    ],
)
def test_a_cordon_hides_no_fault(before: Health, state: State, warning: bool, alone: bool) -> None:
    after = with_cordon(before, WHY)
    assert (after.state, after.allocatable, after.only_cordoned) == (state, False, alone)
    assert after.reasons == (*before.reasons, Reason(CORDONED, WHY.detail, warning=warning))
    assert with_cordon(before, None) is before


@pytest.mark.parametrize(
    ("before", "said"),
    [(HEALTHY, "x is cordoned by ann"), (DEGRADED, "x is cordoned by ann"), (DOWN, "x is down: no carrier")],
)
def test_a_refusal_names_what_keeps_the_device_away(before: Health, said: str) -> None:
    assert str(unhealthy("nic0", "x", with_cordon(before, WHY))) == f"nic0: {said}"


@pytest.mark.parametrize(
    ("cordon", "macs", "expected"),
    [
        (CORDON, {NIC.pci_address: "02:00:00:00:00:01"}, {NIC.pci_address}),  # its MAC address was not known then
        (Cordon("0000:99:00.0", "nic0", "", identity="02:00:00:00:00:01"), {"0000:01:00.0": "02:00:00:00:00:01"},
         {"0000:01:00.0"}),  # the card was moved
        (Cordon("0000:01:00.0", "nic0", "", identity="02:00:00:00:00:99"), {"0000:01:00.0": "02:00:00:00:00:01"},
         set()),
        (Cordon("GPU-1", "gpu0", ""), {}, {"GPU-1"}),
    ],
)  # fmt: skip
def test_a_cordon_follows_its_card(cordon: Cordon, macs: dict[str, str | None], expected: set[str]) -> None:
    found = set(cordon_reasons((cordon,), macs))
    assert found & ({*macs} | {"GPU-1"}) == expected


def test_vfs_follow_their_pf_and_a_cordon_is_no_change_of_state() -> None:
    health = HealthService(clock=lambda: 1000.0)
    functions = (NIC, vf(NIC, 0), pf(2))
    health.judge_functions(functions, (link(NIC), link(pf(2))))
    published: list[tuple[bool, ...]] = []
    health.publish_functions(lambda them: published.append(tuple(it.health.allocatable for it in them)))
    health.take_cordons((CORDON,))
    health.take_cordons(())
    assert published == [(False, False, True), (True, True, True)]
    assert not any(figures.transitions for figures in health.figures().values())


def test_a_cordoned_device_has_not_failed() -> None:
    snapshot = Snapshot(functions=(replace(NIC, health=with_cordon(HEALTHY, WHY)),))
    assert failed_devices(snapshot) == frozenset()
    assert affected_pods(snapshot, ()) == ()
    (device,) = reported_devices(snapshot)
    assert event_of(device, ()).healthy


@pytest.mark.parametrize("text", ["", "{", '{"version": 7}', '{"version": 1, "cordons": [{"name": 3}]}'])
def test_a_file_that_cannot_be_read_costs_the_cordons_alone(text: str, tmp_path: Path) -> None:
    (tmp_path / CORDONS_FORM.name).write_text(text)
    assert StoredFile(tmp_path, CORDONS_FORM).read() is None


@pytest.mark.slow
async def test_a_file_that_breaks_is_seen_and_the_cordons_of_a_running_agent_stay(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with node() as n:
        file = n.root / "var/lib/nodeagent" / CORDONS_FORM.name
        await n.kubelet.start()
        await n.start_agent(n.configure("scanSeconds: 600\n"))
        await n.allocatable(NIC0, 4)
        assert await verb(n, "cordon", "nic0", "--reason", "swap the optics", "--author", "ann") == 0
        await n.allocatable(NIC0, 0)
        assert n.agent is not None
        stored = n.agent.stored.cordons
        file.write_text("{")
        await n.until(lambda: stored.unreadable is not None)
        assert f'nodeagent_state_unwritable{{file="{file}"}} 1' in (await n.get("/metrics"))[1]
        assert f"{file} cannot be read" in (said := (await n.get("/readyz"))[1])
        assert "so after a restart cordoned devices are offered to new pods" in said
        capsys.readouterr()
        assert await verb(n, "cordon", "gpu1", "--reason", "x") == 1
        assert f"{file}.broken, and nothing else has changed" in capsys.readouterr().err
        assert (file.with_name("cordons.json.broken").read_text(), file.exists()) == ("{", False)
        await stored.restore()
        assert await verb(n, "cordon", "gpu1", "--reason", "x") == 0
        capsys.readouterr()
        assert await verb(n, "cordon", "--json") == 0
        assert {it["name"] for it in json.loads(capsys.readouterr().out)["cordons"]} == {"nic0", "gpu1"}
        assert stored.unreadable is None
        await n.stop_agent()
        file.write_text("{")
        await n.start_agent(n.configure("scanSeconds: 600\n"))
        await n.allocatable(NIC0, 4)
        assert "cannot be read" in (said := (await n.get("/readyz"))[1])
        assert "so cordoned devices are offered to new pods" in said


@pytest.mark.parametrize(("text", "broken"), [(None, False), ("{", True), ('{"version": 1}', False)])
def test_the_doctor_sees_a_broken_file(text: str | None, broken: bool, tmp_path: Path) -> None:
    (tmp_path / "sys").mkdir()
    if text is not None:
        (tmp_path / "var/lib/nodeagent").mkdir(parents=True)
        (tmp_path / "var/lib/nodeagent" / CORDONS_FORM.name).write_text(text)
    rights = capabilities.read_rights(Target(Tree(tmp_path), Config(), recorded=True, kubelet_dir=None))
    assert ("cordons_broken" in {it.key for it in capabilities.rights_findings(rights, Config())}) is broken


def test_the_list_of_a_broken_file_changes_nothing(
    two_entries: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "var/lib/nodeagent" / CORDONS_FORM.name
    file.write_text("{")
    for words, code in ((["cordon"], 2), (["uncordon", "nic0"], 1), (["uncordon", "nic0"], 2)):
        before = file.exists()
        assert main([*words, *two_entries]) == code
        assert file.exists() is (before and words == ["cordon"])
        assert ("cannot be read" in capsys.readouterr().err) is before


TWO_ENTRIES = """apiVersion: nodeagent.io/v1alpha1
kind: NodeAgentConfig
resources:
- {name: "nic{rail}", kind: vf, select: {netdevs: [a0]}}
- {name: "sto{rail}", kind: vf, select: {netdevs: [b0]}}
"""


@pytest.fixture
def two_entries(tmp_path: Path) -> list[str]:
    return node_without_agent(tmp_path)


def node_without_agent(tmp_path: Path) -> list[str]:
    """The options for a node without an agent, of whose two NICs each is the first one of its entry."""
    for folder in ("sys/bus/pci/devices", "sys/class/net"):
        (tmp_path / folder).mkdir(parents=True)
    config = tmp_path / "nodeagent.yaml"
    config.write_text(TWO_ENTRIES)
    keys = [
        selection(entry)
        for entry in load(TWO_ENTRIES, name="nodeagent.yaml").resources
        if isinstance(entry, VfResource)
    ]
    rails = [Rail(0, "0000:18:00.0", "02:00:00:00:00:01"), Rail(0, "0000:4f:00.0", "02:00:00:00:00:02")]
    entries = tuple(NumberedSelection(key, (rail,)) for key, rail in zip(keys, rails, strict=True))
    StoredFile(tmp_path / "var/lib/nodeagent", rail_memory.RAILS_FORM).write(
        rail_memory.RailsFile(entries=entries)
    )
    return ["--root", str(tmp_path), "--config", str(config)]


def cordoned(two_entries: list[str], capsys: pytest.CaptureFixture[str]) -> list[tuple[str, str]]:
    capsys.readouterr()
    assert main(["cordon", "--json", *two_entries]) == 0
    return [(it["name"], it["device"]) for it in json.loads(capsys.readouterr().out)["cordons"]]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nic0", ("nic0", "0000:18:00.0")),
        ("nic0.1", ("nic0.1", "0000:4f:00.0")),
        ("sto0", ("nic0.1", "0000:4f:00.0")),
    ],
)
def test_a_name_is_that_of_one_nic_where_two_entries_number_theirs(
    name: str, expected: tuple[str, str], two_entries: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cordon", name, "--reason", "x", *two_entries]) == 0
    assert cordoned(two_entries, capsys) == [expected]
    assert main(["remembered", "forget", "nic0", *two_entries]) == 0
    assert "sto0" not in capsys.readouterr().out


def test_any_name_of_a_device_ends_its_cordon(
    two_entries: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cordon", "nic0", "sto0", "--reason", "x", *two_entries]) == 0
    assert main(["uncordon", "sto0", "nic7", *two_entries]) == 2
    assert len(cordoned(two_entries, capsys)) == 2, "a wrong name ends no cordon"
    assert main(["uncordon", "sto0", *two_entries]) == 0
    assert cordoned(two_entries, capsys) == [("nic0", "0000:18:00.0")]


@pytest.mark.parametrize("other", ["cordon", "uncordon"])
def test_a_verb_waits_for_another_one(
    other: str, two_entries: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A cordon that was written meanwhile is not lost."""
    if other == "uncordon":
        assert main(["cordon", "nic0", "--reason", "x", *two_entries]) == 0
    words = ["nic0", *(["--reason", "x"] if other == "cordon" else []), *two_entries]
    folder = tmp_path / "var/lib/nodeagent"
    with ThreadPoolExecutor() as pool:
        with one_at_a_time(folder):
            code = pool.submit(main, [other, *words])
            with pytest.raises(TimeoutError):
                code.result(1.0)
            file = StoredFile(folder, CORDONS_FORM)
            before = (file.read() or CordonsFile()).cordons
            file.write(CordonsFile(cordons=(*before, Cordon("0000:4f:00.0", "nic0.1", ""))))
        assert code.result(60) == 0
    expected = [("nic0.1", "0000:4f:00.0"), *[("nic0", "0000:18:00.0")] * (other == "cordon")]
    assert cordoned(two_entries, capsys) == expected
