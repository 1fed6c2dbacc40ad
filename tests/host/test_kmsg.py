"""The kernel log: lines of the driver, and lines that a program could write."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.health.rules.links import FATAL_PATTERNS
from nodeagent.host.kmsg import PATTERNS, FirmwareEvent, KernelLog, KernelLogForbiddenError, events_of

NIC = "0000:1a:00.0"
LINES = {
    "command_leak": "wait_func:1137:(pid 5): ACCESS_REG(0x805) timeout. Will cause a leak of a command resource",
    "firmware_fatal": "poll_health:862:(pid 0): Fatal error 3 detected",
    "health_compromised": "poll_health:840:(pid 0): device's health compromised - reached miss count",
    "unrecoverable": "print_health_info:431:(pid 0): synd 0x8: unrecoverable hardware error",
    "insufficient_power": "mlx5_pcie_event:299:(pid 2): Detected insufficient power on the PCIe slot (27W).",
    "high_temperature": "Port module event: module 0, Cable error, High Temperature",
    "cable_unplugged": "Port module event: module 0, Cable unplugged",
    "register_access": "mlx5_cmd_out_err:835:(pid 1): ACCESS_REG(0x805) op_mod(0x1) failed, status bad parameter(0x3)",
    "transmit_timeout": "ens1np0: TX timeout detected",
}


def record(text: str, priority: int = 3) -> bytes:
    dictionary = f" SUBSYSTEM=pci\n DEVICE=+pci:{NIC}\n"
    return f"{priority},1042,123456789,-;{text}\n{dictionary}".encode()


def events(raw: bytes) -> list[FirmwareEvent]:
    return list(events_of(raw))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_line_of_the_driver_is_an_event_of_its_function(pattern):
    assert FirmwareEvent(NIC, pattern) in events(record(f"mlx5_core {NIC}: {LINES[pattern]}"))
    assert FirmwareEvent(NIC, pattern) in events(record(f"mlx5_core {NIC} ens1np0: {LINES[pattern]}"))


def test_every_pattern_of_a_rule_is_searched():
    assert set(FATAL_PATTERNS) <= PATTERNS.keys()


def test_lines_of_programs_do_not_count():
    text = f"mlx5_core {NIC}: {LINES['unrecoverable']}"
    assert events(record(text, priority=1 << 3 | 3)) == []


@pytest.mark.parametrize(
    "text",
    [
        f"usb 1-1: Product: mlx5_core {NIC}: unrecoverable hardware error",
        f"mlx5_core 0000:1a:00.9: {LINES['unrecoverable']}",
        f"mlx5_core {NIC[:-1]}\\x0a: {LINES['unrecoverable']}",
        f"mlx5_core: {NIC}: {LINES['unrecoverable']}",
        f"mlx5_core {NIC}: Port module event: module 0, Cable plugged",
        "",
    ],
)
def test_lines_that_only_resemble_the_drivers_do_not_count(text):
    assert events(record(text)) == []


@given(st.binary(max_size=300))
def test_any_record_decodes(data):
    for raw in (data, b"3,1,1,-;" + data, f"3,1,1,-;mlx5_core {NIC}: ".encode() + data):
        assert all(event.pattern in PATTERNS for event in events_of(raw))


def test_a_log_is_read_from_its_beginning_and_then_continued(tmp_path):
    # A pipe is no log, but it too gives what there is and then nothing for now.
    path = tmp_path / "kmsg"
    os.mkfifo(path)
    reading = KernelLog(path)
    writing = os.open(path, os.O_WRONLY)
    try:
        os.write(writing, record(f"mlx5_core {NIC}: {LINES['unrecoverable']}"))
        found, more = reading.read()
        assert (found, more) == ({FirmwareEvent(NIC, "unrecoverable"): 1}, False)
        assert reading.read() == ({}, False)
    finally:
        os.close(writing)
        reading.close()


def test_a_missing_log_is_an_error_with_the_remedy(tmp_path):
    with pytest.raises(KernelLogForbiddenError, match="CAP_SYSLOG"):
        KernelLog(tmp_path / "kmsg")
