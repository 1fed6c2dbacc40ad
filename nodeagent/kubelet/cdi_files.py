"""Write the agent's own CDI specs: of the GPUs that no vendor's spec describes, and of VFs if configured.

The specs that should exist are compared with those on the disk. If a write fails (a full disk), the old file stays,
the failure is logged once, and the write is tried again at the next change and at each allocation that needs it. A
file is never removed: when a container restarts, the runtime reads it again, without another Allocate.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from nodeagent import cdi
from nodeagent.host.file_writing import replace_file
from nodeagent.kinds import DeviceKind, gpu_access
from nodeagent.model import Allocation, Snapshot
from nodeagent.regular_file import read_regular

log = logging.getLogger(__name__)

FILES = {cdi.GPU_KIND: "nodeagent-gpu.json", cdi.VF_KIND: "nodeagent-vf.json"}


class CdiSpecFiles:
    """One file for each CDI kind of the agent, in one of the folders that container runtimes read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._specs: dict[str, cdi.CdiDevices] = {}
        self._wanted: dict[str, str] = {}
        self._written: dict[str, str] = {}
        self._logged: dict[str, str] = {}

    def update(self, kinds: Iterable[DeviceKind], snapshot: Snapshot) -> bool:
        """Take the specs that these kinds need. Return whether a file must be written (``flush``)."""
        specs: dict[str, cdi.CdiDevices] = {}
        for kind in kinds:
            for name, content in kind.cdi_specs(snapshot).items():
                devices = {**specs[name].devices, **content.devices} if name in specs else content.devices
                specs[name] = cdi.CdiDevices(devices, content.shared)
        if cdi.GPU_KIND not in specs and self._exists(cdi.GPU_KIND):  # containers may still use the file
            specs[cdi.GPU_KIND] = gpu_access.cdi_devices(snapshot)
        if specs != self._specs:  # rendered only if they changed: every snapshot waits for this
            self._wanted = {
                name: cdi.text(cdi.spec(name, content.devices, content.shared))
                for name, content in specs.items()
                if content.devices
            }
            self._specs = specs
        return any(self._due(name) for name in self._wanted)

    def flush(self) -> OSError | None:
        """Write what differs. Return the error that kept a file from being written, if any. Blocks."""
        failure = None
        for name, text in self._wanted.items():
            if not self._due(name):
                continue
            path = self._folder / FILES[name]
            try:
                if not path.exists() or read_regular(path) != text.encode():
                    replace_file(path, text.encode(), mode=0o644)
                    log.info("The CDI spec was written. file=%s", path)
            except OSError as error:
                error.filename = str(path)
                failure = error
                sentence = f"The CDI spec cannot be written. file={path} reason={error.strerror!r}"
                if self._logged.get(name) != sentence:
                    log.error("%s", sentence)
                self._logged[name] = sentence
                continue
            self._written[name] = text
            self._logged.pop(name, None)
        return failure

    def behind(self, allocation: Allocation) -> bool:
        """Whether the allocation names a device that no file on the disk defines yet."""
        ours = {name.partition("=")[0] for name in allocation.cdi_devices} & FILES.keys()
        return any(self._due(name) for name in ours)

    def _due(self, name: str) -> bool:
        """Whether the file has another text, or was removed."""
        return self._written.get(name) != self._wanted.get(name) or not (self._folder / FILES[name]).exists()

    def _exists(self, name: str) -> bool:
        return name in self._written or (self._folder / FILES[name]).exists()
