"""The labels of Nodes that the controller's admission policy allows, from its settings."""

from __future__ import annotations

from nodeagent.fabric.fabric_settings import OWN_LABELS, FabricRules, preset_keys


def label_prefixes(rules: FabricRules) -> tuple[str, ...]:
    """The beginnings of the keys, as the chart makes them of the settings. A key that begins with a field has an empty
    beginning, which every label has."""
    labels = rules.labels
    templates = [*labels.keys, *(key for preset in labels.presets for key in preset_keys(preset))]
    starts = (key.partition("{")[0] for key in templates)
    return tuple(dict.fromkeys((OWN_LABELS, *(it for it in starts if not it.startswith(OWN_LABELS)))))
