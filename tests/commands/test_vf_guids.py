"""GUIDs of InfiniBand VFs, on machines whose VFs are born as those of mlx5: no GUID, and a port that is down."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from nodeagent.agent_config import Config, load
from nodeagent.commands.scan.listing import as_table, scan_once
from nodeagent.commands.vfs import apply
from nodeagent.commands.vfs.provision_pf import PfProvisioning, guid_of_vf
from nodeagent.commands.vfs.vf_users import VfUsers
from nodeagent.commands.vfs.wanted import PfWant
from nodeagent.doctor import nic_checks
from nodeagent.doctor.reads import Target
from nodeagent.facts.model import Function
from nodeagent.host.sriov import SriovError, VfNetlink, VfSettings
from nodeagent.host.sysfs import Tree
from nodeagent.sources import pci_source
from nodeagent_lab.sim.machine import Machine
from tests.commands.test_vfs import kubelet, reacting
from tests.support import infiniband_machine

PF, OTHER = (infiniband_machine.pci_address(slot) for slot in range(2))
CONFIG = "vfs: [{select: {linkTypes: [infiniband]}, count: 2, guid: auto}]\nresources: [{kind: vf}]\n"


@pytest.fixture
def near() -> Iterator[Path]:
    """A short path: the path of a unix socket has at most 107 bytes."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture
def root(near: Path) -> Path:
    return near / "m"


@pytest.fixture
def machine(root: Path) -> Iterator[Machine]:
    made = infiniband_machine.machine(root, num_vfs=2, vf_files=True)
    with reacting(made), kubelet(root):
        yield made


def config(text: str = CONFIG) -> Config:
    head = "apiVersion: nodeagent.io/v1alpha1\nkind: NodeAgentConfig\n"
    return load(head + text, name="nodeagent.yaml")


async def applied(root: Path) -> apply.VfsResult:
    return await asyncio.to_thread(apply.apply, config(), root, wait_s=20)


def vfs(root: Path) -> list[Function]:
    return [one for one in pci_source.scan(Tree(root)).functions if one.parent is not None]


def guids(root: Path) -> list[str | None]:
    return [vf.rdma.node_guid if vf.rdma else None for vf in vfs(root)]


def port(root: Path, vf: Function) -> tuple[str, str]:
    assert vf.rdma is not None
    folder = root / "sys/class/infiniband" / vf.rdma.device / "ports/1"
    return (folder / "state").read_text().strip(), (folder / "phys_state").read_text().strip()


async def found(root: Path, *, disabled: tuple[str, ...] = ()) -> dict[str, str]:
    facts = (await nic_checks.read(Target(Tree(root), config(), recorded=True, kubelet_dir=None))).facts
    findings = nic_checks.findings(nic_checks.NicFacts(facts, disabled_vfs=disabled), config())
    return {one.key: one.what for one in findings if one.key.startswith("vf_")}


