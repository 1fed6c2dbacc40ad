"""What ethtool's numbers mean (include/uapi/linux/ethtool.h)."""

from __future__ import annotations

_MODES: dict[int, str] = {
    10: "0-1",
    100: "2-3 67 90-91",
    1_000: "4-5 17 41 68",
    2_500: "15 47",
    5_000: "48",
    10_000: "12 18-20 42-46",
    20_000: "21-22",
    25_000: "31-33",
    40_000: "23-26",
    50_000: "34-35 40 52-56",
    56_000: "27-30",
    100_000: "36-39 57-61 75-79",
    200_000: "62-66 80-84 103-108",
    400_000: "69-73 85-89 109-114",
    800_000: "93-98 115-120",
    1_600_000: "121-126",
}
"""Mbit/s: bits of enum ethtool_link_mode_bit_indices."""


def _bits(spans: str) -> list[int]:
    found: list[int] = []
    for span in spans.split():
        first, _, last = span.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


LINK_MODES: dict[int, int] = {bit: speed for speed, spans in _MODES.items() for bit in _bits(spans)}
"""By bit, the speed in Mbit/s. Bits for ports, FEC and pauses are no modes; unknown ones say nothing."""

FEC_MODES = {49: "Off", 50: "RS", 51: "BASER", 74: "LLRS"}
"""By bit, as ``ethtool --show-fec`` prints them."""

STATES = dict(
    enumerate(
        (
            *(
                "autoneg",
                "link-training-failure",
                "link-logical-mismatch",
                "bad-signal-integrity",
                "no-cable",
            ),
            *("cable-issue", "eeprom-issue", "calibration-failure", "power-budget-exceeded", "overheat"),
            "module",
        )
    )
)
"""enum ethtool_link_ext_state."""

_AUTONEG, _TRAINING, _MISMATCH, _SIGNAL, _CABLE, _MODULE = 0, 1, 2, 3, 5, 10
SUBSTATES = {
    (_AUTONEG, 1): "no-partner-detected",
    (_AUTONEG, 2): "ack-not-received",
    (_AUTONEG, 3): "next-page-exchange-failed",
    (_AUTONEG, 4): "no-partner-detected-force-mode",
    (_AUTONEG, 5): "fec-mismatch-during-override",
    (_AUTONEG, 6): "no-highest-common-denominator",
    (_TRAINING, 1): "kr-frame-lock-not-acquired",
    (_TRAINING, 2): "kr-link-inhibit-timeout",
    (_TRAINING, 3): "kr-link-partner-did-not-set-receiver-ready",
    (_TRAINING, 4): "remote-fault",
    (_MISMATCH, 1): "pcs-did-not-acquire-block-lock",
    (_MISMATCH, 2): "pcs-did-not-acquire-am-lock",
    (_MISMATCH, 3): "pcs-did-not-get-align-status",
    (_MISMATCH, 4): "fc-fec-not-locked",
    (_MISMATCH, 5): "rs-fec-not-locked",
    (_SIGNAL, 1): "large-number-of-physical-errors",
    (_SIGNAL, 2): "unsupported-rate",
    (_SIGNAL, 3): "serdes-reference-clock-lost",
    (_SIGNAL, 4): "serdes-alos",
    (_CABLE, 1): "unsupported-cable",
    (_CABLE, 2): "cable-test-failure",
    (_MODULE, 1): "cmis-not-ready",
}
"""enum ethtool_link_ext_substate_*, by state and substate."""
