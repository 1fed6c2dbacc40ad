"""Which NIC has which rail: identity by the card, then by PCI address. Pure.

A rail is the number of a NIC in the names of resources (``nic{rail}``), and pods rely on it: the number is the network
that they get. So a number stays with its NIC over restarts, reboots and changes of the hardware:

* A card is its permanent MAC address, on InfiniBand its node GUID (``facts/card_identity.py``). A known card keeps its
  rail at any PCI address: it was moved, or the firmware numbered the buses in another way.
* Otherwise a NIC at the PCI address of a rail takes the rail: the card was replaced in its slot, or its identity
  cannot be read. A rail whose card is found at another address is not available at its old address.
* Any other NIC is additional and gets the lowest free number. A missing NIC keeps its rail.

An identity that two NICs share identifies neither of them. docs/rails.md has the table of all cases.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from functools import lru_cache

import msgspec
from msgspec.structs import replace

from nodeagent.facts.card_identity import card_identity
from nodeagent.facts.model import Function, Link
from nodeagent.kinds.resource_settings import HcaSelect, NetworkResource, NicSelect, VfSelect


class Rail(msgspec.Struct, frozen=True):
    """A rail and the NIC that has it. ``pci_address`` is ``None`` if another NIC is at the last known address;
    ``identity``, that of the card, is ``None`` if it was never read. One of them is known. In the file the identity
    has the name that earlier agents read too. ``late``: the NIC got its number while another one was missing, which
    still is."""

    number: int
    pci_address: str | None
    identity: str | None = msgspec.field(default=None, name="permanent_mac")
    late: bool = False

    @property
    def place(self) -> tuple[int, str | None]:
        """Number and address, or the card without one: two readings of one rail differ in what was learned since."""
        return self.number, self.pci_address or self.identity


Rails = tuple[Rail, ...]
"""Sorted by number; no number, address or identity occurs twice."""

RAIL_NAME = "nic{}"


def nic_names(rails: Mapping[str, int]) -> dict[str, str]:
    """Return the name of each NIC with a rail, by PCI address, for reports, verbs and pages. Resources have the same
    names by default, and a NIC that is replaced in its slot keeps it.

    >>> nic_names({"0000:18:00.0": 0, "0000:40:00.0": 1, "0000:aa:00.0": 1})
    {'0000:18:00.0': 'nic0', '0000:40:00.0': 'nic1', '0000:aa:00.0': 'nic1.1'}
    """
    names: dict[str, str] = {}
    counts: Counter[int] = Counter()
    for address, rail in sorted(rails.items()):
        names[address] = RAIL_NAME.format(rail) + (f".{counts[rail]}" if counts[rail] else "")
        counts[rail] += 1
    return names


Selection = str
"""The owner of a numbering: the settings of a selection as JSON, without ``vfIndexes``. Entries with one selection
share it under any names, those of VFs and of HCAs too, and another selection numbers its NICs from the start."""
Numbering = Mapping[Selection, Rails]


def selection(entry: NetworkResource) -> Selection:
    return _as_json(entry.select)


@lru_cache
def _as_json(select: HcaSelect | NicSelect) -> str:
    default = VfSelect()
    settings = {
        name: getattr(select, field)
        for name, field in zip(select.__struct_encode_fields__, select.__struct_fields__, strict=True)
        if field != "vf_indexes" and getattr(select, field) != getattr(default, field)
    }
    return msgspec.json.encode(settings, order="sorted").decode()


def match(rails: Iterable[Rail], nics: Mapping[str, str | None]) -> Rails:
    """Return the rails with the present addresses of their NICs. No rail changes its number.

    ``nics`` are the PFs on the bus: identities by PCI address, ``None`` where it cannot be read.
    """
    rails = tuple(rails)
    cards = _unique(nics.values())
    by_card = {card: address for address, card in nics.items() if card in cards}
    known = _unique(rail.identity for rail in rails)
    place = {rail: by_card[card] for rail in rails if (card := rail.identity) in known and card in by_card}
    taken = set(place.values())
    for rail in rails:
        address = rail.pci_address
        if address is not None and address in nics and rail not in place and address not in taken:
            place[rail] = address
            taken.add(address)
    cards_at = {address: card for card, address in by_card.items()}
    found = tuple(_placed(rails, place, taken, cards_at))
    return found if _lacks(found, nics) else tuple(replace(rail, late=False) for rail in found)


def _placed(
    rails: Iterable[Rail], place: Mapping[Rail, str], taken: set[str], cards: Mapping[str, str | None]
) -> Iterator[Rail]:
    for rail in rails:
        if (address := place.get(rail)) is not None:
            yield replace(rail, pci_address=address, identity=cards.get(address) or rail.identity)
        elif rail.pci_address not in taken:
            yield rail
        elif rail.identity is not None:
            yield replace(rail, pci_address=None)


def _lacks(rails: Iterable[Rail], nics: Collection[str]) -> bool:
    return any(rail.pci_address not in nics for rail in rails)


def identified(rails: Iterable[Rail], nics: Mapping[str, str | None]) -> Rails:
    """Return the rails with the cards that are here, each at its own PCI address: for configured rails."""
    return tuple(
        Rail(rail.number, rail.pci_address, nics.get(rail.pci_address or "") or rail.identity)
        for rail in rails
    )


def added(
    rails: Rails,
    address: str,
    card: str | None,
    number: int | None = None,
    reserved: Set[int] = frozenset(),
    *,
    late: bool = False,
) -> Rails:
    """Return the rails with one more NIC, at the given number or the lowest free one that is not reserved."""
    if number is None:
        used = {rail.number for rail in rails} | reserved
        number = next(n for n in range(len(used) + 1) if n not in used)
    return tuple(sorted((*rails, Rail(number, address, card, late)), key=lambda rail: rail.number))


def exchanged(rails: Rails, nics: Collection[str]) -> tuple[Rails, Rails]:
    """Return the rails of the NICs that went, and those of as many that came since; none if their numbers differ.
    ``nics`` are the PCI addresses of the PFs on the bus.

    All went and came where the firmware has numbered the buses in another way and no card was known.
    """
    went = tuple(rail for rail in rails if rail.pci_address not in nics)
    came = tuple(rail for rail in rails if rail.late and rail.pci_address in nics)
    return (went, came) if len(went) == len(came) else ((), ())


# --- without the file: two other memories ---------------------------------------------------------------


class HeldRails(msgspec.Struct, frozen=True):
    """The numbers in the names of held VFs: that of each PF on the bus, and all that occur."""

    of_pf: Mapping[str, int] = {}
    numbers: frozenset[int] = frozenset()


def held_rails(
    held: Iterable[tuple[str, str]], templates: Iterable[str], parents: Mapping[str, str | None]
) -> HeldRails:
    """Read the numbers from the resources under which pods hold VFs and shares of HCAs. ``templates`` are names of
    resources with ``{rail}``, ``parents`` the PFs of the functions on the bus, that of a PF itself. Where the names
    disagree, they tell no PF's number."""
    patterns = [pattern for pattern in map(_pattern, templates) if pattern is not None]
    found = {
        (id_, int(match["rail"]))
        for name, id_ in held
        for pattern in patterns
        if (match := pattern.fullmatch(name))
    }
    pairs = {(pf, number) for id_, number in found if (pf := parents.get(id_.partition("::")[0])) is not None}
    pfs, numbers = Counter(pf for pf, _ in pairs), Counter(number for _, number in pairs)
    of_pf = {pf: number for pf, number in pairs if pfs[pf] == numbers[number] == 1}
    return HeldRails(of_pf, frozenset(number for _, number in found))


