"""The versions of NVIDIA's kernel module and of its libraries on the disk, to find an upgrade under the running driver.

After an upgrade without a reboot NVML may still answer, because the agent has the old library loaded. A new container
gets the new files, whose calls the old module refuses.
"""

from __future__ import annotations

import re

from nodeagent.facts import cdi
from nodeagent.host.sysfs import SysfsError, SysfsScan, Tree
from nodeagent.sources.host_paths import driver_folders

_MODULE = "/sys/module/nvidia/version"
_LIBRARIES = (cdi.DRIVER_LIBRARY, "libnvidia-ml.so.1")
_VERSION = re.compile(r"\.so\.(\d+(?:\.\d+)+)")


def find_mismatch(tree: Tree, driver_root: str | None = None) -> str | None:
    """Return a sentence if no library of the driver has the version of the loaded module; ``None`` where a version is
    unknown. Any library that fits is enough: a host may have leftover files of another version."""
    module, libraries = _module(tree), _libraries(tree, driver_root)
    if module is None or not libraries or module in libraries:
        return None
    return (
        f"The driver's library has version {', '.join(sorted(libraries))} and its kernel module {module}, so new "
        "containers cannot use this GPU; finish the driver's upgrade (reboot, or reload the module)."
    )


def _module(tree: Tree) -> str | None:
    version = (SysfsScan(tree).read(tree.text, _MODULE) or "").strip()
    return version if re.fullmatch(r"\d+(\.\d+)+", version) else None


def _libraries(tree: Tree, driver_root: str | None) -> set[str]:
    """The versions in the names that the links of the libraries lead to: ``libcuda.so.580.95.05``."""
    found: set[str] = set()
    for root, folders in driver_folders(driver_root):
        for folder in folders:
            for library in _LIBRARIES:
                path = f"{root}{folder}/{library}"
                try:
                    # The end of all links, or where it is outside of what the agent sees, the first link.
                    names = (tree.real(path) or "", tree.link(path) or "")
                except SysfsError:  # a file, whose name has no version
                    continue
                found.update(match[1] for name in names if (match := _VERSION.search(name)))
    return found