async def test_a_vf_without_a_guid_is_withheld_and_named_until_vfs_apply_gives_it_one(
    root: Path, machine: Machine
) -> None:
    assert guids(root) == ["0000:0000:0000:0000"] * 4
    assert {port(root, vf) for vf in vfs(root)} == {("1: DOWN", "3: Disabled")}
    view = await scan_once(config(), root)
    assert [len(devices) for _, devices in view.resources] == [2, 2]
    assert not any(one.health.allocatable for _, devices in view.resources for one in devices)
    (line,) = (line for line in as_table(view).splitlines() if f"{PF}: " in line)
    assert line.endswith(
        f"{PF}: 2 VFs down: guid_missing: VF {PF[:-1]}1 has no GUID and reaches no peer; set `guid: auto` under vfs "
        "and run `nodeagent vfs apply`; 1 more like it"
    )
    before = apply.as_table(await asyncio.to_thread(apply.show, config(), root)).splitlines()
    guids_shown = [row.split()[5] for row in before if f" {PF[:-1]}" in row and row.split()[1] in "01"]
    assert guids_shown == ["none", "none"]
    assert (await found(root))["vf_guid_missing"].startswith("4 VFs without a GUID: ")
    first = await applied(root)
    assert first.good, first
    assert [pf.state for pf in first.pfs] == ["changed", "changed"]
    assert first.pfs[0].changes == ("guid none → auto, link state → auto (VFs 0-1)",)
    own = next(one for one in pci_source.scan(Tree(root)).functions if one.pci_address == PF)
    assert own.rdma is not None
    assert own.rdma.node_guid is not None
    expected = [guid_of_vf(own.rdma.node_guid, index).replace(":", "") for index in range(2)]
    assert [(guid or "").replace(":", "") for guid in guids(root)[:2]] == expected
    assert {port(root, vf) for vf in vfs(root)} == {("4: ACTIVE", "5: LinkUp")}
    for index in range(2):
        folder = root / f"sys/bus/pci/devices/{PF}/sriov/{index}"
        assert (folder / "node").read_text() == (folder / "port").read_text()
    view = await scan_once(config(), root)
    assert all(one.health.allocatable for _, devices in view.resources for one in devices)
    assert await found(root) == {}
    again = await applied(root)
    assert [pf.state for pf in again.pfs] == ["unchanged", "unchanged"]
    table = apply.as_table(again)
    assert [guid for guid in guids(root) if str(guid) not in table] == []


def test_new_vfs_get_their_guids_in_the_same_run(root: Path, machine: Machine) -> None:
    more = config(CONFIG.replace("count: 2", "count: 3, linkState: enable"))
    result = apply.apply(more, root, wait_s=20)
    assert result.good, result
    assert len(set(guids(root))) == 6
    assert "0000:0000:0000:0000" not in guids(root)
    assert (root / f"sys/bus/pci/devices/{PF}/sriov/2/policy").read_text().strip() == "Up"


def test_a_vf_that_a_pod_holds_gets_no_guid_and_the_others_do(near: Path, root: Path) -> None:
    held = f"{PF[:-1]}1"
    machine = infiniband_machine.machine(root, num_vfs=2, vf_files=True)
    with reacting(machine), kubelet(root, held):
        result = apply.apply(config(), root, wait_s=20)
    assert result.good, result
    (left,) = result.pfs[0].left
    assert left.startswith(f"guid is none, configured is auto: {held} (VF 0) is held by pod train/worker-0")
    assert [guid == "0000:0000:0000:0000" for guid in guids(root)] == [True, False, False, False]


def policies(root: Path) -> list[str]:
    return [
        (root / f"sys/bus/pci/devices/{pf}/sriov/{index}/policy").read_text().strip()
        for pf in (PF, OTHER)
        for index in range(2)
    ]


@pytest.mark.parametrize("entry", ["guid: auto, linkState: enable", "linkState: enable"])
def test_the_link_state_of_a_vf_that_has_a_guid_is_set_by_the_file_of_the_driver(
    root: Path, machine: Machine, entry: str
) -> None:
    assert apply.apply(config(), root, wait_s=20).good
    given = guids(root)
    assert policies(root) == ["Follow"] * 4
    wanted = config(CONFIG.replace("guid: auto", entry))
    shown = apply.show(wanted, root)
    result = apply.apply(wanted, root, wait_s=20)
    assert result.good, result
    assert shown.pfs[0].changes == result.pfs[0].changes == ("link_state auto → enable (VFs 0-1)",)
    assert policies(root) == ["Up"] * 4
    assert guids(root) == given
    again = apply.apply(wanted, root, wait_s=20)
    assert [pf.state for pf in again.pfs] == ["unchanged"] * 2


