"""The settings of netdevs in pods."""

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec

from nodeagent.attach.address_plan import AddressPlan, interface_complaint, pattern_complaint
from nodeagent.attach.ipam_section import ipam_complaint
from nodeagent.config.file_errors import Conflict, quote
from nodeagent.config.formats import form, free_mapping
from nodeagent.config.setting import Settings, setting


def _interface_complaint(text: str) -> str | None:
    fault = interface_complaint(text)
    return None if fault is None else f"{quote(text)}: {fault}"


def _prefix_complaint(text: str) -> str | None:
    fault = pattern_complaint(text)
    return None if fault is None else f"{quote(text)}: {fault}"


_Interface = Annotated[
    str, form("[a-zA-Z0-9_.{}+-]{1,32}", "a name with {rail}", at_most=32, check=_interface_complaint)
]
_PrefixPattern = Annotated[
    str,
    form(
        "[0-9a-fA-F.:{}+ril]{1,80}/[0-9]{1,3}",
        "a prefix with {rail}, such as 10.{100+rail}.0.0/16",
        at_most=84,
        check=_prefix_complaint,
    ),
]


_Ipam = Annotated[dict[str, Any], free_mapping(ipam_complaint)]


class AttachSettings(Settings, frozen=True, kw_only=True):
    """How the netdevs of VFs come into the pods that hold them."""

    interface: Annotated[
        _Interface | None,
        setting(
            "Name of a VF's netdev in its pod, such as rail{rail}; {rail} is the number of the rail, {rail+N} a sum. A "
            "second VF of a rail has a letter more: rail3b. Needs components/attach on the node. null: netdevs stay on "
            "the host, and a CNI plugin such as Multus moves them."
        ),
    ] = None
    addresses: Annotated[
        _PrefixPattern | None,
        setting(
            "Prefix of each rail, such as 10.{100+rail}.0.0/16 or fd00:{rail}::/64, from which the address of a VF "
            "follows. IPv4: the number of the node, which is that of its PF's own address in the prefix, in the part "
            "of the VF's index. IPv6: the MAC address. null: pods configure their addresses."
        ),
    ] = None
    nodes: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=2**20)],
        setting(
            "Highest number of a node, with IPv4 `addresses`: the PFs of a rail have the first so many addresses of "
            "its prefix. The same on all nodes."
        ),
    ] = 1000
    vfs: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=256)],
        setting("The most VFs of a PF, with IPv4 `addresses`. The same on all nodes: it divides the prefix."),
    ] = 8
    shares: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=1000)],
        setting(
            "The most shares of an HCA (kind rdma) that get an address, with IPv4 `addresses`. The same on all nodes: "
            "it divides the prefix beside `vfs`."
        ),
    ] = 0
    ipam: Annotated[
        _Ipam | None,
        setting(
            "The section `ipam` of a CNI configuration, in place of `addresses`: the plugin that its `type` names, "
            "such as host-local or nv-ipam, gives the addresses and routes of VFs in pods. {rail} may stand in its "
            "texts, as in `addresses`, and must in one. Needs components/attach-ipam on the node."
        ),
    ] = None
    numbers: Annotated[
        bool,
        setting(
            "Take the number of the node from the controller where a PF has no address in its prefix, and give VFs no "
            "address if another node had the number first. Needs `rails.numbers` of the controller and "
            "components/rails. Off: the address of the PF alone decides."
        ),
    ] = False
    probe: Annotated[
        bool,
        setting(
            "Ask over the PF whether another NIC has the address of a VF, before a pod gets it: a fifth of a second. "
            "Such a pod does not start, and its Event names the other NIC. Switch it off where routers answer for "
            "addresses of the rail's own prefix (local proxy ARP)."
        ),
    ] = True

    @property
    def address_plan(self) -> AddressPlan | None:
        return (
            None if self.addresses is None else AddressPlan(self.addresses, self.nodes, self.vfs, self.shares)
        )


def attach_conflicts(settings: AttachSettings, shares: int = 0) -> Iterator[Conflict]:
    """Yield the settings that do not fit, below ``attach``. ``shares``: the most shares of an HCA whose pods get a
    netdev."""
    if settings.addresses is not None and settings.interface is None:
        yield Conflict(
            (("addresses",), ("interface",)),
            "addresses are given to netdevs in pods: set attach.interface too",
        )
    if settings.ipam is not None and settings.interface is None:
        yield Conflict(
            (("ipam",), ("interface",)), "addresses are given to netdevs in pods: set attach.interface too"
        )
    if settings.ipam is not None and settings.addresses is not None:
        yield Conflict(
            (("ipam",), ("addresses",)),
            "both give addresses: remove attach.addresses, or attach.ipam",
        )
    if settings.numbers and (settings.addresses is None or ":" in settings.addresses):
        yield Conflict(
            (("numbers",), ("addresses",)),
            "numbers decide IPv4 addresses alone: set attach.addresses to an IPv4 prefix too",
        )
    with_addresses = settings.addresses is not None and ":" not in settings.addresses
    if settings.interface is not None and with_addresses and shares > settings.shares:
        yield Conflict(
            (("shares",), ("addresses",)),
            f"an HCA has {shares} shares and {settings.shares} of them an address, so pods with the others would not "
            f"start: set attach.shares to {shares}",
        )
    if (plan := settings.address_plan) is not None:
        for fault in plan.faults():
            yield Conflict((("addresses",), ("nodes",), ("vfs",), ("shares",)), fault)
