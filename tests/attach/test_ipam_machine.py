"""Each address of an IPAM plugin is that of one pod, over any order of pods, failures, kills and restarts.

The netdevs are those of a model, without namespaces: only where each VF is, with which addresses. The plugin is the
strict stand-in, without its process. A kill may come before and after each of their steps.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Collection, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from nodeagent.attach.attach_stamps import AttachStamps
from nodeagent.attach.attached_spec import AttachedSpec
from nodeagent.attach.attachments import Attachments, KubeletList
from nodeagent.attach.leases import LEASES_FOLDER, PLUGIN_RESTS_S, Leases
from nodeagent.attach.node_netdevs import Inside
from nodeagent.attach.nri_plugin import AttachRefused, Sandbox
from nodeagent.attach.pod_netdevs import AttachError
from nodeagent.attach.pod_plan import AttachPlan, PlannedVf, PodLink
from nodeagent.attach.vf_allocations import VfAllocations
from nodeagent.facts.allocation import Allocation
from nodeagent.facts.model import Holding
from tests.support.ipam_plugin import PluginInProcess

VFS = {f"0000:{rail:02x}:00.{index}": rail for rail in range(2) for index in range(2, 4)}
HOST = ""


class Killed(BaseException):
    """This process ends here."""


class Kill:
    """Ends the process after so many steps; 0: not at all."""

    def __init__(self) -> None:
        self.after = 0

    def step(self) -> None:
        if self.after:
            self.after -= 1
            if not self.after:
                raise Killed


class Plugin(PluginInProcess):
    def __init__(self, kill: Kill) -> None:
        super().__init__()
        self._kill = kill

    def _call(self, *call: Any) -> bytes:
        self._kill.step()
        answer = super()._call(*call)
        self._kill.step()
        return answer


class Netdevs:
    """The place of ``NodeNetdevs``."""

    def __init__(self, kill: Kill) -> None:
        self.place = dict.fromkeys(VFS, HOST)
        self.names: dict[str, str] = {}
        self.addresses: dict[str, tuple[str, ...]] = {}
        self.refuses = False
        self._kill = kill

    def leaves(self, device: str) -> None:
        self.place[device] = HOST
        self.names.pop(device, None)
        self.addresses.pop(device, None)

    def on_host(self, _plan: AttachPlan) -> dict[str, Any]:
        return {device: SimpleNamespace(name=device) for device, place in self.place.items() if place == HOST}

    def restore_names(self, plan: AttachPlan) -> dict[str, Any]:
        return self.on_host(plan)

    def inside(self, network: str) -> dict[str, Inside]:
        return {
            device: Inside(self.names[device], self.addresses.get(device, ()))
            for device, place in self.place.items()
            if network and place == network and Path(network).exists()
        }

    def attach(self, network: str, links: Collection[PodLink]) -> dict[str, Inside]:
        if self.refuses or not Path(network).exists():
            raise AttachError("the namespace cannot be entered", "namespace")
        if lost := [link.device for link in links if self.place[link.device] not in (HOST, network)]:
            raise AttachError(f"{lost[0]}: its netdev is neither on the host nor in the pod", "find")
        for link in links:
            if self.place[link.device] == HOST:
                self.place[link.device], self.names[link.device] = network, link.name
                self._kill.step()
            if not self.addresses.get(link.device):
                self.addresses[link.device] = tuple(map(str, link.addresses))
                self._kill.step()
        return self.inside(network)

    def give_back(self, network: str, devices: Collection[str], _plan: AttachPlan | None) -> None:
        if not Path(network).exists():
            raise AttachError("it is gone", "namespace")
        for device in devices:
            if self.place[device] == network:
                self._kill.step()
                self.leaves(device)
                self._kill.step()


class Trouble(NamedTuple):
    """``faults`` of the plugin, whether namespaces can be entered, and after how many steps the process is killed."""

    faults: tuple[tuple[str, str], ...] = ()
    refuses: bool = False
    kill: int = 0


NONE = Trouble()
_FAULTS = st.tuples(
    st.sampled_from(["ADD", "DEL", "CHECK"]),
    st.sampled_from(["error", "hang", "lateerror", "latehang"]),
)
TROUBLES = st.one_of(
    st.just(NONE),
    st.just(NONE),
    st.lists(_FAULTS, min_size=1, max_size=3).map(lambda faults: Trouble(tuple(faults))),
    st.integers(1, 12).map(lambda kill: Trouble(kill=kill)),
    st.lists(_FAULTS, max_size=1).map(lambda faults: Trouble(tuple(faults), refuses=True)),
)
OFTEN = st.sampled_from([True, True, True, False])


class AddressesOfPods(RuleBasedStateMachine):
    """A kubelet, a runtime, a plugin that fails, and `nodeagent attach`, which is killed."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="ipam-machine-"))
        self.loop = asyncio.new_event_loop()
        self.kill = Kill()
        self.plugin, self.netdevs = Plugin(self.kill), Netdevs(self.kill)
        self.stamps = AttachStamps(self.folder)
        self.pods: dict[str, tuple[str, ...]] = {}
        """The VFs of the pods that the kubelet lists."""
        self.sandboxes: dict[str, Sandbox] = {}
        self.stopped: dict[str, Sandbox] = {}
        """Those whose containers have ended, and whose namespace is still there."""
        self.number = 0
        self.now = 0.0
        ipam = {"type": "stand-in", "subnet": "10.{100+rail}.0.0/29"}
        self.plan = AttachPlan("rail{rail}", {vf: PlannedVf(rail) for vf, rail in VFS.items()}, ipam=ipam)
        self.start_anew()

    def teardown(self) -> None:
        try:
            self.settle()
        finally:
            self.loop.close()
            shutil.rmtree(self.folder)

    def start_anew(self) -> None:
        """Another process, to which the runtime has told nothing yet."""
        self.kill.after = 0
        self.connected = False
        self.attachments = Attachments(
            lambda: self.plan,
            self.listed,
            AttachedSpec(self.folder / "cdi"),
            VfAllocations(self.folder),
            self.netdevs,  # type: ignore[arg-type]
            Leases(self.folder, self.plugin, lambda: self.now),
        )

    async def listed(self) -> KubeletList:
        holdings = (
            Holding("default", pod, "main", "x.com/nic", vfs) for pod, vfs in self.pods.items() if vfs
        )
        return KubeletList(frozenset(("default", pod) for pod in self.pods), tuple(holdings))

    def do(self, work: Coroutine[Any, Any, None], trouble: Trouble = NONE) -> None:
        self.plugin.faults = dict(trouble.faults)
        self.netdevs.refuses = trouble.refuses
        self.kill.after = trouble.kill
        try:
            self.loop.run_until_complete(work)
        except AttachRefused:
            pass
        except Killed:
            self.start_anew()
        self.kill.after = 0

    # --- what happens ---

    @initialize(trouble=TROUBLES)
    def the_runtime_connects(self, trouble: Trouble) -> None:
        self.the_runtime_tells_of_all(trouble)

    @precondition(lambda self: len(self.sandboxes) < 4)
    @rule(data=st.data(), heard=OFTEN, trouble=TROUBLES)
    def a_pod_begins(self, data: st.DataObject, heard: bool, trouble: Trouble) -> None:
        held = {vf for vfs in self.pods.values() for vf in vfs}
        free = sorted(VFS.keys() - held)
        vfs = tuple(data.draw(st.lists(st.sampled_from(free), unique=True, min_size=1)) if free else ())
        self.number += 1
        pod = f"pod{self.number}"
        names = tuple(f"nodeagent.io/attached={vf}" for vf in vfs)
        self.stamps.write(self.stamps.stamped(Allocation(cdi_devices=names)))
        self.pods[pod] = vfs
        network = self.folder / f"cni-{pod}"
        network.touch()
        sandbox = Sandbox(f"sandbox-{pod}", "default", pod, f"uid-{pod}", str(network))
        self.sandboxes[pod] = sandbox
        if heard and self.connected:
            self.do(self.attachments.begin(sandbox), trouble)

    @precondition(lambda self: self.sandboxes)
    @rule(data=st.data())
    def the_kubelet_forgets_a_pod(self, data: st.DataObject) -> None:
        """Its sandbox is still there, and its VFs go to the next one."""
        self.pods.pop(data.draw(st.sampled_from(sorted(self.sandboxes))), None)

    @precondition(lambda self: self.sandboxes)
    @rule(data=st.data(), heard=OFTEN, trouble=TROUBLES, network_stays=st.booleans())
    def a_pod_ends(self, data: st.DataObject, heard: bool, trouble: Trouble, network_stays: bool) -> None:
        pod = data.draw(st.sampled_from(sorted(self.sandboxes)))
        sandbox = self.sandboxes.pop(pod)
        self.pods.pop(pod, None)
        if heard and self.connected:
            self.do(self.attachments.end(sandbox), trouble)
        if not network_stays:
            self.the_kernel_removes(sandbox)
        else:
            self.stopped[pod] = sandbox

    @precondition(lambda self: self.stopped)
    @rule(data=st.data())
    def a_namespace_dies(self, data: st.DataObject) -> None:
        """Its sandbox was stopped before, and the runtime lists it still."""
        self.the_kernel_removes(self.stopped.pop(data.draw(st.sampled_from(sorted(self.stopped)))))

    def the_kernel_removes(self, sandbox: Sandbox) -> None:
        Path(sandbox.network).unlink()
        for vf, place in self.netdevs.place.items():
            if place == sandbox.network:
                self.netdevs.leaves(vf)

    @precondition(lambda self: self.netdevs.names)
    @rule(data=st.data())
    def a_driver_is_loaded_again(self, data: st.DataObject) -> None:
        """The kernel makes the netdev of a VF in a pod anew, on the host."""
        self.netdevs.leaves(data.draw(st.sampled_from(sorted(self.netdevs.names))))

    @rule(trouble=TROUBLES)
    def it_is_killed_and_looks(self, trouble: Trouble) -> None:
        """The runtime has told nothing yet."""
        self.start_anew()
        self.do(self.attachments.look(), trouble)

    @rule(trouble=TROUBLES)
    def the_runtime_tells_of_all(self, trouble: Trouble) -> None:
        self.connected = True
        stopped = (replace(sandbox, network="") for sandbox in self.stopped.values())
        self.do(self.attachments.synchronize((*self.sandboxes.values(), *stopped)), trouble)

    @rule(trouble=TROUBLES)
    def it_looks(self, trouble: Trouble) -> None:
        self.do(self.attachments.look(), trouble)

    @rule()
    def a_plugin_that_hung_has_rested(self) -> None:
        self.now += PLUGIN_RESTS_S

    @rule()
    def settle(self) -> None:
        """Nothing fails any more: each address is that of a VF in a pod, each VF of a listed pod has one."""
        self.now += PLUGIN_RESTS_S
        for pod in tuple(self.stopped):
            self.the_kernel_removes(self.stopped.pop(pod))
        self.the_runtime_tells_of_all(NONE)
        self.do(self.attachments.look())
        assert self.attachments.waiting == ()
        wanted = {vf for pod, vfs in self.pods.items() if pod in self.sandboxes for vf in vfs}
        assert {vf for vf, place in self.netdevs.place.items() if place != HOST} >= wanted
        held, in_pods = self.plugin.addresses(), self.addresses_in_pods()
        forgotten = {one.id for pod, one in self.sandboxes.items() if pod not in self.pods}
        for key, of in in_pods.items():
            half = not of and key[0] in forgotten  # a kill came between its move and its address
            assert half or of == held.get(key)
        assert {sandbox for sandbox, _ in held.keys() - in_pods.keys()} <= forgotten  # until it ends
        files = {path.stem for path in (self.folder / LEASES_FOLDER).glob("*")}
        assert files >= {sandbox for sandbox, _ in held}
        assert files - {sandbox for sandbox, _ in held} <= forgotten

    def addresses_in_pods(self) -> dict[tuple[str, str], list[str]]:
        """By sandbox and interface, as the plugin has them."""
        return {
            (Path(place).name.replace("cni-", "sandbox-"), self.netdevs.names[vf]): [
                address.partition("/")[0] for address in self.netdevs.addresses.get(vf, ())
            ]
            for vf, place in self.netdevs.place.items()
            if place != HOST
        }

    # --- what is always true ---

    @invariant()
    def no_address_is_that_of_two_vfs(self) -> None:
        used = [address for of in self.netdevs.addresses.values() for address in of]
        assert len(used) == len(set(used))

    @invariant()
    def an_address_in_a_pod_is_kept_for_it_at_the_plugin(self) -> None:
        held = self.plugin.addresses()
        for key, of in self.addresses_in_pods().items():
            assert not of or of == held.get(key)

    @invariant()
    def each_vf_of_which_a_container_is_told_has_an_address(self) -> None:
        assert all(netdev.addresses for netdev in self.attachments.netdevs)


