"""PyYAML without the patterns of its pure-Python parser, which libyaml does not use.

Importing PyYAML compiles them, in a tenth of the time in which the agent must register. Here each is compiled when it
is first used.
"""

from __future__ import annotations

import re
from typing import Any


class _LatePattern:
    """Compile a pattern at its first use."""

    def __init__(self, pattern: str, flags: int = 0) -> None:
        self._arguments = pattern, flags

    def __getattr__(self, name: str) -> Any:
        # `re` keeps compiled patterns itself.
        return getattr(re.compile(*self._arguments), name)


_compile = re.compile
re.compile = _LatePattern  # type: ignore[assignment]
try:
    import yaml
finally:
    re.compile = _compile

__all__ = ["yaml"]
