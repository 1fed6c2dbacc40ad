"""Each number is given once in a prefix, and a node keeps its own: over restarts, silence and reports of any kind."""

from __future__ import annotations

import gc
from collections.abc import Mapping

from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from nodeagent.fabric.node_numbers import NumberBook, Numbers, with_numbers
from nodeagent.fabric.nodelinks import Metadata
from nodeagent.fabric.rail_partners import RAILS_MAX, RailList, RailNumber, RailPartners, RailPartnersSpec
from nodeagent.fabric.reports import CompactReport, NumberedLink

PREFIX = "10.103.0.0/16"
EMPTY = CompactReport(
    (), (), frozenset(), frozenset(), frozenset(), frozenset(), up=0, incomplete=False, macs=b""
)
Reported = Mapping[str, Mapping[str, int]]
"""By node: the number of each link, 0 for one without."""


def hall(reported: Reported) -> dict[str, CompactReport]:
    return {
        node: replace(EMPTY, numbered=tuple(NumberedLink(link, PREFIX, at) for link, at in links.items()))
        for node, links in reported.items()
    }


def one(**numbers: int) -> dict[str, dict[str, int]]:
    return {node: {"nic0": number} for node, number in numbers.items()}


def seen(numbers: Numbers) -> dict[str, list[tuple[int, str]]]:
    return {node: [(it.number, it.holder) for it in of] for node, of in numbers.items()}


def test_nodes_without_an_address_get_the_lowest_free_numbers_beside_those_by_address() -> None:
    reported = one(a=0, b=2, c=0, d=0)
    assert seen(NumberBook().assign(hall(reported), reported)) == {
        "a": [(1, "")], "b": [(2, "")], "c": [(3, "")], "d": [(4, "")]
    }  # fmt: skip


def test_a_number_stays_when_others_come_go_and_report() -> None:
    book, reported = NumberBook(), one(m=0, n=0)
    book.assign(hall(reported), reported)
    more = one(a=0, m=0, n=0)
    assert seen(book.assign(hall(more), more)) == {"a": [(3, "")], "m": [(1, "")], "n": [(2, "")]}
    silent = one(a=0, n=0)
    assert seen(book.assign(hall(silent), more)) == {"a": [(3, "")], "m": [(1, "")], "n": [(2, "")]}
    gone = one(a=0, n=0, z=0)
    assert seen(book.assign(hall(gone), gone)) == {"a": [(3, "")], "n": [(2, "")], "z": [(1, "")]}


def test_a_number_outlives_reports_that_do_not_name_it() -> None:
    """A PF that has two addresses for a moment, one that is gone, a part that was refused, an older agent: running pods
    have addresses by it."""
    book, reported = NumberBook(), one(a=7, b=0)
    book.assign(hall(reported), reported)
    for silent in ({"a": {}, "b": {}, "c": {"nic0": 0}}, one(b=0, c=0)):
        numbers = book.assign(hall(silent), ("a", "b", "c"))
        assert seen(numbers) == {"a": [(7, "")], "b": [(1, "")], "c": [(2, "")]}
    taken = {"a": {}, "b": {}, "c": {"nic0": 7}}
    assert seen(book.assign(hall(taken), taken))["c"] == [(7, "a")]


def test_names_of_links_that_change_in_each_report_hold_no_more_numbers_than_an_object_has() -> None:
    book = NumberBook()
    for turn in range(4):
        reported = {"a": {f"nic{turn}.{link}": 0 for link in range(100)}, "b": {"nic0": 0}}
        numbers = book.assign(hall(reported), reported)
        assert len(numbers["a"]) <= RAILS_MAX
        assert {one.rail for one in numbers["a"]} >= reported["a"].keys(), "the present links come first"
        assert len(numbers["b"]) == 1
    late = {**reported, "c": {"nic0": 0}}
    (mine,) = book.assign(hall(late), late)["c"]
    assert mine.number <= RAILS_MAX + 2


