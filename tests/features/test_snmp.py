"""Two real leaf switches below a real spine, read by SNMP: snmpd with lldpd's LLDP-MIB in network namespaces.

The leaves also have a server that forwards and a management switch as neighbors: neither is an upper switch.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from nodeagent.controller import Controller, ReplicaSettings
from nodeagent.controller_config import FabricConfig
from nodeagent.fabric import IMMEDIATE, Planner
from nodeagent.fabric.nodelinks import LinkNeighbor, NodeLink, NodeLinks, ReportedId
from nodeagent.fabric.uplinks import MANAGEMENT_PORTS
from nodeagent.features.switches import snmp as snmp_reader
from nodeagent.features.switches.credentials import SwitchCredentials, read_credentials
from nodeagent.features.switches.snmp import SnmpReader
from nodeagent.features.switches.switch_poller import SwitchError, SwitchPoller
from nodeagent.features.switches.switch_reading import SwitchReading
from nodeagent.features.switches.switch_settings import SnmpSettings, SwitchAddress, SwitchesSettings
from nodeagent.kube.access import Access
from nodeagent_lab.sim.apiserver import ApiServer
from tests.controller.test_controller import nodelinks
from tests.support.namespaces import Lldpd, Netns, veth
from tests.support.snmpd import COMMUNITY, PASSWORD, USERS, Switch, user
from tests.support.waiting import LIMIT_S, until

pytestmark = pytest.mark.needs("root", "ip", "lldpd", "snmpd")

SWITCH = ("configure lldp tx-interval 1", "configure system capabilities enabled bridge,router")
V2C = SwitchCredentials("/secret", {"community": COMMUNITY.encode()})


class Rig:
    """``controller`` is the namespace of the controller, ``leaf`` the switches by name."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self.controller, first, second, above, server = (stack.enter_context(Netns()) for _ in range(5))
        for ns in (self.controller, first, second, above, server):
            ns.ip("link set lo up")
        for number, leaf in enumerate((first, second), 1):
            veth(leaf, "swp49", above, f"swp{number}")
            veth(self.controller, f"leaf{number}", leaf, "mgmt0")
            self.controller.ip(f"addr add 10.77.{number}.1/24 dev leaf{number}")
            leaf.ip(f"addr add 10.77.{number}.2/24 dev mgmt0")
        veth(first, "swp1", server, "eth0")
        above.ip("addr add 10.77.9.9/32 dev lo")
        self.leaf = {
            name: stack.enter_context(Switch(ns, name)) for name, ns in (("leaf1", first), ("leaf2", second))
        }
        stack.enter_context(
            Lldpd(above, "spine1", settings=(*SWITCH, "configure system ip management pattern 10.77.9.*"))
        )
        stack.enter_context(Lldpd(server, "node-00", settings=SWITCH))
        stack.enter_context(Lldpd(self.controller, "management", settings=SWITCH))

    async def read(
        self, snmp: SnmpReader, credentials: SwitchCredentials = V2C, address: str = "10.77.1.2"
    ) -> SwitchReading:
        with self.controller.entered():
            return await snmp.read(address, credentials)


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with contextlib.ExitStack() as stack:
        rig = Rig(stack)

        async def wait_for_lldp() -> None:
            snmp = SnmpReader(SnmpSettings(version="v2c"), timeout_s=2)
            for address, names in (("10.77.1.2", 3), ("10.77.2.2", 2)):
                async with asyncio.timeout(LIMIT_S):
                    while True:
                        with contextlib.suppress(SwitchError):
                            reading = await rig.read(snmp, address=address)
                            if reading.name and len({one.name for one in reading.neighbors}) == names:
                                break
                        await asyncio.sleep(0.1)

        asyncio.run(wait_for_lldp())
        yield rig


async def test_v2c_reads_the_neighbors_with_their_ports_and_capabilities(rig: Rig):
    reading = await rig.read(SnmpReader(SnmpSettings(version="v2c")))
    assert reading.name == "leaf1"
    assert reading.chassis.startswith("mac=")
    by_name = {one.name: one for one in reading.neighbors}
    assert by_name.keys() == {"spine1", "node-00", "management"}
    spine = by_name["spine1"]
    assert spine.forwards is True
    assert "swp49" in spine.local_ports
    assert spine.chassis.startswith("mac=")
    assert spine.port.startswith("mac=")
    assert "10.77.9.9" in spine.addresses
    assert "mgmt0" in by_name["management"].local_ports


@pytest.mark.parametrize("how", USERS, ids=lambda how: user(*how))
async def test_v3_reads_the_same_with_every_security_level(rig: Rig, how: tuple[str, str]):
    auth, privacy = how
    values = {"username": f"{user(*how)}\n".encode(), "authPassword": PASSWORD.encode()}
    if privacy:
        values["privPassword"] = PASSWORD.encode()
    reading = await rig.read(
        SnmpReader(SnmpSettings(auth=auth, privacy=privacy or "aes128")), SwitchCredentials("/secret", values)
    )
    assert reading.name == "leaf1"
    assert {one.name for one in reading.neighbors} == {"spine1", "node-00", "management"}


