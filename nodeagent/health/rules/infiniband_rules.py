"""The rules of an InfiniBand port, which a subnet manager (SM) has to configure: its state and addresses. Pure.

A subnet manager that has ended is not visible here: the port stays active and keeps the LID of the manager.
"""

from __future__ import annotations

from nodeagent.facts.model import State
from nodeagent.health.nic_view import NicView, by, yes_or_no
from nodeagent.health.rule import Measure, Measured, Rule
from nodeagent.measurements.sample import Source

# IBTA volume 1, 14.2.5.6: PortState and PortPhysicalState.
_INIT, _ARMED, _ACTIVE = 2, 3, 4
_DISABLED, _LINK_UP = 3, 5


def _disabled(view: NicView) -> Measured | None:
    physical = _level(view, "ib_physical_state")
    return _condition(None if physical is None else physical == _DISABLED, "the port is disabled", "enabled")


def _without_lid(view: NicView) -> Measured | None:
    state, lid, sm_lid = (_level(view, name) for name in ("ib_state", "ib_lid", "ib_sm_lid"))
    if state is None or lid is None or sm_lid is None:
        return None
    missing = " and ".join(
        name for name, value in (("LID", lid), ("subnet manager's LID", sm_lid)) if not value
    )
    return _condition(state == _ACTIVE and bool(missing), f"active without {missing}", "addressed")


def _linked_state(bad: int, words: str) -> Measure:
    """Measure whether the port has this state while its cable works."""

    def measure(view: NicView) -> Measured | None:
        state, physical = _level(view, "ib_state"), _level(view, "ib_physical_state")
        if state is None:
            return None
        return _condition(state == bad and physical in (None, _LINK_UP), words, "configured")

    return measure


def _level(view: NicView, name: str) -> float | None:
    """``None`` for the ports of Ethernet, which have no such samples."""
    return view.history.level(name)


def _condition(bad: bool | None, words: str, good: str) -> Measured | None:
    return yes_or_no(bad, words, good, by(Source.RDMA.value))


INFINIBAND_RULES: tuple[Rule, ...] = (
    Rule("ib_disabled", State.DOWN, _disabled,
         "A subnet manager, UFM or an administrator has disabled the InfiniBand port: it is not the cable.",
         "This is a decision, and not a fault of the cable: the fault starts and ends at once.", withdraws=True),
    Rule("ib_no_sm", State.DOWN, _linked_state(_INIT, "no subnet manager has configured the port (Init)"),
         "The cable of the InfiniBand port works, and no subnet manager has configured the port (state Init).",
         "For 60 s, because a sweep after a change of cables takes some 10 s (opensm's default; the margin is our own "
         "choice).",
         enter_for_s=60, withdraws=True),
    Rule("ib_armed", State.DOWN,
         _linked_state(_ARMED, "the subnet manager has not made the port active (Armed)"),
         "The InfiniBand port stays armed: the subnet manager has ended before it made the port active.",
         "For 60 s, as for a port without a subnet manager (our own choice).", enter_for_s=60, withdraws=True),
    Rule("ib_no_lid", State.DOWN, _without_lid,
         "The InfiniBand port is active without a LID, or without the LID of a subnet manager: nothing can be "
         "addressed.",
         "For 60 s, because a subnet manager sets them one after the other (our own choice).",
         enter_for_s=60, withdraws=True),
)  # fmt: skip
