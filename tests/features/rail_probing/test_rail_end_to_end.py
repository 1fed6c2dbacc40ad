"""Rails from the packet to the person: real agents and the real controller find the link that loses packets.

One run, because the daemons need 15 s until all legs are good, and a dead leg as long: four nodes with two rails. A
cable is dead while its carrier is up. Meanwhile an agent is stopped for some seconds, a burst is lost, and agents are
restarted one after the other: the cable must be the only one that is ever named, by anybody.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml

from nodeagent_lab.sim.apiserver import ApiServer
from tests.support.manifests import ROOT
from tests.support.rail_cluster import API_SERVER, NETDEVS, RailCluster
from tests.support.running_agent import IN_MEMORY
from tests.support.waiting import until

pytestmark = [pytest.mark.needs("root", "ip", "iptables", "nsenter"), pytest.mark.slow]

PORT = 8080


class Seen:
    """Everything that any daemon has named since the start."""

    def __init__(self, server: ApiServer, hall: RailCluster) -> None:
        self._server, self._hall = server, hall
        self.anomalies: list[dict[str, Any]] = []
        self.ever: set[tuple[str, str, str]] = set()

    async def follow(self) -> None:
        while True:
            if (found := await self._hall.anomalies()) is not None:
                self.anomalies = found
            self.ever |= {(one["kind"], one["node"], one["link"]) for one in self.anomalies}
            self.ever |= self.warnings
            await asyncio.sleep(0.3)

    @property
    def warnings(self) -> set[tuple[str, str, str]]:
        """The warnings of rails in the reports of the nodes."""
        return {
            (reason, report["nodeName"], link["name"])
            for report in self._server.objects("nodelinks")
            for link in report["links"]
            for reason in link.get("reasons", ())
            if reason.startswith("rail_")
        }

    @property
    def legs(self) -> dict[tuple[str, str], set[tuple[str, int]]]:
        """The legs that are not good, by node and link: partner and level."""
        return {
            (report["nodeName"], link["name"]): {(leg["node"], leg["level"]) for leg in link["legs"]}
            for report in self._server.objects("nodelinks")
            for link in report["links"]
            if link.get("legs")
        }


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[tuple[ApiServer, RailCluster, Seen]]:
    server = ApiServer(seed=1)
    server.put(yaml.safe_load((ROOT / "daemonset/components/rails/objects/railpartners.yaml").read_text()))

    def access(user: str, folder: Path) -> Path:
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "a",
            "clusters": [{"name": "a", "cluster": {"server": f"http://{API_SERVER}:{PORT}"}}],
            "users": [{"name": "a", "user": {"token": server.token(user)}}],
            "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a", "namespace": "nodeagent"}}],
        }
        path = folder / "kubeconfig"
        path.write_text(json.dumps(content))
        return path

    with TemporaryDirectory(prefix="na-", dir=IN_MEMORY) as folder:
        async with RailCluster(Path(folder), 4, access) as hall:
            with hall.management.entered():
                await server.start(PORT, API_SERVER)
            seen = Seen(server, hall)
            following = asyncio.create_task(seen.follow())
            try:
                for name in hall.names:
                    server.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
                for name in ("controller", *hall.names):
                    await hall.start(name)
                yield server, hall, seen
            finally:
                following.cancel()
                await asyncio.wait((following,))
                for name in tuple(hall.agents):
                    sys.stderr.write(f"--- {name}\n{hall.log(name)}\n")
                for name in tuple(hall.agents):
                    await hall.stop(name)
                await server.stop()


async def all_good(hall: RailCluster) -> None:
    """Wait until each partner of each rail has answered."""
    waiting = set(hall.names)
    while waiting:
        for name in sorted(waiting):
            rails = await hall.rails(name)
            partners = [one for rail in rails for one in rail["partners"]]
            if len(partners) == 4 and all(one.get("answeredS") is not None for one in partners):
                waiting.discard(name)
        await asyncio.sleep(0.2)


async def check(hall: RailCluster, to: str) -> tuple[int, dict[str, Any]]:
    code, text = await hall.verb("gpu-0", "rails", "check", "gpu-0", to, "--seconds", "1", "--json")
    return code, json.loads(text)


async def test_a_dead_cable_is_the_only_thing_that_is_ever_named() -> None:
    async with running() as (server, hall, seen), asyncio.timeout(150):
        await until(
            lambda: {one["metadata"]["name"] for one in server.objects("railpartners")} == {*hall.names}
        )
        await all_good(hall)

        hall.fault(1, 0)
        await amid_unrest(hall)
        code, found = await check(hall, "gpu-1")
        nic0, nic1 = found["rails"]
        assert (code, nic0["lost"] == nic0["sent"] > 0, nic1.get("lost", 0)) == (1, True, 0)
        await until(lambda: seen.anomalies and seen.warnings and sum(map(len, seen.legs.values())) == 4)
        await named(hall, seen)

        hall.repair()
        await rolling_restart(hall)
        await until(lambda: not (seen.anomalies or seen.warnings or seen.legs))
        assert seen.ever == {("link-loss", "gpu-1", "nic0"), ("rail_loss", "gpu-1", "nic0")}
        assert (await hall.verb("gpu-1", "rails"))[0] == 0
        code, found = await check(hall, "gpu-1")
        assert (code, [one["sent"] > 0 and one.get("lost", 0) == 0 for one in found["rails"]]) == (
            0,
            [True, True],
        )


async def amid_unrest(hall: RailCluster) -> None:
    """A process pauses, and a burst is lost on a rail while it is checked."""
    burst = hall.fault(3, 1, "-m statistic --mode nth --every 4 --packet 0")
    with hall.stopped("gpu-2"):
        code, found = await check(hall, "gpu-3")
        hall.repair(burst)
        await asyncio.sleep(1)
    assert (code, [one.get("lost", 0) > 0 for one in found["rails"]]) == (1, [False, True]), found["rails"]


async def named(hall: RailCluster, seen: Seen) -> None:
    """Each reader finds the same cable."""
    (anomaly,) = seen.anomalies
    assert (anomaly["kind"], anomaly["node"], anomaly["link"], anomaly["switch"]) == (
        "link-loss", "gpu-1", "nic0", "leaf00"
    )  # fmt: skip
    assert "loses all packets" in anomaly["message"]
    assert "the port swp1 of leaf00" in anomaly["message"]
    assert seen.warnings == {("rail_loss", "gpu-1", "nic0")}
    assert {level for _, level in seen.legs["gpu-1", "nic0"]} == {100}
    assert all(of == {("gpu-1", 100)} for own, of in seen.legs.items() if own != ("gpu-1", "nic0"))
    while 'nodeagent_rail_legs{state="bad"} 4' not in (page := await hall.page("controller", "/metrics")):
        await asyncio.sleep(0.1)
    assert 'nodeagent_fabric_anomalies{kind="link-loss"} 1' in page
    page = await hall.page("gpu-1", "/metrics")
    labels = f'device="{NETDEVS[0]}",reason="rail_loss",severity="warning"'
    assert f"nodeagent_link_health_reason{{{labels}}} 1" in page
    code, text = await hall.verb("gpu-1", "rails")
    assert code == 1
    assert "dead" in text


async def rolling_restart(hall: RailCluster) -> None:
    """One agent after the other; a check of one that is away cannot be made."""
    for name in ("gpu-3", "gpu-2"):
        await hall.stop(name)
        if name == "gpu-3":
            code, found = await check(hall, name)
            assert code == 2
            assert f"no agent on {name} answers" in found["why"]
        await hall.start(name)
    await all_good(hall)