@pytest.mark.parametrize(
    ("version", "wrong", "result"),
    [
        ("v2c", {"community": "wr0ng-community"}, "timeout"),
        ("v3", {"authPassword": "wr0ng-password"}, "refused"),
        ("v3", {"username": "wr0ng-nobody"}, "refused"),
        ("v3", {"privPassword": "wr0ng-password"}, "timeout"),
        ("v3", {"authPassword": "short"}, "refused"),
    ],
)
async def test_a_wrong_credential_fails_and_is_never_printed(
    rig: Rig, version: str, wrong: dict[str, str], result: str
):
    right = {
        "community": COMMUNITY,
        "username": user("sha256", "aes128"),
        "authPassword": PASSWORD,
        "privPassword": PASSWORD,
    }
    secret = SwitchCredentials("/secret", {key: value.encode() for key, value in (right | wrong).items()})
    with pytest.raises(SwitchError) as caught:
        await rig.read(SnmpReader(SnmpSettings(version=version), timeout_s=1.2), secret)
    assert caught.value.result == result
    text = f"{caught.value} {secret!r}"
    assert not any(value in text for value in (*right.values(), *wrong.values()))


@pytest.mark.parametrize("key", ["authPassword", "privPassword"])
def test_a_password_of_v3_has_eight_characters_or_more(key: str):
    reader = SnmpReader(SnmpSettings())
    values = {"username": b"reader", "authPassword": b"12345678", "privPassword": b"12345678"}
    reader._user(SwitchCredentials("/secret", values))
    with pytest.raises(SwitchError, match=f"/secret/{key} has less than the 8 characters"):
        reader._user(SwitchCredentials("/secret", values | {key: b"1234567"}))


async def test_a_table_without_an_end_is_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(snmp_reader, "ROWS_MAX", 10)

    class Session:
        def __init__(self, rows: int) -> None:
            self.rows = rows

        async def getbulk(self, column: str, _: int) -> AsyncIterator[tuple[str, int]]:
            for row in range(self.rows):
                yield f"{column}.{row}", row

    deadline = asyncio.get_running_loop().time() + LIMIT_S
    assert len(await snmp_reader._column(Session(10), "1.0.8802", deadline)) == 10
    with pytest.raises(SwitchError, match=r"the table 1\.0\.8802 does not end"):
        await snmp_reader._column(Session(20), "1.0.8802", deadline)


async def test_a_missing_switch_is_an_error(rig: Rig):
    with pytest.raises(SwitchError, match=r"10\.77\.1\.77"):
        await rig.read(SnmpReader(SnmpSettings(version="v2c"), timeout_s=0.6), address="10.77.1.77")
    with pytest.raises(SwitchError, match="cannot be read by SNMP"):
        await rig.read(SnmpReader(SnmpSettings(version="v2c"), timeout_s=0.6), address="192.0.2.1")


def report(node: str, leaf: str, address: str) -> NodeLinks:
    chassis = {"leaf1": "02:00:00:00:01:00", "leaf2": "02:00:00:00:02:00"}[leaf]
    link = NodeLink(
        name="nic0",
        fabric="compute",
        rail=0,
        state="healthy",
        neighbor=LinkNeighbor(
            chassis_id=ReportedId(subtype="mac", value=chassis),
            port_id=ReportedId(subtype="ifname", value=node),
            system_name=leaf,
            management_addresses=(address,),
        ),
    )
    return NodeLinks(node_name=node, links=(link,))


def planner() -> Planner:
    """Two nodes below each leaf."""
    made = Planner(FabricConfig(hysteresis=IMMEDIATE))
    for number, leaf in ((0, "leaf1"), (1, "leaf1"), (2, "leaf2"), (3, "leaf2")):
        made.report(f"node-0{number}", report(f"node-0{number}", leaf, f"10.77.{leaf[-1]}.2"))
    made.plan(0.0)
    return made


@contextlib.asynccontextmanager
async def polling(
    rig: Rig, tmp_path: Path, **more: object
) -> AsyncIterator[tuple[SwitchPoller, Planner, Callable[[], dict[str, tuple[str, ...]]]]]:
    (tmp_path / "community").write_text(COMMUNITY + "\n")
    made = planner()
    values = {"networks": ("10.77.0.0/16",), "timeout_seconds": 5.0, "management_ports": MANAGEMENT_PORTS}
    settings = SwitchesSettings(credentials=str(tmp_path), **{**values, **more})
    poller = SwitchPoller(settings, SnmpReader(SnmpSettings(version="v2c"), timeout_s=3), made, lambda: None)
    with rig.controller.entered():
        yield poller, made, lambda: dict(made.inputs.switch_uplinks)


async def test_two_leaves_below_one_spine_become_a_tier(rig: Rig, tmp_path: Path):
    async with polling(rig, tmp_path) as (poller, made, heard):
        await poller.poll_once()
        assert heard() == {"leaf1": ("spine1",), "leaf2": ("spine1",)}
        (root,) = [one for one in made.plan(1.0).hypernodes if one.tier == 2]
        assert len(root.children) == 2
        assert ("nodeagent.io/derived-from", "spine-lldp") in root.annotations
        assert poller.reads["ok"] == 2
        # The spine reports an address outside the networks, or does not answer there: only the spine has no reading.
        assert poller.states["read"] == 2


