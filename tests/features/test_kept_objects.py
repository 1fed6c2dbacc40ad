"""The objects for other programs that follow the tree, against the stand-in API server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Literal

import pytest
from msgspec import structs

from nodeagent.controller_config import FabricConfig
from nodeagent.fabric import PlanOutcome
from nodeagent.fabric.hypernode import OURS, OWNER_LABEL, HyperNode
from nodeagent.fabric.topology_file import NO_TOPOLOGY
from nodeagent.features.other_programs.kept_objects import (
    AT_ONCE,
    CONFIG_MAP_MAX,
    CONFIG_MAPS,
    KEPT_CHECK_S,
    KEPT_PAUSE_S,
    SLURM_CONFIG_MAP,
    TROUBLE,
    KeptObjects,
    slurm_topology,
)
from nodeagent.features.other_programs.kept_settings import SlurmSettings
from nodeagent.kube.access import Access
from nodeagent.kube.client import ApiClient, ApiError
from nodeagent.topology.write_log import WriteLog
from nodeagent_lab.sim.apiserver import ApiServer
from tests.commands.test_topology_formats import leaf_groups, read_topology_conf
from tests.controller import test_controller as controllers
from tests.controller.test_controller import (
    FIRST,
    RULES,
    SECOND,
    groups,
    leaves,
    nodelinks,
    running,
)
from tests.support.kubernetes_schemas import NEWEST, complaints
from tests.support.nfd import nfd_definition
from tests.support.waiting import until

pytestmark = pytest.mark.usefixtures("virtual_time")

SLURM = structs.replace(RULES, outputs=("hypernodes", "slurm"))
GROUPS = structs.replace(RULES, outputs=("hypernodes", "nodefeaturegroups"))
NFD = "node-feature-discovery"


@pytest.fixture(autouse=True)
def _log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


@asynccontextmanager
async def cluster() -> AsyncIterator[ApiServer]:
    async with controllers.cluster() as server:
        for name in ("slurm", "hpc", NFD):
            server.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        yield server


def config_map(server: ApiServer, namespace: str = "slurm") -> dict[str, Any]:
    return server.find("configmaps", SLURM_CONFIG_MAP, namespace) or {"data": {}}


def in_slurm(server: ApiServer) -> set[frozenset[str]]:
    return leaf_groups(read_topology_conf(config_map(server)["data"].get("topology.conf", "")))


def in_nfd(server: ApiServer) -> dict[str, list[str]]:
    """The nodes of each group, as NFD's master finds them by its rule."""
    found = {}
    for one in server.objects("nodefeaturegroups"):
        assert complaints(one, NEWEST) == []
        ((term,),) = (rule["matchFeatures"] for rule in one["spec"]["featureGroupRules"])
        found[one["metadata"]["name"]] = term["matchExpressions"]["nodename"]["value"]
    return found


def written(server: ApiServer, resource: str) -> int:
    return sum(server.counts[verb, resource] for verb in ("patch", "create", "delete"))


def failures(caplog: pytest.LogCaptureFixture) -> list[str]:
    lines = (one.getMessage() for one in caplog.records)
    return [line for line in lines if "for another program cannot be kept" in line]


async def test_slurms_file_follows_the_tree_and_is_written_once_for_each_change() -> None:
    async with cluster() as server, running(server, SLURM):
        await until(lambda: in_slurm(server) == {frozenset(FIRST), frozenset(SECOND)})
        assert config_map(server)["metadata"]["labels"] == {OWNER_LABEL: OURS}
        first = written(server, "configmaps")
        server.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-09"}})
        server.put(nodelinks("node-09", leaves(0)))
        await until(lambda: frozenset([*FIRST, "node-09"]) in in_slurm(server))
        assert written(server, "configmaps") == first + 1


async def test_links_that_flap_write_nothing() -> None:
    """An unplaced node, and its reason, come and go with its links."""
    async with cluster() as server, running(server, SLURM) as controller:
        await until(lambda: in_slurm(server))
        before, text = written(server, "configmaps"), config_map(server)["data"]
        for state in ("down", "healthy") * 3:
            plans = controller.progress.plans
            server.put(nodelinks(FIRST[0], leaves(0), state=state))
            server.put(nodelinks("lonely", [], state=state))
            await until(partial(_more, lambda: controller.progress.plans, plans))
            await until(partial(_more, partial(_checks, server), _checks(server)))
        assert (written(server, "configmaps"), config_map(server)["data"]) == (before, text)


def _checks(server: ApiServer) -> int:
    return int(server.counts["get", "configmaps"])


def _more(count: Callable[[], int], before: int) -> bool:
    return count() > before


