"""Measures of an InfiniBand port, which a subnet manager (SM) has to configure: its state and addresses. Pure.

A subnet manager that has ended is not visible here: the port stays active and keeps the LID of the manager.
"""

from __future__ import annotations

from nodeagent.health.nic_view import NicView, by, yes_or_no
from nodeagent.health.rule import Measured
from nodeagent.measurements.sample import Source

# IBTA volume 1, 14.2.5.6: PortState and PortPhysicalState.
_INIT, _ARMED, _ACTIVE = 2, 3, 4
_DISABLED, _LINK_UP = 3, 5


def ib_disabled(view: NicView) -> Measured | None:
    """A subnet manager, UFM or an administrator has disabled the InfiniBand port: it is not the cable.

    This is a decision, and no defect of the cable: the fault starts and ends at once.
    """
    physical = _level(view, "ib_physical_state")
    return _condition(None if physical is None else physical == _DISABLED, "the port is disabled", "enabled")


def ib_no_sm(view: NicView) -> Measured | None:
    """The cable of the InfiniBand port works, and no subnet manager has configured the port (state Init).

    For 60 s, because a sweep after a change of cables takes some 10 s (opensm's default; the margin is our own choice).
    """
    return _linked_state(view, _INIT, "no subnet manager has configured the port (Init)")


def ib_armed(view: NicView) -> Measured | None:
    """The InfiniBand port stays armed: the subnet manager has ended before it made the port active.

    For 60 s, as for a port without a subnet manager (our own choice).
    """
    return _linked_state(view, _ARMED, "the subnet manager has not made the port active (Armed)")


def ib_no_lid(view: NicView) -> Measured | None:
    """The InfiniBand port is active without a LID, or without the LID of a subnet manager: nothing can be addressed.

    For 60 s, because a subnet manager sets them one after the other (our own choice).
    """
    state, lid, sm_lid = (_level(view, name) for name in ("ib_state", "ib_lid", "ib_sm_lid"))
    if state is None or lid is None or sm_lid is None:
        return None
    missing = " and ".join(
        name for name, value in (("LID", lid), ("subnet manager's LID", sm_lid)) if not value
    )
    return _condition(state == _ACTIVE and bool(missing), f"active without {missing}", "addressed")


def _linked_state(view: NicView, bad: int, words: str) -> Measured | None:
    state, physical = _level(view, "ib_state"), _level(view, "ib_physical_state")
    if state is None:
        return None
    return _condition(state == bad and physical in (None, _LINK_UP), words, "configured")


def _level(view: NicView, name: str) -> float | None:
    """``None`` for the ports of Ethernet, which have no such samples."""
    return view.history.level(name)


def _condition(bad: bool | None, words: str, good: str) -> Measured | None:
    return yes_or_no(bad, words, good, by(Source.RDMA.value))
