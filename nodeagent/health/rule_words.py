"""The rules in words by their key, for readers of a report: it names the keys of its reasons alone. Pure."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from nodeagent.health.nic_rules import DEFAULTS
from nodeagent.health.rule import clears, threshold


class RuleWords(msgspec.Struct, frozen=True):
    """The meaning of a rule, its default threshold, and what ends its fault."""

    meaning: str
    threshold: str
    clears: str


def rule_words(keys: Collection[str]) -> dict[str, RuleWords]:
    """The words of the rules that have one of these keys."""
    return {
        rule.key: RuleWords(rule.meaning, threshold(rule), clears(rule))
        for rule in DEFAULTS
        if rule.key in keys
    }
