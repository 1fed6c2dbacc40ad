"""The keys that settings files had in earlier versions. One release still reads them, with a warning; then a row goes.

A setting that is removed or gets another name has a row here and in docs/upgrade.md. A test compares this table, the
page and all keys that ever were.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from nodeagent.config.yaml_tree import YamlNode

_BOOLEANS = {True: ("true", "yes", "on"), False: ("false", "no", "off")}


class FormerKey(NamedTuple):
    """A key that went. ``now``: the key of the same mapping that takes its value; ``None``: the value has no effect.

    ``values``: the present spelling of each former value, in lower case; none: its values are those of the present key.
    ``remedy`` is the end of the warning.
    """

    now: str | None
    remedy: str
    values: Mapping[str, str] = MappingProxyType({})

    def present(self, node: YamlNode) -> YamlNode | None:
        """The value as the present key takes it; ``None`` if the former key never took it."""
        if not self.values:
            return node
        plain = isinstance(node.value, str) and not node.quoted
        value = self.values.get(str(node.value).lower()) if plain else None
        return None if value is None else YamlNode(value, False, node.line, node.column)


def _switched(on: str, off: str) -> Mapping[str, str]:
    return {word: on if state else off for state, words in _BOOLEANS.items() for word in words}


FormerKeys = Mapping[str, FormerKey]
"""By the place of the key, written as in docs/reference/configuration.md."""

FORMER_KEYS: Mapping[str, FormerKeys] = {
    "NodeAgentConfig": {
        "kubelet.registration": FormerKey(
            None, "the agent registers at the kubelet's socket: remove the key"
        ),
        "resources[gpu-mem].memoryLimits": FormerKey(
            "enforcement",
            "write enforcement: none instead of memoryLimits: false, and remove memoryLimits: true",
            _switched(on="auto", off="none"),
        ),
        "stateDirectory": FormerKey(
            None, "the state folder is health.stateDirectory: write that, or remove the key"
        ),
    },
    "FabricConfig": {},
    "FabricTopology": {},
}
"""By the kind of the file."""