TestAddressesOfPods = pytest.mark.slow(AddressesOfPods.TestCase)


def test_a_vf_in_a_namespace_that_outlives_its_sandbox_is_waited_for() -> None:
    """The runtime names no namespace of a sandbox that it has stopped, so nobody can take the VF out of it."""
    node, free = AddressesOfPods(), ["0000:01:00.2"]
    try:
        node.the_runtime_connects(NONE)
        node.a_pod_begins(_Drawn(free), heard=True, trouble=NONE)
        node.a_pod_ends(_Drawn("pod1"), heard=False, trouble=NONE, network_stays=True)
        node.a_pod_begins(_Drawn(free), heard=False, trouble=NONE)
        node.the_runtime_tells_of_all(NONE)
        (waiting,) = node.attachments.waiting
        assert (waiting.pod, "0000:01:00.2" in waiting.reason) == ("default/pod2", True)
        node.settle()
    finally:
        node.teardown()


class _ReloadedAtOnce(Netdevs):
    """The driver of the first VF is loaded again while the others move."""

    reloads = True

    def attach(self, network: str, links: Collection[PodLink]) -> dict[str, Inside]:
        super().attach(network, links)
        if self.reloads:
            self.leaves(next(iter(links)).device)
        return self.inside(network)


def test_a_vf_that_leaves_its_pod_while_others_move_is_attached_again() -> None:
    node = AddressesOfPods()
    try:
        node.netdevs = _ReloadedAtOnce(node.kill)
        node.start_anew()
        node.the_runtime_connects(NONE)
        node.a_pod_begins(_Drawn(["0000:00:00.2", "0000:01:00.2"]), heard=True, trouble=NONE)
        (waiting,) = node.attachments.waiting
        assert waiting.reason == "0000:00:00.2: its netdev has left the pod"
        node.netdevs.reloads = False
        node.settle()
    finally:
        node.teardown()


class _Drawn(NamedTuple):
    """The value that a rule draws."""

    value: Any

    def draw(self, _: object) -> Any:
        return self.value


def test_a_vf_without_an_address_stays_in_a_pod_that_the_kubelet_has_forgotten() -> None:
    """No container of it can start any more. It ended between the move and the address."""
    node = AddressesOfPods()
    try:
        node.the_runtime_connects(NONE)
        node.a_pod_begins(_Drawn(["0000:00:00.2"]), heard=True, trouble=Trouble(kill=3))
        node.the_kubelet_forgets_a_pod(_Drawn("pod1"))
        node.settle()
        assert node.addresses_in_pods() == {("sandbox-pod1", "rail0"): []}
        assert node.attachments.netdevs == ()
        node.a_pod_ends(_Drawn("pod1"), heard=True, trouble=NONE, network_stays=False)
        node.settle()
        assert node.plugin.addresses() == {}
    finally:
        node.teardown()
