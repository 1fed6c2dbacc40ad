"""The writes from the published tree to the wanted one, in an order in which the tree is valid after every write.

First objects release members, from the top tier down; then they gain members, from the bottom tier up. An object that
would be empty in between is deleted instead, after its parent has released it. Every write lists the writes that must
have succeeded before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from nodeagent.fabric.hypernode import HyperNode
from nodeagent.fabric.outcome import TreeWrite, Verb


def order(
    published: Mapping[str, HyperNode], wanted: Mapping[str, HyperNode], names: Iterable[str]
) -> tuple[TreeWrite, ...]:
    """The writes for the objects with these names, which must be all that differ."""
    return _Sequence(published, wanted, sorted(names)).writes()


class _Sequence:
    def __init__(
        self, published: Mapping[str, HyperNode], wanted: Mapping[str, HyperNode], names: list[str]
    ) -> None:
        self._published = published
        self._wanted = wanted
        self._old = sorted((published[name] for name in names if name in published), key=_height)
        self._new = sorted((wanted[name] for name in names if name in wanted), key=_height)
        self._writes: list[TreeWrite] = []
        self._last: dict[str, int] = {}
        """The index of the last write on each object."""
        self._released: dict[str, list[int]] = {}
        """The writes that release a node or a child."""
        self._number = {hypernode.tier_name: hypernode.tier for hypernode in wanted.values()}
        """Volcano's number of each tier. Two numbers of one tier at a time would be ambiguous for it."""
        self._last_of_other_number: list[int] = []
        """The last delete of an object whose tier has another number now."""
        self._kept: dict[str, HyperNode | None] = {}
        """The rest of each object after it has released members; ``None`` if it is deleted."""

    def writes(self) -> tuple[TreeWrite, ...]:
        for old in self._old:
            self._kept[old.name] = self._keep(old)
        self._add_parents()
        for old in reversed(self._old):
            self._release(old)
        for new in self._new:
            self._gain(new)
        return tuple(self._writes)

    def _add_parents(self) -> None:
        """Let an unchanged parent release a child that is deleted and created again."""
        uppers = sorted((upper for upper in self._published.values() if upper.children), key=_height)
        gone = {name for name, kept in self._kept.items() if kept is None}
        for upper in uppers:
            if upper.name in self._kept or gone.isdisjoint(upper.children):
                continue
            self._kept[upper.name] = kept = self._keep(upper)
            self._old.append(upper)
            if upper.name in self._wanted:
                self._new.append(self._wanted[upper.name])
            if kept is None:
                gone.add(upper.name)
        self._old.sort(key=_height)
        self._new.sort(key=_height)

    def _keep(self, old: HyperNode) -> HyperNode | None:
        """The rest of an object after it has released members. Call it for lower tiers first."""
        new = self._wanted.get(old.name)
        if new is None or new.tier != old.tier:
            return None
        stay, below = set(new.nodes), set(new.children)
        nodes = tuple(node for node in old.nodes if node in stay)
        children = tuple(
            child for child in old.children if child in below and self._kept.get(child, child) is not None
        )
        if not nodes and not children:
            return None
        return msgspec.structs.replace(old, nodes=nodes, children=children)

    def _release(self, old: HyperNode) -> None:
        kept = self._kept[old.name]
        if kept is None:
            after = self._released.get(old.name, ())
            if self._number.get(old.tier_name, old.tier) != old.tier:
                self._write("delete", old, (*after, *self._last_of_other_number), self._why_deleted(old))
                self._last_of_other_number = [self._last[old.name]]
            else:
                self._write("delete", old, after, self._why_deleted(old))
            gone = (*old.nodes, *old.children)
        elif kept.nodes == old.nodes and kept.children == old.children and not old.patterns + old.selectors:
            return
        else:  # also where a hand has added patterns or selectors: what they select is not known
            gone = tuple((set(old.nodes) - set(kept.nodes)) | (set(old.children) - set(kept.children)))
            new = self._wanted[old.name]
            shrunk = msgspec.structs.replace(
                new, nodes=kept.nodes, children=kept.children, resource_version=old.resource_version
            )
            self._write("update", shrunk, (), f"releases {_some(gone)}")
        for member in gone:
            self._released.setdefault(member, []).append(self._last[old.name])

    def _gain(self, new: HyperNode) -> None:
        old = self._published.get(new.name)
        kept = self._kept.get(new.name)
        before: set[str] = set() if kept is None else {*kept.nodes, *kept.children}
        gained = [member for member in (*new.nodes, *new.children) if member not in before]
        after = [place for member in gained for place in self._released.get(member, ())]
        after += [self._last[child] for child in new.children if child in self._last]
        if new.name in self._last:
            after.append(self._last[new.name])
        if old is None or kept is None:
            after += self._last_of_other_number
            self._write("create", new, after, f"is new, with {_some(gained)}")
            return
        shrunk = self._writes[self._last[new.name]].object if new.name in self._last else None
        if shrunk is not None and shrunk.same(new):
            return
        version = None if shrunk is not None else old.resource_version
        reason = f"gains {_some(gained)}" if gained else "has other labels or annotations"
        self._write("update", msgspec.structs.replace(new, resource_version=version), after, reason)

    def _write(self, verb: Verb, hypernode: HyperNode, after: Iterable[int], reason: str) -> None:
        self._last[hypernode.name] = len(self._writes)
        self._writes.append(TreeWrite(verb, hypernode, tuple(sorted(set(after))), reason))

    def _why_deleted(self, old: HyperNode) -> str:
        if (wanted := self._wanted.get(old.name)) is None:
            return "has no members left"
        return "keeps none of its members" if wanted.tier == old.tier else f"is of tier {wanted.tier} now"


def _height(hypernode: HyperNode) -> tuple[int, str]:
    return hypernode.tier, hypernode.name


def _some(members: Iterable[str]) -> str:
    names = sorted(members)
    if len(names) <= 3:
        return ", ".join(names) or "nothing"
    return f"{', '.join(names[:2])} and {len(names) - 2} more"
