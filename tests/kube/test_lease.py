"""The Lease: never two leaders, under any fault of network, clocks and scheduling."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.kube.access import Access
from nodeagent.kube.client import ApiClient
from nodeagent.kube.failure import ApiError
from nodeagent.kube.lease import Lease, LeaseRecord, LeaseSpec, NotLeading, lead
from nodeagent.kube.resource import Meta
from nodeagent_lab.sim.apiserver import ApiServer
from tests.support import virtual_time
from tests.support.waiting import until


class LeaseStore:
    """One Lease object; a write must name its version."""

    def __init__(self):
        self.record = None
        self.version = 0

    def write(self, spec, wanted):
        if wanted is not None and (self.record is None or self.record.metadata.resource_version != wanted):
            raise ApiError("patch", "/lease", 409, "Conflict", "the object has been modified")
        if wanted is None and self.record is not None:
            raise ApiError("create", "/lease", 409, "AlreadyExists", "it is there")
        self.version += 1
        old = self.record.spec if self.record else LeaseSpec()
        new = LeaseSpec(
            spec.get("holderIdentity", old.holder_identity),
            spec.get("leaseDurationSeconds", old.lease_duration_seconds),
            spec.get("acquireTime", old.acquire_time),
            spec.get("renewTime", old.renew_time),
            spec.get("leaseTransitions", old.lease_transitions),
        )
        self.record = LeaseRecord(Meta(name="l", resource_version=str(self.version)), new)
        return self.record


class Wire:
    """One candidate's connection to the store: slow, and cut for some spans of time in one direction or both."""

    def __init__(self, store, rng, cuts, ways=(0.0, 0.01, 0.3, 2.0)):
        self._store = store
        self._ways = ways
        self._rng = rng
        self._cuts = cuts

    async def _way(self, direction):
        await asyncio.sleep(self._rng.choice(self._ways))
        now = asyncio.get_running_loop().time()
        if any(start <= now < start + length and direction in how for start, length, how in self._cuts):
            await asyncio.Event().wait()  # no answer, not even an error

    async def get(self, resource, name, *, namespace):
        await self._way("there")
        found = self._store.record
        await self._way("back")
        if found is None:
            raise ApiError("get", "/lease", 404, "NotFound", "none")
        return found

    async def create(self, resource, obj, *, namespace):
        return await self._do(obj["spec"], None)

    async def patch(self, resource, name, body, *, namespace):
        return await self._do(body["spec"], body["metadata"]["resourceVersion"])

    async def _do(self, spec, wanted):
        await self._way("there")
        try:
            return self._store.write(spec, wanted)
        finally:
            await self._way("back")


cuts = st.lists(
    st.tuples(st.floats(0, 200), st.floats(0.1, 60), st.sampled_from(["there", "back", "there back"])),
    max_size=4,
)
candidate = st.tuples(cuts, st.floats(0.9, 1.1), st.floats(-1e6, 1e6), st.floats(0, 20))


@pytest.mark.slow
@given(st.lists(candidate, min_size=2, max_size=4), st.integers(0, 2**32))
def test_there_are_never_two_leaders(candidates, seed):
    last = virtual_time.run(_election(candidates, seed))
    assert last > 300, "a candidate leads again after the last cut"


async def _election(candidates, seed):
    loop = asyncio.get_running_loop()
    store, rng = LeaseStore(), random.Random(seed)
    random.seed(seed)
    leases, led = [], []

    async def work(lease):
        while True:
            lease.check()
            assert [other for other in leases if other.leading] == [lease]
            led.append(loop.time())
            await asyncio.sleep(0.7)

    async def live(lease, after):
        await asyncio.sleep(after)
        await lead(lease, lambda: work(lease))

    def clock(rate, offset):
        return lambda: loop.time() * rate + offset

    for i, (spans, rate, offset, _) in enumerate(candidates):
        wire = Wire(store, rng, spans)
        leases.append(Lease(wire, namespace="n", name="l", identity=f"c{i}", clock=clock(rate, offset)))
    lives = [
        asyncio.ensure_future(live(candidate_lease, c[3]))
        for candidate_lease, c in zip(leases, candidates, strict=True)
    ]
    await asyncio.sleep(400)
    for life in lives:
        life.cancel()
    for error in await asyncio.gather(*lives, return_exceptions=True):
        assert isinstance(error, asyncio.CancelledError), error
    return max(led, default=0)


