"""The kernel log: lines of the driver, and lines that a program could write."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.health.rules.links import FATAL_PATTERNS
from nodeagent.host.gpu_driver import DriverMessage
from nodeagent.host.kmsg import (
    PATTERNS,
    FirmwareEvent,
    KernelLog,
    KernelLogForbiddenError,
    events_of,
    message_of,
)

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
    "command_failed": "mlx5_cmd_out_err:838:(pid 9): CREATE_CQ(0x400) op_mod(0x0) failed, status internal error(0x1)",
}
COMMANDS = {
    "mlx5_cmd_out_err:838:(pid 9): CREATE_CQ(0x400) op_mod(0x0) failed, status bad system state(0x4), syndrome": True,
    "wait_func:1136:(pid 9): CREATE_MKEY(0x200) canceled on out of queue timeout.": True,
    "cmd_work_handler:1004:(pid 9): failed to allocate command entry": True,
    "wait_func:1178:(pid 9): CREATE_MKEY(0x200) timeout while waiting for command semaphore.": True,
    "mlx5_cmd_out_err:838:(pid 9): ACCESS_REG(0x805) op_mod(0x1) failed, status bad parameter(0x3)": False,
    "mlx5_cmd_out_err:838:(pid 9): CREATE_QP(0x500) op_mod(0x0) failed, status limits exceeded(0x8)": False,
    "cmd_work_handler:883:(pid 9): cmd[3]: CREATE_CQ(0x400) Async, recovered after timeout": False,
}
"""Lines of cmd.c, and whether the firmware is at fault: a program that asks for too much fails too."""


def record(text: str, priority: int = 3) -> bytes:
    dictionary = f" SUBSYSTEM=pci\n DEVICE=+pci:{NIC}\n"
    return f"{priority},1042,123456789,-;{text}\n{dictionary}".encode()


def events(raw: bytes) -> list[FirmwareEvent]:
    return list(events_of(raw))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_line_of_the_driver_is_an_event_of_its_function(pattern):
    assert FirmwareEvent(NIC, pattern) in events(record(f"mlx5_core {NIC}: {LINES[pattern]}"))
    assert FirmwareEvent(NIC, pattern) in events(record(f"mlx5_core {NIC} ens1np0: {LINES[pattern]}"))


@pytest.mark.parametrize(("line", "counts"), COMMANDS.items())
def test_a_command_counts_as_failed_if_the_firmware_is_at_fault(line, counts):
    assert (FirmwareEvent(NIC, "command_failed") in events(record(f"mlx5_core {NIC}: {line}"))) is counts


@pytest.mark.parametrize(
    "words", ["Cable error, High Temperature", "High temperature on sensors with bit set 0 1"]
)
def test_a_hot_chip_and_a_hot_module_are_one_event(words):
    assert FirmwareEvent(NIC, "high_temperature") in events(
        record(f"mlx5_core {NIC}: temp_warn:170:(pid 0): {words}")
    )


SWITCH = "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): "
REGISTERS = "(0x026001c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            f"{SWITCH}12028, Non-fatal, Link 32 egress non-posted PRIV error (First)",
            DriverMessage("0000:05:00.0", 12028, False, 32, switch=True),
        ),
        (
            f"{SWITCH}20034, Fatal, Link 48 LTSSM Fault Up",
            DriverMessage("0000:05:00.0", 20034, True, 48, switch=True),
        ),
        (
            f"{SWITCH}10003, Fatal, Host_unhandled_interrupt",
            DriverMessage("0000:05:00.0", 10003, True, switch=True),
        ),
        (
            f"NVRM: Xid (PCI:0000:9b:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 {REGISTERS}",
            DriverMessage("0000:9b:00", 149, True, 8, unit="NETIR_LINK_EVT", subcode=38),
        ),
        (
            "NVRM: Xid (PCI:0019:01:00): 149, NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x00000000)",
            DriverMessage("0019:01:00", 149, True, unit="NETIR"),
        ),
        (
            "NVRM: Xid (PCI:0018:01:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 0x1)",
            DriverMessage("0018:01:00", 145, False, 13, unit="RLW_RXPIPE"),
        ),
        (
            "NVRM: Xid (PCI:0000:04:00): 146, TLW_RX/TLW_RX_PIPE0 Fatal XC0 i0 Link 00 (0x0000000a 0x00000004)",
            DriverMessage("0000:04:00", 146, True, 0, unit="TLW_RX"),
        ),
        (
            "NVRM: Xid (PCI:0000:04:00): 144, pid=1234, name=python3, SAW_MVB Nonfatal XC1 i0 Link 3 (0x1 0x8)",
            DriverMessage("0000:04:00", 144, False, 3, unit="SAW_MVB"),
        ),
        (
            "NVRM: Xid (PCI:0000:04:00): 150, MSE_WATCHDOG Fatal XC0 i0 Link -1 (0x00000007 0x00000000)",
            DriverMessage("0000:04:00", 150, True, unit="MSE_WATCHDOG"),
        ),
        (
            "NVRM: GPU 0000:9b:00.0: GPU has fallen off the bus.",
            DriverMessage("0000:9b:00.0", 0, True, words="GPU has fallen off the bus"),
        ),
        (
            "NVRM: The NVIDIA GPU 0000:18:00.0\\x0aNVRM: (PCI ID: 10de:2330) installed in this system has\\x0aNVRM: "
            "fallen off the bus and is not responding to commands.",
            DriverMessage("0000:18:00.0", 0, True, words="GPU has fallen off the bus"),
        ),
        (
            "NVRM: GPU 0000:9b:00.0: RmInitAdapter failed! (0x26:0x65:1482)",
            DriverMessage("0000:9b:00.0", 0, True, words="RmInitAdapter failed (0x26:0x65:1482)"),
        ),
    ],
)
def test_a_line_of_nvidias_drivers_is_decoded(line, message):
    assert message_of(record(line)) == message
    assert message_of(record(line, priority=1 << 3 | 3)) is None, "a program has written it"
    assert message_of(record(f"x {line}")) is None


@pytest.mark.parametrize(
    "line",
    [
        f"{SWITCH}20034, Severity 1 Engine instance 60 Sub-engine instance 00",
        f"{SWITCH}20034, Data {{0x10000000, 0x10000000, 0x00000000}}",
        f"{SWITCH}9999999, Fatal, Link 1 x",
        "NVRM: Xid (PCI:0000:9b:00): 94, pid=1234, name=python3, Contained ECC error",
        "NVRM: Xid (PCI:0009:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)",
        f"NVRM: Xid (PCI:0000:9b:00): 149, OTHER_UNIT Fatal XC0 i0 Link 08 {REGISTERS}",
        f"NVRM: Xid (PCI:0000:9b:00.0): 149, NETIR Fatal XC0 i0 Link 08 {REGISTERS}",
        "NVRM: Xid (PCI:0000:9b:00): 149, NETIR Fatal XC0 i0 Link 08",
        "NVRM: The NVIDIA GPU 0000:18:00.0 (PCI ID: 10de:2330) installed in this system is not supported by open",
        "NVRM: GPU 0000:9b:00.0: rm_init_adapter failed, device minor number 0",
        "NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        "NVRM: GPU 0000:9b:00.0: RmInitAdapter failed! (0x26:0x65:1482; x)",
    ],
)
def test_other_lines_of_these_drivers_are_no_messages(line):
    assert message_of(record(line)) is None


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
        message_of(raw)


@given(st.binary(max_size=200), st.sampled_from([SWITCH, "NVRM: Xid (PCI:0000:9b:00): 149, NETIR"]))
def test_no_text_of_a_message_leaves_the_module_but_known_names(data, start):
    message = message_of(b"3,1,1,-;" + start.encode() + data)
    assert message is None or message.unit in (
        "",
        "NETIR",
        "NETIR_BER_EVENT",
        "NETIR_LINK_EVT",
        "NETIR_MFDE_EVENT",
    )


def test_a_storm_of_messages_is_bounded(tmp_path):
    path = tmp_path / "kmsg"
    path.write_bytes(b"")
    reading = KernelLog(path)
    records = iter([record(f"{SWITCH}20034, Fatal, Link {n % 64} x") for n in range(1000)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "read", lambda _fd, _size: next(records, b""))
        reading.read()
        assert len(reading.messages) == 16
        assert reading.left_out == sum(n % 64 >= 16 for n in range(1000))
        assert (reading.read(), reading.messages) == (({}, False), [])
    reading.close()


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


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40), st.booleans()), min_size=1, max_size=300))
def test_a_flood_of_one_device_hides_no_other(lines):
    """Each device and severity has its first different messages, at most 16, and the rest is counted."""
    written = [
        f"{SWITCH.replace('05', f'{device + 16:02x}')}{20000 + number}, {'Fatal' if fatal else 'Non-fatal'}, Link 1 x"
        for device, number, fatal in lines
    ]
    log = KernelLog(os.devnull)
    taken: dict[tuple[str, bool], set[DriverMessage]] = {}
    with log:
        for line in written:
            message = message_of(record(line))
            assert message is not None
            log._take(message, taken)
    for device in range(4):
        for fatal in (False, True):
            wanted = list(dict.fromkeys(one[1] for one in lines if (one[0], one[2]) == (device, fatal)))
            found = [
                one.number - 20000
                for one in log.messages
                if (one.pci_address[5:7], one.fatal) == (f"{device + 16:02x}", fatal)
            ]
            assert found == wanted[:16]
    assert (log.left_out == 0) == (len(log.messages) == len(set(written)))
