"""The addresses that IPAM plugins have given to the VFs of pods: each ADD of a plugin has its DEL.

Each sandbox has a file. It is on the disk before the first ADD, with all that a DEL needs, and goes when the last
address is taken back. So a crash leaves nothing that nobody knows: an address whose sandbox is gone is taken back, and
one of which it is not known whether it was given is taken back before the plugin is asked again.

A sandbox and the name of a netdev are the key of an address at the plugin, together with the name of the network. This
is ``nodeagent-rail3`` for rail 3, so that nobody else gives addresses in it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from nodeagent.attach.attach_files import ATTACH_FOLDER
from nodeagent.attach.cni_plugin import (
    Attachment,
    CniError,
    CniPlugins,
    GivenAddresses,
    given_addresses,
    is_container_id,
)
from nodeagent.attach.ipam_section import IpamSection, ipam_of_rail
from nodeagent.attach.nri_plugin import Sandbox
from nodeagent.attach.pod_netdevs import AttachError
from nodeagent.attach.pod_plan import PodLink
from nodeagent.base.file_writing import replace_file
from nodeagent.base.regular_file import read_regular

log = logging.getLogger(__name__)

LEASES_FOLDER = f"{ATTACH_FOLDER}/leases"
PLUGIN_LOCK = f"{ATTACH_FOLDER}/plugin.lock"
PLUGIN_RESTS_S = 60.0
"""After a plugin did not answer, addresses of ended sandboxes wait. Each call would take its whole time, in which no
pod gets its netdevs."""
CNI_FOLDER = Path("/opt/cni/bin")
"""Where container runtimes look for CNI plugins by default."""


class AddressLease(Struct, frozen=True):
    """The addresses of one VF. ``configuration`` is that of its ADD, ``result`` the plugin's; ``None``: the plugin was
    asked, and its answer is not known. ``returned``: no netdev has them any more, and the plugin was told so, but has
    not confirmed it: it may give them to others already."""

    device: str
    rail: int
    interface: str
    configuration: dict[str, Any]
    result: dict[str, Any] | None = None
    returned: bool = False

    @property
    def plugin(self) -> str:
        return str(self.configuration["ipam"]["type"])

    @property
    def given(self) -> GivenAddresses | None:
        """Raises ``CniError``."""
        return None if self.result is None else given_addresses(self.plugin, self.result)


class SandboxLeases(Struct, frozen=True):
    """Those of one sandbox, with what describes its pod."""

    sandbox: str
    network: str
    namespace: str
    pod: str
    uid: str
    leases: tuple[AddressLease, ...]

    def attachment(self, lease: AddressLease) -> Attachment:
        """``network`` is empty once the namespace is gone."""
        arguments = {
            "K8S_POD_NAMESPACE": self.namespace,
            "K8S_POD_NAME": self.pod,
            "K8S_POD_INFRA_CONTAINER_ID": self.sandbox,
            "K8S_POD_UID": self.uid,
        }
        network = self.network if Path(self.network).exists() else ""
        return Attachment(self.sandbox, lease.interface, network, arguments)


class Leases:
    """``directory`` is the state directory. For one process, which is known to be alone, and one thread at a time.
    Every call blocks."""

    def __init__(
        self, directory: Path, plugins: CniPlugins, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder, self._plugins, self._clock = directory / LEASES_FOLDER, plugins, clock
        self._read: dict[str, SandboxLeases] | None = None
        self._rests_until = 0.0

    def lend(
        self,
        sandbox: Sandbox,
        links: Collection[PodLink],
        present: Collection[str],
        ipam: IpamSection | None,
        taken: Mapping[str, str] = MappingProxyType({}),
    ) -> tuple[tuple[PodLink, ...], frozenset[str]]:
        """Return the netdevs of a pod with their addresses, and the VFs that have got them now. ``present`` are the VFs
        in the pod: these keep what they have. ``ipam`` is the pattern; ``None``: only what was given before counts.
        ``taken`` are addresses that no VF may get, with their owners. Raises ``AttachError`` once all that it has got
        is taken back or known to be so later, and ``OSError``."""
        known = {one.device: one for one in self._of(sandbox.id)}
        given: dict[str, GivenAddresses] = {}
        wanted: list[PodLink] = []
        try:
            for link in links:
                lease = known.get(link.device)
                if lease is not None and (old := self._still(sandbox, lease, link.device in present)):
                    given[link.device] = old
                elif link.device not in present and ipam is not None:
                    wanted.append(link)
            self._take_back(sandbox.id, [link.device for link in wanted if link.device in known])
            if wanted:
                assert ipam is not None
                given |= self._ask(sandbox, wanted, ipam, taken)
        except CniError as error:
            raise AttachError(f"ipam: {error}", "ipam") from error
        new = frozenset(link.device for link in wanted)
        return tuple(_with(link, given.get(link.device)) for link in links), new

    def release(self, sandbox: str, devices: Collection[str] | None = None) -> bool:
        """Let the plugins take back the addresses of a sandbox, or of these VFs of it. What a plugin does not take
        stays known; return whether it took all. A plugin that did not answer is left alone for a minute."""
        try:
            if self._clock() < self._rests_until:
                self._mark(sandbox, devices)
                return not self._of(sandbox)
            self._take_back(sandbox, devices)
        except (CniError, OSError) as error:
            if isinstance(error, CniError) and error.hangs:
                self._rests_until = self._clock() + PLUGIN_RESTS_S
            log.warning(
                "An address is not taken back; it is tried again. sandbox=%s reason=%r", sandbox, str(error)
            )
            return False
        return True

    def release_again(self, sandbox: str) -> None:
        """Repeat what a plugin of this sandbox has not confirmed."""
        if devices := [lease.device for lease in self._of(sandbox) if lease.returned]:
            self.release(sandbox, devices)

    @property
    def known(self) -> tuple[SandboxLeases, ...]:
        """Raises ``OSError``."""
        return tuple(self._all().values())

    def _still(self, sandbox: Sandbox, lease: AddressLease, inside: bool) -> GivenAddresses | None:
        """Return the addresses that a VF has got before and still has. One that is to move again, because its driver
        was loaded again or this process ended before the move, is asked for."""
        if lease.result is None or lease.returned:
            return None
        of = self._all()[sandbox.id]
        try:
            if not inside:
                self._plugins.check(lease.configuration, of.attachment(lease), lease.result)
            return lease.given
        except CniError as error:
            log.info("An address is asked for once more. vf=%s reason=%r", lease.device, str(error))
            return None

    def _ask(
        self, sandbox: Sandbox, links: Collection[PodLink], ipam: IpamSection, taken: Mapping[str, str]
    ) -> dict[str, GivenAddresses]:
        if not is_container_id(sandbox.id):
            raise CniError(f"the ID of the sandbox, {sandbox.id[:100]!r}, is none of CNI")
        asked, before = [], self._of(sandbox.id)
        names = {lease.interface: lease for lease in before}
        for link in links:
            if (other := names.get(link.name)) is not None:  # a DEL by this name would be the other one's
                raise CniError(f"{link.device}: rail {link.rail}: {link.name} is the name of {other.device}")
            try:
                configuration = self._configuration(ipam, link.rail)
            except CniError as error:
                raise CniError(f"rail {link.rail}: {error}") from error
            asked.append(AddressLease(link.device, link.rail, link.name, configuration))
        of = SandboxLeases(
            sandbox.id, sandbox.network, sandbox.namespace, sandbox.pod, sandbox.uid, (*before, *asked)
        )
        self._write(of, durable=True)
        given: dict[str, GivenAddresses] = {}
        answered: list[AddressLease] = []
        try:
            for lease in asked:
                try:
                    result = self._plugins.add(lease.configuration, of.attachment(lease))
                    given[lease.device] = given_addresses(lease.plugin, result)
                    self._refuse_doubles(sandbox.id, lease, given, taken)
                    answered.append(replace(lease, result=result))
                except CniError as error:
                    raise CniError(
                        f"{lease.device} as {lease.interface}: rail {lease.rail}: {error}"
                    ) from error
            self._write(replace(of, leases=(*before, *answered)))
        except (CniError, OSError):
            tried = asked[: len(answered) + 1]
            with suppress(OSError):  # then the first file stands
                self._write(replace(of, leases=(*before, *tried)))
                self.release(sandbox.id, [lease.device for lease in tried])
            raise
        return given

    def _refuse_doubles(
        self, sandbox: str, lease: AddressLease, given: Mapping[str, GivenAddresses], taken: Mapping[str, str]
    ) -> None:
        """Raise ``CniError`` if one of the addresses is that of another VF of this node, or ``taken``."""
        mine = {address.ip for address in given[lease.device].addresses}
        if owned := sorted(taken.keys() & set(map(str, mine))):
            raise CniError(
                f"{lease.plugin} gave {owned[0]}, the address of {taken[owned[0]]}: take it out of the range of "
                "`attach.ipam`"
            )
        if any(
            one != lease.device and not mine.isdisjoint(address.ip for address in of.addresses)
            for one, of in given.items()
        ):
            raise CniError(f"{lease.plugin} gave one address to two VFs of the pod")
        for of in self._all().values():
            for other in of.leases if of.sandbox != sandbox else ():
                theirs = _addresses(other)
                if other.rail == lease.rail and not other.returned and not mine.isdisjoint(theirs):
                    ip = min(map(str, mine & theirs))
                    raise CniError(f"{lease.plugin} gave {ip}, which {of.namespace}/{of.pod} has")

    def _take_back(self, sandbox: str, devices: Collection[str] | None) -> None:
        """Raises ``CniError`` at the first plugin that does not take its address; the others stay known too."""
        of = self._mark(sandbox, devices)
        if of is None:
            return
        failed: CniError | None = None
        kept = list(of.leases)
        for lease in reversed(of.leases):
            if failed is not None and failed.hangs:
                break
            if devices is None or lease.device in devices:
                try:
                    self._plugins.delete(lease.configuration, of.attachment(lease), lease.result)
                    kept.remove(lease)
                except CniError as error:
                    failed = CniError(f"rail {lease.rail}: {error}", hangs=error.hangs)
        if len(kept) < len(of.leases):
            self._write(replace(of, leases=tuple(kept)))
        if failed is not None:
            raise failed

    def _mark(self, sandbox: str, devices: Collection[str] | None) -> SandboxLeases | None:
        """Keep that no netdev has these addresses any more."""
        of = self._all().get(sandbox)
        if of is None:
            return None
        marked = tuple(
            replace(lease, returned=True) if devices is None or lease.device in devices else lease
            for lease in of.leases
        )
        if marked != of.leases:
            of = replace(of, leases=marked)
            self._write(of)
        return of

    def _configuration(self, ipam: IpamSection, rail: int) -> dict[str, Any]:
        return self._plugins.configuration(f"nodeagent-rail{rail}", ipam_of_rail(ipam, rail))

    # --- the files ---

    def _of(self, sandbox: str) -> tuple[AddressLease, ...]:
        of = self._all().get(sandbox)
        return () if of is None else of.leases

    def _all(self) -> dict[str, SandboxLeases]:
        if self._read is None:
            found = {}
            for path in sorted(self._folder.glob("*.json")):
                try:
                    of = msgspec.json.decode(read_regular(path), type=SandboxLeases)
                    found[of.sandbox] = of
                except FileNotFoundError:
                    continue
                except (OSError, ValueError) as error:
                    log.warning(
                        "The addresses of a sandbox cannot be read. file=%s reason=%r", path, str(error)
                    )
            self._read = found
        return self._read

    def _write(self, of: SandboxLeases, *, durable: bool = False) -> None:
        """Keep the addresses of a sandbox. The file of one without any is removed."""
        path = self._folder / f"{of.sandbox}.json"
        if of.leases:
            replace_file(path, msgspec.json.encode(of), durable=durable)
            self._all()[of.sandbox] = of
        else:
            path.unlink(missing_ok=True)
            self._all().pop(of.sandbox, None)


def _addresses(lease: AddressLease) -> set[object]:
    try:
        given = lease.given
    except CniError:
        return set()
    return set() if given is None else {address.ip for address in given.addresses}


def _with(link: PodLink, given: GivenAddresses | None) -> PodLink:
    return link if given is None else replace(link, addresses=given.addresses, routes=given.routes)
