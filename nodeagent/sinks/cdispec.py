"""The agent's own CDI specification of the node's GPUs, for hosts where no vendor's is.

Written by level: the text that should be there against the text that is. A write that fails (a full disk)
leaves what was, is said once, and is tried again at the next change and the next look.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from nodeagent import cdi
from nodeagent.model import DeviceNode, Gpu, HostPaths
from nodeagent.sinks.files import write

log = logging.getLogger(__name__)

NAME = "nodeagent-gpu.json"


class CdiSpec:
    """The file ``nodeagent-gpu.json`` in one of the folders that container runtimes read."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._said = ""

    def state(self, gpus: Iterable[Gpu], paths: HostPaths) -> bool:
        """Have the file describe these GPUs; blocks for a file's write. False when it could not be."""
        text = spec_text(gpus, paths)
        try:
            if text is None or (self._path.exists() and self._path.read_text(encoding="utf-8") == text):
                return True
            write(self._path, text)
        except OSError as error:
            sentence = f"The CDI spec cannot be written. file={self._path} reason={error.strerror!r}"
            if sentence != self._said:
                log.error("%s", sentence)
            self._said = sentence
            return False
        self._said = ""
        log.info("The CDI spec was written. file=%s", self._path)
        return True


def spec_text(gpus: Iterable[Gpu], paths: HostPaths) -> str | None:
    """The document, or ``None`` where there is no GPU that a node of /dev belongs to."""
    devices = {
        gpu.uuid: cdi.Edits(
            device_nodes=(DeviceNode(f"/dev/nvidia{gpu.minor}", f"/dev/nvidia{gpu.minor}", "rw"),)
        )
        for gpu in gpus
        if gpu.minor is not None
    }
    if not devices:
        return None
    shared = cdi.Edits(
        env=cdi.GPU_ENV,
        device_nodes=tuple(DeviceNode(node, node, "rw") for node in paths.gpu_nodes),
        mounts=paths.driver_files,
    )
    return cdi.text(cdi.spec(cdi.GPU_KIND, devices, shared))
