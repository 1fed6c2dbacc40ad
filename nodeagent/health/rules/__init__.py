"""The rules: of links, adapters and InfiniBand ports for PFs; of GPUs, and of their XIDs. Pure.

A rule is one row of a table, with its meaning and the source of its defaults. Its measure stands above the table.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from nodeagent.health.carrier_losses import ADMINISTRATION, COUNTERS
from nodeagent.health.rule import Rule, clears, gravity, threshold
from nodeagent.health.rules.adapters import ADAPTER_RULES
from nodeagent.health.rules.infiniband_rules import INFINIBAND_RULES
from nodeagent.health.rules.links import LINK_RULES

NIC_RULES: tuple[Rule, ...] = tuple(
    sorted((*LINK_RULES, *INFINIBAND_RULES, *ADAPTER_RULES), key=lambda rule: -gravity(rule.state))
)
"""The gravest first; the reasons of a PF have this order."""

KEYS: tuple[str, ...] = tuple(rule.key for rule in NIC_RULES)


def default(key: str) -> Rule:
    """Return the default rule with this key. Raises ``KeyError``."""
    for rule in NIC_RULES:
        if rule.key == key:
            return rule
    raise KeyError(key)


def damping(rules: Sequence[Rule]) -> Rule:
    """Return the rule on the penalty of lost carriers. Its window is the half-life of the penalty."""
    return next(rule for rule in rules if rule.decays == "penalty")


def settling(rules: Sequence[Rule]) -> frozenset[str]:
    """Return the counters of errors that link training makes too."""
    return frozenset(name for rule in rules if rule.settles for name in rule.counters)


def windows(rules: Sequence[Rule]) -> dict[str, float]:
    """Return the longest window that any rule needs of each counter. Lost links and changes by an administrator are
    always counted: losses restart the time to clear of ``carrier_down``."""
    longest = dict.fromkeys((*COUNTERS, ADMINISTRATION), 0.0)
    for rule in rules:
        for name in rule.counters if rule.enabled else ():
            longest[name] = max(longest.get(name, 0.0), rule.window_s or 0.0)
    return longest


class RuleWords(msgspec.Struct, frozen=True):
    """The meaning of a rule, its default threshold, and what ends its fault."""

    meaning: str
    threshold: str
    clears: str


def rule_words(keys: Collection[str]) -> dict[str, RuleWords]:
    """Return the words of the rules of PFs that have one of these keys, for readers of a report, which names the keys
    of its reasons alone."""
    return {
        rule.key: RuleWords(rule.meaning, threshold(rule), clears(rule))
        for rule in NIC_RULES
        if rule.key in keys
    }
