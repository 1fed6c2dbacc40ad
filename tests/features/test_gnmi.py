"""gNMI against a stand-in server that splits the tree at any level and rejects some methods."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.features.switches import gnmi, openconfig
from nodeagent.features.switches import gnmi_pb2 as pb
from nodeagent.features.switches.credentials import SwitchCredentials
from nodeagent.features.switches.gnmi import GnmiReader
from nodeagent.features.switches.openconfig import Step
from nodeagent.features.switches.switch_poller import SwitchPoller
from nodeagent.features.switches.switch_reading import SwitchError
from nodeagent.features.switches.switch_settings import GnmiSettings, SwitchAddress, SwitchesSettings
from tests.features.test_snmp import planner
from tests.support.certificates import Authority
from tests.support.gnmi_server import Habits, Server, cut, neighbor, tree

TREE = tree(
    "leaf1",
    {
        "Ethernet49": [
            neighbor("spine1", "0200.0000.1101", "Ethernet1", "MAC_BRIDGE", "ROUTER", addresses=["10.0.9.1"])
        ],
        "Ethernet50": [
            neighbor("spine2", "02:00:00:00:11:02", "Ethernet1", "ROUTER", state={"management-address": "10.0.9.2,x"})
        ],
        "Ethernet1": [neighbor("node-00", "02:00:00:00:22:01", "eth0", "STATION_ONLY")],
        "Management0": [
            neighbor("oob", "02:00:00:00:33:01", "7", "MAC_BRIDGE"),
            neighbor("oob2", "02:00:00:00:33:02", "8", id="2"),
        ],
        "Ethernet2": [],
    },
)  # fmt: skip
SECRET = SwitchCredentials("/secret", {"username": b"reader\n", "password": b"pa55-of-tests\n"})
EVERY_FORM = {
    "subtrees": Habits(),
    "leaf by leaf": Habits(cut=99),
    "leaf by leaf, PROTO": Habits(cut=99, encodings=(pb.Encoding.PROTO,)),
    "whole": Habits(cut=0),
    "names with modules": Habits(module="openconfig-lldp:", cut=1),
    "only Get": Habits(subscribe=False),
    "only Get, JSON": Habits(subscribe=False, encodings=(pb.Encoding.JSON,)),
    "stays open": Habits(stays_open=True),
    # sonic-gnmi: no ONCE, a target in the prefix, an origin in each path, no type but ALL
    "SONiC": Habits(
        subscribe=False,
        origin="openconfig",
        target=True,
        types=(pb.GetRequest.DataType.ALL,),
        encodings=(pb.Encoding.JSON_IETF,),
    ),
    "no origin": Habits(origin=""),
    "only Get without origin": Habits(subscribe=False, origin="", encodings=(pb.Encoding.JSON,)),
    "an answer only for [name=*]": Habits(keys="*"),
    "an answer to Get only for [name=*]": Habits(subscribe=False, keys="*"),
}


def plain(port: int, **more: Any) -> GnmiReader:
    return GnmiReader(GnmiSettings(tls=False), port=port, **more)


@pytest.mark.parametrize("habits", EVERY_FORM.values(), ids=EVERY_FORM)
async def test_every_form_of_answer_is_decoded(habits: Habits):
    async with Server(TREE, habits) as server, asyncio.timeout(20):
        reader = plain(server.port)
        reading = await reader.read("127.0.0.1", SECRET)
        assert (reading.name, reading.chassis) == ("leaf1", "mac=02:00:00:00:00:01")
        by_name = {one.name: one for one in reading.neighbors}
        assert by_name.keys() == {"spine1", "spine2", "node-00", "oob", "oob2"}
        spine = by_name["spine1"]
        assert (spine.chassis, spine.port) == ("mac=02:00:00:00:11:01", "ifname=Ethernet1")
        assert spine.local_ports == ("Ethernet49",)
        assert spine.addresses == ("10.0.9.1",)
        assert by_name["spine2"].addresses == ("10.0.9.2",)
        assert {name: one.forwards for name, one in by_name.items()} == {
            "spine1": True,
            "spine2": True,
            "node-00": False,
            "oob": True,
            "oob2": None,
        }
        methods = len(habits.asked)
        assert await reader.read("127.0.0.1", SECRET) == reading
        assert len(habits.asked) == methods + 1, "the method that works is used first"


@given(st.integers(0, 12))
def test_every_split_of_the_tree_gives_the_same_reading(depth: int):
    whole = openconfig.reading_of(openconfig.leaves((), TREE))
    leaves = [
        leaf
        for at, value in cut((), TREE, depth)
        for leaf in openconfig.leaves(tuple(openconfig.step(name, keys.items()) for name, keys in at), value)
    ]
    assert openconfig.reading_of(leaves) == whole
    assert len(whole.neighbors) == 5


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["id", "name", "state", "neighbor", "interface", "enabled", "x"]), inner)
    ),
    max_leaves=20,
)  # fmt: skip
NEIGHBORS = ("lldp", "interfaces", "interface", "neighbors", "neighbor")


@given(JSON, st.integers(0, 5))
def test_unknown_values_are_ignored(value: Any, depth: int):
    openconfig.reading_of(openconfig.leaves(tuple(Step(name, "1") for name in NEIGHBORS[:depth]), value))


async def test_a_password_is_sent_to_the_switch_and_never_printed():
    async with Server(TREE, Habits(password="pa55-of-tests")) as server, asyncio.timeout(20):
        assert (await plain(server.port).read("127.0.0.1", SECRET)).name == "leaf1"
        wrong = SwitchCredentials("/secret", {"username": b"reader", "password": b"wr0ng"})
        with pytest.raises(SwitchError, match="refuses username and password") as caught:
            await plain(server.port).read("127.0.0.1", wrong)
        assert caught.value.result == "refused"
        assert "wr0ng" not in str(caught.value)
        with pytest.raises(SwitchError, match="ASCII"):
            await plain(server.port).read(
                "127.0.0.1", SwitchCredentials("/secret", {"password": "ä".encode()})
            )


@pytest.mark.parametrize(
    "raw",
    [b"{", b"[" * 100_000, json.dumps({"a": 1}).encode() * 2, b"\xff"],
    ids=["half", "deep", "twice", "no text"],
)
async def test_a_malformed_answer_is_an_error(raw: bytes):
    async with Server(TREE, Habits(raw=raw)) as server, asyncio.timeout(20):
        with pytest.raises(SwitchError):
            await plain(server.port).read("127.0.0.1", SECRET)


@pytest.mark.parametrize("subscribe", [True, False])
async def test_an_answer_that_is_no_gnmi_is_an_error_and_no_traceback(
    subscribe: bool, caplog: pytest.LogCaptureFixture
):
    habits = Habits(subscribe=subscribe, garbage=b"\xff\xff\xff")
    async with Server(TREE, habits) as server, asyncio.timeout(20):
        with pytest.raises(SwitchError, match="the answer is no gNMI"):
            await plain(server.port).read("127.0.0.1", SECRET)
    assert [record.name for record in caplog.records if record.exc_info] == []


async def test_too_many_neighbors_are_an_error():
    many = [neighbor(f"s{n}", f"02:00:00:00:{n >> 8:02x}:{n & 255:02x}", "1", id=str(n)) for n in range(4097)]
    async with Server(tree("leaf1", {"Ethernet1": many})) as server, asyncio.timeout(60):
        with pytest.raises(SwitchError, match="more than 4096"):
            await plain(server.port).read("127.0.0.1", SECRET)


async def test_a_subscription_of_too_many_bytes_is_an_error(monkeypatch: pytest.MonkeyPatch):
    many = [neighbor(f"s{n}", f"02:00:00:00:00:{n:02x}", "1", id=str(n)) for n in range(40)]
    monkeypatch.setattr(gnmi, "ANSWER_MAX", 4000)
    async with Server(tree("leaf1", {"Ethernet1": many}), Habits(cut=99)) as server, asyncio.timeout(60):
        with pytest.raises(SwitchError, match="more than 4000 bytes"):
            await plain(server.port).read("127.0.0.1", SECRET)


async def test_a_switch_without_neighbors_is_named_and_its_last_neighbors_stay(tmp_path: Path, caplog):
    made = planner()
    empty = tree("leaf1", {"Ethernet1": []})
    settings = SwitchesSettings(
        credentials=str(tmp_path),
        addresses=(SwitchAddress(switch="leaf1", address="127.0.0.1"),),
        upwards=False,
        management_ports=("Management*",),
    )
    async with Server(TREE) as server, asyncio.timeout(60):
        poller = SwitchPoller(settings, plain(server.port), made, lambda: None)
        await poller.poll_once()
        assert poller.reads == {"ok": 1}
        server.tree = empty
        for _ in range(2):
            await poller.poll_once()
        assert poller.reads == {"ok": 1, "no-neighbors": 2}
        assert poller.states["read"] == 1
        assert "reports no LLDP neighbors, though others receive its frames" in poller.errors["leaf1"]
        assert caplog.text.count("leaf1") == 1, "one line for a transition"
        assert made.inputs.switch_uplinks == {"leaf1": ("spine1", "spine2")}
        server.tree = TREE
        await poller.poll_once()
        assert not poller.errors


async def test_a_switch_without_a_supported_method_or_without_an_answer_is_an_error():
    async with Server(TREE, Habits(encodings=())) as server, asyncio.timeout(20):
        with pytest.raises(SwitchError, match="supports neither"):
            await plain(server.port).read("127.0.0.1", SECRET)
        port = server.port
    with pytest.raises(SwitchError) as caught:
        await plain(port).read("127.0.0.1", SECRET)
    assert caught.value.result == "unreachable"


@pytest.mark.needs("openssl")
async def test_tls_trusts_the_ca_of_the_credentials_and_no_other(tmp_path: Path):
    ours, other = Authority(tmp_path / "ours"), Authority(tmp_path / "other")
    certificate, key = ours.sign("leaf1")
    client_certificate, client_key = ours.sign("controller")
    credentials = grpc.ssl_server_credentials(
        [(key.read_bytes(), certificate.read_bytes())], ours.certificate.read_bytes(), True
    )
    files = {
        "ca.crt": ours.certificate.read_bytes(),
        "tls.crt": client_certificate.read_bytes(),
        "tls.key": client_key.read_bytes(),
    }
    async with Server(TREE, tls=credentials) as server, asyncio.timeout(30):
        assert (
            await GnmiReader(port=server.port).read("127.0.0.1", SwitchCredentials("/s", files))
        ).name == "leaf1"
        elsewhere = GnmiSettings(server_name="leaf1.example")
        named = GnmiReader(GnmiSettings(server_name="localhost"), port=server.port)
        assert (await named.read("127.0.0.1", SwitchCredentials("/s", files))).name == "leaf1"
        for wrong in (
            {**files, "ca.crt": other.certificate.read_bytes()},
            {"ca.crt": files["ca.crt"]},
        ):
            with pytest.raises(SwitchError) as caught:
                await GnmiReader(port=server.port).read("127.0.0.1", SwitchCredentials("/s", wrong))
            assert caught.value.result == "unreachable"
        with pytest.raises(SwitchError, match=r"only one of tls\.crt and tls\.key"):
            await GnmiReader(port=server.port).read("127.0.0.1", SwitchCredentials("/s", {"tls.crt": b"x"}))
        with pytest.raises(SwitchError):
            await GnmiReader(elsewhere, server.port).read("127.0.0.1", SwitchCredentials("/s", files))


@pytest.mark.slow
async def test_a_hanging_switch_does_not_delay_the_others(tmp_path: Path):
    made = planner()
    passed = []
    async with Server(TREE, Habits()) as server:
        reader = plain(server.port)

        class HalfHanging:
            """One of the two switches hangs."""

            async def read(self, address: str, credentials: SwitchCredentials):
                if address == "127.0.0.2":
                    await asyncio.Event().wait()
                return await reader.read(address, credentials)

        settings = SwitchesSettings(
            credentials=str(tmp_path),
            addresses=(
                SwitchAddress(switch="leaf1", address="127.0.0.1"),
                SwitchAddress(switch="leaf2", address="127.0.0.2"),
            ),
            timeout_seconds=1.0,
            upwards=False,
            management_ports=("Management*",),
        )
        poller = SwitchPoller(settings, HalfHanging(), made, lambda: passed.append(1))
        async with asyncio.timeout(20):
            await poller.poll_once()
            await poller.poll_once()
        assert made.inputs.switch_uplinks == {"leaf1": ("spine1", "spine2")}
        assert passed == [1], "equal uplinks are not passed again"
        assert poller.reads == {"ok": 2, "timeout": 2}
        assert "leaf2" in poller.errors
