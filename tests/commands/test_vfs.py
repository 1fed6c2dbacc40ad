"""VFs created, configured and left unchanged, on simulated machines that react to writes, and on drawn trees."""

import asyncio
import dataclasses
import json
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import grpc
import pytest
from msgspec import structs

from nodeagent.agent_config import Config
from nodeagent.cli import main
from nodeagent.commands.vfs import apply
from nodeagent.commands.vfs.provision_pf import PfProvisioning, VfInUseError, different, spans
from nodeagent.commands.vfs.vf_users import VfUsers
from nodeagent.commands.vfs.wanted import PfWant, wanted
from nodeagent.host.sriov import SriovError, VfNetlink, VfSettings
from nodeagent.host.sysfs import SysfsError, Tree
from nodeagent.kinds.resource_settings import PfSelect, VfsEntry
from nodeagent.kube import podresources_pb2 as pb
from nodeagent.sources import pci_source
from nodeagent_lab.sim.machine import Machine
from tests.support import drawn_trees
from tests.support.dead_files import dead
from tests.support.namespaces import NamespaceThread
from tests.support.waiting import LIMIT_S

FIRST, SECOND = "0000:18:00.0", "0000:9a:00.0"


@contextmanager
def kubelet(root: Path, *devices: str, first: Iterable[pb.ListPodResourcesResponse] = ()) -> Iterator[None]:
    """A kubelet's podresources socket with one pod that holds these devices, after the ``first`` answers."""
    path = root / "var/lib/kubelet/pod-resources/kubelet.sock"
    path.parent.mkdir(parents=True)
    answer = pb.ListPodResourcesResponse()
    container = answer.pod_resources.add(name="worker-0", namespace="train").containers.add(name="main")
    if devices:
        container.devices.add(resource_name="nvidia-dgx-h100/nic0", device_ids=devices)
    answers = chain(first, repeat(answer))
    handler = grpc.unary_unary_rpc_method_handler(
        lambda _request, _context: next(answers).SerializeToString()
    )
    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool)
        server.add_registered_method_handlers("v1.PodResourcesLister", {"List": handler})
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"List": handler}),)
        )
        server.add_insecure_port(f"unix:{path}")
        server.start()
        try:
            yield
        finally:
            assert server.stop(None).wait(LIMIT_S)


@pytest.fixture
def near() -> Iterator[Path]:
    """A short path: the path of a unix socket has at most 107 bytes."""
    folder = Path(tempfile.mkdtemp())
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def machine(near: Path) -> Iterator[Machine]:
    """Two PFs with four VFs of sixteen each, a kernel that reacts, and a kubelet without pods that hold devices."""
    machine = Machine.load("two-gpu-two-nic")
    machine.write(near / "m")
    with reacting(machine), kubelet(near / "m"):
        yield machine


@pytest.fixture
def root(machine: Machine, near: Path) -> Path:
    return near / "m"


@contextmanager
def reacting(machine: Machine) -> Iterator[None]:
    loop = asyncio.new_event_loop()
    following = loop.create_task(machine.follow())

    def run() -> None:
        with suppress(asyncio.CancelledError):
            loop.run_until_complete(following)
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(following.cancel)
        thread.join(LIMIT_S)
        assert not thread.is_alive()


def config(*entries: VfsEntry) -> Config:
    return Config(vfs=entries)


def entry(count: int, pf: str = "0000:18:00.0", **settings: Any) -> VfsEntry:
    return VfsEntry(select=PfSelect(pci_addresses=(pf,)), count=count, **settings)


def files(root: Path) -> dict[str, bytes | str]:
    return {
        str(path): os.readlink(path) if path.is_symlink() else path.read_bytes()
        for path in root.rglob("*")
        if path.is_symlink() or path.is_file()
    }


def states(outcome: apply.VfsResult) -> dict[str, str]:
    return {pf.function.pci_address: pf.state.value for pf in outcome.pfs}


def of(outcome: apply.VfsResult, address: str = FIRST) -> apply.PfResult:
    return next(pf for pf in outcome.pfs if pf.function.pci_address == address)


def drivers(pf: apply.PfResult) -> list[str | None]:
    return [vf.function.driver for vf in pf.vfs]


