"""A stand-in for an IPAM plugin of CNI, as strict as those of the CNI project: a program, or without its process.

It gives the lowest free address of ``subnet``. It refuses a missing variable, a second ADD for one container and
interface, a version that it does not know, a CHECK without ``prevResult`` and a DEL with another configuration than
that of the ADD. Compared with host-local 1.1.1 by hand, and with its source and CNI's ``skel.go``
(docs/reference/verified.md).
"""

from __future__ import annotations

import json
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nodeagent.attach.cni_plugin import Attachment, CniError, CniPlugins, cni_variables
from tests.support import ipam_program

VERSIONS = ("0.4.0", "1.0.0", "1.1.0")


def install(folder: Path, name: str = "stand-in", versions: tuple[str, ...] = VERSIONS) -> None:
    """Put the program into a folder of CNI plugins. It keeps what it has given in its ``dataDir``, where the file
    ``faults`` says how commands are to fail: ``error``, ``silent``, ``hang``, ``flood``, ``garbage``."""
    folder.mkdir(parents=True, exist_ok=True)
    program = Path(ipam_program.__file__)
    path = folder / name
    path.write_text(
        f"#!{sys.executable} -SE\nimport sys\nsys.path.append({str(program.parent)!r})\n"
        f"import {program.stem}\n{program.stem}.main({versions!r})\n"
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def given(data: Path) -> dict[tuple[str, str, str], list[str]]:
    """The addresses that the program has given: by network, container and interface."""
    return {
        (store.stem, container, interface): value["addresses"]
        for store in data.glob("*.network")
        for key, value in json.loads(store.read_text() or "{}").items()
        for container, interface in (key.split(" "),)
    }


class PluginInProcess(CniPlugins):
    """The stand-in without a process. ``held`` are the addresses that it has given, by network and
    ``CONTAINER INTERFACE``; they outlive the caller. ``faults`` says how a command is to fail: ``error``, ``hang``, or
    with ``late`` before it, after it was carried out. ``calls`` are the commands so far."""

    def __init__(self, versions: tuple[str, ...] = VERSIONS) -> None:
        super().__init__(Path("/nowhere"), Path("/nowhere/lock"))
        self.versions = versions
        self.held: dict[str, ipam_program.Held] = {}
        self.faults: dict[str, str] = {}
        self.calls: list[str] = []

    def addresses(self) -> dict[tuple[str, str], list[str]]:
        """By container and interface."""
        return {
            (container, interface): value["addresses"]
            for held in self.held.values()
            for key, value in held.items()
            for container, interface in (key.split(" "),)
        }

    def _supported(self, plugin: str) -> tuple[str, ...]:
        return self.versions

    def _call(
        self, plugin: str, command: str, configuration: Mapping[str, Any], attachment: Attachment | None
    ) -> bytes:
        self.calls.append(command)
        config = json.loads(json.dumps(configuration))
        variables = {"CNI_PATH": "/nowhere"}
        variables |= {} if attachment is None else cni_variables(plugin, attachment)
        key = "" if attachment is None else f"{attachment.container} {attachment.interface}"
        fault = self.faults.get(command, "")
        self._fail(plugin, fault)
        try:
            ipam_program.refuse(command, variables, config, self.versions)
            answer = ipam_program.do(command, config, self.held.setdefault(config["name"], {}), key)
        except ipam_program.Refused as refused:
            raise CniError(f"{plugin}: {refused}") from refused
        self._fail(plugin, fault.removeprefix("late"))
        return b"" if answer is None else json.dumps(answer).encode()

    @staticmethod
    def _fail(plugin: str, fault: str) -> None:
        if fault == "error":
            raise CniError(f"{plugin}: try again later")
        if fault == "hang":
            raise CniError(f"{plugin} did not answer within 10 s", hangs=True)
