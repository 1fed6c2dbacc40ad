"""The files of prepared claims: records, CDI specs, device-info files of VFs, and metadata files for containers.

* One record for each claim, replaced in one step and synced: a damaged file concerns one claim. The record has the
  boot in which it was made; after a reboot no container runs, and the kubelet prepares its claims again.
* The CDI spec has a name of its own for each claim, because runtimes cache specs by name. It holds a copy of the
  record, which is used if the record is damaged. A record that is too large for an annotation has no copy.
* The record is on the disk before the spec, and the spec before the kubelet gets the answer. It is there before a MIG
  device of the claim is made, too: after a crash what was made is known.
* A folder in the place of a file is removed: it would keep the claim from its start and its end.

All functions block: call them in a thread.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from nodeagent.attach.plan_file import read_attach_plan
from nodeagent.attach.pod_plan import AttachPlan
from nodeagent.base.file_writing import (
    PRIVATE_FOLDER,
    PUBLIC_FOLDER,
    remove_abandoned,
    replace_changed_file,
    try_writing,
    unwritable_because,
)
from nodeagent.base.regular_file import read_regular
from nodeagent.base.stored_file import STORED_SIZE_MAX, StoredForm
from nodeagent.dra.claim_preparation import CDI_KIND, valid_uid
from nodeagent.dra.prepared_claim import PreparedClaim
from nodeagent.facts import cdi
from nodeagent.kubelet.device_info import DeviceInfoFiles

log = logging.getLogger(__name__)

SPEC_PREFIX = "nodeagent-claim-"
ANNOTATIONS_MAX = 256 * 1024
"""Bytes of all annotations of a CDI spec with their keys; runtimes refuse a spec with more
(tags.cncf.io/container-device-interface, internal/validation/k8s/objectmeta.go)."""
TRIAL_SIZE = 16 * 1024
"""Bytes of a trial. The record of a claim with eight VFs and a share of a GPU has some 6 KB, its spec as much again."""
PUBLIC = {"mode": 0o644, "folder_mode": PUBLIC_FOLDER}
_ANNOTATION = "nodeagent.io/record"
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class _Record(msgspec.Struct, frozen=True):
    boot_id: str
    claim: PreparedClaim


CLAIM_FORM = StoredForm(
    name="claims/UID.json",
    type=_Record,
    content="record of a prepared claim",
    loss="its devices count as free",
    of_boot=True,
    encode=msgspec.json.encode,
)
"""The record of a claim with 200 VFs in one request has some 200 KB."""


class ClaimFiles:
    """``records`` is the agent's folder for them in its state directory, ``specs`` the folder of CDI specs that
    runtimes read. ``metadata`` is the folder of metadata files; ``gives_metadata``: claims that are prepared from now
    on get such files."""

    def __init__(
        self,
        records: Path,
        specs: Path,
        device_info: DeviceInfoFiles,
        boot_id: str | None,
        metadata: Path,
        *,
        gives_metadata: bool = True,
    ) -> None:
        self._records, self._specs, self._device_info = records, specs, device_info
        self._boot_id = boot_id or ""
        self._metadata = metadata
        self.new_metadata = str(metadata) if gives_metadata else None
        """The folder for the metadata of new claims."""
        self.lock = asyncio.Lock()
        """Held by whom reads or writes them while claims come and go."""
        self.written: dict[str, str] = {}
        """The allocation of each claim whose files are on the disk, by its UID."""

    @property
    def folder(self) -> Path:
        """The folder of the records."""
        return self._records

    def attach_plan(self) -> AttachPlan | None:
        """The plan for netdevs in pods, if there is one."""
        return read_attach_plan(self._records.parent)

    def read(self) -> list[PreparedClaim]:
        """Return the records of this boot, and remove those of an earlier one. Another agent may still write records.

        Raises ``OSError`` if the folder cannot be read: without it the devices that are held are unknown.
        """
        claims = []
        try:
            found = {path.stem: path for path in sorted(self._records.iterdir()) if path.suffix == ".json"}
        except FileNotFoundError:
            found = {}
        for uid, path in found.items():
            record = self._read_record(uid, path) if valid_uid(uid) else None
            if record is not None and record.boot_id == self._boot_id and record.claim.uid == uid:
                claims.append(record.claim)
                with suppress(OSError):
                    if not record.claim.edits or (
                        record.claim.is_made and all(file.is_file() for file in self._outputs(record.claim))
                    ):
                        self.written[uid] = record.claim.allocation
            else:
                self._discard(path)
        return claims

    def write(self, claim: PreparedClaim) -> None:
        """Write what differs on the disk. Raises ``OSError`` with the name of the file that cannot be written."""
        text = self.write_record(claim)
        if claim.edits:  # else all its devices are another driver's
            for request, content in claim.metadata.items():  # without one of them no container starts
                _replace(self._metadata / claim.uid / f"{request}.json", content.encode(), **PUBLIC)
            document = cdi.spec(CDI_KIND, claim.edits)
            if len(_ANNOTATION) + len(text) <= ANNOTATIONS_MAX:
                document["annotations"] = {_ANNOTATION: text.decode()}
            _replace(self._spec(claim.uid), cdi.spec_text(document).encode(), **PUBLIC)
            self._device_info.write(claim.device_info)
        self.written[claim.uid] = claim.allocation

    def lost(self, claims: Iterable[PreparedClaim]) -> set[str]:
        """Return the UIDs of those whose files were on the disk and are not any more. Raises ``OSError``."""
        return {
            claim.uid
            for claim in claims
            if self.written.get(claim.uid) == claim.allocation
            and not all(file.is_file() for file in self._all(claim))
        }

    def withdraw(self, claim: PreparedClaim) -> None:
        """Remove the CDI spec of a claim that stays: no container starts with it. Raises ``OSError``."""
        self.written.pop(claim.uid, None)
        _remove(self._spec(claim.uid))

    def try_writing(self, *, thorough: bool) -> None:
        """Find out whether the files of one more claim can be written. Raises ``OSError`` with the name of the folder.

        Where nothing speaks against it no file is made, unless ``thorough``: runtimes read all CDI specs again when one
        comes or goes.
        """
        folders = [(self._records, PRIVATE_FOLDER), (self._specs, PUBLIC_FOLDER)]
        if self.new_metadata is not None:
            folders.append((self._metadata, PUBLIC_FOLDER))
        for folder, mode in folders:
            try:
                due = thorough or unwritable_because(folder) is not None
            except OSError:  # it is made for the first claim, or something is in its place
                due = True
            if due:
                try_writing(folder, TRIAL_SIZE, mode)

    def write_record(self, claim: PreparedClaim) -> bytes:
        """Write the record alone, and return its text: what is made for the claim afterwards is known from then on.
        Raises ``OSError``."""
        text = CLAIM_FORM.encode(_Record(self._boot_id, claim))
        if len(text) > STORED_SIZE_MAX:  # it could not be read again
            reason = f"the claim needs {len(text)} bytes, more than {STORED_SIZE_MAX}; use several claims"
            raise OSError(errno.EFBIG, reason, str(self._record(claim.uid)))
        _replace(self._record(claim.uid), text, durable=True)
        return text

    def remove(self, claim: PreparedClaim) -> None:
        """Remove the files of a claim. The record goes last: until then the files are known. Raises ``OSError``."""
        self.written.pop(claim.uid, None)
        for path in (*self._outputs(claim), self._metadata / claim.uid, self._record(claim.uid)):
            _remove(path)

    def remove_others(self, uids: frozenset[str]) -> None:
        """Remove the records and specs of all claims but these: a write that was given up may have made them.

        Only the agent that holds the lock of the node may do this.
        """
        for uid in self.written.keys() - uids:
            del self.written[uid]
        with suppress(FileNotFoundError):
            for path in self._records.glob("*.json"):
                if path.stem not in uids:
                    _remove(path)
        remove_abandoned(self._records, "*.json")
        self._remove_specs(uids)
        with suppress(FileNotFoundError):
            for folder in self._metadata.iterdir():
                if folder.name not in uids:
                    _remove(folder)

    def _outputs(self, claim: PreparedClaim) -> list[Path]:
        """The CDI spec and the device-info files."""
        return [
            self._spec(claim.uid),
            *(self._device_info.folder / info.name for info in claim.device_info),
        ]

    def _all(self, claim: PreparedClaim) -> list[Path]:
        outputs = self._outputs(claim) if claim.edits else []
        metadata = (self._metadata / claim.uid / f"{request}.json" for request in claim.metadata)
        return [self._record(claim.uid), *outputs, *metadata]

    def _record(self, uid: str) -> Path:
        return self._records / f"{uid}.json"

    def _spec(self, uid: str) -> Path:
        return self._specs / f"{SPEC_PREFIX}{uid}.json"

    def _read_record(self, uid: str, path: Path) -> _Record | None:
        """Return the record, or its copy in the CDI spec; ``None`` if both are damaged.

        Raises ``OSError`` if the machine has no memory or descriptors to read it: the record is good.
        """
        try:
            return CLAIM_FORM.decode(read_regular(path, STORED_SIZE_MAX))
        except (OSError, ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            if isinstance(error, OSError) and error.errno in _EXHAUSTED:
                raise
            reason = getattr(error, "strerror", None) or str(error)
        with suppress(OSError, ValueError, RecursionError, KeyError, TypeError):
            document = json.loads(read_regular(self._spec(uid), STORED_SIZE_MAX))
            record = CLAIM_FORM.decode(document["annotations"][_ANNOTATION])
            log.warning(
                "The record of a prepared claim is damaged; the copy in its CDI spec is used. file=%s reason=%r",
                path,
                reason,
            )
            return record
        log.error(
            "The record of a prepared claim is damaged and has no copy: its devices count as free. End the pods of "
            "the claim. claim_uid=%r file=%s reason=%r",
            uid,
            path,
            reason,
        )
        return None

    def _remove_specs(self, uids: frozenset[str]) -> None:
        with suppress(FileNotFoundError):
            for path in self._specs.glob(f"{SPEC_PREFIX}*.json"):
                if path.stem.removeprefix(SPEC_PREFIX) not in uids:
                    self._discard(path)
        remove_abandoned(self._specs, f"{SPEC_PREFIX}*.json")

    def _discard(self, path: Path) -> None:
        try:
            _remove(path)
        except OSError as error:
            log.warning("A file of an ended claim cannot be removed. file=%s reason=%r", path, error.strerror)


def _replace(path: Path, content: bytes, **how: Any) -> None:
    """As ``replace_changed_file``."""
    try:
        replace_changed_file(path, content, **how)
    except IsADirectoryError:
        _remove(path)
        replace_changed_file(path, content, **how)


def _remove(path: Path) -> None:
    """Remove a file, or a folder with all that is in it. Raises ``OSError``."""
    try:
        path.unlink(missing_ok=True)
    except IsADirectoryError:
        for inner in path.iterdir():
            _remove(inner)
        path.rmdir()