async def test_only_the_nodes_that_slurm_knows_are_in_its_file() -> None:
    rules = structs.replace(
        SLURM, slurm=SlurmSettings(nodes=("node-[00-02]", "node-10,other"), namespace="hpc")
    )
    async with cluster() as server, running(server, rules):
        await until(lambda: config_map(server, "hpc")["data"])
        text = config_map(server, "hpc")["data"]["topology.conf"]
        assert leaf_groups(read_topology_conf(text)) == {frozenset(FIRST[:3]), frozenset(SECOND[:1])}


async def test_what_another_one_edits_or_deletes_is_restored() -> None:
    async with cluster() as server, running(server, SLURM):
        await until(lambda: in_slurm(server))
        right = config_map(server)["data"]
        edited = config_map(server)
        server.put(edited | {"data": {"topology.conf": "SwitchName=x Nodes=y\n"}})
        await until(lambda: config_map(server)["data"] == right, limit_s=2 * KEPT_CHECK_S)
        server.remove("configmaps", SLURM_CONFIG_MAP, "slurm")
        await until(lambda: config_map(server)["data"] == right, limit_s=2 * KEPT_CHECK_S)


async def test_a_config_map_that_people_made_stays(caplog: pytest.LogCaptureFixture) -> None:
    theirs = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"topology.conf": "SwitchName=x Nodes=y\n"},
              "metadata": {"name": SLURM_CONFIG_MAP, "namespace": "slurm"}}  # fmt: skip
    async with cluster() as server:
        server.put(theirs)
        async with running(server, SLURM):
            await until(lambda: failures(caplog))
            assert "AlreadyExists" in failures(caplog)[0]
            assert config_map(server)["data"] == theirs["data"]


async def test_a_change_of_the_format_leaves_one_file() -> None:
    async with cluster() as server:
        async with running(server, SLURM):
            await until(lambda: set(config_map(server)["data"]) == {"topology.conf"})
        async with running(server, structs.replace(SLURM, slurm=SlurmSettings(format="yaml")), "b"):
            await until(lambda: set(config_map(server)["data"]) == {"topology.yaml"})


async def test_without_reports_the_file_stays() -> None:
    async with cluster() as server:
        async with running(server, SLURM):
            await until(lambda: in_slurm(server))
        before = config_map(server)
        for node in FIRST + SECOND:
            server.remove("nodelinks", node, "nodeagent")
        for one in server.objects("hypernodes"):
            server.remove("hypernodes", one["metadata"]["name"])
        async with running(server, SLURM, "b") as controller:
            await until(lambda: controller.progress.plans)
            assert config_map(server) == before


def test_blocks_without_a_domain_change_nothing(caplog: pytest.LogCaptureFixture) -> None:
    outcome = PlanOutcome((), {}, {}, (), (), ())
    assert slurm_topology(SlurmSettings(format="block"), "compute", outcome) is None
    assert not caplog.records, "an empty tree is not a fault of a setting"


async def test_blocks_without_a_domain_are_said_once_a_check(caplog: pytest.LogCaptureFixture) -> None:
    rules = structs.replace(SLURM, slurm=SlurmSettings(format="block"))
    async with cluster() as server, running(server, rules):
        await until(lambda: any("tiers.nvlink" in one.getMessage() for one in caplog.records))
        assert config_map(server) == {"data": {}}
        await until(lambda: groups(server) == [FIRST, SECOND])


async def test_a_missing_right_is_said_once_and_holds_nothing_up(caplog: pytest.LogCaptureFixture) -> None:
    async with cluster() as server:
        server.fail("403", resource="configmaps", times=None)
        async with running(server, SLURM):
            await until(lambda: groups(server) == [FIRST, SECOND])
            await until(lambda: server.counts["get", "configmaps"] >= 3)
            assert len(failures(caplog)) == 1
            server.heal()
            await until(lambda: in_slurm(server))


def tree_of(nodes: int, characters: int) -> PlanOutcome:
    """A leaf group whose nodes have long names that no hostlist shortens."""
    names = tuple(f"{number:04}".ljust(characters, "x") for number in range(nodes))
    leaf = HyperNode(name="leaf-0", tier=1, tier_name="leaf", nodes=names)
    return PlanOutcome((leaf,), {}, {}, (), (), ())


@pytest.mark.parametrize("form", ["tree", "yaml"])
def test_a_file_above_the_limit_of_a_config_map_names_the_remedy(form: Literal["tree", "yaml"]) -> None:
    settings, fits = SlurmSettings(format=form), 4100
    (made,) = (slurm_topology(settings, "compute", tree_of(fits, 253)) or {}).values()
    (text,) = made["data"].values()
    assert len(text) < CONFIG_MAP_MAX
    with pytest.raises(ApiError, match=r"name the nodes that Slurm knows in slurm\.nodes"):
        slurm_topology(settings, "compute", tree_of(fits + 100, 253))
    few = structs.replace(settings, nodes=(f"{0:04}".ljust(253, "x"),))
    assert slurm_topology(few, "compute", tree_of(fits + 100, 253))


