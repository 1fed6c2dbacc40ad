"""Measure the decoding of one frame with 29 TLVs (DCBX among them) in µs, beside scapy's contrib layer in one process.

    python hack/bench_lldp.py

Medians over rounds that alternate between the two, so that a busy machine slows both. Only this benchmark and the
tests use scapy; without it the other figures are printed.
"""

from __future__ import annotations

import itertools
import statistics
import time

from msgspec.structs import replace

from nodeagent.lldp.ethernet import NEAREST_BRIDGE, build_frame, parse_frame
from nodeagent.lldp.lldpdu import (
    Application,
    Capabilities,
    ChassisId,
    EtsConfiguration,
    EtsRecommendation,
    LinkAggregation,
    Lldpdu,
    MacPhy,
    ManagementAddress,
    Med,
    MedCapabilities,
    Organizational,
    Pfc,
    PortId,
    Ppvid,
    Vlan,
)
from nodeagent.lldp.lldpdu_codec import decode_lldpdu, encode_lldpdu
from nodeagent.lldp.neighbor_table import NeighborTable

_CLASSES = bytes((0, 0, 0, 3, 0, 0, 6, 7))
_BANDWIDTH = bytes((50, 0, 0, 50, 0, 0, 0, 0))
_ALGORITHMS = bytes((2, 2, 2, 2, 0, 0, 0, 0))

PDU = Lldpdu(
    ChassisId(4, bytes.fromhex("1c34da1c5800")),
    PortId(5, b"swp1s0"),
    120,
    port_description="node-0123 rail 0 mlx5_0",
    system_name="leaf-03.pod-2.example.net",
    system_description="Cumulus Linux version 5.9.1 on Nvidia SN5600",
    capabilities=Capabilities(0x14, 0x14),
    management_addresses=(
        ManagementAddress(1, bytes((192, 0, 2, 17)), 2, 2),
        ManagementAddress(2, bytes.fromhex("20010db8" + "00" * 11 + "11"), 2, 2),
    ),
    pvid=100,
    ppvids=(Ppvid(100, True, True),),
    vlans=tuple(Vlan(100 + n, f"rail-{n}") for n in range(4)),
    link_aggregation=LinkAggregation(True, False, 0),
    link_aggregation_8023=LinkAggregation(True, False, 0),
    ets=EtsConfiguration(False, False, 8, _CLASSES, _BANDWIDTH, _ALGORITHMS),
    ets_recommendation=EtsRecommendation(_CLASSES, _BANDWIDTH, _ALGORITHMS),
    pfc=Pfc(False, False, 8, 0x08),
    applications=(Application(3, 1, 0x8915), Application(3, 3, 4791)),
    mac_phy=MacPhy(True, True, 0x6C00, 0x001E),
    maximum_frame_size=9216,
    med=Med(MedCapabilities(0x3F, 4), "1.0", "2.3.4", "5.9.1"),
    organizational=(Organizational(bytes.fromhex("0026e1"), 2, b"leaf-group-0"),),
)
FRAME = build_frame(NEAREST_BRIDGE, bytes.fromhex("1c34da1c5801"), encode_lldpdu(PDU))


def tlvs(data: bytes) -> int:
    """Count the TLVs of a well-formed LLDPDU, with its End TLV."""
    count = offset = 0
    while offset < len(data):
        offset += 2 + ((data[offset] & 1) << 8 | data[offset + 1])
        count += 1
    return count


def bare_parse(frame: bytes) -> dict[object, list[object]]:
    """The least that reading a frame costs in Python: a loop over its TLVs that fills a dictionary, without checks.

    Texts and numbers are converted, all other octets stay as they are.
    """
    found: dict[object, list[object]] = {}
    offset = 14
    while True:
        header = int.from_bytes(frame[offset : offset + 2], "big")
        kind, length = header >> 9, header & 511
        if kind == 0:
            return found
        value: object = frame[offset + 2 : offset + 2 + length]
        key: object = kind
        if kind == 127:
            key, value = value[:4], value[4:]  # type: ignore[index]
        elif kind in (4, 5, 6):
            value = value.decode()  # type: ignore[attr-defined]
        elif kind == 3:
            value = int.from_bytes(value, "big")  # type: ignore[arg-type]
        found.setdefault(key, []).append(value)
        offset += 2 + length


def microseconds(work, calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        work()
    return (time.perf_counter() - start) / calls * 1e6


def main() -> None:
    pdu = encode_lldpdu(PDU)
    assert decode_lldpdu(FRAME, parse_frame(FRAME).offset) == PDU
    table = NeighborTable()
    table.receive("eth0", FRAME, 0.0)
    copies = [
        bytes(bytearray(FRAME)) for _ in range(1000)
    ]  # as from a socket: equal bytes without a cached hash

    def refresh() -> None:
        for copy in copies:
            table.receive("eth0", bytes(memoryview(copy)), 1.0)

    # Two system names in turn: each frame is news.
    changing = [
        build_frame(
            NEAREST_BRIDGE,
            bytes.fromhex("1c34da1c5801"),
            encode_lldpdu(replace(PDU, system_description=text)),
        )
        for text in ("one", "another")
    ]

    seconds = itertools.count(2)  # the table decodes only so many frames in a second

    def change() -> None:
        for frame in changing:
            table.receive("eth0", frame, float(next(seconds)))

    works = {
        "bare parse into a dictionary": (lambda: bare_parse(FRAME), 2000, 1),
        "table, changed frame": (change, 1000, 2),
        "LLDPDU decode": (lambda: decode_lldpdu(pdu), 2000, 1),
        "frame parse and decode": (lambda: decode_lldpdu(FRAME, parse_frame(FRAME).offset), 2000, 1),
        "table, byte-equal refresh": (refresh, 5, 1000),
    }
    try:
        from scapy.contrib.lldp import LLDPDU  # noqa: F401 (binds the layers)
        from scapy.layers.l2 import Ether
    except ImportError:
        print("scapy is not installed: no comparison")
    else:
        works["scapy.contrib.lldp, frame"] = (lambda: Ether(FRAME), 50, 1)
    figures: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(15):
        for name, (work, calls, inner) in works.items():
            figures[name].append(microseconds(work, calls) / inner)
    print(f"frame of {len(FRAME)} bytes, {tlvs(pdu)} TLVs with the End TLV; median µs (least)")
    for name, values in figures.items():
        print(f"{name:28} {statistics.median(values):9.2f} ({min(values):.2f})")
    bare = statistics.median(figures["bare parse into a dictionary"])
    for name in ("frame parse and decode", "table, changed frame"):
        print(f"{name} / bare parse: {statistics.median(figures[name]) / bare:.1f} (goal 2)")
    if "scapy.contrib.lldp, frame" in figures:
        ours = statistics.median(figures["frame parse and decode"])
        theirs = statistics.median(figures["scapy.contrib.lldp, frame"])
        print(f"scapy / nodeagent: {theirs / ours:.0f}")


if __name__ == "__main__":
    main()
