"""Addresses by IPAM plugins: the protocol, and pods that get them and give them back, over failures and restarts."""

from __future__ import annotations

import asyncio
import fcntl
import json
import subprocess
from collections.abc import Iterator
from ipaddress import IPv4Interface, IPv4Network
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from nodeagent.attach.cni_plugin import (
    ANSWER_MAX,
    Attachment,
    CniError,
    CniPlugins,
    GivenAddresses,
    given_addresses,
)
from nodeagent.attach.leases import LEASES_FOLDER, AddressLease, Leases, SandboxLeases
from nodeagent.attach.nri_plugin import AttachRefused, Sandbox
from nodeagent.attach.pod_netdevs import AttachError
from nodeagent.attach.pod_plan import PlannedVf, PodLink, PodRoute
from tests.support import ipam_plugin
from tests.support.attached_pods import AttachedNode, addresses, links, rules, vf
from tests.support.ipam_plugin import PluginInProcess, given
from tests.support.namespaces import Netns
from tests.support.waiting import until

real = pytest.mark.needs("root", "ip", "nsenter")


# --- the protocol -----------------------------------------------------------------------------------------


ARGUMENTS = {"K8S_POD_NAMESPACE": "default", "K8S_POD_NAME": "trainer"}


class Plugin:
    """The stand-in, with a network namespace and one configuration."""

    def __init__(
        self, folder: Path, limit_s: float = 30.0, versions: tuple[str, ...] = ipam_plugin.VERSIONS
    ) -> None:
        ipam_plugin.install(folder / "bin", versions=versions)
        self.data = folder / "data"
        self.data.mkdir()
        self.plugins = CniPlugins(folder / "bin", folder / "lock", limit_s)
        self.network = folder / "netns"
        self.network.touch()
        self.attachment = Attachment("sandbox-1", "rail0", str(self.network), ARGUMENTS)

    def configuration(self, **more: Any) -> dict[str, Any]:
        ipam = {"type": "stand-in", "dataDir": str(self.data), "subnet": "10.9.0.0/30", **more}
        return self.plugins.configuration("nodeagent-rail0", ipam)

    def fails(self, **faults: str) -> None:
        (self.data / "faults").write_text(json.dumps(faults))

    def calls(self) -> list[str]:
        log = self.data / "calls"
        return log.read_text().splitlines() if log.exists() else []


@pytest.fixture
def plugin(tmp_path: Path) -> Plugin:
    return Plugin(tmp_path)


def test_an_address_is_given_kept_and_taken_back(plugin: Plugin) -> None:
    configuration = plugin.configuration()
    assert configuration["cniVersion"] == "1.1.0"
    result = plugin.plugins.add(configuration, plugin.attachment)
    assert given_addresses("stand-in", result) == GivenAddresses((IPv4Interface("10.9.0.1/30"),))
    plugin.plugins.check(configuration, plugin.attachment, result)
    with pytest.raises(CniError, match=r"stand-in: .* duplicate allocation is not allowed"):
        plugin.plugins.add(configuration, plugin.attachment)
    for _ in range(2):
        plugin.plugins.delete(configuration, plugin.attachment._replace(network=""), result)
    assert given(plugin.data) == {}
    with pytest.raises(CniError, match="failed to find address"):
        plugin.plugins.check(configuration, plugin.attachment, result)


@pytest.mark.parametrize(
    ("versions", "chosen"),
    [(("0.4.0", "1.0.0"), "1.0.0"), (("1.1.0",), "1.1.0"), (("1.0.0", "1.1.0", "1.2.0"), "1.1.0")],
)
def test_the_newest_common_version_is_used(tmp_path: Path, versions: tuple[str, ...], chosen: str) -> None:
    plugin = Plugin(tmp_path, versions=versions)
    configuration = plugin.configuration()
    assert configuration["cniVersion"] == chosen
    plugin.plugins.add(configuration, plugin.attachment)


def test_a_plugin_of_other_versions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        CniError, match=r"^stand-in supports none of the versions 1\.1\.0 and 1\.0\.0 of CNI$"
    ):
        Plugin(tmp_path, versions=("0.3.1", "0.4.0")).configuration()


