"""Any text gives a configuration or a ``ConfigError``, in bounded time."""

from __future__ import annotations

from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeagent.agent_config import Config, load
from nodeagent.commands.config import default_file, json_schema
from nodeagent.config import yaml_tree
from nodeagent.config.file_errors import ConfigError
from tests.support.examples import examples

HEAD = "apiVersion: nodeagent.io/v1alpha1\nkind: NodeAgentConfig\n"
VALIDATOR = jsonschema.Draft202012Validator(json_schema())
LINES = default_file().splitlines(keepends=True)
PIECES = [
    *(
        "null",
        "~",
        "true",
        "on",
        "0x10",
        "010",
        "1e3",
        ".nan",
        "-1",
        "0",
        "99999999999999999999",
        "1:30",
        "''",
    ),
    *(
        "[]",
        "{}",
        "[a]",
        "{a: b}",
        "&a",
        "*a",
        "<<: *a",
        "!x",
        "!!str",
        "|",
        ">",
        "---",
        "...",
        "? a",
        ": ",
        "- ",
    ),
    *(
        '"a"',
        "#",
        "%YAML 1.2",
        "7-3",
        "0-3",
        "nic{rial}",
        "auto",
        "\t",
        "\u202e",
        "\x07",
        "\x85",
        "\ufeff",
        "\udc00",
    ),
]


def plain(config: Config) -> Any:
    """The value as a JSON or YAML reader returns it: lists, no tuples."""
    return msgspec.json.decode(msgspec.json.encode(config))


def give(text: str) -> Config | ConfigError:
    """Any other exception fails the test."""
    try:
        return load(text, name="file")
    except ConfigError as error:
        refused = error
    breaks = sum(text.count(one) for one in "\n\r\x85\u2028\u2029")
    places = [(fault.line or 0, fault.column or 0) for fault in refused.errors]
    assert places == sorted(places) != []
    assert all(1 <= line <= breaks + 2 and column >= 1 for line, column in places)
    assert all(fault.message for fault in refused.errors)
    return refused


@given(st.text())
def test_any_text_gives_a_configuration_or_its_faults(text: str) -> None:
    give(text)
    give(HEAD + text)


@given(st.lists(st.sampled_from([*PIECES, "\n", "\n  ", "  ", ", ", "a: ", "resources: ", "kind: vf", "b"])))
def test_any_yaml_like_text_gives_a_configuration_or_its_faults(pieces: list[str]) -> None:
    give("".join(pieces))
    give(HEAD + "".join(pieces))


@settings(max_examples=examples(300))
@given(st.data())
def test_a_changed_default_gives_a_configuration_or_its_faults(data: st.DataObject) -> None:
    lines = list(LINES)
    for _ in range(data.draw(st.integers(1, 3))):
        i = data.draw(st.integers(0, len(lines) - 1))
        key, colon, _ = lines[i].partition(":")
        piece = data.draw(st.one_of(st.sampled_from(PIECES), st.text(max_size=8)))
        lines[i] = data.draw(
            st.sampled_from(
                ["", lines[i] * 2, lines[i].replace("# ", "", 1), f"{key}{colon} {piece}\n", piece + lines[i]]
            )
        )
    give("".join(lines))


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "a", "auto", "15b3", "0-3", "ens*", "/x", ":80", "cdi", "info"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["kind", "name", "select", "b"]), inner)
    ),
    max_leaves=6,
)


@settings(max_examples=examples(300))
@given(st.data())
def test_the_schema_accepts_every_file_that_the_loader_accepts(data: st.DataObject) -> None:
    """Replace one setting of the default: a file that loads must pass the schema and read back equal."""
    value = plain(Config())
    here: Any = value
    while True:
        key = data.draw(st.sampled_from(sorted(here) if isinstance(here, dict) else range(len(here))))
        if not isinstance(here[key], dict | list) or not here[key] or data.draw(st.integers(0, 4)) == 0:
            break
        here = here[key]
    here[key] = data.draw(json_values)
    given_ = give(msgspec.json.encode(value).decode())
    if isinstance(given_, Config):
        again = plain(given_)
        assert list(VALIDATOR.iter_errors(again)) == []
        assert load(msgspec.json.encode(again).decode(), name="again") == given_


DEEP = f"more than {yaml_tree.DEPTH_MAX} deep"
LARGE = f"more than {yaml_tree.NODES_MAX} values"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 100_000, DEEP),
        ("{" * 100_000, DEEP),
        ("- " * 100_000 + "a", DEEP),
        ("? " * 100_000 + "a", DEEP),
        ("a: " + "[" * 40 + "]" * 40, DEEP),
        ("".join(f"k{i}: &a{i} [*a{i - 1}]\n" if i else "k0: &a0 []\n" for i in range(100)), DEEP),
        ("".join(f"k{i}: &a{i} [{f'*a{i - 1},' * 9}]\n" if i else "k0: &a0 []\n" for i in range(20)), LARGE),
        (
            f"a: &a {{{','.join(f'k{i}: 1' for i in range(900))}}}\nb: {{<<: [{','.join(['*a'] * 9000)}]}}\n",
            LARGE,
        ),
        ("a: &a b\nc: [" + "*a," * 60_000 + "]", LARGE),
        ("a" * (yaml_tree.YAML_SIZE_MAX + 1), "larger than"),
    ],
    ids=[
        "lists",
        "mappings",
        "dashes",
        "keys",
        "brackets",
        "aliases that nest",
        "laughs",
        "merges",
        "aliases",
        "size",
    ],
)
def test_an_expanding_file_is_one_fault(text: str, said: str) -> None:
    error = give(text)
    assert isinstance(error, ConfigError)
    (fault,) = error.errors
    assert said in fault.message


def test_the_number_of_faults_in_malformed_keys_is_bounded() -> None:
    error = give(HEAD + "log: {}\n" * 10_000)
    assert isinstance(error, ConfigError)
    assert len(error.errors) == 101


def test_very_long_texts_are_refused_before_a_pattern_is_applied() -> None:
    stars = "*" * 200_000
    error = give(
        HEAD + f"resources:\n- kind: vf\n  select: {{pciAddresses: ['{stars}z'], exclude: ['{stars}']}}\n"
    )
    assert isinstance(error, ConfigError)
    assert ["characters long" in fault.message for fault in error.errors] == [True, True]
