"""Make the recordings of incidents in ``tests/recordings/``: ``python -m hack.incidents [FOLDER]``.

Each recording has the form that ``nodeagent capture --samples`` writes, and shows one incident: what the hardware, the
driver or an administrator does, as the readers of the agent would sample it. All are made here; none is from the
field.
The second PF has no fault, unless the incident gives it one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from nodeagent.health.recording import Header, Subject, encode_recorded
from nodeagent.measurements.sample import Sample, Source

FOLDER = Path(__file__).parents[1] / "tests" / "recordings"
START_S = 1000.0
"""CLOCK_BOOTTIME of the first sample."""
BEGIN_S = 1300.0
"""CLOCK_BOOTTIME of the incident: before it the links have trained, and counters have rates."""
MBPS = 400_000
ONES = float(2**64 - 1)
PFS = ("0000:18:00.0", "0000:2a:00.0")
NETDEVS = ("ens1np0", "ens2np0")
GPU = "GPU-7d1c0b52-6f0e-4f4e-9a41-0a4b6e1f7a10"

Values = Mapping[str, float]


class Incident(NamedTuple):
    """``name`` is the name of the file. ``expected`` are the times for which a device is Unhealthy, in seconds since
    the start of the incident: its name, from, until (``None``: until the end), and the reasons."""

    name: str
    meaning: str
    samples: Callable[[], Iterator[Sample]]
    expected: tuple[tuple[str, float, float | None, tuple[str, ...]], ...] = ()


def pf(at: float, source: Source, number: int = 0, /, **values: float) -> Sample:
    """``at`` is in seconds since the start of the incident, as in the functions below."""
    return Sample(BEGIN_S + at, PFS[number], source, values)


def keyed(at: float, source: Source, values: dict[str, float], number: int = 0) -> Sample:
    return Sample(BEGIN_S + at, PFS[number], source, values)


def facts(at: float, *, vfs: int = 4, driver: str | None = "mlx5_core", present: bool = True) -> Sample:
    if not present:
        return keyed(at, Source.PCIE, {"pf_present": 0.0})
    texts = {} if driver is None else {"pf_driver": driver}
    return Sample(BEGIN_S + at, PFS[0], Source.PCIE, {"pf_present": 1.0, "pf_vfs": float(vfs)}, texts)


class Link:
    """The values of one link as RTM_GETLINK reports them, over time."""

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.values = {"admin_up": 1.0, "carrier": 1.0, "carrier_down": 3.0, "mtu_bytes": 9000.0}

    def at(self, at: float, **values: float) -> Sample:
        self.values |= values
        return keyed(at, Source.LINK, dict(self.values), self.number)

    def lose(self, at: float, times: int = 1, **values: float) -> Sample:
        return self.at(at, carrier_down=self.values["carrier_down"] + times, **values)

    def set_down(self, at: float) -> Sample:
        """A link that is set down has no carrier to report."""
        del self.values["carrier"]
        return self.lose(at, admin_up=0.0)


def ordered(*series: Iterator[Sample]) -> Iterator[Sample]:
    return iter(sorted((sample for one in series for sample in one), key=lambda sample: sample.at))


def steady(
    until_s: float, number: int = 1, every_s: float = 60.0, from_s: float = START_S - BEGIN_S
) -> Iterator[Sample]:
    """A link without news."""
    link = Link(number)
    at = from_s
    while at <= until_s:
        yield link.at(at)
        at += every_s


def every(seconds: float, until_s: float) -> Iterator[float]:
    at = START_S - BEGIN_S
    while at <= until_s:
        yield at
        at += seconds


def administration() -> Iterator[Sample]:
    """Each change drops the carrier for less than a second, as igb and mlx5 do."""
    changes = dict.fromkeys(("admin", "mtu", "rings", "channels", "pause"), 0.0)

    def noticed(at: float, change: str | None = None) -> Sample:
        if change is not None:
            changes[change] += 1
        return keyed(at, Source.ADMINISTRATION, {f"administration/{name}": n for name, n in changes.items()})

    def changed() -> Iterator[Sample]:
        link = Link()
        yield facts(-300)
        yield noticed(-300)
        for at in range(-300, 0, 20):
            yield link.at(float(at))
        yield noticed(0.1, "mtu")
        yield link.lose(0.2, mtu_bytes=1500.0)
        for at, change in ((10, "rings"), (20, "channels"), (30, "pause")):
            yield noticed(at, change)
            yield link.lose(at + 0.2)
        yield link.lose(40, 2)
        yield facts(40.5, vfs=6)
        yield link.lose(50, 2)
        yield facts(50.5, vfs=4)
        yield noticed(60, "admin")
        yield link.set_down(60.1)
        yield noticed(90, "admin")
        yield link.at(90.1, admin_up=1.0, carrier=1.0)
        for at in range(100, 1501, 20):
            yield link.at(float(at))

    return ordered(changed(), steady(1500))


def carrier_lost_after_change() -> Iterator[Sample]:
    def lost() -> Iterator[Sample]:
        link = Link()
        yield keyed(-300, Source.ADMINISTRATION, {"administration/rings": 0.0})
        for at in range(-300, 0, 20):
            yield link.at(float(at))
        yield keyed(0, Source.ADMINISTRATION, {"administration/rings": 1.0})
        yield link.lose(0.2, carrier=0.0)
        for at in range(20, 600, 20):
            yield link.at(float(at))
        yield link.at(600, carrier=1.0)
        for at in range(620, 901, 20):
            yield link.at(float(at))

    return ordered(lost(), steady(900))


def leaf_reboot() -> Iterator[Sample]:
    def link() -> Iterator[Sample]:
        state = Link()
        for at in range(-300, 0, 20):
            yield state.at(float(at))
        yield state.lose(0, carrier=0.0)
        for at in range(20, 240, 20):
            yield state.at(float(at))
        yield state.at(240, carrier=1.0)
        for at in range(260, 2401, 20):
            yield state.at(float(at))

    def errors() -> Iterator[Sample]:
        for at in every(20, 2400):
            trained_s = min(max(at - 240, 0.0), 40.0)
            bits = (at + 300) * MBPS * 1e6
            yield pf(at, Source.DRIVER, symbol_errors=2e5 * trained_s, phy_rx_bits=bits)
            yield pf(at, Source.FEC, fec_uncorrectable_blocks=300 * trained_s)

    return ordered(link(), errors(), steady(2400))


def _counters(changed: Callable[[float, dict[str, float]], Values]) -> Iterator[Sample]:
    """The counters of a sound NIC every 15 s, through ``changed``."""

    def counters() -> Iterator[Sample]:
        for at in every(15, 900):
            sound = {
                "symbol_errors": 5_000_000.0,
                "link_down_events": 12.0,
                "pause_storm_errors": 2.0,
                "phy_rx_bits": (at + 300) * MBPS * 1e5,
                "prio_tx_pause_seconds/3": 40.0,
            }
            yield keyed(at, Source.DRIVER, dict(changed(at, sound)))

    return ordered(counters(), steady(900, 0), steady(900))


def garbage() -> Iterator[Sample]:
    return _counters(lambda at, sound: dict.fromkeys(sound, ONES) if at == 0 else sound)


def zeros() -> Iterator[Sample]:
    return _counters(lambda at, sound: dict.fromkeys(sound, 0.0) if 0 <= at < 45 else sound)


def reset() -> Iterator[Sample]:
    small = {"symbol_errors": 2000.0, "link_down_events": 3.0, "pause_storm_errors": 1.0}
    return _counters(lambda at, sound: {**sound, **small} if at >= 0 else sound)


def pauses() -> Iterator[Sample]:
    def paused() -> Iterator[Sample]:
        for at in every(30, 4800):
            seconds = 0.99 * min(max(at, 0.0), 3600.0)
            source = {"prio_tx_pause_seconds/3": seconds, "prio_rx_pause_seconds/3": 0.0}
            victim = {"prio_tx_pause_seconds/3": 0.0, "prio_rx_pause_seconds/3": seconds}
            yield keyed(at, Source.DRIVER, source)
            yield keyed(at, Source.DRIVER, victim, 1)

    return ordered(paused(), steady(4800, 0), steady(4800))


def flaps() -> Iterator[Sample]:
    def flapping() -> Iterator[Sample]:
        link = Link()
        for at in range(-300, 0, 60):
            yield link.at(float(at))
        for number in range(40):
            at = 720.0 * number
            yield link.lose(at, carrier=0.0)
            yield link.at(at + 2, carrier=1.0)
            for minute in range(1, 12):
                yield link.at(at + 60 * minute)
        for at in every(60, 33_000):
            if at >= 28_800:
                yield link.at(at)

    return ordered(flapping(), steady(33_000, 1, 300))


def pcie_speed() -> Iterator[Sample]:
    """The second NIC is idle, and its link uses the lowest speed to save power."""

    def transfers(number: int, load: float) -> Iterator[Sample]:
        for at in every(15, 1500):
            slow = 0 <= at < 900
            counted = load * MBPS * 1e6 / 8 * (at + 300)
            yield pf(at, Source.DRIVER, number, phy_rx_bytes=counted, phy_tx_bytes=0.0)
            speed = (16.0 if number == 0 else 2.5) if slow else 32.0
            yield pf(at, Source.PCIE, number, pcie_gts=speed, pcie_expected_gts=32.0)

    speeds = (pf(-300, Source.MODES, number, speed_mbps=float(MBPS)) for number in range(2))
    modes = (
        pf(at, Source.MODES, number, speed_mbps=float(MBPS)) for at in every(20, 1500) for number in range(2)
    )
    return ordered(speeds, modes, transfers(0, 0.4), transfers(1, 0.0001), steady(1500, 0), steady(1500))


def nvlink_errors() -> Iterator[Sample]:
    for at in every(15, 1500):
        yield Sample(BEGIN_S + at, GPU, Source.GPU, {"gpu_lost": 0.0, "gpu_mig": 0.0})
        errors = {"gpu_nvlink_crc_errors": 7 + 1000 * min(max(at, 0.0), 300.0), "gpu_nvlink_replays": 1.0}
        yield Sample(BEGIN_S + at + 0.1, GPU, Source.GPU, errors)


def nvlink_bit_errors() -> Iterator[Sample]:
    """The ratio counts since the link came up, so that it falls slowly; a reset of the GPU trains the link again."""
    for at in every(15, 1500):
        yield Sample(BEGIN_S + at, GPU, Source.GPU, {"gpu_lost": 0.0, "gpu_mig": 0.0})
        bad = 0 <= at < 300
        ratios = {
            f"gpu_nvlink_bit_error_ratio/{kind}": 3e-11 if bad else 15e-255
            for kind in ("effective", "symbol")
        }
        errors = {"gpu_nvlink_symbol_errors": 40 * min(max(at, 0.0), 300.0)}
        yield Sample(BEGIN_S + at + 0.1, GPU, Source.GPU, ratios | errors)


def dead_nic() -> Iterator[Sample]:
    """The watchdog of the kernel finds a queue that does not send; the driver resets it, and it stops again."""

    def log() -> Iterator[Sample]:
        lines = 4.0
        for at in every(15, 1500):
            lines += 0 <= at < 300
            yield keyed(at, Source.KERNEL, {"kernel_events/transmit_timeout": lines})

    return ordered(steady(1500, 0), steady(1500), log())


def removed_pf() -> Iterator[Sample]:
    def removed() -> Iterator[Sample]:
        yield facts(-300)
        link = Link()
        for at in range(-300, 0, 20):
            yield link.at(float(at))
        yield facts(0, driver=None)
        yield facts(2, present=False)
        yield facts(600)
        for at in range(600, 1001, 20):
            yield link.at(float(at))

    return ordered(removed(), steady(1000))


def never_cabled() -> Iterator[Sample]:
    def uncabled() -> Iterator[Sample]:
        link = Link()
        for at in every(20, 600):
            yield link.at(at, carrier=0.0, carrier_down=0.0)

    return ordered(uncabled(), steady(600))


INCIDENTS = (
    Incident(
        "administration",
        "MTU, rings, channels and pauses are changed, VFs 4 → 6 → 4, and the link is set down for 30 s; the driver "
        "drops the carrier at each change",
        administration,
        (("ens1np0", 60.1, 90.1, ("admin_down",)),),
    ),
    Incident(
        "carrier-lost-after-change",
        "the rings are changed, and the carrier does not return for 10 min",
        carrier_lost_after_change,
        (("ens1np0", 0.2, 660, ("carrier_down",)),),
    ),
    Incident(
        "leaf-reboot",
        "the leaf reboots for 4 min; its link trains with symbol errors and lost FEC blocks for 40 s",
        leaf_reboot,
        (("ens1np0", 0, 300, ("carrier_down",)),),
    ),
    Incident("garbage", "one reading of the driver's counters returns ones (2⁶⁴ - 1)", garbage),
    Incident("zeros", "the firmware does not answer for 45 s, and the driver reports zeros", zeros),
    Incident("reset", "the counters are reset to small values", reset),
    Incident(
        "pauses",
        "ens1np0 pauses its switch for 99 % of an hour; the switch pauses ens2np0 as long",
        pauses,
        (("ens1np0", 120, 4260, ("pause_source", "host_stall")),),
    ),
    Incident(
        "flaps",
        "the link is lost for 2 s every 12 min, for 8 h",
        flaps,
        (
            ("ens1np0", 0, 62, ("carrier_down",)),
            ("ens1np0", 720, 782, ("carrier_down",)),
            ("ens1np0", 1440, 1502, ("carrier_down",)),
            ("ens1np0", 2160, 2222, ("carrier_down",)),
            ("ens1np0", 2880, 31680, ("carrier_down", "flapping_daily")),
        ),
    ),
    Incident(
        "pcie-speed",
        "the PCIe link of ens1np0 has half its speed for 15 min under 40 % load; ens2np0 is idle at the lowest speed",
        pcie_speed,
        (("ens1np0", 60, 960, ("pcie_speed",)),),
    ),
    Incident("nvlink-errors", "1000 CRC errors per second on NVLinks for 5 min", nvlink_errors),
    Incident(
        "nvlink-bit-errors", "an NVLink of a Blackwell GPU with bit errors for 5 min", nvlink_bit_errors
    ),
    Incident(
        "dead-nic",
        "a NIC is up and does not send: its driver resets a queue every 15 s for 5 min",
        dead_nic,
        (("ens1np0", 30, 1185, ("transmit_timeouts",)),),
    ),
    Incident(
        "removed-pf",
        "the driver is unbound, the PF leaves the bus, and both return after 10 min",
        removed_pf,
        (("ens1np0", 0, 660, ("driver_unbound", "device_missing")),),
    ),
    Incident(
        "never-cabled",
        "no cable is in the port since the boot",
        never_cabled,
        (("ens1np0", -300, None, ("unused",)),),
    ),
)


def recording(incident: Incident) -> bytes:
    """Return the recording, header first."""
    nics = tuple(
        Subject(
            address,
            netdev=netdev,
            driver="mlx5_core",
            link_type="ethernet",
            speed_mbps=MBPS,
        )
        for address, netdev in zip(PFS, NETDEVS, strict=True)
    )
    of_gpu = incident.samples in (nvlink_errors, nvlink_bit_errors)
    devices = (Subject(GPU, "gpu", index=0),) if of_gpu else nics
    return b"".join(map(encode_recorded, (Header(agent="made", devices=devices), *incident.samples())))


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    folder.mkdir(exist_ok=True)
    for incident in INCIDENTS:
        (folder / f"{incident.name}.jsonl").write_bytes(recording(incident))


if __name__ == "__main__":
    main()
