"""The documents of ``--json``: camelCase keys, with the node, the time and the source of the values.

A list stays a list: each of its objects says where it comes from.
"""

from __future__ import annotations

import json
import os
import socket
import time
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from nodeagent.base.bounded_calls import within
from nodeagent.base.regular_file import read_regular
from nodeagent.base.rfc3339 import rfc3339

ITSELF = "this command"
"""The source of values that no agent has given."""
_NAME_MAX = 4096


def document(body: object, root: Path, source: str | None) -> str:
    """One line of JSON. ``source``: the place of the agent that has answered; ``None``: the command has read itself."""
    origin: dict[str, Any] = {
        "node": node_name(root),
        "time": rfc3339(time.time()),
        "source": source or ITSELF,
    }
    values = camel(to_builtins(body))
    both = [origin | one for one in values] if isinstance(values, list) else origin | values
    return json.dumps(both, ensure_ascii=True)


def camel(value: Any) -> Any:
    """The same with each key in camelCase. A key that is no name, such as an address, stays.

    >>> camel({"age_seconds": 3, "of": [{"pci_address": None}]})
    {'ageSeconds': 3, 'of': [{'pciAddress': None}]}
    """
    if isinstance(value, list | tuple):
        return [camel(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {_camel(key): camel(one) for key, one in value.items()}


def _camel(key: str) -> str:
    if not key.isidentifier():
        return key
    first, *others = key.split("_")
    return first + "".join(map(str.capitalize, others))


def node_name(root: Path) -> str:
    """The node's name by the manifest, in the machine's file, or of this host for its own root."""
    if name := os.environ.get("NODE_NAME"):
        return name
    try:
        text = within("the name of the node", 1.0, partial(read_regular, root / "etc/hostname", _NAME_MAX))
        return text.decode().strip() or str(root)
    except (OSError, UnicodeDecodeError):
        return socket.gethostname() if root == Path("/") else str(root)
