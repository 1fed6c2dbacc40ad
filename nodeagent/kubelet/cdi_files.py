"""Write the agent's own CDI specs: of the GPUs that no vendor's spec describes, and of VFs if configured.

The specs that should exist are compared with those on the disk. If a write fails (a full disk), the old file stays,
and ``kubelet/offer_files.py`` tries again. A file is never removed: when a container restarts, the runtime reads it
again, without another Allocate.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from pathlib import Path

from nodeagent.base.file_writing import PUBLIC_FOLDER, Leftovers, replace_changed_file
from nodeagent.facts import cdi
from nodeagent.facts.allocation import Allocation
from nodeagent.facts.model import Snapshot
from nodeagent.kinds import DeviceKind, gpu_access

log = logging.getLogger(__name__)

FILES = {cdi.GPU_KIND: "nodeagent-gpu.json", cdi.VF_KIND: "nodeagent-vf.json"}


class CdiSpecFiles:
    """One file for each CDI kind of the agent, in one of the folders that container runtimes read.

    ``update`` and ``differs`` use memory alone; ``look`` and ``flush`` block.
    """

    def __init__(self, folder: Path) -> None:
        self.looked = False
        self._folder = folder
        self._specs: dict[str, cdi.CdiDevices] = {}
        self._wanted: dict[str, str] = {}
        self._written: dict[str, str] = {}
        self._found: set[str] = set()
        self._writing = threading.Lock()
        self._leftovers = Leftovers(folder, *FILES.values())

    def look(self) -> None:
        """Find the files of an earlier agent: containers may still use them."""
        for name in FILES:
            if self.path(name).exists():
                self._found.add(name)
        self.looked = True

    def update(self, kinds: Iterable[DeviceKind], snapshot: Snapshot) -> None:
        """Take the specs that these kinds need."""
        specs: dict[str, cdi.CdiDevices] = {}
        for kind in kinds:
            for name, content in kind.cdi_specs(snapshot).items():
                devices = {**specs[name].devices, **content.devices} if name in specs else content.devices
                specs[name] = cdi.CdiDevices(devices, content.shared)
        if cdi.GPU_KIND not in specs and cdi.GPU_KIND in self._found:
            specs[cdi.GPU_KIND] = gpu_access.cdi_devices(snapshot)
        if specs != self._specs:  # rendered only if they changed: every snapshot waits for this
            self._wanted = {
                name: cdi.spec_text(cdi.spec(name, content.devices, content.shared))
                for name, content in specs.items()
                if content.devices
            }
            self._specs = specs

    def differs(self) -> bool:
        """Whether a file lacks its text, as this process wrote it last."""
        return bool(self.unwritten())

    def flush(self) -> dict[str, OSError]:
        """Write what differs or was removed. Return the errors by CDI kind, each with the name of its file."""
        failures = {}
        with self._writing:
            self._leftovers.sweep()
            for name, text in self._wanted.items():
                path = self.path(name)
                try:
                    if self._written.get(name) == text and path.exists():
                        continue
                    content = text.encode()
                    new = replace_changed_file(path, content, mode=0o644, folder_mode=PUBLIC_FOLDER)
                except OSError as error:
                    error.filename = str(path)
                    failures[name] = error
                    continue
                self._written[name] = text
                if new:
                    log.info("The CDI spec was written. file=%s", path)
                    self._found.add(name)
        return failures

    def unwritten(self) -> dict[str, Path]:
        """Return the files that lack their text, by CDI kind."""
        wanted = self._wanted.items()
        return {name: self.path(name) for name, text in wanted if self._written.get(name) != text}

    def path(self, name: str) -> Path:
        """Return the file of a CDI kind of the agent."""
        return self._folder / FILES[name]

    def paths(self) -> dict[str, Path]:
        """Return the files that should exist, by CDI kind."""
        return {name: self.path(name) for name in self._wanted}


def needed_by(allocation: Allocation) -> frozenset[str]:
    """Return the agent's CDI kinds whose specs must define the devices of an allocation."""
    return frozenset(name.partition("=")[0] for name in allocation.cdi_devices) & FILES.keys()