def test_an_updated_plugin_is_asked_for_its_versions_again(plugin: Plugin, tmp_path: Path) -> None:
    plugin.configuration()
    ipam_plugin.install(tmp_path / "bin", versions=("1.0.0",))
    assert plugin.configuration()["cniVersion"] == "1.0.0"


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("error", "stand-in: try again later"),
        ("silent", "stand-in: it failed with exit code 3 and no message"),
        ("flood", f"stand-in printed more than {ANSWER_MAX} bytes"),
        ("garbage", "stand-in: its answer is no JSON object: JSON is malformed: invalid character (byte 4)"),
    ],
)
def test_a_failure_names_plugin_and_cause(plugin: Plugin, fault: str, message: str) -> None:
    configuration = plugin.configuration()
    plugin.fails(ADD=fault)
    with pytest.raises(CniError) as failed:
        plugin.plugins.add(configuration, plugin.attachment)
    assert (str(failed.value), failed.value.hangs) == (message, False)


async def test_a_plugin_that_hangs_is_killed_with_what_it_has_started(tmp_path: Path) -> None:
    plugin = Plugin(tmp_path)
    configuration = plugin.configuration()
    hanging, pids = tmp_path / "bin/stand-in", tmp_path / "pids"
    hanging.write_text(f"#!/bin/sh\nsleep 3600 &\necho $$ $! > {pids}\nwait\n")
    brief = CniPlugins(tmp_path / "bin", tmp_path / "lock", 1.0)
    with pytest.raises(CniError, match="stand-in did not answer within 1 s") as failed:
        brief.add(configuration, plugin.attachment)
    assert failed.value.hangs
    started = pids.read_text().split()
    assert len(started) == 2
    await until(lambda: {_state(pid) for pid in started} <= {"", "Z"})


def _state(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def test_a_plugin_that_outlives_its_caller_ends_before_the_next_call(plugin: Plugin, tmp_path: Path) -> None:
    """The caller was killed: its plugin has the lock, and could give an address after the DEL for it."""
    configuration = plugin.configuration()
    with (tmp_path / "lock").open("w") as orphan:
        fcntl.flock(orphan, fcntl.LOCK_EX)
        brief = CniPlugins(tmp_path / "bin", tmp_path / "lock", 0.2)
        with pytest.raises(CniError, match="stand-in cannot begin: an earlier plugin still runs") as failed:
            brief.add(configuration, plugin.attachment)
        assert failed.value.hangs
        assert plugin.calls() == []
    plugin.plugins.add(configuration, plugin.attachment)


def test_a_plugin_inherits_the_lock(plugin: Plugin, tmp_path: Path) -> None:
    lister = tmp_path / "bin/lister"
    told = tmp_path / "told"
    lister.write_text(f"#!/bin/sh\nls -l /proc/$$/fd > {told}\nexit 1\n")
    lister.chmod(0o755)
    with pytest.raises(CniError, match="lister: it failed with exit code 1 and no message"):
        plugin.plugins.add({"ipam": {"type": "lister"}}, plugin.attachment)
    assert f"-> {tmp_path / 'lock'}" in told.read_text()


def test_a_plugin_that_is_not_there_is_named_with_its_path(plugin: Plugin, tmp_path: Path) -> None:
    with pytest.raises(CniError, match=f"^{tmp_path}/bin/other cannot be run: No such file or directory$"):
        plugin.plugins.configuration("n", {"type": "other"})


def test_what_is_no_argument_of_cni_does_not_reach_the_plugin(plugin: Plugin) -> None:
    bad = plugin.attachment._replace(arguments={"K8S_POD_NAME": "a;IP=10.9.0.2"})
    configuration = plugin.configuration()
    with pytest.raises(CniError, match="cannot be an argument of CNI"):
        plugin.plugins.add(configuration, bad)
    assert plugin.calls() == []


def test_routes_without_a_gateway_go_over_that_of_their_family() -> None:
    result = {
        "ips": [
            {"address": "10.9.0.2/29", "gateway": "10.9.0.1"},
            {"address": "fd00::2/64", "gateway": "fd00::1"},
        ],
        "routes": [{"dst": "10.0.0.0/8"}, {"dst": "::/0"}, {"dst": "10.1.0.0/16", "gw": "10.9.0.3"}],
    }
    found = given_addresses("x", result)
    assert [str(one) for one in found.addresses] == ["10.9.0.2/29", "fd00::2/64"]
    assert [(str(one.destination), str(one.gateway)) for one in found.routes] == [
        ("10.0.0.0/8", "10.9.0.1"), ("::/0", "fd00::1"), ("10.1.0.0/16", "10.9.0.3"),
    ]  # fmt: skip
    alone = {"ips": [{"address": "10.9.0.2/29"}], "routes": [{"dst": "10.0.0.0/8"}]}
    assert given_addresses("x", alone).routes == (PodRoute(IPv4Network("10.0.0.0/8"), None),)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ({}, "x: its result has no address"),
        ({"ips": [{"address": "10.9.0.300/24"}]}, "x: its result is invalid: '10.9.0.300/24' does not appear"),
        ({"ips": [{}]}, "x: its result is invalid: Object missing required field `address`"),
        ({"ips": [{"address": "10.9.0.0/24"}]}, "x: 10.9.0.0 cannot be the address of a netdev"),
        ({"ips": [{"address": "10.9.0.255/24"}]}, "x: 10.9.0.255 cannot be the address"),
        ({"ips": [{"address": "127.0.0.1/8"}]}, "x: 127.0.0.1 cannot be the address"),
        ({"ips": [{"address": "10.9.0.1/24", "gateway": "10.9.0.1"}]}, "x: 10.9.0.1 cannot be the address"),
        ({"ips": [{"address": "10.9.0.1/24"}], "routes": [{"dst": "::/0", "gw": "10.9.0.2"}]}, "of another family"),
        ({"ips": [{"address": f"10.9.0.{n}/24"} for n in range(1, 10)]}, "more than 8 addresses or 64 routes"),
    ],
)  # fmt: skip
def test_a_result_that_no_netdev_can_have_is_refused(result: dict[str, Any], message: str) -> None:
    with pytest.raises(CniError) as refused:
        given_addresses("x", result)
    assert message in str(refused.value)


