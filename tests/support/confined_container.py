"""A container without a container engine: a read-only root, the mounts, user and capabilities of a manifest.

Namespaces and ``setpriv`` apply the fields of the manifest as a runtime does. Left out: seccomp profile, device cgroup
and masked paths of /proc. This machine's own programs, mounted read-only, stand for the image.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

from tests.support.manifests import ROOT, Manifest

PROGRAMS = ("bin", "lib", "lib64", "sbin", "usr", "opt")
"""Folders of this machine that stand for the image, besides those of the interpreter and the source."""


def command(
    spec: Manifest, container: Manifest, host: Path, scratch: Path, words: list[str], given: dict[str, Path]
) -> list[str]:
    """Return the command that runs ``words`` as that container of that pod. ``host`` is the root of the node's disk.

    ``given`` maps the name of a volume that is not a host path to the folder to mount.
    """
    new = scratch / "root"
    lines = ["set -e", f"mkdir -p {new}", f"mount -t tmpfs tmpfs {new}"]
    for name in PROGRAMS:
        lines += [
            f"[ ! -L /{name} ] || cp -P /{name} {new}/",
            *_bind(Path("/") / name, new / name, read_only=True),
        ]
    for path in {Path(sys.prefix), Path(sys.base_prefix), ROOT}:
        if not any(path.is_relative_to(f"/{name}") for name in PROGRAMS):
            lines += _bind(path, new / path.relative_to("/"), read_only=True)
    lines += [f"mkdir -p {new}/proc {new}/dev", f"mount -t proc proc {new}/proc"]
    lines += [
        f"touch {new}/dev/{one}; mount --bind /dev/{one} {new}/dev/{one}" for one in ("null", "urandom")
    ]
    for mount in sorted(container["volumeMounts"], key=lambda one: len(one["mountPath"])):
        source = _source(spec, mount["name"], host, given)
        target = new / mount["mountPath"].lstrip("/")
        lines += [f"mkdir -p {source}", *_bind(source, target, read_only=mount.get("readOnly", False))]
    lines += [f"mount -o remount,ro {new}"]
    context = spec["securityContext"] | container["securityContext"]
    caps = ",".join(["-all", *(f"+{one.lower()}" for one in context["capabilities"].get("add", ()))])
    user = context["runAsUser"], context["runAsGroup"]
    inner = [
        "setpriv", "--reuid", str(user[0]), "--regid", str(user[1]), "--clear-groups", "--no-new-privs",
        f"--bounding-set={caps}", f"--inh-caps={caps}", *words,
    ]  # fmt: skip
    lines.append(f"exec chroot {new} {shlex.join(inner)}")
    return ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "sh", "-c", "\n".join(lines)]


def _bind(source: Path, target: Path, *, read_only: bool) -> list[str]:
    made = [
        f"[ -L {target} ] || [ ! -e {source} ] || {{ mkdir -p {target}; mount --bind {source} {target}; }}"
    ]
    if read_only:
        made.append(f"! mountpoint -q {target} || mount -o remount,bind,ro {target}")
    return made


def _source(spec: Manifest, name: str, host: Path, given: dict[str, Path]) -> Path:
    (volume,) = (one for one in spec["volumes"] if one["name"] == name)
    if name in given:
        return given[name]
    if volume.get("configMap", {}).get("optional"):
        return host.parent / "optional"
    path: Any = volume["hostPath"]["path"]
    return host / str(path).lstrip("/")