async def test_a_file_above_the_limit_is_said_once_and_costs_no_call(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outcome = tree_of(4200, 253)
    async with cluster() as server:
        client = ApiClient(Access(server.url, token=server.token()), manager="nodeagent-controller")
        wanted = partial(slurm_topology, SlurmSettings(), "compute")
        kept = KeptObjects(client, WriteLog(), CONFIG_MAPS, "slurm", wanted, SLURM_CONFIG_MAP)
        keeping = asyncio.create_task(kept.run(lambda: outcome))
        await asyncio.sleep(10 * KEPT_PAUSE_S)
        (line,) = failures(caplog)
        assert "TooLarge" in line
        assert "slurm.nodes" in line
        assert not {resource for _, resource in server.counts} & {"configmaps"}
        outcome = tree_of(8, 60)
        await until(lambda: in_slurm(server))
        keeping.cancel()
        await asyncio.wait((keeping,))


async def test_what_is_no_longer_kept_is_named_with_its_removal(caplog: pytest.LogCaptureFixture) -> None:
    """A changed namespace leaves the ConfigMap before, which slurmctld would go on to read."""

    def removals() -> list[str]:
        lines = (one.getMessage() for one in caplog.records)
        return [line.partition("remove=")[2] for line in lines if "no longer kept" in line]

    first = structs.replace(
        SLURM, outputs=("hypernodes", "slurm", "nodefeaturegroups"), trouble_annotation=True
    )
    async with cluster() as server:
        server.put(nfd_definition())
        async with running(server, first) as controller:
            await until(lambda: in_slurm(server) and in_nfd(server))
            controller.fabric._adopt(structs.replace(first, min_links=1), NO_TOPOLOGY)
            assert removals() == []
            moved = structs.replace(first, slurm=SlurmSettings(namespace="hpc"))
            controller.fabric._adopt(moved, NO_TOPOLOGY)
            await until(lambda: config_map(server, "hpc")["data"])
            old = f"'kubectl delete configmaps --namespace slurm {SLURM_CONFIG_MAP}'"
            assert removals() == [old]
            assert config_map(server)["data"], "it stays"
            controller.fabric._adopt(RULES, NO_TOPOLOGY)
            assert removals()[1:] == [
                f"'kubectl delete configmaps --namespace hpc {SLURM_CONFIG_MAP}'",
                f"'kubectl delete nodefeaturegroups --namespace {NFD} --selector {OWNER_LABEL}={OURS}'",
                f"'kubectl annotate hypernodes --selector {OWNER_LABEL}={OURS} {TROUBLE}-'",
            ]


async def test_each_leaf_group_is_a_group_of_nfd() -> None:
    async with cluster() as server:
        server.put(nfd_definition())
        async with running(server, GROUPS):
            await until(lambda: groups(server) == sorted(in_nfd(server).values()) == [FIRST, SECOND])
            assert set(in_nfd(server)) == {one["metadata"]["name"] for one in server.objects("hypernodes")}
            for node in SECOND:
                server.remove("nodes", node)
            await until(
                lambda: [*in_nfd(server).values()] == [FIRST], "the group of deleted nodes is deleted"
            )


async def test_a_group_of_another_owner_stays_and_the_others_are_written(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with cluster() as server:
        server.put(nfd_definition())
        async with running(server):
            await until(lambda: groups(server) == [FIRST, SECOND])
        name = min(one["metadata"]["name"] for one in server.objects("hypernodes"))
        rules = [{"name": "mine", "matchFeatures": []}]
        theirs = {"apiVersion": "nfd.k8s-sigs.io/v1alpha1", "kind": "NodeFeatureGroup",
                  "metadata": {"name": name, "namespace": NFD}, "spec": {"featureGroupRules": rules}}  # fmt: skip
        server.put(theirs)
        async with running(server, GROUPS, "b"):
            await until(lambda: len(server.objects("nodefeaturegroups")) == 2)
            await until(lambda: failures(caplog))
            assert server.find("nodefeaturegroups", name, NFD)["spec"] == theirs["spec"]


@pytest.mark.parametrize("refused", ["no namespace", "403", "500", "close"])
async def test_groups_that_cannot_be_written_cost_one_call_a_minute(refused: str) -> None:
    """The other groups fail in the same way, and the record of writes would hold nothing else."""
    units = 25
    async with controllers.cluster(units) as server:
        server.put(nfd_definition())
        if refused != "no namespace":
            server.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NFD}})
            server.fail(refused, verb="create", resource="nodefeaturegroups", times=None)
        async with running(server, GROUPS):
            await until(lambda: len(server.objects("hypernodes")) == units)
            await until(lambda: server.counts["create", "nodefeaturegroups"])
            before, loop = server.counts["create", "nodefeaturegroups"], asyncio.get_running_loop()
            began = loop.time()
            await asyncio.sleep(5 * KEPT_PAUSE_S)
            rounds = (loop.time() - began) / KEPT_PAUSE_S + 1
            assert 0 < server.counts["create", "nodefeaturegroups"] - before <= rounds
            assert before <= 2
            server.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NFD}})
            server.heal()
            await until(lambda: len(in_nfd(server)) == units)


