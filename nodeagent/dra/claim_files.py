"""The files of prepared claims: records, CDI specs, device-info files of VFs, and metadata files for containers.

* One record for each claim, replaced in one step and synced: a damaged file concerns one claim. The record has the
  boot in which it was made; after a reboot no container runs, and the kubelet prepares its claims again.
* The CDI spec has a name of its own for each claim, because runtimes cache specs by name. It holds a copy of the
  record, which is used if the record is damaged. A record that is too large for an annotation has no copy.
* The record is on the disk before the spec, and the spec before the kubelet gets the answer.

All functions block: call them in a thread.
"""

from __future__ import annotations

import errno
import json
import logging
from contextlib import suppress
from pathlib import Path

import msgspec

from nodeagent.base.file_writing import PUBLIC_FOLDER, replace_changed_file
from nodeagent.base.regular_file import read_regular
from nodeagent.base.stored_file import SIZE_MAX, StoredForm
from nodeagent.dra.claim_preparation import CDI_KIND, valid_uid
from nodeagent.dra.prepared_claim import PreparedClaim
from nodeagent.facts import cdi
from nodeagent.kubelet.device_info import DeviceInfoFiles

log = logging.getLogger(__name__)

SPEC_PREFIX = "nodeagent-claim-"
ANNOTATIONS_MAX = 256 * 1024
"""Bytes of all annotations of a CDI spec with their keys; runtimes refuse a spec with more
(tags.cncf.io/container-device-interface, internal/validation/k8s/objectmeta.go)."""
_ANNOTATION = "nodeagent.io/record"
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class _Record(msgspec.Struct, frozen=True):
    boot_id: str
    claim: PreparedClaim


FORM = StoredForm(
    name="claims/UID.json",
    type=_Record,
    content="record of a prepared claim",
    loss="its devices count as free",
    of_boot=True,
    encode=msgspec.json.encode,
)
"""The record of a claim with 200 VFs in one request has some 200 KB."""


class ClaimFiles:
    """``records`` is the agent's folder for them, ``specs`` the folder of CDI specs that runtimes read. ``metadata`` is
    the folder of metadata files; ``None``: claims get none."""

    def __init__(
        self,
        records: Path,
        specs: Path,
        device_info: DeviceInfoFiles,
        boot_id: str | None,
        metadata: Path | None = None,
    ) -> None:
        self._records, self._specs, self._device_info = records, specs, device_info
        self._boot_id = boot_id or ""
        self.metadata = metadata

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
            else:
                self._discard(path)
        return claims

    def write(self, claim: PreparedClaim) -> None:
        """Write what differs on the disk. Raises ``OSError`` with the name of the file that cannot be written."""
        text = FORM.encode(_Record(self._boot_id, claim))
        if len(text) > SIZE_MAX:  # it could not be read again
            reason = f"the claim needs {len(text)} bytes, more than {SIZE_MAX}; use several claims"
            raise OSError(errno.EFBIG, reason, str(self._record(claim.uid)))
        replace_changed_file(self._record(claim.uid), text, durable=True)
        if not claim.edits:  # all its devices are another driver's
            return
        self._write_metadata(claim)
        document = cdi.spec(CDI_KIND, claim.edits)
        if len(_ANNOTATION) + len(text) <= ANNOTATIONS_MAX:
            document["annotations"] = {_ANNOTATION: text.decode()}
        spec = cdi.text(document).encode()
        replace_changed_file(self._spec(claim.uid), spec, mode=0o644, folder_mode=PUBLIC_FOLDER)
        self._device_info.write(claim.device_info)

    def remove(self, claim: PreparedClaim) -> None:
        """Remove the files of a claim. The record goes last: until then the files are known. Raises ``OSError``."""
        self._spec(claim.uid).unlink(missing_ok=True)
        for info in claim.device_info:
            (self._device_info.folder / info.name).unlink(missing_ok=True)
        if self.metadata is not None:
            _remove_folder(self.metadata / claim.uid)
        self._record(claim.uid).unlink(missing_ok=True)

    def remove_others(self, uids: frozenset[str]) -> None:
        """Remove the records and specs of all claims but these: a write that was given up may have made them.

        Only the agent that holds the lock of the node may do this.
        """
        with suppress(FileNotFoundError):
            for path in self._records.glob("*.json"):
                if path.stem not in uids:
                    path.unlink(missing_ok=True)
        self._remove_specs(uids)
        with suppress(FileNotFoundError):
            for folder in self.metadata.iterdir() if self.metadata is not None else ():
                if folder.name not in uids:
                    _remove_folder(folder)

    def _write_metadata(self, claim: PreparedClaim) -> None:
        """Write the files that the CDI spec mounts: without one of them no container starts."""
        for request, text in claim.metadata.items():
            if self.metadata is not None:
                path = self.metadata / claim.uid / f"{request}.json"
                replace_changed_file(path, text.encode(), mode=0o644, folder_mode=PUBLIC_FOLDER)

    def _record(self, uid: str) -> Path:
        return self._records / f"{uid}.json"

    def _spec(self, uid: str) -> Path:
        return self._specs / f"{SPEC_PREFIX}{uid}.json"

    def _read_record(self, uid: str, path: Path) -> _Record | None:
        """Return the record, or its copy in the CDI spec; ``None`` if both are damaged.

        Raises ``OSError`` if the machine has no memory or descriptors to read it: the record is good.
        """
        try:
            return FORM.decode(read_regular(path, SIZE_MAX))
        except (OSError, ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            if isinstance(error, OSError) and error.errno in _EXHAUSTED:
                raise
            reason = getattr(error, "strerror", None) or str(error)
        with suppress(OSError, ValueError, RecursionError, KeyError, TypeError):
            document = json.loads(read_regular(self._spec(uid), SIZE_MAX))
            record = FORM.decode(document["annotations"][_ANNOTATION])
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

    def _discard(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("A file of an ended claim cannot be removed. file=%s reason=%r", path, error.strerror)


def _remove_folder(folder: Path) -> None:
    """Remove a folder of metadata files. Raises ``OSError``."""
    with suppress(FileNotFoundError):
        for path in folder.iterdir():
            path.unlink(missing_ok=True)
        folder.rmdir()