def test_a_clean_end_lets_the_next_one_start_at_once():
    async def scene():
        store, rng = LeaseStore(), random.Random(1)
        first, second = (
            Lease(
                Wire(store, rng, [], (0.01,)),
                namespace="n",
                name="l",
                identity=i,
                clock=asyncio.get_running_loop().time,
            )
            for i in "ab"
        )
        one = asyncio.ensure_future(lead(first, asyncio.Event().wait))
        await until(lambda: first.leading)
        two = asyncio.ensure_future(lead(second, asyncio.Event().wait))
        await asyncio.sleep(60)
        assert (first.leading, second.leading, second.holder) == (True, False, first.identity)
        one.cancel()
        await asyncio.gather(one, return_exceptions=True)
        ended = asyncio.get_running_loop().time()
        await until(lambda: second.leading)
        took = asyncio.get_running_loop().time() - ended
        two.cancel()
        await asyncio.gather(two, return_exceptions=True)
        return took, store.record.spec.lease_transitions

    took, transitions = virtual_time.run(scene())
    assert took < 15
    assert transitions == 1


def test_the_leaders_work_is_cancelled_before_another_may_start():
    async def scene():
        store, rng = LeaseStore(), random.Random(1)
        loop = asyncio.get_running_loop()
        lease = Lease(
            Wire(store, rng, [(30, 1000, "there")], (0.01,)),
            namespace="n",
            name="l",
            identity="a",
            clock=loop.time,
        )
        ended = []

        async def work():
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(loop.time())

        running = asyncio.ensure_future(lead(lease, work))
        await asyncio.sleep(200)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        with pytest.raises(NotLeading, match="n/l is not held by a_"):
            lease.check()
        return ended[0]

    assert 30 < virtual_time.run(scene()) <= 42  # the last successful renewal plus ten seconds


def test_an_error_of_the_work_ends_it_and_releases_the_lease():
    async def scene():
        store = LeaseStore()
        lease = Lease(
            Wire(store, random.Random(1), []),
            namespace="n", name="l", identity="a", clock=asyncio.get_running_loop().time,
        )  # fmt: skip

        async def work():
            raise KeyError("boom")

        with pytest.raises(KeyError, match="boom"):
            await lead(lease, work)
        return store.record.spec.holder_identity

    assert virtual_time.run(scene()) == ""


def test_a_renewal_whose_answer_was_lost_costs_no_leader():
    async def scene():
        store, loop = LeaseStore(), asyncio.get_running_loop()
        lease = Lease(Wire(store, random.Random(1), [], (0.01,)), namespace="n", name="l", identity="a",
                      clock=loop.time)  # fmt: skip
        write = store.write

        def write_and_answer_nothing(spec, wanted):
            write(spec, wanted)
            store.write = write
            raise ApiError("patch", "/lease", None, "", "the connection was closed")

        await lease.acquire()
        store.write = write_and_answer_nothing
        holding = asyncio.ensure_future(lease.hold())
        await asyncio.sleep(60)
        holding.cancel()
        return lease.leading, lease.trouble

    assert virtual_time.run(scene()) == (True, None)


def test_what_the_server_refuses_is_the_trouble_and_no_renewal():
    async def scene():
        store, loop = LeaseStore(), asyncio.get_running_loop()
        lease = Lease(Wire(store, random.Random(1), [], (0.01,)), namespace="n", name="l", identity="a",
                      clock=loop.time)  # fmt: skip
        await lease.acquire()

        def refuse(spec, wanted):
            raise ApiError("patch", "/lease", 403, "Forbidden", "no right to it")

        store.write = refuse
        hold = asyncio.create_task(lease.hold())
        trouble = await until(lambda: lease.trouble)  # the end of the lease may cut the last attempt off
        await hold
        return trouble, loop.time()

    trouble, ended = virtual_time.run(scene())
    assert "no right to it" in trouble
    assert ended < 11


