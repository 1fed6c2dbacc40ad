"""The VFs that prepared claims hold, from the records that the agent keeps of them.

The names of CDI devices in a record say which VFs `nodeagent attach` moves: ``nodeagent.io/attached=<PCI
address>-<stamp>``. The stamp of a claim is its UID with the sequence of its record, so it is that of one allocation as
a stamp of device plugins is. It is on the disk before the kubelet has the agent's answer, and goes with the record.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from nodeagent.base.regular_file import read_regular
from nodeagent.base.stored_file import STORED_SIZE_MAX, boot_id
from nodeagent.facts.cdi import ATTACHED_KIND

log = logging.getLogger(__name__)

CLAIMS_FOLDER = "claims"
"""Below the state directory."""
_PREFIX = f"{ATTACHED_KIND}="
_NO_RECORD = (errno.EISDIR, errno.EINVAL, errno.EFBIG, errno.ELOOP)
"""Something else is in the place of a file: that concerns one claim."""
_SETTLED_NS = 1_000_000_000
"""A folder may change twice within one tick of the clock of files, and has one time then."""


class ClaimedVf(Struct, frozen=True):
    """A VF of a claim. ``pods`` has the names of the pods that may use the claim, by their UIDs."""

    device: str
    stamp: str
    sequence: int
    namespace: str
    pods: dict[str, str]


class _ClaimedDevice(Struct):
    cdi_devices: tuple[str, ...] = ()


class _Claim(Struct):
    """The fields of a record that count here."""

    namespace: str
    sequence: int
    devices: tuple[_ClaimedDevice, ...]
    pods: tuple[str, ...] = ()
    pod_uids: tuple[str, ...] = ()


class _ClaimRecord(Struct):
    boot_id: str
    claim: _Claim


class ClaimedVfs:
    """``directory`` is the state directory. Each call blocks and may raise ``OSError``. For one thread at a time."""

    def __init__(self, directory: Path, boot: str | None = None) -> None:
        self._folder = directory / CLAIMS_FOLDER
        self._boot = boot or boot_id()
        self._read: tuple[int, tuple[ClaimedVf, ...]] = (0, ())
        """With the time of the folder from which on it is not read again."""

    def changed_ns(self) -> int:
        """The time when a claim was prepared or ended last, 0 before the first."""
        try:
            return self._folder.stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def read(self) -> tuple[ClaimedVf, ...]:
        """The VFs of all claims of this boot, by the sequence of their records."""
        now_ns, changed_ns = time.time_ns(), self.changed_ns()
        if changed_ns == self._read[0]:
            return self._read[1]
        found = tuple(sorted(self._vfs(), key=lambda vf: (vf.sequence, vf.device)))
        self._read = (changed_ns if now_ns - changed_ns > _SETTLED_NS else -1, found)
        return found

    def _vfs(self) -> Iterator[ClaimedVf]:
        for path in self._records():
            try:
                record = msgspec.json.decode(read_regular(path, STORED_SIZE_MAX), type=_ClaimRecord)
            except FileNotFoundError:  # it has ended meanwhile
                continue
            except (OSError, ValueError) as error:
                if isinstance(error, OSError) and error.errno not in _NO_RECORD:
                    raise
                log.warning("The record of a claim cannot be read. file=%s reason=%r", path, str(error))
                continue
            if record.boot_id == self._boot:
                yield from _of(record.claim)

    def _records(self) -> Iterable[Path]:
        with suppress(FileNotFoundError):
            return [path for path in self._folder.iterdir() if path.suffix == ".json"]
        return ()


def _of(claim: _Claim) -> Iterator[ClaimedVf]:
    pods = dict(zip(claim.pod_uids, claim.pods, strict=False))
    for device in claim.devices:
        for name in device.cdi_devices:
            if name.startswith(_PREFIX):
                vf, _, stamp = name.removeprefix(_PREFIX).rpartition("-")
                yield ClaimedVf(vf, stamp, claim.sequence, claim.namespace, pods)