def test_a_nic_that_gets_another_name_keeps_the_number_of_its_address() -> None:
    """Without the first NIC of a rail, the second one has its name: the name that is gone holds nothing against it."""
    book, nodes = NumberBook(), {"a", "b"}
    book.assign(hall({"a": {"nic3": 5, "nic3.1": 6}}), nodes)
    alone = hall({"a": {"nic3": 6}, "b": {"nic3": 5}})
    for _ in range(2):
        numbers = book.assign(alone, nodes)
        assert {it.rail: (it.number, it.holder) for it in numbers["a"]} == {"nic3": (6, "")}
        assert seen(numbers)["b"] == [(5, "")]


def of_pfs(**links: tuple[str, int]) -> dict[str, CompactReport]:
    """The report of the node a: PCI address and number of each link."""
    numbered = tuple(NumberedLink(link.replace("_", "."), PREFIX, at, pf) for link, (pf, at) in links.items())
    return {"a": replace(EMPTY, numbered=numbered)}


def test_a_nic_more_that_takes_the_name_of_another_one_does_not_get_its_number() -> None:
    """Pods have addresses by the number of the first NIC, which is nic0.1 now."""
    book = NumberBook()
    (first,) = book.assign(of_pfs(nic0=("0000:40:00.0", 0)), {"a"})["a"]
    assert (first.rail, first.pci_address, first.number) == ("nic0", "0000:40:00.0", 1)
    both = of_pfs(nic0=("0000:18:00.0", 0), nic0_1=("0000:40:00.0", 0))
    for asked in (book, restarted({"a": (first,)})):
        numbers = {it.pci_address: (it.rail, it.number) for it in asked.assign(both, {"a"})["a"]}
        assert numbers == {"0000:18:00.0": ("nic0", 2), "0000:40:00.0": ("nic0.1", 1)}


def test_a_number_of_an_earlier_release_becomes_that_of_the_pf_with_the_name() -> None:
    book = restarted({"a": (RailNumber(rail="nic0", prefix=PREFIX, number=7),)})
    (mine,) = book.assign(of_pfs(nic0=("0000:18:00.0", 0)), {"a"})["a"]
    assert (mine.rail, mine.pci_address, mine.number) == ("nic0", "0000:18:00.0", 7)


def test_a_number_stays_taken_after_its_prefix_has_changed() -> None:
    """Pods of the earlier settings have addresses by it, and other nodes still get numbers in that prefix."""
    book, nodes = NumberBook(), {"a", "b"}
    book.assign(of_pfs(nic0=("0000:18:00.0", 0)), nodes)
    moved = {"a": replace(EMPTY, numbered=(NumberedLink("nic0", "10.203.0.0/16", 0, "0000:18:00.0"),))}
    late = {"b": replace(EMPTY, numbered=(NumberedLink("nic0", PREFIX, 0, "0000:18:00.0"),))}
    for asked in (book, restarted(book.assign(moved, nodes))):
        numbers = asked.assign({**moved, **late}, nodes)
        assert {node: [(it.prefix, it.number) for it in of] for node, of in numbers.items()} == {
            "a": [(PREFIX, 1), ("10.203.0.0/16", 1)], "b": [(PREFIX, 2)]
        }  # fmt: skip


def restarted(numbers: Numbers) -> NumberBook:
    book = NumberBook()
    for node, of in numbers.items():
        book.adopt(node, of)
    return book


def test_a_new_leader_goes_on_from_the_objects() -> None:
    first, reported = NumberBook(), one(a=0, b=0)
    numbers = first.assign(hall(reported), reported)
    second = NumberBook()
    for node, of in numbers.items():
        second.adopt(node, of)
    more = one(**{"0": 0}, a=0, b=0)
    assert seen(second.assign(hall(more), more)) == {**seen(numbers), "0": [(3, "")]}


