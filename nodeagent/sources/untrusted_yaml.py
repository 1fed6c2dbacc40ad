"""YAML that others wrote, loaded without harm to whoever reads it.

The law of this file: whatever the text is, there is a document or a ``ValueError``. PyYAML's constructors raise
what they please for a tag that its value does not fit (``!!bool x``: ``KeyError``), and libyaml's composer descends
on the C stack, where what is nested deeply ends the process.
"""

from __future__ import annotations

from typing import Any

import yaml

DEPTH_MAX = 64
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load(text: str | bytes) -> object:
    """The document. Raises ``ValueError``."""
    try:
        _shallow(text)
        document: object = yaml.load(text, _LOADER)  # noqa: S506 - a safe loader in either case
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split())) from error
    except (LookupError, AttributeError, TypeError) as error:
        raise ValueError(f"a tag does not fit its value: {error}") from error
    return document


def _shallow(text: str | bytes) -> None:
    depth = 0
    for event in yaml.parse(text, _LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEPTH_MAX:
            raise ValueError(f"it is nested deeper than {DEPTH_MAX}")
