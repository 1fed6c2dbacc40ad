"""expectedValues of the controller: wrong entries are named with their remedy."""

from __future__ import annotations

import pytest

from nodeagent.config.file_errors import ConfigError
from nodeagent.controller_config import load_fabric

HEAD = "apiVersion: nodeagent.io/v1alpha1\nkind: FabricConfig\n"


def test_an_entry_has_a_known_value_and_a_pattern() -> None:
    (entry,) = load_fabric(
        HEAD + 'expectedValues: [{value: GPU driver, like: "580.*"}]\n', name="f"
    ).expected_values
    assert (entry.value, entry.like) == ("GPU driver", "580.*")


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ("[{value: GPU drivers, like: x}]", "GPU driver"),
        ("[{value: MTU}]", "like"),
        ("[{like: x}]", "value"),
        ("[{value: MTU, like: '9000'}, {value: MTU, like: '1500'}]", "the value MTU has two patterns"),
        ("{MTU: '9000'}", "list"),
    ],
)
def test_a_wrong_entry_is_named(entries: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_fabric(HEAD + f"expectedValues: {entries}\n", name="f")
    assert said in str(refused.value)