# --- pods -------------------------------------------------------------------------------------------------


class Node(AttachedNode):
    """A node whose addresses come from the stand-in, without its process."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.plugin = self.plugins = PluginInProcess()
        self.restarted()
        self.gives()

    def gives(self, **more: Any) -> None:
        """Let the plugin give the addresses, with these settings."""
        assert self.plan is not None
        vfs = {device: replace(planned, address=None) for device, planned in self.plan.vfs.items()}
        self.plan = replace(
            self.plan, vfs=vfs, ipam={"type": "stand-in", "subnet": "10.{100+rail}.0.0/29", **more}
        )


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.close()


def kept(node: Node) -> set[str]:
    return {path.name for path in (node.folder / LEASES_FOLDER).glob("*")}


def routes(ns: Netns, table: int) -> list[str]:
    command = ns.command("ip", "route", "show", "table", str(table))
    said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=30)
    return [line.replace(" linkdown", "").strip() for line in said.stdout.splitlines()]


@real
async def test_a_pod_has_the_addresses_and_routes_of_the_plugin_and_its_end_gives_them_back(
    node: Node,
) -> None:
    node.gives(gateway="10.{100+rail}.0.1", routes=[{"dst": "10.0.0.0/8"}, {"dst": "0.0.0.0/0"}])
    sandbox, pod = node.pod("trainer", vf(0), vf(1))
    await node.attachments.begin(sandbox)
    assert node.starts(vf(0), vf(1))
    assert addresses(pod) == {"rail0": ["10.100.0.2/29"], "rail1": ["10.101.0.2/29"]}
    assert node.plugin.addresses() == {
        ("sandbox-trainer", "rail0"): ["10.100.0.2"], ("sandbox-trainer", "rail1"): ["10.101.0.2"],
    }  # fmt: skip
    assert "from 10.100.0.2 lookup 1000" in rules(pod)
    assert routes(pod, 1000) == [
        "default via 10.100.0.1 dev rail0 proto static src 10.100.0.2",
        "10.0.0.0/8 via 10.100.0.1 dev rail0 proto static src 10.100.0.2",
        "10.100.0.0/29 dev rail0 proto static scope link src 10.100.0.2",
    ]
    assert node.attachments.netdevs[0].addresses == ("10.100.0.2/29",)
    await node.attachments.end(sandbox)
    assert (node.plugin.addresses(), kept(node), node.on_host()) == ({}, set(), node.all_host_names())
    await node.attachments.end(replace(sandbox, network=""))
    assert node.plugin.calls == ["ADD", "ADD", "DEL", "DEL"]


@real
async def test_a_gateway_beyond_the_prefix_is_reached_over_the_netdev(node: Node) -> None:
    node.gives(gateway="192.168.0.1", routes=[{"dst": "10.0.0.0/8"}])
    sandbox, pod = node.pod("trainer", vf(0))
    await node.attachments.begin(sandbox)
    assert "10.0.0.0/8 via 192.168.0.1 dev rail0 proto static src 10.100.0.1 onlink" in routes(pod, 1000)


@real
async def test_a_refusal_names_vf_rail_plugin_and_message_and_gives_back_what_came_before(
    node: Node,
) -> None:
    node.gives(subnet="10.{100+rail}.0.0/30")
    for name in ("first", "second"):
        await node.attachments.begin(node.pod(name, vf(1, int(name == "second")))[0])
    assert node.plan is not None
    node.plan = replace(node.plan, vfs={**node.plan.vfs, "0000:01:00.9": PlannedVf(1)})
    sandbox, pod = node.pod("third", vf(0), "0000:01:00.9")
    with pytest.raises(AttachRefused) as refused:
        await node.attachments.begin(sandbox)
    assert str(refused.value) == (
        "nodeagent attach: ipam: 0000:01:00.9 as rail1: rail 1: stand-in: failed to allocate for range 0: no IP "
        "addresses available in 10.101.0.0/30"
    )
    assert {key[0] for key in node.plugin.addresses()} == {"sandbox-first", "sandbox-second"}
    assert links(pod) == {}
    assert node.attachments.counts.failures == {"ipam": 1}


@real
async def test_a_move_that_fails_gives_the_addresses_back(node: Node) -> None:
    sandbox, pod = node.pod("trainer", vf(0), vf(1))
    pod.ip("link add rail1 type veth peer name other")
    with pytest.raises(AttachRefused, match="File exists"):
        await node.attachments.begin(sandbox)
    assert (node.plugin.addresses(), kept(node), node.on_host()) == ({}, set(), node.all_host_names())
    pod.ip("link del rail1")
    await node.attachments.look()
    assert node.starts(vf(0), vf(1))
    assert len(node.plugin.addresses()) == 2


@real
@pytest.mark.parametrize("fault", ["error", "lateerror", "hang", "latehang"])
async def test_an_add_that_fails_is_deleted(node: Node, fault: str) -> None:
    sandbox, pod = node.pod("trainer", vf(0))
    node.plugin.faults = {"ADD": fault}
    with pytest.raises(AttachRefused, match=r"0000:00:00\.2 as rail0: rail 0: stand-in"):
        await node.attachments.begin(sandbox)
    assert (node.plugin.addresses(), kept(node)) == ({}, set())
    node.plugin.faults = {}
    await node.attachments.look()
    assert addresses(pod) == {"rail0": ["10.100.0.1/29"]}


def test_a_plugin_that_does_not_answer_is_asked_once_a_minute_for_all_ended_sandboxes(tmp_path: Path) -> None:
    """Each call takes ten seconds, in which no pod gets its netdevs."""
    asked: list[str] = []
    hangs = True

    class Plugins(CniPlugins):
        def delete(self, configuration: object, attachment: Attachment, result: object) -> None:
            asked.append(attachment.container)
            if hangs:
                raise CniError("stand-in did not answer within 10 s", hangs=True)

    now = 0.0
    leases = Leases(tmp_path, Plugins(tmp_path / "bin", tmp_path / "lock"), lambda: now)
    folder = tmp_path / LEASES_FOLDER
    folder.mkdir(parents=True)
    for name in ("a", "b", "c"):
        lease = AddressLease(vf(0), 0, "rail0", {"ipam": {"type": "stand-in"}}, {"ips": []})
        of = SandboxLeases(name, "/gone", "default", name, f"uid-{name}", (lease,))
        (folder / f"{name}.json").write_bytes(msgspec.json.encode(of))
    assert [leases.release(name) for name in ("a", "b", "c")] == [False, False, False]
    assert asked == ["a"]
    assert all(one.returned for of in leases.known for one in of.leases)
    now, hangs = now + 61, False
    assert [leases.release(name) for name in ("a", "b", "c")] == [True, True, True]
    assert (asked, leases.known) == (["a", "a", "b", "c"], ())


@real
async def test_what_a_hanging_plugin_was_asked_for_is_deleted_before_it_is_asked_again(node: Node) -> None:
    sandbox, pod = node.pod("trainer", vf(0), vf(1))
    node.plugin.faults = {"ADD": "latehang", "DEL": "hang"}
    with pytest.raises(AttachRefused, match="stand-in did not answer within 10 s"):
        await node.attachments.begin(sandbox)
    assert node.plugin.calls == ["ADD", "DEL"]
    node.plugin.faults = {}
    await node.restarted().synchronize((sandbox,))
    assert addresses(pod) == {"rail0": ["10.100.0.1/29"], "rail1": ["10.101.0.1/29"]}
    assert node.plugin.calls == ["ADD", "DEL", "DEL", "ADD", "ADD"]


@real
async def test_a_program_gives_the_addresses(tmp_path: Path) -> None:
    node, data = AttachedNode(tmp_path), tmp_path / "data"
    data.mkdir()
    ipam_plugin.install(tmp_path / "cni-bin")
    assert node.plan is not None
    ipam = {"type": "stand-in", "dataDir": str(data), "subnet": "10.{100+rail}.0.0/29"}
    node.plan = replace(node.plan, vfs={vf(0): PlannedVf(0, 4200)}, ipam=ipam)
    sandbox, pod = node.pod("trainer", vf(0))
    await node.attachments.begin(sandbox)
    assert addresses(pod) == {"rail0": ["10.100.0.1/29"]}
    assert given(data) == {("nodeagent-rail0", "sandbox-trainer", "rail0"): ["10.100.0.1"]}
    await node.attachments.end(sandbox)
    assert given(data) == {}
    node.close()


@real
async def test_an_address_that_is_not_taken_back_is_known_until_it_is(node: Node) -> None:
    sandbox, _ = node.pod("trainer", vf(0), vf(1))
    await node.attachments.begin(sandbox)
    await node.attachments.synchronize((sandbox,))
    node.plugin.faults = {"DEL": "error"}
    await node.attachments.end(sandbox)
    assert (len(node.plugin.addresses()), kept(node)) == (2, {"sandbox-trainer.json"})
    node.ended(sandbox)
    node.plugin.faults = {}
    await node.restarted().synchronize(())
    assert (node.plugin.addresses(), kept(node)) == ({}, set())


@real
async def test_an_address_whose_return_is_not_confirmed_may_be_that_of_the_next_pod(node: Node) -> None:
    """The plugin has taken it back, and its answer was lost. The sandbox of the pod before is still there."""
    first, _ = node.pod("first", vf(0))
    await node.attachments.begin(first)
    node.released("first")
    node.plugin.faults = {"DEL": "lateerror"}
    second, pod = node.pod("second", vf(0))
    await node.attachments.begin(second)
    assert addresses(pod) == {"rail0": ["10.100.0.1/29"]}
    assert kept(node) == {"sandbox-first.json", "sandbox-second.json"}
    node.plugin.faults = {}
    await node.attachments.settle()
    assert kept(node) == {"sandbox-second.json"}
    assert node.plugin.addresses() == {("sandbox-second", "rail0"): ["10.100.0.1"]}
    assert node.starts(vf(0))


@real
async def test_the_addresses_of_a_pod_that_ended_unseen_are_given_back(node: Node) -> None:
    """Its namespace died while nobody listened, and the machine may have started anew."""
    goes, pod = node.pod("goes", vf(0))
    stays, _ = node.pod("stays", vf(1))
    for sandbox in (goes, stays):
        await node.attachments.begin(sandbox)
    pod.ip(f"link set rail0 netns {node.host.path}")
    node.ended(goes)
    await node.restarted().look()
    assert len(node.plugin.addresses()) == 2  # the runtime has not told yet which sandboxes there are
    await node.attachments.synchronize((stays,))
    assert node.plugin.addresses() == {("sandbox-stays", "rail1"): ["10.101.0.1"]}


@real
async def test_the_addresses_of_a_stopped_sandbox_stay_until_its_netdevs_have_left(node: Node) -> None:
    """The next pod would have the address beside it."""
    sandbox, pod = node.pod("trainer", vf(0))
    await node.attachments.begin(sandbox)
    node.released("trainer")
    stopped = replace(sandbox, network="")
    await node.restarted().synchronize((stopped,))
    assert node.plugin.addresses() == {("sandbox-trainer", "rail0"): ["10.100.0.1"]}
    pod.ip(f"link set rail0 netns {node.host.path}")
    await node.attachments.look()
    assert node.plugin.addresses() == {}


@real
async def test_a_restart_asks_for_no_address_again(node: Node) -> None:
    sandbox, pod = node.pod("trainer", vf(0))
    await node.attachments.begin(sandbox)
    await node.restarted().synchronize((sandbox,))
    await node.attachments.look()
    assert addresses(pod) == {"rail0": ["10.100.0.1/29"]}
    assert node.plugin.calls == ["ADD"]


@real
@pytest.mark.parametrize(
    "half", ["address flush dev rail0", "link set rail0 down\nlink set rail0 name ens0v0"]
)
async def test_a_half_attached_vf_has_the_same_address(node: Node, half: str) -> None:
    sandbox, pod = node.pod("trainer", vf(0))
    await node.attachments.begin(sandbox)
    pod.ip(half)
    await node.restarted().synchronize((sandbox,))
    assert addresses(pod) == {"rail0": ["10.100.0.1/29"]}
    assert "ADD" not in node.plugin.calls[1:]


@real
async def test_a_vf_that_is_moved_again_keeps_its_address_if_the_plugin_has_kept_it(node: Node) -> None:
    """Its driver was loaded again under the pod."""
    first, _ = node.pod("first", vf(0, 1))
    sandbox, pod = node.pod("trainer", vf(0))
    for one in (first, sandbox):
        await node.attachments.begin(one)
    await node.attachments.end(first)
    node.ended(first)
    pod.ip(f"link set rail0 netns {node.host.path} name ens0v0")
    await node.attachments.look()
    assert addresses(pod) == {"rail0": ["10.100.0.2/29"]}
    assert node.plugin.calls == ["ADD", "ADD", "DEL", "CHECK"]
    pod.ip(f"link set rail0 netns {node.host.path} name ens0v0")
    node.plugin.held.clear()  # somebody has removed it
    await node.attachments.look()
    assert addresses(pod) == {"rail0": ["10.100.0.1/29"]}
    assert node.plugin.calls[4:] == ["CHECK", "DEL", "ADD"]


@real
async def test_a_pod_on_the_hosts_network_gets_no_address(node: Node) -> None:
    sandbox, _ = node.pod("trainer", vf(0))
    await node.attachments.begin(replace(sandbox, network="", on_host=True))
    assert node.starts(vf(0))
    assert node.plugin.calls == []


@real
async def test_a_vf_that_multus_has_moved_gets_no_address(node: Node) -> None:
    sandbox, pod = node.pod("trainer", vf(0))
    node.host.ip(f"link set ens0v0 netns {pod.path}")
    pod.ip("link set ens0v0 name net1")
    await node.attachments.begin(sandbox)
    assert node.starts(vf(0))
    assert node.plugin.calls == []


@real
async def test_a_plugin_that_gives_an_address_twice_is_refused(node: Node) -> None:
    """Its store was deleted under a running pod."""
    first, _ = node.pod("first", vf(0))
    await node.attachments.begin(first)
    node.plugin.held.clear()
    second, pod = node.pod("second", vf(0, 1))
    with pytest.raises(AttachRefused, match=r"stand-in gave 10\.100\.0\.1, which default/first has"):
        await node.attachments.begin(second)
    assert (node.plugin.addresses(), links(pod)) == ({}, {})


@real
async def test_an_address_that_another_nic_answers_for_is_given_back(node: Node) -> None:
    far = await node.add_pf(0)
    node.far.ip(f"address add 10.100.0.1/16 dev {far}")
    sandbox, _ = node.pod("trainer", vf(0))
    with pytest.raises(AttachRefused, match=r"probe: 10\.100\.0\.1 is in use by the NIC"):
        await node.attachments.begin(sandbox)
    assert (node.plugin.addresses(), kept(node)) == ({}, set())


@real
async def test_another_section_is_for_the_next_pods_and_each_del_has_the_configuration_of_its_add(
    node: Node,
) -> None:
    first, pod = node.pod("first", vf(0))
    await node.attachments.begin(first)
    node.gives(subnet="192.168.{rail}.0/29")
    await node.restarted().synchronize((first,))
    second, other = node.pod("second", vf(0, 1))
    await node.attachments.begin(second)
    assert (addresses(pod), addresses(other)) == ({"rail0": ["10.100.0.1/29"]}, {"rail0": ["192.168.0.1/29"]})
    assert node.plan is not None
    node.plan = replace(node.plan, ipam=None, on=False)
    await node.restarted().synchronize((first, second))
    for sandbox in (first, second):
        await node.attachments.end(sandbox)
    assert (node.plugin.addresses(), kept(node)) == ({}, set())


@real
async def test_addresses_that_nobody_knows_here_stay_at_the_plugin(node: Node) -> None:
    """Its store may be that of the cluster, with the addresses of other nodes."""
    node.plugin.held["nodeagent-rail0"] = {
        "of-another-node rail0": {"addresses": ["10.100.0.1"], "config": {}}
    }
    sandbox, pod = node.pod("trainer", vf(0))
    await node.attachments.begin(sandbox)
    await node.restarted().synchronize((sandbox,))
    assert addresses(pod) == {"rail0": ["10.100.0.2/29"]}
    await node.attachments.end(sandbox)
    assert node.plugin.addresses() == {("of-another-node", "rail0"): ["10.100.0.1"]}
    assert node.plugin.calls == ["ADD", "DEL"]


@real
async def test_an_address_of_a_pf_a_gateway_or_a_partner_is_refused_and_given_back(node: Node) -> None:
    assert node.plan is not None
    node.plan = replace(node.plan, taken={"10.100.0.1": "the PF 0000:18:00.0"})
    sandbox, pod = node.pod("trainer", vf(0), vf(1))
    said = r"ipam: .* as rail0: rail 0: stand-in gave 10\.100\.0\.1, the address of the PF 0000:18:00\.0: take it out"
    with pytest.raises(AttachRefused, match=said):
        await node.attachments.begin(sandbox)
    assert (node.plugin.addresses(), kept(node), links(pod)) == ({}, set(), {})
    node.plan = replace(node.plan, taken={})
    await node.restarted().synchronize((sandbox,))
    node.plan = replace(node.plan, taken={"10.100.0.1": "the PF 0000:18:00.0"})
    await node.restarted().synchronize((sandbox,))
    assert addresses(pod)["rail0"] == ["10.100.0.1/29"]  # a pod that runs keeps what it has
    assert node.starts(vf(0), vf(1))


@real
async def test_a_file_of_addresses_that_cannot_be_read_concerns_one_sandbox(node: Node) -> None:
    first, _ = node.pod("first", vf(0))
    await node.attachments.begin(first)
    (node.folder / LEASES_FOLDER / "broken.json").write_text("{")
    await node.restarted().synchronize((first,))
    await node.attachments.end(first)
    assert node.plugin.addresses() == {}


@real
async def test_ends_and_begins_of_plugins_at_a_time_lose_nothing(node: Node) -> None:
    pods = [node.pod(f"pod{rail}{index}", vf(rail, index)) for rail, index in node.vfs]
    await asyncio.gather(*(node.attachments.begin(sandbox) for sandbox, _ in pods))
    assert len({one for of in node.plugin.addresses().values() for one in of}) == len(pods)
    await asyncio.gather(*(node.attachments.end(sandbox) for sandbox, _ in pods), node.attachments.settle())
    assert (node.plugin.addresses(), kept(node)) == ({}, set())


def test_the_name_of_a_netdev_is_that_of_one_vf_at_the_plugin(plugin: Plugin, tmp_path: Path) -> None:
    """A VF that the plan lacked when its pod began would come by the name of the one that is there: the plugin would
    take its DEL for that of the other one."""
    leases = Leases(tmp_path, plugin.plugins)
    sandbox = Sandbox("s1", "default", "trainer", "u1", str(plugin.network))
    ipam = {"type": "stand-in", "dataDir": str(plugin.data), "subnet": "10.{9+rail}.0.0/29"}
    first, second = (PodLink(f"0000:18:00.{one}", 0, "rail0", None, (), 1) for one in (2, 3))
    leases.lend(sandbox, [second], (), ipam)
    before = given(plugin.data)
    there = replace(second, name="rail0b")
    with pytest.raises(AttachError, match=r"ipam: 0000:18:00\.2: rail 0: rail0 is the name of 0000:18:00\.3"):
        leases.lend(sandbox, [first, there], {second.device}, ipam)
    assert before
    assert given(plugin.data) == before