@lru_cache
def _pattern(template: str) -> re.Pattern[str] | None:
    """Matches the names that a template makes; ``None`` if they have no number."""
    head, rail, rest = template.partition("{rail}")
    if not rail:
        return None
    parts = (re.escape(head), "(?P<rail>[0-9]{1,3})", re.escape(rest).replace(re.escape(rail), "(?P=rail)"))
    return re.compile("".join(parts).replace(re.escape("{netdev}"), "[^/]*"))


def recalled(reported: Rails, held: Mapping[str, int], nics: Mapping[str, str | None]) -> Rails:
    """Return the numbers of an earlier agent from its report and from the PFs whose VFs pods hold.

    A held VF must keep its name, so its PF's number comes first, and the report loses what contradicts it. But it is
    the number of the card that was there when the pod got the VF: at an address that the report knows as another
    card's, or with a card that the report knows from another address, it tells nothing.
    """
    cards = _unique(nics.values())
    here = {card: address for address, card in nics.items() if card in cards}
    moves = [
        (rail.pci_address, here[rail.identity])
        for rail in reported
        if rail.identity in here and rail.pci_address != here[rail.identity]
    ]
    elsewhere = {address for move in moves for address in move}
    sure = {pf: number for pf, number in held.items() if pf not in elsewhere}
    kept = [
        rail
        for rail in match(reported, nics)
        if rail.pci_address not in sure and rail.number not in sure.values()
    ]
    certain = (Rail(number, pf, nics.get(pf)) for pf, number in sure.items())
    return tuple(sorted((*kept, *certain), key=lambda rail: rail.number))


def nics_of(functions: Iterable[Function], links: Sequence[Link]) -> dict[str, str | None]:
    """Return the identity of each PF on the bus, by PCI address."""
    by_address = {link.pci_address: link for link in links}
    return {
        function.pci_address: card_identity(function, by_address.get(function.pci_address))
        for function in functions
        if function.parent is None and not function.missing
    }


def changes(before: Rails, now: Rails) -> Iterator[str]:
    """Yield a sentence for each NIC that is another card or at another address than before."""
    known = {rail.number: rail for rail in before}
    for rail in now:
        old = known.get(rail.number)
        if old is None or rail.pci_address is None:
            continue
        if old.pci_address != rail.pci_address:
            where = old.pci_address or "an address that another NIC has now"
            yield f"rail {rail.number}: NIC {rail.identity} moved from {where} to {rail.pci_address}"
        elif old.identity not in (None, rail.identity):
            yield (
                f"rail {rail.number}: NIC {old.identity} at {rail.pci_address} was replaced by "
                f"{rail.identity}, which takes the rail over"
            )


def _unique(cards: Iterable[str | None]) -> frozenset[str]:
    return frozenset(card for card, count in Counter(cards).items() if card is not None and count == 1)