def test_the_second_node_with_a_number_is_told_who_has_it_and_the_first_keeps_it() -> None:
    book, reported = NumberBook(), one(m=7)
    book.assign(hall(reported), reported)
    both = one(a=7, m=7)
    assert seen(book.assign(hall(both), both)) == {"a": [(7, "m")], "m": [(7, "")]}
    other = NumberBook()
    other.adopt("a", [RailNumber(rail="nic0", prefix=PREFIX, number=7, holder="m")])
    assert seen(other.assign(hall(both), both))["a"] == [(7, "")], "a refusal is no number"
    mended = one(a=8, m=7)
    assert seen(book.assign(hall(mended), mended)) == {"a": [(8, "")], "m": [(7, "")]}


def test_an_address_that_takes_a_given_number_is_refused_and_a_lost_address_keeps_its_number() -> None:
    book, reported = NumberBook(), one(a=0)
    book.assign(hall(reported), reported)
    both = one(a=0, b=1)
    assert seen(book.assign(hall(both), both)) == {"a": [(1, "")], "b": [(1, "a")]}
    book, reported = NumberBook(), one(a=7)
    book.assign(hall(reported), reported)
    lost = one(a=0)
    assert seen(book.assign(hall(lost), lost)) == {"a": [(7, "")]}


def test_two_prefixes_and_two_nics_of_one_rail_do_not_share() -> None:
    reports = {
        "a": replace(EMPTY, numbered=(NumberedLink("nic0", PREFIX, 0), NumberedLink("nic0.1", PREFIX, 0))),
        "b": replace(EMPTY, numbered=(NumberedLink("nic0", "10.203.0.0/16", 0),)),
    }
    assert seen(NumberBook().assign(reports, reports)) == {"a": [(1, ""), (2, "")], "b": [(1, "")]}


def test_objects_have_the_numbers_beside_the_partners_and_those_of_nodes_without_any() -> None:
    number = RailNumber(rail="nic0", prefix=PREFIX, number=1)
    lists = [RailPartners(metadata=Metadata(name="a"), spec=RailPartnersSpec(rails=(RailList(rail="nic0"),)))]
    made = list(with_numbers(lists, {"a": (number,), "b": (number,)}))
    assert [(it.metadata.name, len(it.spec.rails), it.spec.numbers) for it in made] == [
        ("a", 1, (number,)), ("b", 0, (number,))
    ]  # fmt: skip


STEPS = st.lists(
    st.dictionaries(
        st.sampled_from("abcde"),
        st.dictionaries(st.sampled_from(("nic0", "nic1")), st.integers(-1, 4), max_size=2),
    ),
    min_size=1,
    max_size=6,
)


@given(STEPS)
@example([{"a": {"nic0": 0}}, {"a": {"nic0": 2}, "b": {"nic0": 0}}, {"a": {"nic0": 0}, "b": {"nic0": 1}}])
def test_no_number_has_two_owners_and_a_kept_one_never_changes_by_others(steps: list[Reported]) -> None:
    book = NumberBook()
    before: dict[tuple[str, str], int] = {}
    for step in steps:
        reported = {node: {link: max(0, at) for link, at in of.items()} for node, of in step.items()}
        numbers = book.assign(hall(reported), "abcde")
        owned = {(node, it.rail): it.number for node, of in numbers.items() for it in of if not it.holder}
        assert len(set(owned.values())) == len(owned)
        for node, of in reported.items():
            for link, number in of.items():
                (mine,) = [it for it in numbers[node] if it.rail == link]
                assert number in (0, mine.number)
                if number == 0 and (node, link) in before:
                    assert owned[node, link] == before[node, link], "its own report asked for no change"
        before = owned


def test_the_search_for_circles_of_objects_leaves_the_numbers_out() -> None:
    book = NumberBook()
    book.adopt("n1", [RailNumber(rail="nic0", prefix=PREFIX, number=1)])
    gc.collect()
    assert not [value for pair in book._of.items() for value in pair if gc.is_tracked(value)]
