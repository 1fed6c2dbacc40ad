"""The states of one resource's registration with the kubelet. Pure: takes ``now``.

    UNREGISTERED   a registration may be tried
    REGISTERED     the kubelet has accepted it
    TAKEN          the kubelet counts what another plugin has sent under this name: our stream stays open and silent,
                   until it counts ours again or the other plugin has ended
    CLOSING        the stream or the socket was lost, or the resource is withdrawn: the server stops
    SETTLING       the server has stopped: a kubelet that lives on gets time to notice the end of the stream
    REFUSED        the kubelet or the file system refused it: tried again after a pause

Pauses belong to one kubelet process. They grow when it refuses again, and when a registration with it lasts less
than ``STEADY_S``. A new kubelet process waits for none of them.
"""

from __future__ import annotations

import math
from enum import Enum

import msgspec
from msgspec.structs import replace

from nodeagent.base.backoff import next_wait_s

REGISTRATION_SETTLE_S = 0.1
"""Up to 1.36 the kubelet drops the *new* client of a resource when it sees the end of the old stream."""
REGISTRATION_RETRY_FIRST_S = 1.0
PAUSE_MAX_S = 30.0
STEADY_S = 60.0
"""A registration that lasted this long and was lost is renewed after ``REGISTRATION_SETTLE_S``."""

NOT_YET = "not registered yet"

KubeletId = tuple[int, int, int]
"""One kubelet process: device, inode and change time of its socket. A new process binds a new socket."""


class Stage(Enum):
    UNREGISTERED = "unregistered"
    REGISTERED = "registered"
    TAKEN = "taken"
    CLOSING = "closing"
    SETTLING = "settling"
    REFUSED = "refused"


class Event(Enum):
    ACCEPTED = "the kubelet accepted the registration"
    FAILED = "the registration or the socket failed"
    TAKEN = "the kubelet counts the devices of another plugin"
    REGAINED = "the kubelet counts our devices again"
    LOST = "the kubelet closed the stream, or the socket's file was removed"
    WITHDRAWN = "the resource is no longer offered, or the agent stops serving"
    CLOSED = "the server and its streams have ended"
    KUBELET_GONE = "the kubelet does not listen"
    BLOCKED = "the node's lock file cannot be opened, or another agent holds its lock"
    SOCKET_TOUCHED = "mode or label of the kubelet's socket changed; the process is the same"


class Registration(msgspec.Struct, frozen=True):
    """Where one resource stands. ``kubelet`` is the process that the last answer came from."""

    stage: Stage = Stage.UNREGISTERED
    reason: str = NOT_YET
    """Why it is not registered; empty when it is."""
    kubelet: KubeletId | None = None
    accepted_at: float = -math.inf
    not_before: float = -math.inf
    """No new attempt with ``kubelet`` before this time."""
    settle_s: float = 0.0
    """The last pause after a lost stream of ``kubelet``; 0 if there was none."""
    retry_s: float = 0.0
    """The last pause after a refusal by ``kubelet``; 0 if it accepted since."""

    @property
    def registered(self) -> bool:
        return self.stage is Stage.REGISTERED

    @property
    def taken(self) -> bool:
        return self.stage is Stage.TAKEN

    @property
    def accepted(self) -> bool:
        """Whether the kubelet has accepted it, and has not closed its stream as far as is known."""
        return self.registered or self.taken

    def due(self, kubelet: KubeletId, now: float) -> bool:
        """Whether a registration with this kubelet is due now."""
        if self.kubelet != kubelet:
            return True
        return not self.accepted and now >= self.not_before

    def after(
        self, event: Event, now: float, *, kubelet: KubeletId | None = None, reason: str = ""
    ) -> Registration:
        """Return the state that follows. ``ACCEPTED``, ``FAILED`` and ``SOCKET_TOUCHED`` name the kubelet, ``FAILED``,
        ``TAKEN``, ``LOST``, ``KUBELET_GONE`` and ``BLOCKED`` the reason. An event that does not concern the stage
        changes nothing."""
        match event, self.stage:
            case Event.ACCEPTED, _:
                state = self._with(kubelet)
                return replace(state, stage=Stage.REGISTERED, reason="", accepted_at=now, retry_s=0.0)
            case Event.FAILED, _:
                state = self._with(kubelet)
                retry_s = next_wait_s(state.retry_s, REGISTRATION_RETRY_FIRST_S, PAUSE_MAX_S)
                return replace(
                    state, stage=Stage.REFUSED, reason=reason, not_before=now + retry_s, retry_s=retry_s
                )
            case Event.TAKEN, Stage.REGISTERED:
                return replace(self, stage=Stage.TAKEN, reason=reason)
            case Event.REGAINED, Stage.TAKEN:
                return replace(self, stage=Stage.REGISTERED, reason="")
            case Event.LOST, (Stage.REGISTERED | Stage.TAKEN):
                lasted = now - self.accepted_at >= STEADY_S
                settle_s = next_wait_s(0.0 if lasted else self.settle_s, REGISTRATION_SETTLE_S, PAUSE_MAX_S)
                return replace(self, stage=Stage.CLOSING, reason=reason, settle_s=settle_s)
            case ((Event.LOST | Event.WITHDRAWN), (Stage.REGISTERED | Stage.TAKEN | Stage.UNREGISTERED)):
                settle_s, reason = self.settle_s or REGISTRATION_SETTLE_S, self.reason or NOT_YET
                return replace(self, stage=Stage.CLOSING, reason=reason, settle_s=settle_s)
            case Event.CLOSED, Stage.CLOSING:
                return replace(self, stage=Stage.SETTLING, not_before=now + self.settle_s)
            case Event.KUBELET_GONE, (Stage.REGISTERED | Stage.TAKEN):
                return replace(self, stage=Stage.UNREGISTERED, reason=reason)
            case Event.SOCKET_TOUCHED, (Stage.REGISTERED | Stage.TAKEN):
                return replace(self, kubelet=kubelet)
            case Event.BLOCKED, _ if not self.registered:
                return replace(self, reason=reason)
        return self

    def _with(self, kubelet: KubeletId | None) -> Registration:
        """The same state, without the pauses of another kubelet."""
        return self if kubelet == self.kubelet else replace(self, kubelet=kubelet, settle_s=0.0, retry_s=0.0)
