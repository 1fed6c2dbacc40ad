"""The tables of findings in ``docs/reference/doctor.md``."""

from __future__ import annotations

from collections.abc import Sequence

from hack.docs.markdown import table
from nodeagent.doctor.finding import Topic


def finding_tables(topics: Sequence[Topic]) -> str:
    """Return a table of every key with its remedy, for each topic."""
    return "\n".join(map(_topic, topics))


def _topic(topic: Topic) -> str:
    facts = [f"`{key}`" for key, advice in topic.entries.items() if not advice.why]
    rows = [(f"`{key}`", advice.why, advice.remedy) for key, advice in topic.entries.items() if advice.why]
    head = f"### {topic.title.capitalize()} (`{topic.group}`)\n\n"
    head += f"Facts, nothing to do: {', '.join(facts)}.\n\n" if facts else ""
    return head + table(("finding", "why it matters", "what to do"), rows)
