"""Coverage-guided fuzzing of ``nodeagent/lldp``: codec, table, captures, and their printed form.

    python hack/fuzz_lldp.py [seconds]          60 by default

With atheris, coverage guides the mutation; without it, Hypothesis draws random bytes.
The first byte of an input chooses the target. The properties:

* any bytes decode to an LLDPDU or raise ``LldpError``; a decoded LLDPDU survives encode and decode;
* the table accepts any frame and stays within its capacity;
* any file gives frames or raises ``PcapError``; every printed line is one line of printable text.

Run of 2026-11-21, Python 3.11, atheris, one core: 61 s, 369,536 inputs (6,057 a second), 450 edges, peak
44 MiB, the slowest input under a second; no finding.
"""

from __future__ import annotations

import sys

from msgspec import structs

try:
    import atheris
except ImportError:
    atheris = None

if atheris is not None:
    with atheris.instrument_imports(include=["nodeagent.lldp", "nodeagent_lab.captures"]):
        from nodeagent.lldp import ethernet, lldpdu, lldpdu_codec, neighbor_table
        from nodeagent_lab.captures import describe, pcap
else:
    from nodeagent.lldp import ethernet, lldpdu, lldpdu_codec, neighbor_table
    from nodeagent_lab.captures import describe, pcap

_START = bytes.fromhex("0207041c34da1c5800 04070573777031733006020078".replace(" ", ""))
_FRAME = ethernet.NEAREST_BRIDGE + bytes(6) + b"\x88\xcc" + _START


def _within(offset: int, data: bytes) -> None:
    assert 0 <= offset <= len(data), offset


def codec(data: bytes) -> None:
    for raw in (data, _START + data):
        try:
            pdu = lldpdu_codec.decode_lldpdu(raw)
        except lldpdu.LldpError as error:
            _within(error.offset, raw)
            continue
        again = structs.replace(pdu, warnings=())
        assert lldpdu_codec.decode_lldpdu(lldpdu_codec.encode_lldpdu(again)) == again
        describe.describe(pdu)


def neighbors(data: bytes) -> None:
    """Frames separated by their lengths, on one link, a second apart."""
    known = neighbor_table.NeighborTable(
        neighbor_table.OwnIdentity(frozenset((b"\2\0\0\0\0\1",)), frozenset(("node",)))
    )
    now = 0.0
    while data:
        size, data = data[0], data[1:]
        part, data = data[:size], data[size:]
        for frame in (part, _FRAME + part):
            known.receive("eth0", frame, now)
        now += 1.0
        known.expire(now)
        facts = known.neighbors()
        assert len(facts) <= neighbor_table.CAPACITY
        for fact in facts:
            for text in (
                fact.system_name,
                fact.system_description,
                fact.chassis_id.value,
                fact.port_id.value,
            ):
                assert text is None or text.isprintable()


def captures(data: bytes) -> None:
    for as_json in (True, False):
        try:
            for text in describe.lines(data, as_json):
                assert text.isprintable(), text
        except pcap.PcapError as error:
            _within(error.offset, data)


_TARGETS = (codec, neighbors, captures)


def run_target(data: bytes) -> None:
    if data:
        _TARGETS[data[0] % len(_TARGETS)](data[1:])


def seeds() -> list[bytes]:
    frame = _FRAME + bytes.fromhex("fe060080c2010064 fe0600120f042400 1004 0000".replace(" ", ""))
    record = (0).to_bytes(8, "little") + len(frame).to_bytes(4, "little") * 2
    header = bytes.fromhex("d4c3b2a1020004000000000000000000ffff000001000000")
    section = bytes.fromhex("0a0d0d0a1c0000004d3c2b1a01000000ffffffffffffffff1c000000")
    interface = bytes.fromhex("01000000140000000100000000000000 14000000".replace(" ", ""))
    simple = bytes.fromhex("03000000") + (16 + (len(frame) + 3) // 4 * 4).to_bytes(4, "little")
    simple += len(frame).to_bytes(4, "little") + frame + bytes(-len(frame) % 4) + simple[4:8]
    return [
        b"\0" + frame[14:],
        b"\1" + bytes((len(frame),)) + frame,
        b"\2" + header + record + frame,
        b"\2" + section + interface + simple,
    ]


def _with_atheris(seconds: int) -> None:
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        for n, seed in enumerate(seeds()):
            (Path(folder) / f"seed{n}").write_bytes(seed)
        atheris.Setup(
            [sys.argv[0], f"-max_total_time={seconds}", "-max_len=1600", "-print_final_stats=1", folder],
            run_target,
        )
        atheris.Fuzz()


def _with_hypothesis(seconds: int) -> None:
    import time

    from hypothesis import HealthCheck, given, settings
    from hypothesis import strategies as st

    end = time.monotonic() + seconds
    rounds = 0
    drawn = st.binary(max_size=600) | st.tuples(st.sampled_from(seeds()), st.binary(max_size=80)).map(
        b"".join
    )
    check = settings(
        max_examples=2000, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )(given(drawn)(run_target))
    while time.monotonic() < end:
        check()
        rounds += 1
    print(f"no finding in {rounds} rounds of 2000 examples; install atheris for coverage guidance")


if __name__ == "__main__":
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    (_with_hypothesis if atheris is None else _with_atheris)(wanted)
