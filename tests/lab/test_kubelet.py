"""The stand-in kubelet's plugins: registration, streams, restarts, races and the resulting Node."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import stat
import tempfile
from pathlib import Path

import grpc
import grpc.aio
import pytest

from nodeagent.kube import deviceplugin_pb2 as pb
from nodeagent_lab.sim.kubelet import Kubelet, PodSpec
from nodeagent_lab.sim.kubelet.plugin_clients import is_extended_resource
from nodeagent_lab.sim.kubelet.protocol import GrpcListener
from tests.support.device_plugin import Plugin, device, many
from tests.support.waiting import until

NIC = "nvidia-dgx-h100/nic0"


@pytest.fixture
def folder():
    """A short path: a unix socket's has 107 bytes."""
    path = Path(tempfile.mkdtemp(prefix="k"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
async def kubelet(folder):
    kubelet = Kubelet(folder, seed=1, reconcile_s=0.01)
    await kubelet.start()
    yield kubelet
    await kubelet.stop()


@pytest.fixture
async def plugin(kubelet):
    plugin = await Plugin(kubelet.socket.parent / "nic0.sock", NIC, many("vf", 8, 0)).start()
    yield plugin
    await plugin.stop()


async def registered(kubelet, plugin):
    count = len(kubelet.updates)
    await plugin.register(kubelet.socket)
    await kubelet.until(lambda: len(kubelet.updates) > count)


# Registration on kubelet.sock.


async def test_a_registered_plugins_devices_are_capacity_and_allocatable(kubelet, plugin):
    await registered(kubelet, plugin)
    assert kubelet.capacity() == {NIC: 8}
    assert kubelet.allocatable() == {NIC: 8}
    assert kubelet.devices(NIC)["vf3"].health == "Healthy"
    assert kubelet.devices(NIC)["vf3"].numa_nodes == (0,)
    (registration,) = kubelet.registrations
    assert (registration.resource, registration.endpoint, registration.via, registration.error) == (
        NIC,
        "nic0.sock",
        "kubelet.sock",
        None,
    )


async def test_a_version_other_than_v1beta1_is_refused(kubelet, plugin):
    with pytest.raises(grpc.aio.AioRpcError, match="is not supported by kubelet") as caught:
        await plugin.register(kubelet.socket, version="v1alpha")
    assert caught.value.code() is grpc.StatusCode.UNKNOWN
    assert plugin.calls == []


@pytest.mark.parametrize(
    "name", ["nic0", "kubernetes.io/nic0", "a.kubernetes.io/b", "requests.a/b", "A/b", "a/", "a/b/c"]
)
def test_a_name_that_is_not_an_extended_resource_is_refused(name):
    assert not is_extended_resource(name)


@pytest.mark.parametrize("name", [NIC, "nvidia-dgx-h100/gpu-mem", "nvidia.com/gpu", "a/B_c.d-e"])
def test_a_domain_of_one_label_is_an_extended_resource(name):
    assert is_extended_resource(name)


async def test_a_resource_name_without_domain_fails_register(kubelet, plugin):
    plugin.resource = "nic0"
    with pytest.raises(grpc.aio.AioRpcError, match='the ResourceName "nic0" is invalid'):
        await plugin.register(kubelet.socket)
    assert kubelet.registrations[-1].error == 'the ResourceName "nic0" is invalid'


async def test_options_are_requested_while_register_is_in_flight(kubelet, plugin):
    plugin.options_gate.clear()
    register = asyncio.create_task(plugin.register(kubelet.socket))
    await plugin.until(lambda: plugin.called("GetDevicePluginOptions"))
    assert not register.done()
    assert kubelet.registrations == []
    plugin.options_gate.set()
    await register
    assert kubelet.registrations[-1].error is None


async def test_options_in_the_request_are_ignored(kubelet, plugin):
    await plugin.register(kubelet.socket, options=pb.DevicePluginOptions(pre_start_required=True))
    assert plugin.called("GetDevicePluginOptions")
    assert not kubelet._devices.endpoints[NIC].options.pre_start_required


async def test_register_fails_where_no_server_listens(folder):
    kubelet = Kubelet(folder, dial_timeout_s=0.05)
    await kubelet.start()
    absent = Plugin(kubelet.socket.parent / "absent.sock", NIC, [])
    with pytest.raises(grpc.aio.AioRpcError, match="failed to dial device plugin"):
        await absent.register(kubelet.socket)
    await kubelet.stop()


async def test_the_plugins_own_deadline_bounds_the_options_call(kubelet, plugin):
    plugin.options_gate.clear()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await plugin.register(kubelet.socket, timeout_s=0.1)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await kubelet.until(lambda: kubelet.registrations != [])
    assert kubelet.registrations[-1].error is not None


async def test_a_refusal_lasts_until_it_is_lifted(kubelet, plugin):
    kubelet.refuse("not today")
    with pytest.raises(grpc.aio.AioRpcError, match="not today"):
        await plugin.register(kubelet.socket)
    await kubelet.restart()
    await plugin.stop()
    await plugin.start()
    with pytest.raises(grpc.aio.AioRpcError, match="not today"):
        await plugin.register(kubelet.socket)
    kubelet.refuse(None)
    await registered(kubelet, plugin)
    assert kubelet.allocatable() == {NIC: 8}


# ListAndWatch.


async def test_a_message_replaces_the_whole_list(kubelet, plugin):
    await registered(kubelet, plugin)
    plugin.say([device("vf9"), device("vf1", health="Sick")])
    await kubelet.until(lambda: len(kubelet.updates) == 2)
    assert set(kubelet.devices(NIC)) == {"vf9", "vf1"}
    assert kubelet.capacity() == {NIC: 2}
    assert kubelet.allocatable() == {NIC: 1}, "any health but Healthy is unhealthy"
    update = kubelet.updates[-1]
    assert (update.healthy, update.unhealthy, update.devices, update.repeated) == (1, 1, 2, False)
    assert (
        update.size
        == pb.ListAndWatchResponse(devices=[device("vf9"), device("vf1", health="Sick")]).ByteSize()
    )


async def test_a_heartbeat_is_recorded_as_a_repeated_message(kubelet, plugin):
    await registered(kubelet, plugin)
    plugin.say(many("vf", 8, 0))
    await kubelet.until(lambda: len(kubelet.updates) == 2)
    assert [update.repeated for update in kubelet.updates] == [False, True]


async def test_each_message_rewrites_the_checkpoint_even_a_repeated_one(kubelet, plugin):
    await registered(kubelet, plugin)
    file = kubelet.socket.parent / "kubelet_internal_checkpoint"
    before = file.stat().st_ino, file.stat().st_mtime_ns
    plugin.say(many("vf", 8, 0))
    await kubelet.until(lambda: len(kubelet.updates) == 2)
    assert (file.stat().st_ino, file.stat().st_mtime_ns) != before


async def test_an_empty_list_leaves_the_resource_at_zero(kubelet, plugin):
    await registered(kubelet, plugin)
    plugin.say([])
    await kubelet.until(lambda: len(kubelet.updates) == 2)
    assert kubelet.capacity() == {NIC: 0}
    assert kubelet.allocatable() == {NIC: 0}


async def test_a_message_above_4_mib_ends_the_stream_for_good(kubelet, plugin):
    await registered(kubelet, plugin)
    plugin.say([device("x" * (4 << 20))])
    await kubelet.until(lambda: kubelet.ends != [])
    assert "code = ResourceExhausted" in kubelet.ends[0].cause
    assert kubelet.capacity() == {NIC: 8}
    assert kubelet.allocatable() == {NIC: 0}


async def test_a_message_just_below_4_mib_passes(kubelet, plugin):
    await registered(kubelet, plugin)
    plugin.say([device("x" * ((4 << 20) - 100))])
    await kubelet.until(lambda: len(kubelet.updates) == 2)
    assert kubelet.ends == []


async def test_the_end_of_the_stream_keeps_capacity_and_sets_allocatable_to_zero(kubelet, plugin):
    await registered(kubelet, plugin)
    await plugin.stop()
    await kubelet.until(lambda: kubelet.allocatable() == {NIC: 0})
    assert kubelet.capacity() == {NIC: 8}
    assert kubelet.devices(NIC)["vf0"].health == "Healthy", "the health last reported stays"


async def test_after_the_grace_period_the_key_stays_on_the_node_with_zeros(kubelet, plugin):
    await registered(kubelet, plugin)
    await plugin.stop()
    await kubelet.until(lambda: kubelet.allocatable() == {NIC: 0})
    assert kubelet.capacity() == {NIC: 8}
    kubelet.stop_grace_s = 0.0
    assert kubelet.capacity() == {NIC: 0}
    assert kubelet.allocatable() == {NIC: 0}


async def test_the_kubelet_never_reconnects_by_itself(kubelet, plugin):
    await registered(kubelet, plugin)
    plugin.end_streams()
    await kubelet.until(lambda: kubelet.allocatable() == {NIC: 0})
    assert kubelet.ends[0].cause == "EOF"
    other = await Plugin(kubelet.socket.parent / "other.sock", "a/b", many("x", 1)).start()
    await registered(kubelet, other)
    assert len(plugin.called("ListAndWatch")) == 1
    await other.stop()


# The race of a new registration with an old stream.


async def test_the_end_of_an_old_stream_disconnects_the_new_client(kubelet, plugin):
    await registered(kubelet, plugin)
    newer = await Plugin(kubelet.socket.parent / "newer.sock", NIC, many("vf", 8, 0)).start()
    await registered(kubelet, newer)
    assert kubelet.allocatable() == {NIC: 8}
    assert (plugin.streams, newer.streams) == (1, 1), "the old stream is not closed by a new registration"
    plugin.end_streams()
    await kubelet.until(lambda: kubelet.allocatable() == {NIC: 0})
    await kubelet.until(lambda: len(kubelet.ends) == 2)
    assert "Canceled" in kubelet.ends[1].cause
    await registered(kubelet, newer)
    assert kubelet.allocatable() == {NIC: 8}
    await newer.stop()


async def test_the_list_is_that_of_the_last_message_and_allocate_goes_to_the_last_registration(
    kubelet, plugin
):
    await registered(kubelet, plugin)
    newer = await Plugin(kubelet.socket.parent / "newer.sock", NIC, many("new", 3)).start()
    await registered(kubelet, newer)
    assert set(kubelet.devices(NIC)) == {"new0", "new1", "new2"}
    plugin.say(many("vf", 8))
    await kubelet.until(lambda: kubelet.allocatable() == {NIC: 8})
    assert (await kubelet.admit(PodSpec.single("p", {NIC: 1}))).admitted
    assert (len(plugin.called("Allocate")), len(newer.called("Allocate"))) == (0, 1)
    await newer.stop()


async def test_the_end_of_the_newer_plugin_leaves_a_stopped_endpoint_to_the_older_ones_stream(
    kubelet, plugin
):
    await registered(kubelet, plugin)
    newer = await Plugin(kubelet.socket.parent / "newer.sock", NIC, many("new", 3)).start()
    await registered(kubelet, newer)
    newer.end_streams()
    await kubelet.until(lambda: kubelet.allocatable() == {NIC: 0})
    assert (kubelet.capacity(), plugin.streams) == ({NIC: 3}, 1)
    plugin.say(many("vf", 7))
    await kubelet.until(lambda: kubelet.allocatable() == {NIC: 7})
    refused = await kubelet.admit(PodSpec.single("p", {NIC: 1}))
    assert "has been stopped" in refused.message, "counted, and nobody can be asked"
    plugin.end_streams()
    await kubelet.until(lambda: len(kubelet.ends) == 2)
    await registered(kubelet, plugin)
    assert (await kubelet.admit(PodSpec.single("q", {NIC: 1}))).admitted
    await newer.stop()


async def test_without_the_bug_the_end_of_an_old_stream_has_no_effect(folder):
    kubelet = Kubelet(folder, bug_127803=False)
    await kubelet.start()
    older = await Plugin(kubelet.socket.parent / "older.sock", NIC, many("vf", 8)).start()
    newer = await Plugin(kubelet.socket.parent / "newer.sock", NIC, many("vf", 8)).start()
    await registered(kubelet, older)
    await registered(kubelet, newer)
    older.end_streams()
    await kubelet.until(lambda: len(kubelet.ends) == 1)
    newer.say(many("vf", 7))
    await kubelet.until(lambda: len(kubelet.updates) == 3)
    assert kubelet.allocatable() == {NIC: 7}
    await older.stop()
    await newer.stop()
    await kubelet.stop()


async def test_a_plugin_that_closes_first_and_registers_then_is_safe(kubelet, plugin):
    await registered(kubelet, plugin)
    await plugin.stop()
    await kubelet.until(lambda: len(kubelet.ends) == 1)
    await plugin.start()
    await registered(kubelet, plugin)
    assert kubelet.allocatable() == {NIC: 8}
    assert plugin.streams == 1


async def test_a_server_bound_again_on_the_same_path_gets_the_new_dial(kubelet, plugin):
    await registered(kubelet, plugin)
    newer = await Plugin(plugin.socket, NIC, many("new", 3)).start()
    await registered(kubelet, newer)
    assert set(kubelet.devices(NIC)) == {"new0", "new1", "new2"}
    assert len(plugin.called("GetDevicePluginOptions")) == 1
    await newer.stop()


# The process.


async def test_a_start_removes_sockets_and_nothing_else(folder):
    plugins = folder / "device-plugins"
    (plugins / "kept").mkdir(parents=True)
    (plugins / "kept.txt").write_text("kept")
    for name in ("stale.sock", "kubelet.sock"):
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(plugins / name))
    kubelet = Kubelet(folder)
    await kubelet.start()
    names = {path.name for path in plugins.iterdir()}
    assert names == {"kept", "kept.txt", "kubelet.sock", "DEPRECATION"}
    await kubelet.stop()
    assert not kubelet.socket.exists()


async def test_a_killed_kubelet_leaves_its_socket_and_breaks_every_stream(kubelet, plugin):
    await registered(kubelet, plugin)
    inode = kubelet.socket.stat().st_ino
    await kubelet.kill()
    assert stat.S_ISSOCK(kubelet.socket.stat().st_mode)
    assert kubelet.socket.stat().st_ino == inode
    with socket.socket(socket.AF_UNIX) as probe, pytest.raises(ConnectionRefusedError):
        probe.connect(str(kubelet.socket))
    await plugin.until(lambda: plugin.streams == 0)
    assert kubelet.capacity() == {NIC: 8}, "the Node keeps its latest values"


async def test_after_a_restart_known_resources_count_zero_until_their_plugin_returns(kubelet, plugin):
    await registered(kubelet, plugin)
    await kubelet.restart()
    assert not plugin.socket.exists(), "the plugin's own socket is gone"
    assert kubelet.capacity() == {NIC: 0}
    await plugin.stop()
    await plugin.start()
    await registered(kubelet, plugin)
    assert kubelet.capacity() == {NIC: 8}


async def test_a_missing_checkpoint_zeroes_the_nodes_resources(kubelet, plugin):
    await registered(kubelet, plugin)
    await kubelet.stop()
    assert kubelet.capacity() == {NIC: 8}
    (kubelet.socket.parent / "kubelet_internal_checkpoint").unlink()
    await kubelet.start()
    assert kubelet.capacity() == {NIC: 0}


@pytest.mark.parametrize(
    "damage", [b"", b"{", b'{"Data":{"PodDeviceEntries":[],"RegisteredDevices":{}},"Checksum":1}']
)
async def test_a_damaged_checkpoint_is_ignored(folder, damage):
    (folder / "device-plugins").mkdir()
    (folder / "device-plugins" / "kubelet_internal_checkpoint").write_bytes(damage)
    kubelet = Kubelet(folder)
    await kubelet.start()
    assert kubelet.capacity() == {}
    await kubelet.stop()


async def listens(path):
    try:
        _, writer = await asyncio.open_unix_connection(path)
    except ConnectionRefusedError:
        return False
    writer.close()
    await writer.wait_closed()
    return True


async def test_the_socket_can_exist_before_it_listens(folder):
    kubelet = Kubelet(folder)
    await kubelet.start(listen_delay_s=0.05)
    inode = kubelet.socket.stat().st_ino
    with socket.socket(socket.AF_UNIX) as probe, pytest.raises(ConnectionRefusedError):
        probe.connect(os.fspath(kubelet.socket))
    plugin = await Plugin(kubelet.socket.parent / "p.sock", NIC, many("vf", 2)).start()
    async with asyncio.timeout(5):
        while not await listens(kubelet.socket):
            await asyncio.sleep(0.01)
    await plugin.register(kubelet.socket)
    await kubelet.until(lambda: kubelet.allocatable() == {NIC: 2})
    assert kubelet.socket.stat().st_ino == inode, "bound once, as a real one is"
    await kubelet.kill()
    assert kubelet.socket.stat().st_ino == inode
    await plugin.stop()


async def test_two_kubelets_cannot_run_as_one(kubelet):
    with pytest.raises(RuntimeError, match="already runs"):
        await kubelet.start()


def test_a_directory_too_deep_for_sockets_is_refused(tmp_path):
    kubelet = Kubelet(tmp_path / ("x" * 100))
    with pytest.raises(ValueError, match="shorter directory"):
        asyncio.run(kubelet.start())


async def test_a_wait_that_times_out_shows_the_state(kubelet, plugin):
    await registered(kubelet, plugin)
    with pytest.raises(TimeoutError, match="nic0"):
        await kubelet.until(lambda: False, timeout_s=0.01)


# plugins_registry.


@pytest.fixture
async def found(kubelet):
    plugin = await Plugin(kubelet.plugins_registry / "nic0.sock", NIC, many("vf", 8)).start()
    yield plugin
    await plugin.stop()


async def test_a_socket_in_plugins_registry_is_registered_and_notified(kubelet, found):
    await kubelet.until(lambda: kubelet.allocatable() == {NIC: 8})
    await found.until(lambda: found.statuses)
    assert found.statuses[0].plugin_registered
    await kubelet.until(lambda: kubelet.registrations != [])
    assert kubelet.registrations[0].via == "plugins_registry"
    assert kubelet.registrations[0].error is None


async def test_a_socket_in_plugins_registry_survives_a_kubelet_restart(kubelet, found):
    await kubelet.until(lambda: kubelet.allocatable() == {NIC: 8})
    await kubelet.restart()
    assert found.socket.exists()
    await kubelet.until(lambda: kubelet.allocatable() == {NIC: 8})
    assert len(found.called("GetInfo")) == 2


async def test_a_name_that_begins_with_a_dot_is_skipped(kubelet):
    hidden = await Plugin(kubelet.plugins_registry / ".hidden.sock", "a/hidden", many("h", 1)).start()
    (kubelet.plugins_registry / "deeper").mkdir()
    deeper = await Plugin(kubelet.plugins_registry / "deeper" / "p.sock", "a/deeper", many("d", 1)).start()
    await kubelet.until(lambda: kubelet.allocatable() == {"a/deeper": 1})
    assert hidden.calls == []
    await hidden.stop()
    await deeper.stop()


async def test_a_plugin_that_fails_validation_gets_the_reason(kubelet):
    plugin = await Plugin(
        kubelet.plugins_registry / "old.sock", NIC, many("vf", 8), versions=("v1alpha",)
    ).start()
    await plugin.until(lambda: plugin.statuses)
    assert not plugin.statuses[0].plugin_registered
    assert "validation failed" in plugin.statuses[0].error
    assert "v1alpha" in plugin.statuses[0].error
    await plugin.stop()


async def test_a_plugin_of_another_type_gets_the_reason(kubelet):
    plugin = await Plugin(kubelet.plugins_registry / "csi.sock", NIC, [], kind="CSIPlugin").start()
    await plugin.until(lambda: plugin.statuses)
    assert "CSIPlugin" in plugin.statuses[0].error
    await plugin.stop()


async def test_a_refused_plugin_is_retried_later(kubelet):
    kubelet.refuse("not yet")
    plugin = await Plugin(kubelet.plugins_registry / "nic0.sock", NIC, many("vf", 8)).start()
    await plugin.until(lambda: plugin.statuses)
    kubelet.refuse(None)
    await kubelet.until(lambda: kubelet.allocatable() == {NIC: 8})
    assert not plugin.statuses[0].plugin_registered
    await plugin.stop()


async def test_the_service_may_be_on_another_socket(kubelet):
    service = await Plugin(kubelet.directory / "service.sock", NIC, many("vf", 8)).start()
    door = await Plugin(kubelet.plugins_registry / "door.sock", NIC, [], endpoint=str(service.socket)).start()
    await kubelet.until(lambda: kubelet.allocatable() == {NIC: 8})
    assert service.called("ListAndWatch")
    assert not door.called("ListAndWatch")
    await door.stop()
    await service.stop()


async def test_a_removed_socket_deregisters_its_plugin(kubelet, found):
    await kubelet.until(lambda: kubelet.allocatable() == {NIC: 8})
    found.socket.unlink()
    await kubelet.until(lambda: kubelet.allocatable() == {NIC: 0})
    assert kubelet.capacity() == {NIC: 8}


async def test_a_replaced_socket_is_registered_again(kubelet, found):
    await kubelet.until(lambda: kubelet.allocatable() == {NIC: 8})
    await found.stop()
    again = await Plugin(found.socket, NIC, many("vf", 5)).start()
    await kubelet.until(lambda: kubelet.allocatable() == {NIC: 5})
    await again.stop()


async def test_a_client_that_connects_while_a_slow_listener_ends_causes_no_error(tmp_path: Path) -> None:
    """Cancel the listener in the pass of the event loop that also finds the connection."""
    loop = asyncio.get_running_loop()
    errors: list[object] = []
    loop.set_exception_handler(lambda _loop, context: errors.append(context))
    listener = GrpcListener(tmp_path / "kubelet.sock", (), tmp_path)
    await listener.start(listen_delay_s=0.001)
    with socket.socket(socket.AF_UNIX) as client:
        await until(lambda: client.connect_ex(str(listener.path)) == 0)
    with socket.socket(socket.AF_UNIX) as client:
        await asyncio.sleep(0.01)  # the first connection is accepted
        client.connect(str(listener.path))
        await asyncio.sleep(0)  # the loop has seen the connection
        await listener.stop()
        await asyncio.sleep(0)
    assert not errors
