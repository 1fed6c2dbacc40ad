"""The agent's own CDI specifications: of the GPUs where no vendor's is on the host, of VFs where asked for.

Written by level: the texts that should be there against those that are. A write that fails (a full disk)
leaves what was, is said once, and is tried again at the next change and at each allocation that needs it.
A file is never removed: the kubelet asks nobody again when a container restarts, and the runtime then looks
the device up in it once more.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from nodeagent import cdi
from nodeagent.host.file_writing import replace_file
from nodeagent.kinds.vf import VfPool
from nodeagent.model import Allocation, DeviceNode, Gpu, HostPaths, Snapshot

log = logging.getLogger(__name__)

FILES = {cdi.GPU_KIND: "nodeagent-gpu.json", cdi.VF_KIND: "nodeagent-vf.json"}


_Edits = dict[str, tuple[dict[str, cdi.Edits], cdi.Edits | None]]
"""By kind: of each device, and of all."""


class CdiSpecs:
    """One file for each kind of ours, in one of the folders that container runtimes read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._edits: _Edits = {}
        self._wanted: dict[str, str] = {}
        self._written: dict[str, str] = {}
        self._said: dict[str, str] = {}

    def want(self, kinds: Iterable[object], snapshot: Snapshot) -> bool:
        """Work out the texts. True where one of them is to be written: ``flush`` does it, and blocks."""
        kinds = tuple(kinds)
        edits: _Edits = {}
        if any(getattr(kind, "cdi_kind", None) == cdi.GPU_KIND for kind in kinds) or self._exists(
            cdi.GPU_KIND
        ):
            edits[cdi.GPU_KIND] = (gpu_edits(snapshot.gpus), shared_edits(snapshot.paths))
        pools = [kind for kind in kinds if isinstance(kind, VfPool) and kind.cdi]
        if pools or self._exists(cdi.VF_KIND):
            vfs = {name: edit for pool in pools for name, edit in pool.edits(snapshot).items()}
            edits[cdi.VF_KIND] = (vfs, None)
        if edits != self._edits:  # news wait for this, and seldom are about it
            self._wanted = {
                kind: cdi.text(cdi.spec(kind, devices, shared))
                for kind, (devices, shared) in edits.items()
                if devices
            }
            self._edits = edits
        return any(self._due(kind) for kind in self._wanted)

    def flush(self) -> OSError | None:
        """Write what differs. The error that kept a file from being written, if any."""
        failure = None
        for kind, text in self._wanted.items():
            if not self._due(kind):
                continue
            path = self._folder / FILES[kind]
            try:
                if not path.exists() or path.read_text(encoding="utf-8") != text:
                    replace_file(path, text.encode(), mode=0o644)
                    log.info("The CDI spec was written. file=%s", path)
            except OSError as error:
                error.filename = str(path)
                failure = error
                sentence = f"The CDI spec cannot be written. file={path} reason={error.strerror!r}"
                if self._said.get(kind) != sentence:
                    log.error("%s", sentence)
                self._said[kind] = sentence
                continue
            self._written[kind] = text
            self._said.pop(kind, None)
        return failure

    def behind(self, allocation: Allocation) -> bool:
        """Whether the answer names a device that is not yet defined on the disk."""
        ours = {name.partition("=")[0] for name in allocation.cdi_devices} & FILES.keys()
        return any(self._due(kind) for kind in ours)

    def _due(self, kind: str) -> bool:
        """Whether the text on the disk is another, or was removed by someone."""
        return self._written.get(kind) != self._wanted.get(kind) or not (self._folder / FILES[kind]).exists()

    def _exists(self, kind: str) -> bool:
        return kind in self._written or (self._folder / FILES[kind]).exists()


def gpu_edits(gpus: Iterable[Gpu]) -> dict[str, cdi.Edits]:
    return {
        gpu.uuid: cdi.Edits(
            device_nodes=(DeviceNode(f"/dev/nvidia{gpu.minor}", f"/dev/nvidia{gpu.minor}", "rw"),)
        )
        for gpu in gpus
        if gpu.minor is not None
    }


def shared_edits(paths: HostPaths) -> cdi.Edits:
    """What every container with a GPU gets: the driver's common nodes, its libraries and programs."""
    return cdi.Edits(
        env=cdi.GPU_ENV,
        device_nodes=tuple(DeviceNode(node, node, "rw") for node in paths.gpu_nodes),
        mounts=paths.driver_files,
    )
