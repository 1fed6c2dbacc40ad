"""Random claims, force-deletions, crashes at every step and full disks: no VF and no MiB is ever in two claims.

In this test a claim has devices from the answer of Prepare until the kubelet asks for its end, or loses it. The
scheduler of this test overbooks as it likes.
"""

from __future__ import annotations

import asyncio
import errno
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from nodeagent.dra.claims import GONE_S, ClaimReference, PreparedClaims
from nodeagent.dra.prepared_claim import PreparedClaim
from nodeagent.kinds import Refused
from nodeagent.kube.failure import ApiError
from tests.support.dra_node import (
    ClaimStore,
    Clock,
    StepCalls,
    claim_of,
    claims_of,
    gpus_of,
    machine,
    offer_of,
    pfs_of,
    publish,
    reference,
    result,
)
from tests.support.examples import examples
from tests.support.kind_machines import SICK

FACTS = machine(rails=2, gpus=2, vfs=3)
DEVICES = (*gpus_of(FACTS), *pfs_of(FACTS))
EXPECTED = (Refused, OSError)

shares = st.lists(
    st.one_of(
        st.tuples(st.sampled_from([0, 1]), st.sampled_from([1024, 20480, 60416])),
        st.tuples(st.sampled_from([2, 3]), st.sampled_from([1, 1, 2])),
    ),
    min_size=1,
    max_size=2,
)
picks = st.integers(0, 999)
steps = st.sampled_from([12, 12, 12, 0, 1, 2, 3, 4, 5, 6])
crashes = st.sampled_from([False, False, True])
troubles = st.sampled_from(["none", "none", "none", "disk", "disk at the second file", "api"])


class ClaimsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.TemporaryDirectory()
        self.store, self.clock, self.calls = ClaimStore(), Clock(), StepCalls()
        self.offer = offer_of(FACTS)
        self.claims = self.started()
        self.working: list[tuple[asyncio.Task[Any], ClaimReference, bool]] = []
        """The calls of the kubelet in progress; the last is whether they prepare."""
        self.granted: dict[str, tuple[ClaimReference, PreparedClaim]] = {}
        """The devices that containers may use, by UID."""

    def started(self) -> PreparedClaims:
        return claims_of(Path(self.folder.name), self.offer, self.store, calls=self.calls, clock=self.clock)

    def run(self, count: int) -> None:
        for _ in range(count):
            self.loop.run_until_complete(asyncio.sleep(0))
        for task, ref, prepares in [it for it in self.working if it[0].done()]:
            self.working = [it for it in self.working if it[0] is not task]
            error = task.exception()
            assert error is None or isinstance(error, EXPECTED), error
            if prepares and error is None:
                self.granted[ref.uid] = (ref, task.result())

    # --- the cluster ----------------------------------------------------------------------------------

    def results(self, wanted: list[Any]) -> list[dict[str, Any]]:
        return [result(DEVICES[index], amount, f"r{i}") for i, (index, amount) in enumerate(wanted)]

    @initialize(wanted=shares)
    def first_claim(self, wanted: list[Any]) -> None:
        self.start_pod(wanted, 12, "none", crashes=False)

    @rule(wanted=shares, count=steps, trouble=troubles, crashes=crashes)
    def start_pod(self, wanted: list[Any], count: int, trouble: str, *, crashes: bool) -> None:
        """The scheduler gives a new claim to this node."""
        claim = self.store.put(
            claim_of(f"c{len(self.store.claims) + self.store.reads}", *self.results(wanted))
        )
        self.prepare(reference(claim), count, trouble)
        if crashes:
            self.crash(0)

    @precondition(lambda self: self.store.claims)
    @rule(pick=picks, count=steps, trouble=troubles)
    def start_pod_again(self, pick: int, count: int, trouble: str) -> None:
        """The kubelet repeats its call: after its restart, or after an error."""
        claims = list(self.store.claims.values())
        self.prepare(reference(claims[pick % len(claims)]), count, trouble)

    @precondition(lambda self: self.store.claims)
    @rule(pick=picks, wanted=shares, again=st.booleans())
    def change_claim(self, pick: int, wanted: list[Any], *, again: bool) -> None:
        """A claim is made again under its name, or gets other devices after the kubelet has ended it."""
        claim = list(self.store.claims.values())[pick % len(self.store.claims)]
        if again:
            self.store.put(claim_of(claim["metadata"]["name"], *self.results(wanted)))
        elif not self._busy(claim["metadata"]["uid"]):
            claim["status"]["allocation"] = {"devices": {"results": self.results(wanted)}}

    @precondition(lambda self: self.store.claims)
    @rule(pick=picks)
    def delete_by_force(self, pick: int) -> None:
        del self.store.claims[list(self.store.claims)[pick % len(self.store.claims)]]

    # --- the kubelet ----------------------------------------------------------------------------------

    def prepare(self, ref: ClaimReference, count: int, trouble: str) -> None:
        self.have(trouble)
        if not any(it[1].uid == ref.uid for it in self.working):
            self.working.append((self.loop.create_task(self.claims.prepare(ref)), ref, True))
        self.run(count)
        self.have("none")

    def have(self, trouble: str) -> None:
        self.calls.failure = self.store.failure = None
        if trouble.startswith("disk"):
            self.calls.failure = OSError(errno.ENOSPC, "No space left on device", "/x")
            self.calls.after = trouble == "disk at the second file"
        elif trouble == "api":
            self.store.failure = ApiError("get", "/x", 403, "Forbidden", "no right")

    @precondition(lambda self: self.granted or self.working)
    @rule(pick=picks, count=steps, trouble=troubles, cancels=st.booleans(), crashes=crashes)
    def unprepare(self, pick: int, count: int, trouble: str, *, cancels: bool, crashes: bool) -> None:
        """The containers have ended, or the kubelet has given up waiting; a call that it gave up may still run."""
        self.have(trouble)
        refs = [*(it[0] for it in self.granted.values()), *(it[1] for it in self.working)]
        ref = refs[pick % len(refs)]
        self.granted.pop(ref.uid, None)
        for task, other, prepares in list(self.working):
            if prepares and other.uid == ref.uid:
                self.working = [it for it in self.working if it[0] is not task]
                if cancels:
                    task.cancel()
                self.loop.run_until_complete(asyncio.sleep(0))
                self.abandoned(task)
        self.working.append((self.loop.create_task(self.claims.unprepare(ref)), ref, False))
        self.run(count)
        self.have("none")
        if crashes:
            self.crash(0)

    def abandoned(self, task: asyncio.Task[Any]) -> None:
        task.add_done_callback(lambda it: it.cancelled() or it.exception())

    @rule(count=steps)
    def wait(self, count: int) -> None:
        self.run(count)

    # --- the agent and its machine --------------------------------------------------------------------

    @rule(count=steps)
    def crash(self, count: int) -> None:
        self.run(count)
        self.loop.run_until_complete(end(asyncio.all_tasks(self.loop)))
        unfinished = [ref for _, ref, prepares in self.working if not prepares]
        self.working = []
        self.claims = self.started()
        for ref in unfinished:  # the kubelet repeats them
            self.working.append((self.loop.create_task(self.claims.unprepare(ref)), ref, False))

    @rule(sick=st.booleans())
    def gpu_vanishes(self, *, sick: bool) -> None:
        first = replace(FACTS.gpus[0], lost=sick, health=SICK if sick else FACTS.gpus[0].health)
        publish(self.offer, replace(FACTS, gpus=(first, *FACTS.gpus[1:])))

    @rule()
    def sources_are_silent(self) -> None:
        """As right after the start of an agent: claims wait until the devices are known."""
        unknown = dict.fromkeys(self.offer.current.pools)
        self.offer.update(replace(self.offer.current, pools=unknown), self.offer.snapshot)

    @rule()
    def time_passes(self) -> None:
        """The kubelet ends or loses claims whose object is gone; the agent compares."""
        self.run(60)
        present = {claim["metadata"]["uid"]: claim for claim in self.store.claims.values()}
        self.granted = {uid: it for uid, it in self.granted.items() if uid in present}
        for _ in range(2):
            self.loop.run_until_complete(self.claims.compare())
            self.clock.seconds += GONE_S

    def _busy(self, uid: str) -> bool:
        return uid in self.granted or any(it[1].uid == uid for it in self.working)

    # --- what must hold -------------------------------------------------------------------------------

    @invariant()
    def nothing_is_in_two_claims(self) -> None:
        vfs: list[str] = []
        sums: dict[str, int] = {}
        for _, record in self.granted.values():
            for device in record.devices:
                vfs += device.vfs
                sums[device.device] = sums.get(device.device, 0) + device.amount
        assert len(vfs) == len(set(vfs))
        for device in DEVICES:
            assert sums.get(device.name, 0) <= device.capacity.total

    def teardown(self) -> None:
        try:
            self.everything_is_free_in_the_end()
        finally:
            self.loop.close()
            self.folder.cleanup()

    def everything_is_free_in_the_end(self) -> None:
        """When every claim is gone and the machine is well again, all of it is free."""
        self.have("none")
        publish(self.offer, FACTS)
        self.store.claims.clear()
        self.crash(3)
        self.run(60)
        for _ in range(2):
            self.loop.run_until_complete(self.claims.compare())
            self.clock.seconds += GONE_S
        assert not self.claims.records
        left = [path for path in Path(self.folder.name).rglob("*") if path.is_file()]
        assert not [path for path in left if path.suffix == ".json" and "devinfo" not in path.parts]
        everything = [result(device, device.capacity.total, device.name) for device in DEVICES]
        whole = self.store.put(claim_of("whole", *everything))
        self.loop.run_until_complete(self.claims.prepare(reference(whole)))


async def end(tasks: set[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


TestClaimsMachine = ClaimsMachine.TestCase
TestClaimsMachine.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