async def test_one_group_that_is_refused_holds_no_other_up() -> None:
    units = 5
    async with controllers.cluster(units) as server:
        server.put(nfd_definition())
        server.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NFD}})
        async with running(server, GROUPS):
            await until(lambda: len(in_nfd(server)) == units)
            right = in_nfd(server)
        refused = min(right)
        server.fail("422", verb="patch", resource="nodefeaturegroups", name=refused, times=None)
        for one in server.objects("nodefeaturegroups"):
            one["spec"]["featureGroupRules"][0]["matchFeatures"][0]["matchExpressions"]["nodename"][
                "value"
            ] = ["x"]
            server.put(one)
        async with running(server, GROUPS, "b"):
            await until(lambda: in_nfd(server) == right | {refused: ["x"]})
            await until(partial(_more, lambda: server.counts["patch", "nodefeaturegroups"], units + 2))
            server.heal()
            await until(lambda: in_nfd(server) == right)


async def test_without_nfds_definition_the_tree_is_written(caplog: pytest.LogCaptureFixture) -> None:
    async with cluster() as server, running(server, GROUPS):
        await until(lambda: groups(server) == [FIRST, SECOND])
        await until(lambda: failures(caplog))
        server.put(nfd_definition())
        await until(lambda: sorted(in_nfd(server).values()) == [FIRST, SECOND])


def trouble(server: ApiServer) -> list[str | None]:
    """The annotation of each HyperNode, that of the first unit first."""
    found = sorted(server.objects("hypernodes"), key=lambda one: str(one["spec"]["members"]))
    return [(one["metadata"].get("annotations") or {}).get(TROUBLE) for one in found]


TROUBLED = structs.replace(RULES, trouble_annotation=True)


async def test_hypernodes_say_how_many_members_are_in_trouble_and_why() -> None:
    async with cluster() as server, running(server, TROUBLED):
        await until(lambda: trouble(server) == [None, None])
        server.put(nodelinks(FIRST[0], leaves(0), state="down"))
        server.put(nodelinks(FIRST[1], leaves(0), state="degraded"))
        server.remove("nodelinks", FIRST[2], "nodeagent")
        await until(lambda: trouble(server) == ["3 of 4 nodes: degraded 1, down 1, not reported 1", None])
        for node in FIRST:
            server.put(nodelinks(node, leaves(0)))
        await until(lambda: trouble(server) == [None, None])
        assert all(one["spec"]["members"] for one in server.objects("hypernodes"))


async def test_flapping_links_of_all_nodes_cause_few_writes_and_each_hypernode_has_its_turn() -> None:
    units = 25
    async with controllers.cluster(units) as server, running(server, TROUBLED):
        await until(lambda: len(server.objects("hypernodes")) == units)
        loop, before = asyncio.get_running_loop(), written(server, "hypernodes")
        began, told = loop.time(), set[str]()
        for number in range(40):
            state = ("down", "degraded")[number % 2]
            for unit in range(units):
                server.put(nodelinks(f"node-{unit}0", leaves(unit), state=state))
            await asyncio.sleep(10.0)
            told.update(
                one["metadata"]["name"]
                for one in server.objects("hypernodes")
                if TROUBLE in (one["metadata"].get("annotations") or {})
            )
        rounds = (loop.time() - began) / KEPT_PAUSE_S + 1
        assert AT_ONCE < written(server, "hypernodes") - before <= AT_ONCE * rounds
        assert len(told) == units


async def test_nothing_is_kept_that_is_no_output() -> None:
    async with cluster() as server, running(server, FabricConfig(hysteresis=RULES.hysteresis)):
        await until(lambda: groups(server) == [FIRST, SECOND])
        assert not {resource for _, resource in server.counts} & {"configmaps", "nodefeaturegroups"}
        await asyncio.sleep(2 * KEPT_PAUSE_S)
        assert trouble(server) == [None, None]
