"""Names and addresses of VFs in pods, computed from the rail, the node and the VF. Pure; nothing is kept.

A pattern is text with the number of the rail in it: ``{rail}``, ``{rail+N}`` or ``{N+rail}``. It is never evaluated.

**IPv4.** The prefix of a rail is divided into equal parts, one for the PFs and one for each VF index:

    10.103.0.0/16, at most 8 VFs of a PF: 16 parts of 4,096 addresses
    10.103.0.7   the PF of node 7
    10.103.16.7  its VF 0
    10.103.32.7  its VF 1

The number of a node is the place of its PF's own address in the first part. So nodes agree without a database, and no
VF gets the address of a PF, of a gateway or of anything else in the first part.

**IPv6.** The address is the prefix with the interface identifier of the VF's MAC address (RFC 4291, appendix A).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from ipaddress import (
    IPv4Interface,
    IPv4Network,
    IPv6Interface,
    IPv6Network,
    ip_network,
)

from msgspec import Struct

PrefixOfRail = IPv4Network | IPv6Network
VfAddress = IPv4Interface | IPv6Interface

_TERM = re.compile(r"\{(?:rail(?:\+(?P<after>[0-9]{1,4}))?|(?P<before>[0-9]{1,4})\+rail)\}")
_INTERFACE = re.compile(r"[a-zA-Z][a-zA-Z0-9_.-]*")
NETDEV_NAME_MAX = 15  # IFNAMSIZ without the final zero, include/uapi/linux/if.h
RAIL_NUMBER_MAX = 255
"""A node has far fewer rails. Names must fit for each of them."""
_SUFFIXES = "bcdefghijklmnopqrstuvwxyz"
OF_A_RAIL_MAX = 1 + len(_SUFFIXES)
"""The VFs of one rail in one pod."""
_EUI64_BITS = 64


class AddressPlanError(ValueError):
    """A plan cannot be carried out, or gives this VF no address. The message names the cause and the remedy."""


def pattern_complaint(pattern: str) -> str | None:
    """Why a text is no pattern of a rail; ``None`` if it is one."""
    rest = _TERM.sub("", pattern)
    if "{" in rest or "}" in rest:
        return "braces hold the number of the rail: {rail}, {rail+100} or {100+rail}"
    if rest == pattern:
        return "it needs {rail}, so that each rail has its own"
    return None


def of_rail(pattern: str, rail: int) -> str:
    """The text of a pattern for one rail.

    >>> of_rail("10.{100+rail}.0.0/16", 3)
    '10.103.0.0/16'
    """
    return _TERM.sub(lambda term: str(rail + int(term["after"] or term["before"] or 0)), pattern)


def interface_complaint(pattern: str) -> str | None:
    """Why a pattern makes no names of netdevs; ``None`` if it does, for each rail and each VF of a rail."""
    if fault := pattern_complaint(pattern):
        return fault
    longest = interface_name(pattern, RAIL_NUMBER_MAX, 1)
    if not _INTERFACE.fullmatch(longest):
        return "a netdev's name is letters, digits and _.-, and begins with a letter"
    if len(longest) > NETDEV_NAME_MAX:
        return f"{longest}, the name of a second VF, is longer than the kernel's {NETDEV_NAME_MAX} characters"
    return None


def interface_name(pattern: str, rail: int, place: int) -> str:
    """The name of a VF in its pod; ``place`` counts the VFs of this rail in the pod from 0.

    >>> [interface_name("rail{rail}", 3, place) for place in range(3)]
    ['rail3', 'rail3b', 'rail3c']
    """
    if place >= OF_A_RAIL_MAX:
        raise AddressPlanError(f"a pod has names for {OF_A_RAIL_MAX} VFs of a rail")
    return of_rail(pattern, rail) + (_SUFFIXES[place - 1] if place else "")


class AddressPlan(Struct, frozen=True):
    """``prefix`` is the pattern of the rails' prefixes, the same on all nodes, as are ``nodes``, the highest number of
    a node, ``vfs``, the most VFs of a PF, and ``shares``, the most shares of an HCA: they decide how a prefix is
    divided. The parts of shares come after those of VFs."""

    prefix: str
    nodes: int
    vfs: int
    shares: int = 0

    def faults(self) -> Iterator[str]:
        """Yield each reason why the plan does not fit, of the first rail alone where it is true for all."""
        if fault := pattern_complaint(self.prefix):
            yield fault
            return
        try:
            prefix = self.of(0)
        except AddressPlanError as error:
            yield str(error)
            return
        if isinstance(prefix, IPv6Network):
            if prefix.prefixlen > _EUI64_BITS:
                yield f"{prefix} has no room for the 64 bits of a MAC address: use a prefix of /64 or shorter"
            return
        room = max(0, self._part(prefix) - 2)
        if room < self.nodes:
            bits = (self.nodes + 1).bit_length() + (self.vfs + self.shares).bit_length()
            and_shares = f" and {self.shares} shares" if self.shares else ""
            shorter = f"use a prefix of /{32 - bits} or shorter, or " if bits <= 24 else ""
            lower = "`nodes`, `vfs` or `shares`" if self.shares else "`nodes` or `vfs`"
            yield (
                f"{prefix} has numbers for {room} nodes with {self.vfs} VFs{and_shares} of a PF, not for {self.nodes}: "
                f"{shorter}lower {lower}"
            )

    def of(self, rail: int) -> PrefixOfRail:
        """The prefix of one rail. Raises ``AddressPlanError``."""
        text = of_rail(self.prefix, rail)
        try:
            return ip_network(text)
        except ValueError as error:
            raise AddressPlanError(f"rail {rail}: {text} is no prefix: {error}") from error

    def address(
        self, rail: int, vf_index: int, *, pf: Iterable[VfAddress], mac: str | None, given: int = 0
    ) -> VfAddress:
        """The address of a VF in its pod. ``pf`` are the addresses of its PF on this node, ``mac`` is the VF's MAC
        address (``02:00:00:00:00:01``). ``given`` is the number of the node where the PF has no address; 0: it has
        none. Raises ``AddressPlanError``."""
        if vf_index >= self.vfs and isinstance(self.of(rail), IPv4Network):
            raise AddressPlanError(f"VF {vf_index} of its PF is beyond `vfs: {self.vfs}`")
        return self._in_part(rail, vf_index + 1, pf, mac, given)

    def share_address(
        self, rail: int, share: int, *, pf: Iterable[VfAddress], mac: str, given: int = 0
    ) -> VfAddress:
        """The address of a share of an HCA in its pod; ``share`` is its number. See ``address``."""
        if share >= self.shares and isinstance(self.of(rail), IPv4Network):
            raise AddressPlanError(f"share {share} of its HCA is beyond `attach.shares: {self.shares}`")
        return self._in_part(rail, self.vfs + share + 1, pf, mac, given)

    def nic_address(self, rail: int, *, mac: str | None, given: int = 0) -> VfAddress:
        """The address in its pod of a NIC as a whole that has none of its own: that of a PF with this number. See
        ``address``."""
        if not given and isinstance(self.of(rail), IPv4Network):
            raise AddressPlanError(
                f"rail {rail}: the NIC has no address on the host, which it would keep, and the prefix {self.of(rail)} "
                "gives it none without `attach.numbers`"
            )
        return self._in_part(rail, 0, (), mac, given)

    def _in_part(
        self, rail: int, part: int, pf: Iterable[VfAddress], mac: str | None, given: int
    ) -> VfAddress:
        for fault in self.faults():
            raise AddressPlanError(fault)
        prefix = self.of(rail)
        if isinstance(prefix, IPv6Network):
            return _by_mac(prefix, mac)
        number = self.node_number(rail, pf) or given
        if number > self.nodes:
            raise AddressPlanError(
                f"rail {rail}: the controller's number {number} of this node is beyond `nodes: {self.nodes}`"
            )
        if not number:
            raise AddressPlanError(
                f"rail {rail}: its PF has no address in {prefix}, which gives the node its number"
            )
        host = int(prefix.network_address) + part * self._part(prefix) + number
        return IPv4Interface((host, prefix.prefixlen))

    def node_number(self, rail: int, pf: Iterable[VfAddress]) -> int:
        """The number of the node by the address of its PF of this rail (IPv4); 0: the PF has none in the prefix. Raises
        ``AddressPlanError``."""
        prefix = self.of(rail)
        assert isinstance(prefix, IPv4Network)
        inside = sorted(one.ip for one in pf if isinstance(one, IPv4Interface) and one.ip in prefix)
        numbers = {int(ip) - int(prefix.network_address) for ip in inside}
        listed = ", ".join(map(str, inside))
        if not numbers:
            return 0
        if len(numbers) > 1:
            raise AddressPlanError(f"rail {rail}: its PF has several addresses in {prefix}: {listed}")
        number = numbers.pop()
        if not 1 <= number <= self.nodes:
            first, last = prefix[1], int(prefix.network_address) + self.nodes
            raise AddressPlanError(
                f"rail {rail}: the address {listed} of its PF is not one of {first} to {IPv4Interface(last).ip}, which"
                " number the nodes"
            )
        return number

    def _part(self, prefix: IPv4Network) -> int:
        """How many addresses a part has: one part for the PFs and one for each VF and share, rounded up to a power
        of two."""
        return prefix.num_addresses >> (self.vfs + self.shares).bit_length()


def _by_mac(prefix: IPv6Network, mac: str | None) -> IPv6Interface:
    octets = bytes.fromhex(mac.replace(":", "")) if mac else b""
    if len(octets) != 6 or not any(octets):
        raise AddressPlanError("the VF has no MAC address, from which its IPv6 address is made")
    if octets[0] & 1:
        raise AddressPlanError(f"{mac} is a group address, no MAC address of a netdev")
    identifier = bytes((octets[0] ^ 2, *octets[1:3], 0xFF, 0xFE, *octets[3:]))
    return IPv6Interface((int(prefix.network_address) | int.from_bytes(identifier), prefix.prefixlen))
