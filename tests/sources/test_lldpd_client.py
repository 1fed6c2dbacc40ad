"""lldpd as a source: the real lldpcli, and commands that fail."""

from __future__ import annotations

import asyncio
import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from nodeagent.base.supervise import keep
from nodeagent.facts.model import Identifier, Neighbor
from nodeagent.lldp.lldpd_json import LldpdError, keep_stale, neighbors_of
from nodeagent.sources import lldpd_client
from nodeagent.sources.source_settings import LinkSelect
from tests.sources.test_lldp_source import OFTEN, running
from tests.support.namespaces import Lldpd, Netns, veth


def answer(*interfaces: dict[str, object]) -> bytes:
    return json.dumps({"lldp": [{"interface": list(interfaces)}]}).encode()


def interface(**fields: object) -> dict[str, object]:
    return {
        "name": "swp1",
        "via": "LLDP",
        "chassis": [{"id": [{"type": "mac", "value": "02:00:00:00:00:01"}]}],
        "port": [{"id": [{"type": "ifname", "value": "Ethernet1"}], "ttl": [{"value": "120"}]}],
        **fields,
    }


ONE = Neighbor(
    "swp1", Identifier("mac", "02:00:00:00:00:01"), Identifier("ifname", "Ethernet1"), confirmed=True
)


@pytest.mark.needs("root", "ip", "nsenter", "lldpd", "lldpcli")
async def test_a_real_lldpd_reports_the_same_neighbors_as_our_own_sockets():
    with Netns() as near, Netns() as far:
        veth(near, "swp1", far, "b0")
        far.ip("addr add 192.0.2.17/32 dev b0")
        settings = (
            *OFTEN,
            "configure lldp portidsubtype local Ethernet17/1",
            "configure lldp portdescription 'node-7 rail 0'",
            "configure system description 'a switch'",
            "configure system ip management pattern 192.0.2.17",
            "configure system capabilities enabled bridge,router",
        )
        with Lldpd(far, "leaf-1", settings=settings), Lldpd(near, "node-7", settings=OFTEN) as host:
            published: asyncio.Queue[tuple[Neighbor, ...]] = asyncio.Queue()
            async with running(near, "swp*") as agent:

                async def read() -> None:
                    await lldpd_client.watch_lldpd(
                        LinkSelect(netdevs=("swp*",)),
                        tuple,
                        lambda neighbors, _: published.put_nowait(neighbors),
                        host.cli("-f", "json0", "show", "neighbors", "details"),
                        interval_s=0.2,
                    )

                # As in the agent: the socket of lldpd may appear later.
                reading = asyncio.create_task(keep("lldpd", read, first_s=0.1, max_s=0.1))
                try:
                    async with asyncio.timeout(20):
                        while not (theirs := await published.get()) or theirs[0].system_description is None:
                            pass
                    await agent.until(
                        lambda: tuple(replace(n, source=None) for n in agent.neighbors) == theirs
                    )
                finally:
                    reading.cancel()
    assert theirs[0].management_addresses == ("192.0.2.17",)
    assert theirs[0].system_description == "a switch"


def test_absent_values_are_none_and_other_protocols_are_not_lldp():
    assert neighbors_of(answer(interface(), interface(via="CDPv2"))) == (ONE,)


def test_the_neighbor_of_the_greatest_age_in_lldpd_is_the_first_of_its_link():
    def aged(age, chassis):
        return interface(age=age, chassis=[{"id": [{"type": "local", "value": chassis}]}])

    ages = {"0 day, 00:01:02": "c", "12 days, 03:00:00": "b", "11 days, 23:59:59": "a", "odd": "d"}
    found = neighbors_of(answer(*(aged(age, chassis) for age, chassis in ages.items())))
    assert [one.chassis_id.value for one in found] == ["b", "a", "c", "d"]
    assert [one.contender for one in found] == [False, True, True, True]


def test_an_lldpd_without_neighbors_has_none():
    assert neighbors_of(b'{"lldp": [{}]}') == ()


@pytest.mark.parametrize("wrong", [b"", b"{}", b"[]", b'{"lldp": [{"interface": [{"name": 1}]}]}', b"\xff"])
def test_an_invalid_answer_is_an_error_that_shows_its_beginning(wrong):
    with pytest.raises(LldpdError, match="not lldpcli's json0"):
        neighbors_of(wrong)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(
            st.sampled_from(
                ["lldp", "interface", "name", "chassis", "port", "id", "type", "value", "mfs", "vlan"]
            ),
            inner,
        )
    ),
    max_leaves=20,
)


@given(json_values)
def test_any_json_decodes_or_raises_lldpd_error(value):
    try:
        found = neighbors_of(json.dumps({"lldp": [{"interface": [value]}]}).encode())
    except LldpdError:
        return
    assert all(isinstance(one, Neighbor) for one in found)


def test_a_neighbor_that_is_no_longer_listed_is_stale_until_its_link_has_another():
    gone = keep_stale([ONE], [])
    assert [one.stale for one in gone] == [True]
    assert keep_stale(gone, []) == gone
    other = Neighbor("swp1", ONE.chassis_id, Identifier("ifname", "Ethernet2"))
    assert keep_stale(gone, [other]) == (other,)


async def test_a_command_that_is_missing_fails_or_hangs_is_an_error_with_its_name():
    with pytest.raises(LldpdError, match="no-such-lldpcli cannot be run"):
        await lldpd_client.read_neighbors(("no-such-lldpcli",))
    with pytest.raises(LldpdError, match="exit code 3: no socket; is lldpd running"):
        await lldpd_client.read_neighbors(
            (sys.executable, "-c", "import sys; print('no socket', file=sys.stderr); sys.exit(3)")
        )
    with pytest.raises(LldpdError, match=r"did not answer within 0\.1 s"):
        await lldpd_client.read_neighbors(
            (sys.executable, "-c", "import time; time.sleep(60)"), timeout_s=0.1
        )


async def test_a_command_that_prints_without_end_is_ended_at_a_limit():
    endless = "import os\nwhile True: os.write(FD, b' ' * 65536)"
    for descriptor, limit in (("1", 16 << 20), ("2", 64 << 10)):
        with pytest.raises(LldpdError, match=f"printed more than {limit} bytes"):
            await lldpd_client.read_neighbors((sys.executable, "-c", endless.replace("FD", descriptor)))