# Changes


def test_the_number_of_vfs_changes_through_0_and_their_netdevs_exist_afterwards(root: Path) -> None:
    outcome = apply.apply(config(entry(8)), root)
    assert outcome.good
    assert states(outcome) == {FIRST: "changed", SECOND: "not configured"}
    pf = of(outcome)
    assert pf.changes == ("sriov_numvfs 4 → 0", "sriov_numvfs 0 → 8")
    assert pf.function.num_vfs == 8
    assert [vf.function.vf_index for vf in pf.vfs] == list(range(8))
    assert all(vf.function.netdev for vf in pf.vfs)
    assert of(outcome, SECOND).function.num_vfs == 4


def test_a_second_run_writes_nothing(root: Path) -> None:
    wanted = config(entry(6, mtu=4000, driver="vfio-pci", vf_indexes=("0-1",)))
    assert apply.apply(wanted, root).good
    before = files(root)
    outcome = apply.apply(wanted, root)
    assert states(outcome)[FIRST] == "unchanged"
    assert files(root) == before


def test_a_count_of_0_removes_the_vfs(root: Path) -> None:
    pf = of(apply.apply(config(entry(0)), root))
    assert (pf.state, pf.function.num_vfs, pf.vfs) == (apply.PfState.CHANGED, 0, ())


def test_mtu_and_driver_are_set_only_if_they_differ(root: Path) -> None:
    outcome = apply.apply(config(entry(4, mtu=4000, driver="vfio-pci", vf_indexes=("1", "3"))), root)
    pf = of(outcome)
    assert pf.changes == ("mtu 9000 → 4000", "driver mlx5_core → vfio-pci (VFs 1,3)")
    assert pf.mtu == 4000
    assert drivers(pf) == ["mlx5_core", "vfio-pci", "mlx5_core", "vfio-pci"]
    back = of(apply.apply(config(entry(4, driver="mlx5_core")), root))
    assert drivers(back) == ["mlx5_core"] * 4
    assert all(vf.function.netdev for vf in back.vfs)


def test_vfs_with_a_configured_driver_never_get_another(root: Path, machine: Machine) -> None:
    pf = of(apply.apply(config(entry(3, driver="vfio-pci")), root))
    assert pf.changes == ("sriov_numvfs 4 → 0", "sriov_numvfs 0 → 3", "driver none → vfio-pci (VFs 0-2)")
    assert drivers(pf) == ["vfio-pci"] * 3
    # The last write; the simulated kernel reads it in its own thread, without an event.
    patience = time.monotonic() + 10
    while not machine.nic(FIRST).autoprobe and time.monotonic() < patience:
        time.sleep(0.005)
    assert machine.nic(FIRST).autoprobe, "VFs created by hand later get drivers again"


def test_settings_that_only_a_kernel_has_are_noted_as_not_set(root: Path) -> None:
    outcome = apply.apply(config(entry(4, trust=True, spoof_check=False)), root)
    assert outcome.good
    assert of(outcome).state is apply.PfState.UNCHANGED
    assert of(outcome).reasons == (
        "spoof_check, trust cannot be set: the root is not the machine of the running kernel",
    )


def test_an_entry_that_selects_no_pf_is_a_note_and_not_a_failure(root: Path) -> None:
    outcome = apply.apply(config(entry(4, "0000:ff:00.0"), entry(2, "0000:0b:00.0")), root)
    assert outcome.good
    assert states(outcome) == {FIRST: "not configured", SECOND: "not configured"}
    assert outcome.notes == (
        "vfs[0] selects no PF with SR-IOV on this machine",
        "vfs[1] selects no PF with SR-IOV on this machine",
        "vfs[1] selects 0000:0b:00.0 (eno1), which has no SR-IOV capability; enable SR-IOV in the "
        "device's firmware if it supports it",
    )


# Failures


def test_more_vfs_than_supported_is_a_failure_and_changes_nothing(root: Path) -> None:
    outcome = apply.apply(config(entry(64), entry(2, SECOND)), root)
    assert not outcome.good
    assert states(outcome) == {FIRST: "failed", SECOND: "changed"}
    assert of(outcome).function.num_vfs == 4
    assert of(outcome).reasons == (
        "0000:18:00.0: 64 VFs are configured, but the device has 16; lower count, or raise the number in its firmware",
    )


