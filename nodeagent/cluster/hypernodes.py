"""The tree's writer: a plan's writes, in their order, each only when those that it rests on have succeeded.

The law of this file:

* After every single write the tree in the API server is one that Volcano takes; the order is the planner's, and
  a write whose ground is missing is not sent.
* A write is conditional on the version that it was planned on. Who plans on an old picture is refused.
* A member list is replaced as a whole, and ``status`` is never written.
* What has failed is not sent again here: the next plan says it again, on what is true by then.
* A server that wants to be left alone, or does not answer, is asked for nothing more.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from nodeagent.fabric.hypernode import OWN_ANNOTATIONS, HyperNode, render
from nodeagent.fabric.outcome import Write
from nodeagent.kube.client import ApiError, Client
from nodeagent.kube.resource import HYPERNODES, Partial

log = logging.getLogger(__name__)

_WRITTEN = HYPERNODES.typed(Partial)


@dataclass(slots=True)
class Result:
    """``versions`` are of the objects that were written, ``None`` where one was deleted."""

    versions: dict[str, str | None] = field(default_factory=dict)
    failed: list[tuple[Write, ApiError]] = field(default_factory=list)
    left_out: int = 0
    retry_after_s: float = 0.0


class HyperNodes:
    def __init__(self, client: Client) -> None:
        self._client = client
        self.writes: Counter[tuple[str, str]] = Counter()
        """By verb and result: ``ok``, ``conflict``, ``refused`` or ``unreachable``."""
        self._trouble: dict[str, str] = {}

    async def write(self, writes: Sequence[Write]) -> Result:
        """Send the writes. Raises what the client's guard raises: then nothing more may be written."""
        result = Result()
        done: set[int] = set()
        for place, write in enumerate(writes):
            if not done.issuperset(write.after):
                result.left_out += 1
                continue
            try:
                await self._send(write, result)
            except ApiError as error:
                self.writes[write.verb, _word(error)] += 1
                result.failed.append((write, error))
                self._say(write, error)
                if error.retry_after_s is not None or error.status is None:
                    result.left_out += len(writes) - place - 1
                    result.retry_after_s = error.retry_after_s or 0.0
                    break
                continue
            done.add(place)
            self.writes[write.verb, "ok"] += 1
            if self._trouble.pop(write.object.name, None):
                log.info("A HyperNode can be written again. name=%s", write.object.name)
        return result

    async def _send(self, write: Write, result: Result) -> None:
        hypernode, name = write.object, write.object.name
        version = hypernode.resource_version or result.versions.get(name)
        if write.verb == "delete":
            try:
                await self._client.delete(HYPERNODES, name, resource_version=version)
            except ApiError as error:
                if not error.missing:
                    raise
            result.versions[name] = None
        elif write.verb == "create":
            made = await self._client.create(_WRITTEN, render(hypernode))
            result.versions[name] = made.metadata.resource_version
        else:
            patched = await self._client.patch(_WRITTEN, name, _body(hypernode, version))
            result.versions[name] = patched.metadata.resource_version
        log.info(
            "A HyperNode is written. verb=%s name=%s members=%d reason=%r",
            write.verb,
            name,
            len(hypernode.nodes) + len(hypernode.children),
            write.reason,
        )

    def _say(self, write: Write, error: ApiError) -> None:
        name = write.object.name
        if self._trouble.get(name) != str(error):
            self._trouble[name] = str(error)
            log.warning(
                "A HyperNode cannot be written; it will be tried again. verb=%s name=%s reason=%r",
                write.verb,
                name,
                str(error),
            )


def _body(hypernode: HyperNode, version: str | None) -> dict[str, Any]:
    """A merge patch: lists in it replace lists, and an annotation of ours that is no more is taken away."""
    body = render(hypernode)
    annotations = dict.fromkeys(OWN_ANNOTATIONS, None) | dict(hypernode.annotations)
    metadata: dict[str, Any] = {"labels": dict(hypernode.labels), "annotations": annotations}
    if version is not None:
        metadata["resourceVersion"] = version
    return {"metadata": metadata, "spec": body["spec"]}


def _word(error: ApiError) -> str:
    if error.conflict:
        return "conflict"
    return "unreachable" if error.status is None or error.status >= 500 else "refused"