def test_the_link_state_of_a_held_vf_stays_and_is_listed(near: Path, root: Path) -> None:
    held = f"{PF[:-1]}1"
    machine = infiniband_machine.machine(root, num_vfs=2, vf_files=True)
    with reacting(machine):
        with kubelet(root):
            assert apply.apply(config(), root, wait_s=20).good
        shutil.rmtree(root / "var/lib/kubelet/pod-resources")
        with kubelet(root, held):
            wanted = config(CONFIG.replace("guid: auto", "guid: auto, linkState: enable"))
            result = apply.apply(wanted, root, wait_s=20)
    (left,) = result.pfs[0].left
    assert left.startswith(
        f"link_state is auto, configured is enable: {held} (VF 0) is held by pod train/worker-0"
    )
    assert policies(root) == ["Follow", "Up", "Up", "Up"]


def provisioned(root: Path, settings: VfSettings, *, netlink: VfNetlink | None = None) -> PfProvisioning:
    """The run on a PF without a netdev here."""
    functions = pci_source.scan(Tree(root)).functions
    pf = structs.replace(next(one for one in functions if one.pci_address == PF), netdev=None)
    of_pf = tuple(one for one in functions if one.parent == PF)
    want = PfWant(2, settings=dict.fromkeys(range(2), settings), guids=frozenset({0, 1}))
    users = VfUsers(Tree(root), netlink, force=True)
    return PfProvisioning(Tree(root), netlink, users, pf, None, of_pf, want, 20.0, dry=False)


def test_files_that_show_the_vf_before_are_read_by_the_guid_they_show(root: Path) -> None:
    """As the driver of MLNX_OFED reads: ``sriov/N`` shows VF N - 1, and no file shows the last VF. So the last one is
    written again, which is no change that anybody has to look at."""
    machine = infiniband_machine.machine(root, num_vfs=2, vf_files=True)
    with reacting(machine), kubelet(root):
        assert apply.apply(config(), root, wait_s=20).good
    folder = root / f"sys/bus/pci/devices/{PF}/sriov"
    (folder / "1/node").write_text((folder / "0/node").read_text())
    (folder / "0/node").write_text("0c:42:a1:03:00:16:05:4c\n")
    (folder / "0/policy").write_text("Up\n")  # of the PF itself
    (folder / "1/policy").write_text("Follow\n")  # of VF 0
    work = provisioned(root, VfSettings(link_state="enable"), netlink=Sent())
    work.run()
    unseen = f"link_state of VF 1 of {PF} is shown by no file of its driver: apply writes enable in each run"
    assert work.changes.sentences() == ("link_state auto → enable (VF 0)",)
    assert work.notes == [unseen]
    assert [(folder / f"{index}/policy").read_text() for index in range(2)] == ["Up", "Up"]
    again = provisioned(root, VfSettings(link_state="enable"), netlink=Sent())  # the file of VF 1 shows VF 0
    again.run()
    assert (again.changes.sentences(), again.notes) == ((), [unseen])
    dry = replace(provisioned(root, VfSettings(link_state="disable"), netlink=Sent()), dry=True)
    dry.run()
    assert dry.changes.sentences() == ("link_state enable → disable (VF 0)",)
    assert [(folder / f"{index}/policy").read_text() for index in range(2)] == ["Up", "Up"]


def test_without_netdev_and_files_a_configured_link_state_is_an_error(root: Path) -> None:
    machine = infiniband_machine.machine(root, num_vfs=2, vf_files=True)
    with reacting(machine), kubelet(root):
        assert apply.apply(config(), root, wait_s=20).good
    for index in range(2):
        shutil.rmtree(root / f"sys/bus/pci/devices/{PF}/sriov/{index}")
    with pytest.raises(SriovError, match="has no netdev here, so its VFs cannot be configured"):
        provisioned(root, VfSettings(link_state="enable"), netlink=Sent()).run()


def test_show_lists_what_apply_would_do_and_changes_nothing(root: Path, machine: Machine) -> None:
    result = apply.show(config(), root)
    assert [pf.state for pf in result.pfs] == ["differs", "differs"]
    assert result.pfs[0].changes == ("guid none → auto, link state → auto (VFs 0-1)",)
    assert guids(root) == ["0000:0000:0000:0000"] * 4


