"""Read YAML within bounds: settings files, plans, CDI specs and Kubernetes objects all come through here.

Size, depth and the number of values that aliases expand to are checked on the parser's events, before a value is
built. libyaml's composer descends on the C stack, where deep nesting ends the process; merge keys copy their
sources, so that a few lines can expand to gigabytes.

Two readers stay apart: the stand-ins, which share no code with the agent, and ``kube.access``, which reads the
user's own kubeconfig.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from nodeagent.config.libyaml import yaml

# libyaml where PyYAML was built with it: ten times as fast, the same events.
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Limits(NamedTuple):
    """``size``: characters or bytes. ``values`` counts a value again for each alias. ``None``: not limited."""

    depth: int = 64
    size: int | None = None
    values: int | None = None
    aliases: bool = True


class LimitError(yaml.MarkedYAMLError):
    """The text passes a limit; ``problem`` and ``problem_mark`` are the limit and the place."""

    def __init__(self, problem: str, event: Any = None) -> None:
        super().__init__(problem=problem, problem_mark=None if event is None else event.start_mark)


def bounded_events(text: str | bytes, limits: Limits) -> Iterator[Any]:
    """The parser's events of all documents. Raises ``yaml.YAMLError``, or ``LimitError`` at the first excess."""
    if limits.size is not None and len(text) > limits.size:
        raise LimitError(f"the file is larger than {limits.size} characters")
    bounds = _Bounds(limits)
    for event in yaml.parse(text, Loader=LOADER):
        bounds.check(event)
        yield event


def load_document(text: str | bytes, limits: Limits) -> object:
    """The only document, with the types of YAML 1.1. Raises ``ValueError`` for any text that has none."""
    try:
        for _ in bounded_events(text, limits):
            pass
        document: object = yaml.load(text, LOADER)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split())) from error
    except (LookupError, AttributeError, TypeError) as error:
        # PyYAML's constructors raise these for a tag that does not fit its value: `!!bool x`.
        raise ValueError(f"a tag does not fit its value: {error}") from error
    return document


class _Subtree(NamedTuple):
    """A finished value: how many values it holds, itself included, and how many levels below it."""

    values: int = 1
    height: int = 0


class _Collection:
    """A list or mapping whose end has not come yet."""

    def __init__(self, start: Any) -> None:
        self.start = start
        self.values, self.height = 1, 1
        self.is_mapping = isinstance(start, yaml.MappingStartEvent)
        self.key: Any = None
        """Where this is a mapping: the start of the key whose value comes next."""


class _Bounds:
    """Follows the events and counts."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._open: list[_Collection] = []
        self._anchors: dict[str, _Subtree] = {}

    def check(self, event: Any) -> None:
        """Raises ``LimitError``."""
        if isinstance(event, yaml.CollectionEndEvent):
            closed = self._open.pop()
            self._finish(_Subtree(closed.values, closed.height), closed.start, closed.start.anchor)
        elif isinstance(event, yaml.AliasEvent):
            self._finish(self._repeated(event), event, None)
        elif isinstance(event, yaml.NodeEvent):
            if len(self._open) > self._limits.depth:
                raise LimitError(f"values are nested more than {self._limits.depth} deep", event)
            if isinstance(event, yaml.ScalarEvent):
                self._finish(_Subtree(), event, event.anchor)
            else:
                self._open.append(_Collection(event))
        elif isinstance(event, yaml.DocumentStartEvent):
            self._anchors.clear()

    def _repeated(self, alias: Any) -> _Subtree:
        if not self._limits.aliases:
            raise LimitError("aliases are not read here", alias)
        subtree = self._anchors.get(alias.anchor)
        if subtree is None:
            raise yaml.MarkedYAMLError(
                problem=f"the alias *{alias.anchor[:60]} has no anchor that ends before it",
                problem_mark=alias.start_mark,
            )
        if len(self._open) + subtree.height > self._limits.depth:
            raise LimitError(f"values are nested more than {self._limits.depth} deep", alias)
        return subtree

    def _finish(self, subtree: _Subtree, start: Any, anchor: str | None) -> None:
        if anchor is not None:
            self._anchors[anchor] = subtree
        if not self._open:
            return
        parent = self._open[-1]
        parent.values += subtree.values
        parent.height = max(parent.height, 1 + subtree.height)
        if parent.is_mapping:
            # An excess is reported at the key.
            start, parent.key = (start, start) if parent.key is None else (parent.key, None)
        if self._limits.values is not None and parent.values > self._limits.values:
            problem = (
                f"the file expands to more than {self._limits.values} values here; repeat less by aliases"
            )
            raise LimitError(problem, start)