def test_unsafe_times_are_refused():
    with pytest.raises(ValueError, match="retry < renew < duration, not 2, 15 and 15 s"):
        Lease(None, namespace="n", name="l", identity="a", renew_s=15)


REPLICA = """
import asyncio, sys
from nodeagent.kube.access import Access
from nodeagent.kube.client import ApiError, ApiClient
from nodeagent.kube.lease import Lease, lead
from nodeagent.kube.resource import Resource

MAPS = Resource("", "v1", "configmaps", "ConfigMap", True, dict)

async def main(url, token, name):
    lease = Lease(ApiClient(Access(url, token=token)), namespace="nodeagent", name="l", identity=name,
                  duration_s=3.0, renew_s=2.0, retry_s=0.2)
    writing = ApiClient(Access(url, token=token), guard=lease.check)
    async def work():
        count = 0
        while True:
            count += 1
            try:
                await writing.patch(MAPS, "m", {"data": {name: str(count)}}, namespace="nodeagent")
            except ApiError:  # under way when the process was stopped
                pass
            await asyncio.sleep(0.005)
    await lead(lease, work)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.slow
async def test_a_leader_that_was_stopped_and_continues_writes_nothing():
    """Real processes, a real server and SIGSTOP: the first write after the stop must not happen."""
    server = await ApiServer().start()
    server.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "namespace": "nodeagent"}})
    root = str(Path(__file__).parents[2])
    replicas = {
        name: subprocess.Popen(  # noqa: ASYNC220 - it is stopped and killed by its id
            [sys.executable, "-c", REPLICA, server.url, server.token(name, ["system:masters"]), name],
            env={**os.environ, "PYTHONPATH": root}, stderr=subprocess.DEVNULL,
        )
        for name in ("a", "b")
    }  # fmt: skip

    astray = []

    def as_holder(user, verb, plural, old, new):
        """A writer must be the holder of the Lease at that moment."""
        if plural == "configmaps":
            holder = server.find("leases", "l", "nodeagent")["spec"]["holderIdentity"]
            if not holder.startswith(f"{user}_"):
                astray.append((user, holder))

    server.admit.append(as_holder)

    def writers():
        return [seen.user for seen in server.requests if seen.resource == "configmaps" and seen.status == 200]

    try:
        await server.until(lambda: len(writers()) > 20)
        first = writers()[-1]
        second = "b" if first == "a" else "a"
        os.kill(replicas[first].pid, signal.SIGSTOP)
        count = len(writers())
        await server.until(lambda: second in writers()[count:])
        os.kill(replicas[first].pid, signal.SIGCONT)
        count = len(writers())
        await server.until(lambda: len(writers()) > count + 50)
        replicas[second].terminate()  # not cleanly: the lease runs out
        count = len(writers())
        await server.until(lambda: first in writers()[count:])
        assert astray == []
    finally:
        for replica in replicas.values():
            replica.kill()
            replica.wait()
        await server.stop()


async def test_the_lease_is_renewed_through_the_api_client():
    server = await ApiServer().start()
    client = ApiClient(Access(server.url, token=server.token()))
    lease = Lease(
        client, namespace="nodeagent", name="l", identity="pod-0", duration_s=3, renew_s=2, retry_s=0.01
    )
    leading = asyncio.ensure_future(lead(lease, asyncio.Event().wait))
    await server.until(lambda: server.counts["patch", "leases"] > 3)
    spec = server.find("leases", "l", "nodeagent")["spec"]
    assert spec["holderIdentity"].startswith("pod-0_")
    assert (spec["leaseDurationSeconds"], spec["leaseTransitions"]) == (3, 0)
    assert lease.leading
    assert server.counts["get", "leases"] == 1, "a renewal is one request"
    leading.cancel()
    await asyncio.gather(leading, return_exceptions=True)
    assert server.find("leases", "l", "nodeagent")["spec"]["holderIdentity"] == ""
    await client.close()
    await server.stop()