def test_a_host_without_a_way_to_set_guids_says_which_parts_are_missing(root: Path) -> None:
    machine = infiniband_machine.machine(root, compute=1, num_vfs=1)
    with reacting(machine), kubelet(root):
        result = apply.apply(config(CONFIG.replace("count: 2", "count: 1")), root, wait_s=20)
    assert not result.good
    (reason,) = result.pfs[0].reasons
    assert "modprobe ib_ipoib" in reason
    assert "MLNX_OFED or DOCA" in reason


def test_ethernet_vfs_are_left_alone(near: Path) -> None:
    machine = Machine.load("two-gpu-two-nic")
    machine.write(near / "m")
    entry = "vfs: [{select: {vendors: ['15b3']}, count: 4, guid: auto}]\n"
    with reacting(machine), kubelet(near / "m"):
        assert [pf.state for pf in apply.apply(config(entry), near / "m").pfs] == ["unchanged", "unchanged"]
        none = apply.show(config(entry.replace("vendors: ['15b3']", "linkTypes: [infiniband]")), near / "m")
    assert none.notes[0] == "vfs[0] selects no PF with SR-IOV on this machine"


async def test_a_port_that_is_not_active_while_that_of_its_pf_is_is_named(
    root: Path, machine: Machine
) -> None:
    assert (await applied(root)).good
    machine.set_link(f"{PF[:-1]}1", False)
    only = f"{PF[:-1]}1"
    assert await found(root) == {
        "vf_port_inactive": f"1 VF with a port that is not active: {only_name(root, only)}"
    }
    assert list(await found(root, disabled=(only,))) == ["vf_link_disabled"]
    view = await scan_once(config(), root)
    assert (
        f"VFs have a port that is not active, although that of their PF is: set linkState: auto under vfs ({only})"
        in (as_table(view))
    )
    machine.set_link(PF, False)
    assert await found(root) == {}, "the cable is the cause"


def only_name(root: Path, address: str) -> str:
    return next(vf.netdev or address for vf in vfs(root) if vf.pci_address == address)


class Sent(VfNetlink):
    """Records what would be sent to the kernel."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, int, object]] = []

    def _link(self, netdev: str) -> dict[str, int]:
        return {"index": 7}

    def _rtnl(self) -> Sent:  # type: ignore[override]
        return self

    def link(self, command: str, *, index: int, vf: dict[str, object]) -> None:
        assert (command, index) == ("set", 7)
        self.sent += [(key, int(str(vf["vf"])), value) for key, value in vf.items() if key != "vf"]


def test_with_a_netdev_the_guids_go_by_rtnetlink() -> None:
    netlink = Sent()
    netlink.set_guid(PF, "ib0", 3, "0e:42:a1:03:04:16:05:4c")
    netlink.set_vf(PF, "ib0", 3, VfSettings(link_state="auto"))
    assert netlink.sent == [
        ("ib_node_guid", 3, "0e:42:a1:03:04:16:05:4c"),
        ("ib_port_guid", 3, "0e:42:a1:03:04:16:05:4c"),
        ("link_state", 3, 0),
    ]


@given(
    st.sets(st.integers(0, 2**24 - 1), min_size=1, max_size=8),
    st.sampled_from(["0c42a1", "946dae", "b8cef6"]),
)
def test_no_two_vfs_of_cards_of_one_vendor_have_one_guid(cards: set[int], oui: str) -> None:
    """The GUID of a PF of mlx5 is its MAC address with 03 00 in the middle."""
    pfs = [f"{oui}0300{card:06x}" for card in cards]
    made = [guid_of_vf(pf, index) for pf in pfs for index in range(16)]
    assert len(set(made)) == len(made)
    assert not {guid.replace(":", "") for guid in made} & set(pfs)
    assert all(int(guid[:2], 16) & 2 for guid in made)