async def test_only_configured_networks_are_polled(rig: Rig, tmp_path: Path):
    async with polling(rig, tmp_path, networks=("10.77.1.0/24",)) as (poller, _, heard):
        await poller.poll_once()
        assert heard() == {"leaf1": ("spine1",)}
        assert poller.states["no-address"] >= 1
        assert poller.reads["ok"] == 1
    configured = (SwitchAddress(switch="LEAF2.example", address="10.77.2.2"),)
    async with polling(rig, tmp_path, networks=(), addresses=configured) as (poller, _, heard):
        await poller.poll_once()
        assert heard() == {"leaf2": ("spine1",)}


async def test_an_answer_of_another_switch_is_rejected(rig: Rig, tmp_path: Path):
    configured = (SwitchAddress(switch="leaf1", address="10.77.2.2"),)
    async with polling(rig, tmp_path, addresses=configured) as (poller, _, heard):
        await poller.poll_once()
        assert heard() == {"leaf2": ("spine1",)}
        assert poller.reads["other-switch"] == 1
        assert "answers as leaf2" in poller.errors["leaf1"]


@pytest.mark.slow
async def test_a_switch_that_stops_answering_keeps_its_last_reading_and_is_logged_once(
    rig: Rig, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO)
    async with polling(rig, tmp_path, timeout_seconds=1.0, upwards=False) as (poller, _, heard):
        await poller.poll_once()
        before = heard()
        rig.leaf["leaf2"].stop_agent()
        try:
            await poller.poll_once()
            await poller.poll_once()
            assert heard() == before == {"leaf1": ("spine1",), "leaf2": ("spine1",)}
            assert poller.states == {"read": 1, "silent": 1}
            assert poller.errors.keys() == {"leaf2"}
            lines = [
                record.getMessage()
                for record in caplog.records
                if "Cannot read the LLDP neighbors" in record.message
            ]
            assert len(lines) == 1
            assert COMMUNITY not in caplog.text
        finally:
            rig.leaf["leaf2"].start()
        async with asyncio.timeout(LIMIT_S):
            # lldpd reconnects to its master by itself; until then the SNMP agent has no LLDP.
            while poller.errors:
                await poller.poll_once()
                await asyncio.sleep(0.1)
        assert heard() == before
        assert "Switches answer again" in caplog.text


async def test_credentials_are_read_in_each_round_and_may_be_missing(rig: Rig, tmp_path: Path):
    async with polling(rig, tmp_path, upwards=False) as (poller, _, heard):
        (tmp_path / "community").unlink()
        await poller.poll_once()
        assert "community does not exist" in poller.errors["leaf1"]
        assert heard() == {}
        (tmp_path / "community").write_text(COMMUNITY)
        await poller.poll_once()
        assert heard().keys() == {"leaf1", "leaf2"}
        assert not poller.errors


async def test_the_leader_polls_and_a_tier_appears_in_the_cluster(rig: Rig, tmp_path: Path):
    (tmp_path / "community").write_text(COMMUNITY)
    config = FabricConfig(
        hysteresis=IMMEDIATE,
        switches=SwitchesSettings(
            method="snmp",
            credentials=str(tmp_path),
            networks=("10.77.0.0/16",),
            interval_seconds=0.5,
            timeout_seconds=5.0,
            snmp=SnmpSettings(version="v2c"),
        ),
    )
    with rig.controller.entered():
        server = await ApiServer().start()
        for number, leaf in ((0, "leaf1"), (1, "leaf1"), (2, "leaf2"), (3, "leaf2")):
            name = f"node-0{number}"
            server.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
            body = nodelinks(name, [leaf])
            body["links"][0]["neighbor"]["managementAddresses"] = [f"10.77.{leaf[-1]}.2"]
            server.put(body)
        place = ReplicaSettings("nodeagent", "a", None, 0.05, 3.0, 2.0, 0.2)
        controller = Controller(config, Access(server.url, token=server.token()), place)
        task = asyncio.create_task(controller.run())
        try:
            await until(lambda: [one for one in server.objects("hypernodes") if one["spec"]["tier"] == 2])
            await until(lambda: controller.fabric.parts.features["switches"].shown.rounds)
            text = controller.pages.metrics("").body.decode()
            assert 'nodeagent_switches{state="read"} 2.0\n' in text
            assert 'nodeagent_switch_reads_total{result="ok"}' in text
            for found in server.objects("nodelinks") + server.objects("hypernodes"):
                assert COMMUNITY not in str(found)
        finally:
            task.cancel()
            await asyncio.wait((task,))
            await server.stop()


def test_no_repr_contains_a_credential(tmp_path: Path):
    (tmp_path / "authPassword").write_text(PASSWORD)
    assert PASSWORD not in repr(read_credentials(str(tmp_path)))
