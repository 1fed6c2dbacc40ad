"""Find what containers get from the host: device nodes, the vendor's CDI device names and driver libraries, and which
limits of GPU memory the host supports."""

from __future__ import annotations

import json
import logging
import platform
import re
from collections.abc import Iterator

from nodeagent.base.file_writing import unwritable_because
from nodeagent.config.bounded_yaml import Limits, load_document
from nodeagent.facts import cdi
from nodeagent.facts.model import HostPaths, LimitSupport, Mount
from nodeagent.host.rdma_mode import rdma_exclusive
from nodeagent.host.sysfs import SysfsError, Tree
from nodeagent.sources.gpu_users import hidden_processes

log = logging.getLogger(__name__)

GPU_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
RDMA_CM = "/dev/infiniband/rdma_cm"
VENDOR_KIND = "nvidia.com/gpu"
CDI_FOLDERS = ("/etc/cdi", "/var/run/cdi")
"""The default folders of container runtimes (Container Device Interface, section "CDI spec directories")."""
SPEC_MAX_BYTES = 4 << 20
SPEC_LIMITS = Limits(size=SPEC_MAX_BYTES, values=1_000_000)

LIBRARY_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64")
"""Where Debian's and Red Hat's families keep libraries: programs of an image find them there without a cache."""
_DRIVER_FOLDERS = (
    ("", (*LIBRARY_FOLDERS, "/usr/local/glibc/usr/lib")),  # the host, also Talos' extension
    ("/run/nvidia/driver", LIBRARY_FOLDERS),  # the GPU operator's driver container
)
"""The roots in which a driver is looked for, and the folders below each."""
_BELOW_ROOT = (*LIBRARY_FOLDERS, "/usr/lib", "/lib64", "/lib", "")
_IN_CONTAINER = (f"/usr/lib/{platform.machine()}-linux-gnu", "/usr/lib64")
# The libraries that a CUDA program loads at run time: driver API, NVML, the PTX compiler and its back ends.
_LIBRARIES = (
    cdi.DRIVER_LIBRARY,
    "libcudadebugger.so.1",
    "libnvidia-ml.so.1",
    "libnvidia-nvvm.so.4",
    "libnvidia-opencl.so.1",
    "libnvidia-ptxjitcompiler.so.1",
)
_VERSIONED = "libnvidia-gpucomp.so."  # has no soname of its own: the file is named by the driver's version
_PROGRAM = "/usr/bin/nvidia-smi"
_PROGRAMS = (_PROGRAM, "/bin/nvidia-smi")


def driver_folders(driver_root: str | None) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The roots in which the driver is looked for, the first one that has it counts, and the folders below each."""
    return _DRIVER_FOLDERS if driver_root is None else ((driver_root.rstrip("/"), _BELOW_ROOT),)


def find(tree: Tree, cdi_folder: str, driver_root: str | None = None) -> HostPaths:
    """Scan once. ``cdi_folder`` has this agent's own spec, which is read too. ``driver_root`` is ``gpu.driverRoot``."""
    return HostPaths(
        gpu_nodes=tuple(node for node in GPU_NODES if tree.exists(node)),
        rdma_cm=tree.exists(RDMA_CM),
        rdma_exclusive=rdma_exclusive(tree),
        vendor_gpus=frozenset(vendor_gpus(tree, dict.fromkeys((*CDI_FOLDERS, cdi_folder)))),
        driver_files=tuple(driver_files(tree, driver_root)),
    )


def vendor_gpus(tree: Tree, folders: dict[str, None]) -> set[str]:
    """The device names under the vendor's kind in every readable spec of the folders."""
    documents: dict[str, object] = {}
    for folder in folders:
        for name in tree.names(folder):
            if name.endswith((".json", ".yaml")):
                document = _parsed(tree, f"{folder}/{name}")
                if document is not None:
                    documents[f"{folder}/{name}"] = document
    return cdi.vendor_devices(documents).get(VENDOR_KIND, set())


def driver_files(tree: Tree, driver_root: str | None = None) -> Iterator[Mount]:
    """Each existing library of the driver, with the paths at which a program expects it."""
    for root, folders in driver_folders(driver_root):
        complete = False
        for folder in folders:
            names = tree.names(root + folder)
            wanted = [name for name in names if name in _LIBRARIES or name.startswith(_VERSIONED)]
            if cdi.DRIVER_LIBRARY not in wanted:
                continue
            complete = True
            for name in wanted:
                real = tree.real(f"{root}{folder}/{name}")
                if real is not None:
                    for inside in (folder,) if folder in LIBRARY_FOLDERS else _IN_CONTAINER:
                        yield Mount(real, f"{inside}/{name}", read_only=True)
        if complete:
            program = next((root + path for path in _PROGRAMS if tree.exists(root + path)), None)
            if program is not None:
                yield Mount(program, _PROGRAM, read_only=True)
            return


def parsed(tree: Tree, path: str) -> object:
    """The content of a CDI spec. Raises ``SysfsError``, ``OSError`` or ``ValueError``."""
    text = tree.text(path) or ""
    if len(text) > SPEC_MAX_BYTES:
        raise ValueError(f"it is longer than {SPEC_MAX_BYTES >> 20} MiB")
    try:
        if path.endswith(".json"):
            json_document: object = json.loads(text)
            return json_document
    except RecursionError as error:
        raise ValueError(" ".join(str(error).split())) from error
    return load_document(text, SPEC_LIMITS)


def _parsed(tree: Tree, path: str) -> object | None:
    try:
        return parsed(tree, path)
    except (SysfsError, OSError, ValueError) as error:
        log.debug("A CDI spec cannot be read. file=%s reason=%r", path, str(error))
        return None


# --- limits of GPU memory -------------------------------------------------------------------------------

CGROUPS = "/sys/fs/cgroup"
_CAP_SYS_ADMIN = 21  # include/uapi/linux/capability.h


def limit_support(tree: Tree, pod_logs: str) -> LimitSupport:
    """Return what is missing for each level. Of a captured machine the rights of its agent are not known."""
    recorded = tree.recorded
    cgroup2 = tree.exists(f"{CGROUPS}/cgroup.controllers") or (None if recorded else False)
    return LimitSupport(
        cgroup2,
        hidden_processes(tree, pod_logs) or "",
        None if recorded else cgroup_obstacle(tree, pod_logs) or "",
    )


def cgroup_obstacle(tree: Tree, pod_logs: str) -> str | None:
    """Return why the agent cannot limit the cgroups of containers; ``None`` if it can."""
    try:
        tree.names(pod_logs)
        # The driver accepts limits from a process with this capability only ("requires root/admin permissions").
        status = Tree().text("/proc/self/status") or ""
        why = unwritable_because(tree.path(CGROUPS))
    except SysfsError as error:
        return str(error)
    except OSError as error:
        return f"{CGROUPS}: {error.strerror}"
    if why is not None:
        return f"{CGROUPS}: {why}; components/gpu-memory-limits mounts the host's cgroups"
    if (
        not int((re.search(r"^CapEff:\s*([0-9a-f]+)", status, re.M) or ["", "0"])[1], 16) >> _CAP_SYS_ADMIN
        & 1
    ):
        return "the agent lacks CAP_SYS_ADMIN; components/gpu-memory-limits adds it"
    return None if tree.exists(pod_logs) else f"{pod_logs} is not there: it has the names of the pods"
