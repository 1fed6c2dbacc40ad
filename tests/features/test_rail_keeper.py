"""The controller's RailPartners and the places that lose packets, against the stand-in API server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import yaml
from msgspec import structs

from nodeagent.controller import Controller
from nodeagent.fabric import AnomalyKind
from nodeagent.fabric.fabric_settings import TierSettings
from nodeagent.fabric.hypernode import OURS, OWNER_LABEL
from nodeagent.fabric.outcome import Anomaly
from nodeagent.fabric.rail_partners import rail_partners_of
from nodeagent.fabric.rail_suspects import Leg, RailEnd, Scope, Suspect
from nodeagent.fabric.topology_file import NO_TOPOLOGY
from nodeagent.features.rail_probing.rail_keeper import JUDGE_S, PAUSE_S, PER_SECOND, RAILS_CHECK_S
from nodeagent.features.rail_probing.rail_keeping_settings import FabricRailsSettings
from nodeagent.kube.client import ApiClient, ApiError
from nodeagent.kube.resource import RAIL_PARTNERS
from nodeagent_lab.sim.apiserver import ApiServer
from tests.controller.test_controller import RULES, leaves, nodelinks, running
from tests.support.manifests import ROOT
from tests.support.waiting import until

pytestmark = pytest.mark.usefixtures("virtual_time")

RAILS = structs.replace(
    RULES, rails=FabricRailsSettings(probe=True), tiers=TierSettings(assume_full_bisection=True)
)
UNITS, EACH, LINKS = 4, 8, 2
DEFINITION = yaml.safe_load((ROOT / "daemonset/components/rails/objects/railpartners.yaml").read_text())


def probing(unit: int, number: int, *, state: str = "healthy") -> dict[str, Any]:
    report = nodelinks(f"node-{unit}{number}", leaves(unit, LINKS), state=state)
    for rail, link in enumerate(report["links"]):
        link["addresses"] = [f"10.{rail}.{unit}.{number + 1}/24", f"fe80::{unit}:{number}/64"]
        link["railChecked"] = "yes"
    return report


@asynccontextmanager
async def cluster(*, definition: bool = True) -> AsyncIterator[ApiServer]:
    server = await ApiServer().start()
    if definition:
        server.put(DEFINITION)
    for unit in range(UNITS):
        for number in range(EACH):
            server.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"node-{unit}{number}"}})
            server.put(probing(unit, number))
    try:
        yield server
    finally:
        await server.stop()


def stored(server: ApiServer) -> dict[str, dict[str, Any]]:
    return {one["metadata"]["name"]: one for one in server.objects("railpartners")}


def written(server: ApiServer) -> int:
    return sum(server.counts[verb, "railpartners"] for verb in ("patch", "create", "delete", "update"))


def legs(server: ApiServer) -> list[Leg]:
    return [
        Leg(RailEnd(node, rail.rail), RailEnd(partner.node, partner.nic))
        for node, found in stored(server).items()
        for rail in rail_partners_of(found).spec.rails
        for partner in rail.probe
    ]


def lose(server: ApiServer, bad: Iterable[Leg], level: int = 100, *, large: bool = False) -> None:
    """Let the nodes report these legs, and no others."""
    bad = list(bad)
    for unit in range(UNITS):
        for number in range(EACH):
            report = probing(unit, number)
            for link in report["links"]:
                own = RailEnd(report["nodeName"], link["name"])
                far = [leg.partner for leg in bad if leg.writer == own]
                found = [{"node": end.node, "nic": end.link, "level": level} for end in far]
                link["legs"] = [leg | {"large": True} if large else leg for leg in found]
            server.put(report)


def rail_anomalies(controller: Controller) -> list[Anomaly]:
    outcome = controller.progress.outcome
    known = () if outcome is None else outcome.anomalies
    return [one for one in known if one.kind.value.endswith(("-loss", "-mtu", "-silent"))]


async def complete(server: ApiServer) -> None:
    await until(lambda: len(stored(server)) == UNITS * EACH and len(legs(server)) == UNITS * EACH * LINKS * 3)


async def test_each_node_gets_a_list_that_its_node_owns():
    async with cluster() as server, running(server, RAILS):
        await complete(server)
        for name, found in stored(server).items():
            node = server.find("nodes", name)
            assert node is not None
            assert found["metadata"]["labels"] == {OWNER_LABEL: OURS}
            (owner,) = found["metadata"]["ownerReferences"]
            assert (owner["kind"], owner["name"], owner["uid"]) == ("Node", name, node["metadata"]["uid"])
        sent = {(leg.writer, leg.partner) for leg in legs(server)}
        answered = {
            (RailEnd(one.node, one.nic), RailEnd(node, rail.rail))
            for node, found in stored(server).items()
            for rail in rail_partners_of(found).spec.rails
            for one in rail.answer
        }
        assert sent == answered


async def test_a_list_names_addresses_that_reach_each_other():
    async with cluster() as server, running(server, RAILS):
        await complete(server)
        (first, _) = rail_partners_of(stored(server)["node-00"]).spec.rails
        assert {one.scope: (one.ports, one.per_second) for one in first.probe} == {
            "leaf": (1, 0.5), "across": (8, 0.5)
        }  # fmt: skip
        for one in (*first.probe, *first.answer):
            unit, number = one.node.removeprefix("node-")
            assert one.address == f"10.0.{unit}.{int(number) + 1}"


async def test_links_with_a_link_local_address_alone_have_partners_at_their_leaf_only():
    async with cluster() as server:
        for unit in range(UNITS):
            for number in range(EACH):
                report = probing(unit, number)
                for link in report["links"]:
                    link["addresses"] = link["addresses"][1:]
                server.put(report)
        async with running(server, RAILS):
            await until(lambda: len(legs(server)) == UNITS * EACH * LINKS * 2)
            assert {leg.writer.node[5] == leg.partner.node[5] for leg in legs(server)} == {True}


async def test_nothing_is_written_without_the_setting():
    async with (
        cluster() as server,
        running(server, structs.replace(RAILS, rails=FabricRailsSettings())) as controller,
    ):
        await until(lambda: controller.progress.outcome is not None)
        await asyncio.sleep(10 * JUDGE_S)
        assert written(server) == 0
        assert not server.counts["list", "railpartners"]


@pytest.mark.slow
async def test_a_quiet_hall_writes_nothing_and_a_restart_neither():
    async with cluster() as server:
        async with running(server, RAILS):
            await complete(server)
            before, once = stored(server), written(server)
            assert once == UNITS * EACH
            await asyncio.sleep(2 * RAILS_CHECK_S)
        async with running(server, RAILS, "b") as other:
            await until(lambda: other.progress.outcome is not None)
            await asyncio.sleep(10 * JUDGE_S)
        assert (written(server), stored(server)) == (once, before)


async def test_lists_that_are_no_longer_kept_stay_and_are_named_with_their_removal(
    caplog: pytest.LogCaptureFixture,
):
    """Agents that still probe go on by them, and would find nodes that are gone dead."""

    def removals() -> list[str]:
        return [one.getMessage() for one in caplog.records if "no longer kept" in one.getMessage()]

    async with cluster() as server, running(server, RAILS) as controller:
        await complete(server)
        controller.fabric._adopt(structs.replace(RAILS, min_links=1), NO_TOPOLOGY)
        assert removals() == []
        controller.fabric._adopt(structs.replace(RAILS, rails=FabricRailsSettings()), NO_TOPOLOGY)
        (line,) = removals()
        assert "remove='kubectl delete railpartners --all'" in line
        assert len(stored(server)) == UNITS * EACH


async def test_at_most_fifty_lists_a_second_are_written():
    async with cluster() as server, running(server, RAILS):
        await until(lambda: written(server) > 0)
        at = asyncio.get_running_loop().time()
        await complete(server)
        assert asyncio.get_running_loop().time() - at >= (UNITS * EACH - 8) / PER_SECOND


async def test_a_node_that_joins_changes_at_most_nine_lists():
    async with cluster() as server, running(server, RAILS):
        await complete(server)
        once = written(server)
        server.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-19"}})
        server.put(probing(1, 9))
        await until(lambda: "node-19" in stored(server))
        await asyncio.sleep(20 * JUDGE_S)
        assert 3 <= written(server) - once <= 9


@pytest.mark.slow
async def test_what_others_delete_or_edit_is_restored():
    async with cluster() as server, running(server, RAILS):
        await complete(server)
        before = {name: found["spec"] for name, found in stored(server).items()}
        server.remove("railpartners", "node-00")
        server.put(stored(server)["node-01"] | {"spec": {"rails": []}})
        await until(
            lambda: {name: found["spec"] for name, found in stored(server).items()} == before,
            limit_s=2 * RAILS_CHECK_S,
        )


async def test_a_node_without_addresses_has_no_list():
    async with cluster() as server, running(server, RAILS):
        await complete(server)
        server.put(nodelinks("node-00", leaves(0, LINKS)))
        await until(lambda: "node-00" not in stored(server))
        assert "node-00" not in {end.node for leg in legs(server) for end in leg}


async def test_lists_stay_while_no_node_reports_addresses():
    """As after a downgrade of all agents, or while a definition of NodeLinks without the field is applied."""
    async with cluster() as server, running(server, RAILS) as controller:
        await complete(server)
        for unit in range(UNITS):
            for number in range(EACH):
                server.put(nodelinks(f"node-{unit}{number}", leaves(unit, LINKS)))
        await until(lambda: not any(one.addresses for one in controller.planner.inputs.reports.values()))
        await asyncio.sleep(20 * JUDGE_S)
        assert len(stored(server)) == UNITS * EACH


async def test_without_the_definition_the_tree_is_kept_and_the_log_says_so(caplog: pytest.LogCaptureFixture):
    async with cluster(definition=False) as server, running(server, RAILS) as controller:
        await until(lambda: controller.labels.writes["ok"] == UNITS * EACH)
        lines = [record.getMessage() for record in caplog.records]
        await until(
            lambda: any("RailPartners cannot be kept" in record.getMessage() for record in caplog.records)
        )
        assert sum("RailPartners cannot be kept" in line for line in lines) <= 1


DEAD = RailEnd("node-12", "nic1")


async def test_a_dead_link_is_named_with_its_switch_and_port_at_once_and_forgotten_when_it_is_good():
    async with cluster() as server, running(server, RAILS) as controller:
        await complete(server)
        lose(server, [leg for leg in legs(server) if DEAD in leg])
        at = asyncio.get_running_loop().time()
        await until(lambda: rail_anomalies(controller))
        assert asyncio.get_running_loop().time() - at <= 4 * JUDGE_S
        (found,) = rail_anomalies(controller)
        assert found.place == (AnomalyKind.LINK_LOSS, "node-12", "nic1", "su1-leaf1")
        assert "loses all packets: 6 of 6 legs" in found.message
        assert "the port Ethernet-node-12 of su1-leaf1" in found.message
        assert "reports itself as healthy: if it counts no errors, look at the port first" in found.message
        lose(server, [])
        await until(lambda: not rail_anomalies(controller))


SPOKEN = {
    AnomalyKind.LEAF_LOSS: (Suspect(Scope.LEAF, "su2-leaf0"), 10, 1, "su2-leaf0 loses about 10 % of the packets"),
    AnomalyKind.UPLINK_LOSS: (Suspect(Scope.UPLINKS, "su2-leaf0"), 10, 3, "of the paths of su2-leaf0 to other leaf"),
    AnomalyKind.HOST_SILENT: (Suspect(Scope.HOST, "node-05"), 100, 1, "it is the host and not the network"),
}  # fmt: skip


@pytest.mark.parametrize("kind", SPOKEN)
async def test_each_place_has_its_words_and_is_forgotten_when_it_is_good(kind: AnomalyKind):
    suspect, level, step, words = SPOKEN[kind]
    async with cluster() as server, running(server, RAILS) as controller:
        await complete(server)
        rails = controller.fabric.parts.features["rails"].shown
        assert rails is not None
        passing = [leg for leg in legs(server) if suspect in rails.watch.lists.checked.passed(leg)]
        silent = suspect.name if kind is AnomalyKind.HOST_SILENT else ""
        lose(server, [leg for leg in passing[::step] if leg.writer.node != silent], level)
        await until(lambda: rail_anomalies(controller))
        await asyncio.sleep(2 * JUDGE_S)
        assert [one.kind for one in rail_anomalies(controller)] == [kind]
        assert words in rail_anomalies(controller)[0].message
        lose(server, [])
        await until(lambda: not rail_anomalies(controller))


async def test_large_packets_that_do_not_pass_are_an_mtu():
    async with cluster() as server, running(server, RAILS) as controller:
        await complete(server)
        lose(server, [leg for leg in legs(server) if DEAD in leg], large=True)
        await until(lambda: rail_anomalies(controller))
        (found,) = rail_anomalies(controller)
        assert (found.kind, found.node, found.link) == (AnomalyKind.PATH_MTU, "node-12", "nic1")
        assert "packets of the full MTU do not pass nic1 of node-12" in found.message
        lose(server, [])
        await until(lambda: not rail_anomalies(controller))


async def test_legs_that_no_list_has_count_for_nothing():
    """A node that lies about a leaf switch which it does not probe."""
    invented = [Leg(RailEnd("node-00", "nic0"), RailEnd(f"node-2{number}", "nic0")) for number in range(EACH)]
    async with cluster() as server, running(server, RAILS) as controller:
        await complete(server)
        real = set(legs(server))
        lose(server, [leg for leg in invented if leg not in real])
        await until(lambda: any(one.legs for one in controller.planner.inputs.reports.values()))
        await asyncio.sleep(6 * JUDGE_S)
        assert rail_anomalies(controller) == []


async def test_a_spine_fault_makes_no_write_and_no_plan_for_its_legs():
    """Each node reports some legs, and they come and go; the controller shows one anomaly and writes nothing."""
    async with cluster() as server, running(server, RAILS) as controller:
        await complete(server)
        await asyncio.sleep(20 * JUDGE_S)
        across = [leg for leg in legs(server) if leg.writer.node[5] != leg.partner.node[5]]
        writes = all_writes(server)
        plans = controller.progress.plans
        for turn in range(12):
            lose(server, [leg for i, leg in enumerate(across) if (i + turn) % 3], 10)
            await asyncio.sleep(JUDGE_S)
        assert [one.kind for one in rail_anomalies(controller)] == [AnomalyKind.SPINE_LOSS]
        assert controller.progress.plans - plans <= 2, "the legs of 32 nodes changed twelve times"
        assert all_writes(server) == writes
        lose(server, [])
        await until(lambda: not rail_anomalies(controller))


def all_writes(server: ApiServer) -> int:
    """Those of the lease do not count."""
    verbs = ("create", "patch", "update", "delete")
    return sum(n for (verb, what), n in server.counts.items() if verb in verbs and what != "leases")


async def test_the_report_of_a_leg_survives_the_definition_of_nodelinks():
    report = probing(0, 0)
    report["links"][0]["legs"] = [{"node": "node-01", "nic": "nic0", "level": 10}]
    async with cluster() as server:
        server.put(report)
        found = server.find("nodelinks", "node-00", "nodeagent")
        assert found is not None
        assert json.dumps(found["links"][0]["legs"]) == json.dumps(report["links"][0]["legs"])


async def test_an_address_that_no_host_has_costs_one_node_its_partners_and_no_other():
    """A report that lies, or a policy that is stricter than we are."""
    async with cluster() as server, running(server, RAILS) as controller:
        await complete(server)
        report = probing(0, 3)
        for link in report["links"]:
            link["addresses"] = ["240.0.0.1/24", "0.1.2.3/24", "255.255.255.255/24", "::ffff:10.0.0.1/64"]
        server.put(report)
        await until(lambda: not any(RailEnd("node-03", "nic0") in leg for leg in legs(server)))
        assert len(stored(server)) == UNITS * EACH - 1
        assert not [leg for leg in legs(server) if leg.writer.node == leg.partner.node]
        assert rail_anomalies(controller) == []


async def test_where_nothing_passes_no_cable_and_no_switch_is_blamed():
    async with cluster() as server, running(server, RAILS) as controller:
        await complete(server)
        for large, kind in ((False, AnomalyKind.SPINE_LOSS), (True, AnomalyKind.PATH_MTU)):
            lose(server, legs(server), large=large)
            await until(lambda kind=kind: [one.kind for one in rail_anomalies(controller)] == [kind])
            (found,) = rail_anomalies(controller)
            assert ("rails.port" in found.message) is not large
            assert (found.node, found.link, found.switch) == ("", "", "")


async def test_a_list_that_is_refused_keeps_no_other_one_back():
    async with cluster() as server:
        refused: list[str] = []
        apply = ApiClient.apply

        async def some(client: ApiClient, resource: Any, body: Any, **words: Any) -> Any:
            if resource is RAIL_PARTNERS and body["metadata"]["name"] == "node-00":
                refused.append("node-00")
                raise ApiError("patch", "/railpartners/node-00", 422, "Invalid", "no")
            return await apply(client, resource, body, **words)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ApiClient, "apply", some)
            async with running(server, RAILS):
                await until(lambda: len(stored(server)) == UNITS * EACH - 1)
                await asyncio.sleep(3 * PAUSE_S)
                assert len(refused) == 1, "the same content is not sent again"


NUMBERED = structs.replace(RULES, rails=FabricRailsSettings(numbers=True))


def numbers(server: ApiServer) -> dict[str, list[tuple[str, int, str]]]:
    return {
        node: [(one.rail, one.number, one.holder) for one in rail_partners_of(found).spec.numbers]
        for node, found in stored(server).items()
    }


def numbered(unit: int, number: int, own: int | None = None) -> dict[str, Any]:
    report = probing(unit, number)
    report["links"][0] |= {"vfPrefix": "10.100.0.0/16"} | ({} if own is None else {"number": own})
    return report


async def test_each_node_has_a_number_once_that_outlives_the_controller_and_the_second_owner_is_told():
    async with cluster() as server:
        for unit in range(UNITS):
            for number in range(EACH):
                server.put(numbered(unit, number, 3 if (unit, number) == (0, 7) else None))
        async with running(server, NUMBERED):
            await until(lambda: len(stored(server)) == UNITS * EACH)
            first = numbers(server)
        given = [number for of in first.values() for _, number, holder in of if not holder]
        assert sorted(given) == list(range(1, UNITS * EACH + 1))
        assert first["node-07"] == [(rail_name(server), 3, "")]
        assert not legs(server), "nothing is probed without the setting"
        server.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-000"}})
        late = numbered(0, 0, 3) | {"nodeName": "node-000"}
        late["metadata"] = {**late["metadata"], "name": "node-000"}
        server.put(late)
        async with running(server, NUMBERED, "b") as other:
            await until(lambda: len(stored(server)) == UNITS * EACH + 1)
            assert numbers(server) == first | {"node-000": [(rail_name(server), 3, "node-07")]}
            outcome = other.progress.outcome
            assert outcome is not None
            (shared,) = [one for one in outcome.anomalies if one.kind is AnomalyKind.SHARED_NUMBER]
            assert set(shared.nodes) == {"node-000", "node-07"}


def rail_name(server: ApiServer) -> str:
    report = server.find("nodelinks", "node-07", "nodeagent")
    assert report is not None
    name: str = report["links"][0]["name"]
    return name


async def test_with_probes_and_numbers_an_object_has_both():
    both = structs.replace(RAILS, rails=FabricRailsSettings(probe=True, numbers=True))
    async with cluster() as server:
        server.put(numbered(0, 0))
        async with running(server, both):
            await complete(server)
            await until(lambda: numbers(server)["node-00"])
            assert [one[1:] for one in numbers(server)["node-00"]] == [(1, "")]
            assert len(legs(server)) == UNITS * EACH * LINKS * 3


@pytest.mark.slow
async def test_a_new_leader_that_numbers_takes_no_partners_away_and_deletes_nothing():
    """The numbers are there before the lists of partners are computed."""
    both = structs.replace(RAILS, rails=FabricRailsSettings(probe=True, numbers=True))
    async with cluster() as server:
        server.put(numbered(0, 0))
        async with running(server, both):
            await complete(server)
            await until(lambda: numbers(server)["node-00"])
            before, once = stored(server), written(server)
        async with running(server, both, "b") as other:
            await until(lambda: other.progress.outcome is not None)
            await asyncio.sleep(10 * JUDGE_S)
        assert written(server) == once
        assert stored(server) == before


async def test_a_leader_that_comes_back_writes_none_of_its_former_numbers():
    """In between another one led, and the hall has changed."""
    async with cluster() as server:
        for number in range(2):
            server.put(numbered(0, number))
        async with running(server, NUMBERED) as controller:
            await until(lambda: len(stored(server)) == 2)
            await until(lambda: not takes(server, "someone-else", controller))
            former = numbers(server)
            changed = [
                one | {"number": 10 + one["number"]} for one in stored(server)["node-00"]["spec"]["numbers"]
            ]
            server.put(stored(server)["node-00"] | {"spec": {"numbers": changed}})
            ((name, number, _),) = former["node-00"]
            seen: list[int] = []
            apply = ApiClient.apply

            async def noted(client: ApiClient, resource: Any, body: Any, **words: Any) -> Any:
                if resource is RAIL_PARTNERS and body["metadata"]["name"] == "node-00":
                    seen.extend(one["number"] for one in body["spec"]["numbers"])
                return await apply(client, resource, body, **words)

            plan = controller._plan

            async def late() -> Any:
                await asyncio.sleep(2 * JUDGE_S)
                return await plan()

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(ApiClient, "apply", noted)
                patch.setattr(controller, "_plan", late)
                await until(lambda: controller.lease.leading)
                await until(lambda: controller.progress.outcome is not None)
                await asyncio.sleep(10 * JUDGE_S)
            assert number not in seen
            assert numbers(server)["node-00"] == [(name, 10 + number, "")]


async def test_the_object_of_a_node_that_was_made_again_goes_over_to_it():
    """Otherwise it goes with the former one, and the node has no number until the objects are compared."""
    async with cluster() as server:
        for number in range(2):
            server.put(numbered(0, number))
        async with running(server, NUMBERED) as controller:
            await until(lambda: len(stored(server)) == 2)
            before = numbers(server)
            node = server.find("nodes", "node-00")
            assert node is not None
            server.put(node | {"metadata": {"name": "node-00", "uid": "made-again"}})
            plans = controller.progress.plans
            server.put(numbered(0, 2))  # another plan
            await until(lambda: controller.progress.plans > plans)
            await asyncio.sleep(4 * JUDGE_S)
            (owner,) = stored(server)["node-00"]["metadata"]["ownerReferences"]
            assert owner["uid"] == "made-again"
            assert {node: numbers(server)[node] for node in before} == before


def takes(server: ApiServer, identity: str, controller: Controller) -> bool:
    """Give the lease to another one. Return whether the controller still leads."""
    (lease,) = server.objects("leases")
    if lease["spec"]["holderIdentity"] != identity:
        server.put(lease | {"spec": lease["spec"] | {"holderIdentity": identity}})
    return controller.lease.leading