def test_a_missing_driver_is_a_failure_with_the_remedy(root: Path) -> None:
    pf = of(apply.apply(config(entry(4, driver="uio_hv")), root, wait_s=0.1))
    assert pf.state is apply.PfState.FAILED
    assert pf.reasons == ("0000:18:00.0: no driver uio_hv (modprobe it on the host) within 0.1 s",)
    assert drivers(pf) == ["mlx5_core"] * 4


def test_a_kernel_that_does_not_react_is_a_failure(near: Path) -> None:
    machine = Machine.load("two-gpu-two-nic")
    machine.write(near / "m")
    with kubelet(near / "m"):
        outcome = apply.apply(config(entry(6)), near / "m", wait_s=0.05)
    assert of(outcome).state is apply.PfState.FAILED
    assert of(outcome).reasons == ("0000:18:00.0: the 4 VFs did not disappear within 0.05 s",)


def test_a_capture_is_not_written(root: Path) -> None:
    (root / ".nodeagent/machine.yaml").write_text("kind: captured\n")
    before = files(root)
    with pytest.raises(SriovError, match="is a capture and is not written"):
        apply.apply(config(entry(6)), root)
    assert files(root) == before
    assert states(apply.show(config(entry(6)), root))[FIRST] == "differs"


def test_a_root_without_a_machine_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SysfsError, match="has no /sys"):
        apply.apply(config(entry(1)), tmp_path)


# Files that hang: the agent's pod starts after this command. The simulated kernel reads the file too, and creates no VF
# while it hangs; a change of an MTU needs no reaction.


@pytest.mark.slow
@pytest.mark.needs("root", "fuse")
@pytest.mark.parametrize("name", ["sriov_numvfs", "sriov_totalvfs"])
def test_a_pf_whose_driver_does_not_answer_is_named_and_the_others_get_their_vfs(
    root: Path, name: str
) -> None:
    with dead((root / f"sys/bus/pci/devices/{FIRST}/{name}").resolve()):
        outcome = apply.apply(config(entry(8), entry(4, SECOND, mtu=4000)), root)
    assert not outcome.good
    assert states(outcome) == {FIRST: "failed", SECOND: "changed"}
    assert "no answer of the driver" in of(outcome).reasons[0]
    assert of(outcome, SECOND).changes == ("mtu 9000 → 4000",)
    assert any(f"{FIRST}/{name}" in sentence for sentence in outcome.unreadable)
    assert not any("enable SR-IOV" in note for note in outcome.notes)


@pytest.mark.slow
@pytest.mark.needs("root", "fuse")
def test_a_pf_with_a_vf_that_hangs_is_not_changed(root: Path) -> None:
    """The scan cannot show the VF, so a pod that holds it would not be asked for."""
    before = files(root / "sys/bus/pci/devices" / FIRST)
    with dead((root / f"sys/bus/pci/devices/{FIRST}/virtfn2/class").resolve()):
        outcome = apply.apply(config(entry(8), entry(4, SECOND, mtu=4000)), root)
    assert states(outcome) == {FIRST: "failed", SECOND: "changed"}
    assert files(root / "sys/bus/pci/devices" / FIRST) == before


@pytest.mark.needs("root", "fuse")
def test_a_write_that_hangs_ends_the_work_on_its_pf_alone(root: Path) -> None:
    with dead(root / "sys/bus/pci/drivers/mlx5_core/unbind"):
        wanted = config(entry(4, driver="vfio-pci"), entry(4, SECOND, mtu=4000))
        outcome = apply.apply(wanted, root, step_s=1.0)
    assert states(outcome) == {FIRST: "failed", SECOND: "changed"}
    assert of(outcome).reasons == ("vfs: no answer within 1 s (in /sys/bus/pci/drivers/mlx5_core/unbind)",)


