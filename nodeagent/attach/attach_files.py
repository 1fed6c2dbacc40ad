"""The files of `nodeagent attach` in the folder ``attach`` of the state directory: its lock, and what the doctor reads.

The lock keeps two of them from moving netdevs at once, as during an update by hand.
"""

from __future__ import annotations

import fcntl
import math
import os
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from nodeagent.base.file_writing import make_folder, replace_changed_file
from nodeagent.base.regular_file import read_regular
from nodeagent.facts.model import PodNetdev

ATTACH_FOLDER = "attach"
STATE_FILE = f"{ATTACH_FOLDER}/state.json"
_LOCK = "lock"
ATTACH_BOUNDS_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Around the half second that eight netdevs may take, and the runtime's limit of two seconds."""


class WaitingPod(Struct, frozen=True):
    """A pod whose netdevs could not be moved, and why."""

    pod: str
    reason: str


AttachStep = Literal[
    "plan",
    "ipam",
    "holder",
    "sandbox",
    "namespace",
    "find",
    "probe",
    "move",
    "name",
    "rdma",
    "set up",
    "address",
    "spec",
    "time-out",
]
"""Where an attempt failed: the VF has no address, the IPAM plugin gives none, another pod holds it too, two sandboxes
have the pod's name, the namespace cannot be entered. Or a change of the netdev or of its RDMA device failed, the CDI
spec cannot be written, the kernel did not answer."""


class AttachCounts(Struct, frozen=True):
    """Since this process began. ``seconds`` counts the pods whose netdevs came within each of ``ATTACH_BOUNDS_S``, from
    the kubelet's list to the CDI spec; ``total_s`` is the sum of their times. ``failures`` by ``AttachStep``."""

    seconds: tuple[int, ...] = (0,) * (len(ATTACH_BOUNDS_S) + 1)
    total_s: float = 0.0
    failures: dict[str, int] = {}

    def attached(self, took_s: float) -> AttachCounts:
        """With one pod more."""
        within = tuple(
            count + (took_s <= bound)
            for count, bound in zip(self.seconds, (*ATTACH_BOUNDS_S, math.inf), strict=True)
        )
        return replace(self, seconds=within, total_s=self.total_s + took_s)

    def failed(self, step: AttachStep) -> AttachCounts:
        """With one failure more."""
        return replace(self, failures={**self.failures, step: self.failures.get(step, 0) + 1})


class AttachState(Struct, frozen=True):
    """``runtime`` is the runtime with its version, empty while none is connected; ``obstacle`` then says why. ``pods``
    is the number of pods with netdevs; ``netdevs`` are these, by PCI address."""

    runtime: str = ""
    obstacle: str = ""
    pods: int = 0
    waiting: tuple[WaitingPod, ...] = ()
    netdevs: tuple[PodNetdev, ...] = ()
    counts: AttachCounts = AttachCounts()


class AttachFiles:
    """``directory`` is the state directory. Each call blocks and may raise ``OSError``."""

    def __init__(self, directory: Path) -> None:
        self.folder = directory / ATTACH_FOLDER

    def take_lock(self) -> int | None:
        """Return the descriptor of the lock until this process ends; ``None`` while another process has it."""
        make_folder(self.folder)
        descriptor = os.open(
            self.folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor

    def is_locked(self) -> bool:
        """Whether ``nodeagent attach`` runs."""
        try:
            descriptor = os.open(self.folder / _LOCK, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def write_state(self, state: AttachState) -> None:
        replace_changed_file(self.folder.parent / STATE_FILE, msgspec.json.encode(state) + b"\n")

    def read_state(self) -> AttachState:
        """Return the state that was written last; an empty one without a file. Raises ``ValueError`` too."""
        try:
            return msgspec.json.decode(read_regular(self.folder.parent / STATE_FILE), type=AttachState)
        except FileNotFoundError:
            return AttachState()
