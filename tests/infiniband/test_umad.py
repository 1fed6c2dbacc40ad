"""The umad device: what is sent, what comes back, and the time limits, on the stand-in."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.host import umad
from nodeagent.host.umad import NoAnswerError, UmadError, UmadPort, UmadReason
from nodeagent.infiniband import smp
from nodeagent.infiniband.smp import Attribute
from nodeagent_lab.sim.simulated_subnet import SimulatedSubnet, SubnetFault, SubnetNode
from tests.support.findings import one_item

LEAF, HCA = 0xB83FD20300AA0000, 0xB83FD20300BB0000
INFO = smp.question(Attribute.NODE_INFO, 1, 7)


@pytest.fixture
def subnet() -> Iterator[SimulatedSubnet]:
    with SimulatedSubnet() as subnet:
        subnet.add(SubnetNode(LEAF, description=b"MF0;su1-leaf0:MQM9700/U1"))
        subnet.add(SubnetNode(HCA, kind=1, description=b"gpu-001 mlx5_0", ports=1))
        subnet.cable((HCA, 1), (LEAF, 9))
        yield subnet


@pytest.fixture
def place(subnet: SimulatedSubnet, tmp_path: Path) -> Path:
    path = tmp_path / ("long-name-" * 12) / "umad0"
    subnet.attach(path, HCA)
    return path


def ask(place: Path, mad: bytes = INFO, timeout_ms: int = 200) -> bytes:
    with UmadPort.open(place) as port:
        return port.ask(mad, timeout_ms)


def test_a_question_returns_the_switch_and_its_port(place: Path) -> None:
    found = smp.node_info(ask(place))
    assert (found.node_guid, found.local_port) == (LEAF, 9)


def test_the_answer_is_found_among_late_doubled_and_short_packets(
    subnet: SimulatedSubnet, place: Path
) -> None:
    def change(reply: bytes) -> list[bytes]:
        """Before the answer: that of another node to an earlier question, and its parts."""
        late = reply[: 64 + 12] + struct.pack(">I", 6) + reply[64 + 16 : 140] + b"\xee" * 8 + reply[148:]
        return [late, b"", b"\0" * 10, reply[:70], late[:88], reply, reply]

    def without_empty(reply: bytes) -> list[bytes]:
        return [packet for packet in change(reply) if packet]

    subnet.faults[HCA, 1] = SubnetFault(change=without_empty)
    assert smp.node_info(ask(place)).node_guid == LEAF


def test_a_peer_without_an_answer_is_another_error_than_a_broken_device(
    subnet: SimulatedSubnet, place: Path
) -> None:
    subnet.unplug((HCA, 1))
    with pytest.raises(NoAnswerError):
        ask(place)


def test_a_kernel_that_never_answers_does_not_hold_the_caller(subnet: SimulatedSubnet, place: Path) -> None:
    subnet.faults[HCA, 1] = SubnetFault(mute=True)
    with pytest.raises(NoAnswerError):
        ask(place, timeout_ms=1)


def test_a_device_that_is_removed_is_gone(subnet: SimulatedSubnet, place: Path) -> None:
    with UmadPort.open(place) as port:
        subnet.remove(place)
        with pytest.raises(UmadError) as failed:
            port.ask(INFO)
    assert failed.value.reason is UmadReason.GONE
    with pytest.raises(UmadError) as failed:
        ask(place)
    assert failed.value.reason is UmadReason.NO_DEVICE


@one_item(
    "offset, octets",
    [
        *((3, bytes([method])) for method in range(256) if method != 1),
        (1, b"\x01"),
        (1, b"\x03"),
        (2, b"\x02"),
        (7, b"\x02"),
        (7, b"\x40"),
        (24, b"\0\0\0\0\0\0\0\1"),
    ],
)
def test_nothing_but_a_question_reaches_the_device(
    subnet: SimulatedSubnet, place: Path, offset: int, octets: bytes
) -> None:
    """Set, traps, the SA, more hops and M_Keys are refused before the write."""
    mad = INFO[:offset] + octets + INFO[offset + len(octets) :]
    with UmadPort.open(place) as port, pytest.raises(ValueError, match="only a Get"):
        port.ask(mad)
    assert subnet.questions == []


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.ENOENT, UmadReason.NO_DEVICE),
        (errno.EPERM, UmadReason.CGROUP),
        (errno.EACCES, UmadReason.MODE),
        (errno.EPROTONOSUPPORT, UmadReason.NO_SMI),
        (errno.ENODEV, UmadReason.GONE),
        (errno.EMFILE, UmadReason.FAILED),
    ],
)
@pytest.mark.parametrize("step", ["open", "ioctl"])
def test_each_error_of_the_kernel_has_its_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: int, reason: UmadReason, step: str
) -> None:
    path = tmp_path / "umad0"
    path.touch()

    def refuse(*_arguments: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(umad.os if step == "open" else umad.fcntl, step, refuse)
        with pytest.raises(UmadError, match=os.strerror(number)) as failed:
            UmadPort.open(path)
    assert failed.value.reason is reason


def test_a_file_in_place_of_the_device_is_an_error_with_a_reason(tmp_path: Path) -> None:
    path = tmp_path / "umad0"
    path.write_text("")
    with pytest.raises(UmadError):
        UmadPort.open(path)
