"""Which leaf group is which published object, kept up to date: names must outlive whatever they are named for.

Groups and names that claim each other are judged together, and only those that a change has reached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from nodeagent.fabric.groups import Group
from nodeagent.fabric.names import match, name_of

Claims = dict[str, tuple[int, int]]


class Matching:
    """``names`` is what each group with members is called, ``groups`` the way back."""

    def __init__(self, fabric: str, taken: Callable[[str], bool]) -> None:
        self._fabric = fabric
        self._taken = taken
        self._claims: dict[Group, Claims] = {}
        self._claimants: dict[str, set[Group]] = {}
        self.names: dict[Group, str] = {}
        self.groups: dict[str, Group] = {}

    def update(
        self,
        dirty: Iterable[Group],
        gone: Iterable[Group],
        placed: Mapping[str, str],
        homes: Mapping[str, str],
    ) -> tuple[set[Group], set[str]]:
        """The groups that are called otherwise, and the names that mean another group."""
        todo: set[Group] = set()
        freed: set[str] = set()
        for group in gone:
            freed |= self._forget(group)
        for group in dirty:
            claims = _claims(group, placed, homes)
            before = self._claims.get(group)
            if claims is None:
                freed |= self._forget(group)
            elif claims != before or group not in self.names:
                for name in before or ():
                    self._claimants[name].discard(group)
                self._claims[group] = claims
                for name in claims:
                    self._claimants.setdefault(name, set()).add(group)
                freed.update(before or ())
                todo.add(group)
        for name in freed:
            todo |= self._claimants.get(name, set())
        return self._rematch(self._closure(todo), freed)

    def _forget(self, group: Group) -> set[str]:
        claims = self._claims.pop(group, None)
        for name in claims or ():
            self._claimants[name].discard(group)
            if not self._claimants[name]:
                del self._claimants[name]
        called = self.names.pop(group, None)
        if called is None:
            return set(claims or ())
        if self.groups.get(called) is group:
            del self.groups[called]
        return {*(claims or ()), called}

    def _closure(self, todo: set[Group]) -> set[Group]:
        found, queue = set(todo), list(todo)
        while queue:
            for name in self._claims[queue.pop()]:
                for other in self._claimants[name]:
                    if other not in found:
                        found.add(other)
                        queue.append(other)
        return found

    def _rematch(self, groups: set[Group], names: set[str]) -> tuple[set[Group], set[str]]:
        matched = match({group: self._claims[group] for group in groups}, _anchor)
        before = {group: self.names.get(group) for group in groups}
        for group, known in before.items():
            if known is not None and self.groups.get(known) is group:
                del self.groups[known]
                names.add(known)
        changed: set[Group] = set()
        for group in sorted(groups, key=_anchor):
            name = matched.get(group) or name_of(self._fabric, 1, group.anchor, self._taken)
            if name != before[group]:
                changed.add(group)
            self.names[group] = name
            self.groups[name] = group
            names.add(name)
        return changed, names


def _claims(group: Group, placed: Mapping[str, str], homes: Mapping[str, str]) -> Claims | None:
    """(shared members, shared switches) by name; ``None`` for a group without members."""
    if not group.voters and not group.forced:
        return None
    nodes: dict[str, int] = {}
    for wiring in group.voters:
        found = list(map(placed.get, wiring.nodes))
        for name in set(found):
            if name is not None:
                nodes[name] = nodes.get(name, 0) + found.count(name)
    for node in group.forced:
        if (name := placed.get(node)) is not None:
            nodes[name] = nodes.get(name, 0) + 1
    switches: dict[str, int] = {}
    for leaf in group.leaves:
        if (name := homes.get(leaf)) is not None:
            switches[name] = switches.get(name, 0) + 1
    return {name: (nodes.get(name, 0), switches.get(name, 0)) for name in nodes.keys() | switches.keys()}


def _anchor(group: Group) -> str:
    return group.anchor
