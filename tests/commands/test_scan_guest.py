"""`nodeagent scan` in a virtual machine says which NICs it can offer, and what is its host's."""

from __future__ import annotations

from nodeagent.commands.scan.listing import machine_table
from nodeagent.console.running_sources import view_of
from nodeagent.offering.offer import Offer
from tests.offering.test_offer import configured, machine, pf

LINE = (
    "note: this is a virtual machine: ens1np0, ens2np0 can be offered as a whole (kind: nic); VFs, link modes and the "
    "firmware of its NICs are the host's"
)


def shown(text: str, *, guest: bool) -> str:
    facts = machine(pf(1, vfs=None), pf(2, vfs=None), guest=guest)
    return " ".join(machine_table(view_of(Offer(configured(text)), facts)).split())


def test_a_guest_says_which_nics_can_be_offered_as_a_whole() -> None:
    assert LINE in shown("", guest=True)
    assert "virtual machine" not in shown("", guest=False)


def test_a_guest_that_offers_them_says_nothing_and_lists_them() -> None:
    table = shown("resources: [{kind: nic}]\n", guest=True)
    assert "virtual machine" not in table
    assert "example.com/nic0 1 1" in table