@pytest.mark.needs("root", "fuse")
def test_an_empty_section_reads_nothing(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with dead(root / "sys"):
        assert main(["vfs", "apply", "--root", str(root)]) == 0
    assert "the section vfs is empty" in capsys.readouterr().out


# VFs in use


SECOND_ALONE = "not configured"


def refused(root: Path, wanted: VfsEntry, second: str = "changed") -> tuple[str, ...]:
    """The reasons, after a check that this PF is unchanged and the other one is changed, if it is configured."""
    before = files(root / "sys/bus/pci/devices" / FIRST)
    others = () if second == SECOND_ALONE else (entry(5, SECOND),)
    outcome = apply.apply(config(wanted, *others), root, wait_s=0.7 if second == SECOND_ALONE else 10.0)
    assert not outcome.good
    assert states(outcome) == {FIRST: "refused", SECOND: second}
    assert files(root / "sys/bus/pci/devices" / FIRST) == before
    assert of(outcome).changes == ()
    return of(outcome).reasons


def test_a_vf_with_its_netdev_in_a_pod_keeps_the_count(root: Path, machine: Machine) -> None:
    machine.move_netdev("0000:18:00.3", rdma=False)
    assert refused(root, entry(8, mtu=1500)) == (
        "sriov_numvfs 4 → 8 is refused",
        "0000:18:00.3 (VF 2) has its netdev in another network namespace",
    )


def test_a_vf_with_its_netdev_in_a_pod_keeps_its_driver_and_the_others_may_change(
    root: Path, machine: Machine
) -> None:
    machine.move_netdev("0000:18:00.3")
    reasons = refused(root, entry(4, driver="vfio-pci", vf_indexes=("2-3",)))
    assert reasons == (
        "the change of its driver is refused",
        "0000:18:00.3 (VF 2) has its netdev in another network namespace",
        "0000:18:00.3 (VF 2) has its RDMA device in another network namespace",
    )
    others = of(apply.apply(config(entry(4, driver="vfio-pci", vf_indexes=("0-1", "3"))), root))
    assert drivers(others) == ["vfio-pci", "vfio-pci", "mlx5_core", "vfio-pci"]


def test_a_vf_below_a_bond_keeps_the_count(root: Path) -> None:
    (root / "sys/class/net/enp24s0v1/upper_bond0").symlink_to("../bond0")
    assert refused(root, entry(0)) == (
        "sriov_numvfs 4 → 0 is refused",
        "0000:18:00.2 (VF 1) has a netdev, enp24s0v1, that is below bond0",
    )


def test_a_vf_of_vfio_may_be_removed_if_no_program_has_its_group_open(root: Path, machine: Machine) -> None:
    machine.bind("0000:18:00.1", "vfio-pci")
    group = machine.nic("0000:18:00.1").vfio
    node = root / f"dev/vfio/{group}"
    node.rename(node.with_suffix(".away"))
    assert refused(root, entry(8)) == (
        "sriov_numvfs 4 → 8 is refused",
        f"0000:18:00.1 (VF 0) is bound to vfio-pci, and it is unknown whether a program "
        f"has /dev/vfio/{group} open; unbind it first, or add --force",
    )
    node.with_suffix(".away").rename(node)
    assert states(apply.apply(config(entry(8)), root))[FIRST] == "changed"


def test_a_vf_that_a_pod_holds_keeps_the_count(near: Path) -> None:
    machine = Machine.load("two-gpu-two-nic")
    machine.write(near / "m")
    with reacting(machine), kubelet(near / "m", "0000:18:00.2"):
        assert refused(near / "m", entry(8)) == (
            "sriov_numvfs 4 → 8 is refused",
            "0000:18:00.2 (VF 1) is held by pod train/worker-0 (container main)",
        )


@pytest.mark.slow
def test_an_existing_vf_is_not_changed_while_no_kubelet_answers(near: Path) -> None:
    machine = Machine.load("two-gpu-two-nic")
    machine.write(near / "m")
    path = near / "m/var/lib/kubelet/pod-resources/kubelet.sock"
    with reacting(machine):
        reasons = refused(near / "m", entry(8), SECOND_ALONE)
        assert reasons[0] == "sriov_numvfs 4 → 8 is refused"
        assert reasons[1].startswith(f"the pods that hold VFs are unknown: {path} is no socket")
        assert reasons[1].endswith("start the kubelet, or add --force if no pod holds a VF of this PF")
        path.parent.mkdir(parents=True)
        with socket.socket(socket.AF_UNIX) as deaf:
            deaf.bind(str(path))
            for wanted in (entry(8), entry(4, mtu=4000), entry(4, driver="vfio-pci")):
                assert "UNAVAILABLE" in refused(near / "m", wanted, SECOND_ALONE)[1]
            unchanged = apply.apply(config(entry(4, mtu=9000, driver="mlx5_core")), near / "m", wait_s=0.1)
            assert states(unchanged)[FIRST] == "unchanged", "nothing differs, so the kubelet is not asked"
            outcome = apply.apply(config(entry(8)), near / "m", force=True, wait_s=4.0)
    assert states(outcome)[FIRST] == "changed"
    assert [note.split(":")[0] for note in outcome.notes] == ["the pods that hold VFs are unknown"]


def test_vfs_are_created_before_the_kubelet_runs(near: Path) -> None:
    machine = Machine.load("two-gpu-two-nic")
    machine.set_vfs(FIRST, 0)
    machine.write(near / "m")
    with reacting(machine):
        outcome = apply.apply(config(entry(4, mtu=4000, driver="vfio-pci")), near / "m")
    assert states(outcome)[FIRST] == "changed"
    assert drivers(of(outcome)) == ["vfio-pci"] * 4


def test_a_kubelet_that_has_just_started_is_asked_until_it_lists_pods(near: Path) -> None:
    machine = Machine.load("two-gpu-two-nic")
    machine.write(near / "m")
    answers = iter((pb.ListPodResourcesResponse(),))
    with reacting(machine), kubelet(near / "m", "0000:18:00.2", first=answers):
        assert refused(near / "m", entry(8))[1].startswith(
            "0000:18:00.2 (VF 1) is held by pod train/worker-0"
        )


def test_force_changes_no_vf_that_a_pod_holds(near: Path) -> None:
    machine = Machine.load("two-gpu-two-nic")
    machine.write(near / "m")
    with reacting(machine), kubelet(near / "m", "0000:18:00.2"):
        outcome = apply.apply(config(entry(8)), near / "m", force=True, wait_s=0.3)
        assert states(outcome)[FIRST] == "refused"
    machine.move_netdev("0000:18:00.3")
    with reacting(machine):
        outcome = apply.apply(config(entry(8)), near / "m", force=True, wait_s=0.1)
        assert states(outcome)[FIRST] == "refused", "the namespace is known without the kubelet"


# Settings of held VFs


class KernelSettings(VfNetlink):
    """The settings of VFs as a kernel keeps them, in memory: no file of a machine has them."""

    def __init__(self, tree: Tree, has: dict[int, VfSettings]) -> None:
        super().__init__(tree)
        self.has = has
        self.messages: list[int] = []

    def vfs(self, netdev: str) -> dict[int, VfSettings]:
        return dict(self.has)

    def set_vf(self, pf: str, netdev: str, index: int, settings: VfSettings) -> None:
        self.messages.append(index)
        new = {name: value for name, value in settings.items() if value is not None}
        self.has[index] = dataclasses.replace(self.has[index], **new)

    def addresses(self, netdev: str) -> tuple[str, ...]:
        return ()


CNI = VfSettings(trust=False, spoof_check=True, link_state="enable", min_tx_rate_mbps=0, max_tx_rate_mbps=100)
FREE = VfSettings(trust=False, spoof_check=True, link_state="auto", min_tx_rate_mbps=0, max_tx_rate_mbps=0)
WANT = VfSettings(trust=True, spoof_check=False, link_state="auto", min_tx_rate_mbps=0, max_tx_rate_mbps=0)


def settled(root: Path, has: dict[int, VfSettings], *, force: bool = False, **want: Any) -> PfProvisioning:
    facts = pci_source.scan(Tree(root))
    (pf,) = (function for function in facts.functions if function.pci_address == FIRST)
    link = next(link for link in facts.links if link.pci_address == FIRST)
    of_pf = tuple(function for function in facts.functions if function.parent == FIRST)
    tree = Tree(root)
    kernel = KernelSettings(tree, has)
    wanted = PfWant(4, settings=dict.fromkeys(range(4), WANT), **want)
    users = VfUsers(tree, kernel, force=force)
    work = PfProvisioning(tree, kernel, users, pf, link, of_pf, wanted, 1.0, dry=False)
    with suppress(VfInUseError):
        work.run()
    return work


def test_the_settings_of_a_held_vf_stay_and_the_difference_is_listed(near: Path) -> None:
    """A pod holds VF 1, the netdev of VF 2 is in another namespace. Free VFs are configured."""
    machine = Machine.load("two-gpu-two-nic")
    machine.write(near / "m")
    machine.move_netdev("0000:18:00.3", rdma=False)
    has = {0: FREE, 1: CNI, 2: CNI, 3: FREE}
    with reacting(machine), kubelet(near / "m", "0000:18:00.2"):
        work = settled(near / "m", has, mtu=4000)
    assert isinstance(work.netlink, KernelSettings)
    assert work.netlink.messages == [0, 3]
    assert has == {0: WANT, 1: CNI, 2: CNI, 3: WANT}
    assert work.changes.sentences() == ("trust off → on (VFs 0,3)", "spoof_check on → off (VFs 0,3)")
    of_cni = (
        "trust is off, configured is on; spoof_check is on, configured is off; link_state is enable, "
        "configured is auto; max_tx_rate_mbps is 100, configured is 0"
    )
    pod = "0000:18:00.2 (VF 1) is held by pod train/worker-0 (container main)"
    away = "0000:18:00.3 (VF 2) has its netdev in another network namespace"
    assert work.left == [
        f"mtu is 9000, configured is 4000: {pod}; {away}",
        f"{of_cni}: {pod}",
        f"{of_cni}: {away}",
    ]


@pytest.mark.parametrize("force", [False, True])
def test_settings_stay_while_no_kubelet_lists_the_pods(near: Path, force: bool) -> None:
    machine = Machine.load("two-gpu-two-nic")
    machine.write(near / "m")
    has = dict.fromkeys(range(4), FREE)
    work = settled(near / "m", has, force=force)
    assert has == dict.fromkeys(range(4), WANT if force else FREE)
    assert bool(work.changes.sentences()) is force


def test_held_differences_alone_are_a_state_and_no_failure() -> None:
    result = apply.VfsResult(
        (apply.PfResult(pf(), 9000, apply.PfState.HELD, left=("trust is off: it is held",)),)
    )
    assert result.good
    assert "pf0 0000:18:00.0: held: trust is off: it is held" in apply.as_table(result)
    assert json.loads(apply.as_json(result))["pfs"][0]["left"] == ["trust is off: it is held"]


@pytest.mark.needs("root")
@pytest.mark.needs("ip")
def test_a_vf_that_is_up_with_an_address_is_used(tmp_path: Path) -> None:
    try:
        namespace = NamespaceThread()
    except PermissionError:
        pytest.skip("needs root: only root may make a network namespace")
    with closing(namespace):
        namespace.ip("link add vf0 type veth peer name far0")
        namespace.ip("addr add 192.0.2.7/31 dev vf0")
        shown = namespace.run(lambda: subprocess.check_output(["ip", "-j", "link", "show", "vf0"]))
        veth = json.loads(shown)[0]
        drawn = drawn_trees.Machine(tmp_path)
        drawn.function(FIRST, sriov_numvfs="1", sriov_totalvfs="8")
        address = drawn.vf(FIRST, 0)
        drawn.netdev("vf0", address, ifindex=str(veth["ifindex"]), address=veth["address"], flags="0x1002")
        tree = Tree(tmp_path)
        (vf,) = (function for function in pci_source.scan(tree).functions if function.parent)

        def ask() -> tuple[str, ...]:
            with VfNetlink(tree) as links:
                return VfUsers(tree, links).of(vf)

        assert namespace.run(ask) == ()
        drawn.netdev("vf0", address, ifindex=str(veth["ifindex"]), address=veth["address"], flags="0x1003")
        assert namespace.run(ask) == ("has a netdev, vf0, that is up with 192.0.2.7/31",)


def test_a_vf_of_a_uio_driver_counts_as_used(tmp_path: Path) -> None:
    drawn = drawn_trees.Machine(tmp_path)
    drawn.function(FIRST, sriov_numvfs="1", sriov_totalvfs="8")
    drawn.drive(drawn.vf(FIRST, 0), "uio_pci_generic")
    outcome = apply.apply(config(entry(2)), tmp_path, wait_s=0.1)
    assert of(outcome).reasons[1] == (
        "0000:18:00.1 (VF 0) is bound to uio_pci_generic, and its users are unknown; unbind it first, or add --force"
    )


def test_a_pf_with_the_default_route_is_left_alone(tmp_path: Path) -> None:
    drawn = drawn_trees.Machine(tmp_path)
    drawn.function(FIRST, sriov_numvfs="0", sriov_totalvfs="8")
    drawn.netdev("eth0", FIRST)
    drawn.draw("/proc/net/route", drawn_trees.routes("eth0"))
    before = files(tmp_path)
    outcome = apply.apply(config(entry(2, mtu=1500)), tmp_path)
    assert outcome.good
    assert states(outcome) == {FIRST: "left alone"}
    assert of(outcome).reasons == (
        "eth0 carries the default route, and a change of its VFs could disconnect the node",
    )
    assert files(tmp_path) == before


# Several entries for one PF


def pf(**changes: Any) -> Any:
    from nodeagent.facts.model import Function

    function = Function(
        FIRST, "15b3", "1021", "mlx5_core", "pf0", "ethernet", None, None, None, 0, (), num_vfs=0, total_vfs=8
    )
    return structs.replace(function, **changes)


def test_entries_may_configure_different_vfs_of_one_pf() -> None:
    entries = (
        entry(4, mtu=9000, driver="vfio-pci", vf_indexes=("0-1",)),
        entry(4, trust=True, link_state="disable", vf_indexes=("1", "3")),
        entry(7, SECOND),
    )
    assert wanted(entries, pf()) == PfWant(
        count=4,
        mtu=9000,
        drivers={0: "vfio-pci", 1: "vfio-pci"},
        settings={
            1: VfSettings(trust=True, link_state="disable"),
            3: VfSettings(trust=True, link_state="disable"),
        },
    )
    assert wanted(entries, pf(pci_address="0000:01:00.0")) is None


def test_entries_that_contradict_each_other_fail_and_change_nothing(root: Path) -> None:
    outcome = apply.apply(
        config(entry(4, driver="vfio-pci"), entry(8, "0000:18:*", driver="mlx5_core", vf_indexes=("0",))),
        root,
    )
    assert of(outcome).state is apply.PfState.FAILED
    assert of(outcome).reasons == (
        "0000:18:00.0: count is 4 in vfs[0], and 8 in vfs[1]; "
        "driver of VF 0 is vfio-pci in vfs[0], and mlx5_core in vfs[1]",
    )
    assert of(outcome).function.num_vfs == 4


def test_a_change_of_one_rate_keeps_the_other() -> None:
    has = VfSettings(trust=False, min_tx_rate_mbps=10, max_tx_rate_mbps=100)
    assert different(VfSettings(max_tx_rate_mbps=50), has) == VfSettings(
        min_tx_rate_mbps=10, max_tx_rate_mbps=50
    )
    assert different(VfSettings(trust=True), has) == VfSettings(trust=True)
    assert different(VfSettings(trust=False, max_tx_rate_mbps=100), has) is None


def test_numbers_are_written_as_spans() -> None:
    assert spans([0, 1, 2, 7, 9, 10]) == "0-2,7,9-10"


# Killed at any moment


class KilledError(BaseException):
    pass


class Reacting(Tree):
    """The kernel reacts before the next read, and after ``lives`` reads the process is killed."""

    def __init__(self, machine: Machine, root: Path, lives: int) -> None:
        self.machine, self.lives = machine, lives
        super().__init__(root)

    def _full(self, path: str) -> str:
        self.machine.apply_writes()
        self.lives -= 1
        if self.lives < 0:
            raise KilledError
        return super()._full(path)


def provision(machine: Machine, root: Path, lives: int = 1 << 30) -> Reacting:
    facts = pci_source.scan(Tree(root))
    (pf,) = (function for function in facts.functions if function.pci_address == FIRST)
    link = next(link for link in facts.links if link.pci_address == FIRST)
    of_pf = tuple(function for function in facts.functions if function.parent == FIRST)
    tree = Reacting(machine, root, lives)
    want = PfWant(2, mtu=4000, drivers={0: "vfio-pci", 1: "vfio-pci"})
    PfProvisioning(tree, None, VfUsers(tree, None, force=True), pf, link, of_pf, want, 1.0, dry=False).run()
    machine.apply_writes()
    return tree


def test_a_run_killed_at_any_point_is_finished_by_the_next(tmp_path: Path) -> None:
    machine = Machine.load("two-gpu-two-nic")
    machine.write(tmp_path / "m")
    start = 1 << 30
    looks = start - provision(machine, tmp_path / "m", start).lives
    good = files(tmp_path / "m/sys")
    assert looks > 30
    for lives in range(0, looks, 3):
        (tmp_path / "m/sys/class/net/enp24s0np0/mtu").write_text("9000\n")
        machine.set_vfs(FIRST, 4)
        for vf in machine.nic(FIRST).vfs.values():
            machine.bind(vf.address, "mlx5_core")
        with pytest.raises(KilledError):
            provision(machine, tmp_path / "m", lives)
        machine.apply_writes()
        provision(machine, tmp_path / "m")
        assert machine.nic(FIRST).autoprobe, lives
        assert [vf.driver for vf in machine.nic(FIRST).vfs.values()] == ["vfio-pci"] * 2, lives
    assert files(tmp_path / "m/sys") == good


# Output


def test_show_lists_the_differences_and_changes_nothing(root: Path) -> None:
    wanted = config(entry(4, mtu=4000, driver="vfio-pci", vf_indexes=("0",)), entry(6, SECOND))
    before = files(root)
    shown = apply.show(wanted, root)
    assert files(root) == before
    assert states(shown) == {FIRST: "differs", SECOND: "differs"}
    assert of(shown).changes == ("mtu 9000 → 4000", "driver mlx5_core → vfio-pci (VF 0)")
    assert of(shown, SECOND).changes == ("sriov_numvfs 4 → 6",)
    assert apply.apply(wanted, root).good
    assert states(apply.show(wanted, root)) == {FIRST: "unchanged", SECOND: "unchanged"}


def test_the_table_and_the_json_have_the_same_values(root: Path, machine: Machine) -> None:
    machine.move_netdev("0000:18:00.1", rdma=False)
    outcome = apply.show(config(entry(8), entry(2, "0000:ff:00.0")), root)
    printed = json.loads(apply.as_json(outcome))
    assert printed["good"] is False
    assert [(pf["function"]["pciAddress"], pf["state"]) for pf in printed["pfs"]] == [
        (FIRST, "refused"),
        (SECOND, "not configured"),
    ]
    assert printed["pfs"][0]["vfs"][3]["function"]["netdev"] == "enp24s0v3"
    table = apply.as_table(outcome)
    assert "  enp24s0np0   0000:18:00.0  mlx5_core  4/16  9000  refused\n" in table
    assert "  nic0  3   0000:18:00.4  mlx5_core  enp24s0v3   -      -            -     -\n" in table
    for sentence in (*printed["pfs"][0]["reasons"], *printed["notes"]):
        assert sentence in table


def test_names_of_devices_are_escaped_for_the_terminal(tmp_path: Path) -> None:
    drawn = drawn_trees.Machine(tmp_path)
    drawn.function(FIRST, sriov_numvfs="0", sriov_totalvfs="8")
    drawn.netdev("eth\x1b[2J", FIRST)
    assert "\x1b" not in apply.as_table(apply.show(config(entry(2)), tmp_path))


def test_the_verb_exits_with_1_if_a_pf_was_refused(
    root: Path, machine: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "nodeagent.yaml"
    file.write_text(
        "apiVersion: nodeagent.io/v1alpha1\nkind: NodeAgentConfig\n"
        "vfs: [{select: {vendors: ['15b3']}, count: 6}]\n"
    )
    arguments = ["vfs", "apply", "--config", str(file), "--root", str(root)]
    machine.move_netdev("0000:18:00.3")
    assert main(arguments) == 1
    assert "(VF 2) has its netdev" in capsys.readouterr().out
    machine.return_netdev("0000:18:00.3")
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["good"] is True
    assert main(["vfs", "show", "--root", str(root)]) == 0
