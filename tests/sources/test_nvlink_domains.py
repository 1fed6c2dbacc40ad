"""The NVLink domain of a GPU over several readings of the driver."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nodeagent.host.gpu_driver import GpuReading
from nodeagent.sources.gpu_publisher import NvlinkDomains, NvlinkIslands

A, B, C = (f"{n}.0" for n in (1, 2, 3))


def read(domains: NvlinkDomains, domain: str | None) -> str | None:
    domains.take([GpuReading(0, "GPU-0", nvlink_domain=domain), GpuReading(1)])
    return domains.of("GPU-0")


def test_the_first_domain_counts_at_once_and_another_one_at_its_second_reading() -> None:
    domains = NvlinkDomains()
    assert read(domains, None) is None
    assert [read(domains, domain) for domain in (A, B, A, B, C, B, B)] == [A, A, A, A, A, A, B]


def test_a_reading_without_a_domain_changes_nothing() -> None:
    domains = NvlinkDomains()
    assert [read(domains, domain) for domain in (A, None, B, None, B)] == [A, A, A, A, B]
    assert [read(domains, domain) for domain in ("", None, "")][-1] == ""


@given(st.lists(st.sampled_from([A, B, C, "", None]), max_size=30))
def test_a_domain_was_read_twice_in_succession_or_first(readings: list[str | None]) -> None:
    domains = NvlinkDomains()
    known: list[str] = []
    for domain in readings:
        known += [] if domain is None else [domain]
        now = read(domains, domain)
        if now is None:
            assert not known
        else:
            assert now == known[0] or any(known[i - 1] == known[i] == now for i in range(1, len(known)))
            assert known[-2:] != [known[-1]] * 2 or now == known[-1]


# --- islands ------------------------------------------------------------------------------------------------

GPUS = [f"0000:{bus:02x}:00.0" for bus in (0x1B, 0x43, 0x52, 0x61)]
SWITCHES = ["0000:06:00.0", "0000:07:00.0"]


def gpu(number: int, ends: tuple[str, ...] | None, domain: str | None = "") -> GpuReading:
    return GpuReading(
        number, f"GPU-{number}", pci_address=GPUS[number], nvlink_domain=domain, nvlink_ends=ends
    )


def islands(*readings: GpuReading, of: NvlinkIslands | None = None) -> list[str | None]:
    found, domains = of or NvlinkIslands(), NvlinkDomains()
    domains.take(readings)
    found.take(readings, domains)
    return [found.of(address) for address in GPUS]


def test_gpus_of_common_switches_are_one_island_named_by_the_first() -> None:
    some = [("0000:06:00.0",), ("0000:07:00.0",), tuple(SWITCHES), ("0000:07:00.0",)]
    assert islands(*(gpu(number, ends) for number, ends in enumerate(some))) == [GPUS[0]] * 4


def test_gpus_in_pairs_are_an_island_for_each_pair() -> None:
    pairs = [gpu(0, (GPUS[1],)), gpu(1, (GPUS[0],)), gpu(2, (GPUS[3],)), gpu(3, (GPUS[2],))]
    assert islands(*pairs) == [GPUS[0], GPUS[0], GPUS[2], GPUS[2]]
    assert islands(*reversed(pairs)) == [GPUS[0], GPUS[0], GPUS[2], GPUS[2]]


def test_a_gpu_without_nvlinks_is_an_island_of_its_own_and_one_that_is_unknown_has_none() -> None:
    assert islands(gpu(0, ()), gpu(1, ()), gpu(2, None)) == [GPUS[0], GPUS[1], None, None]


def test_switches_that_no_machine_sees_join_by_the_domain() -> None:
    assert islands(*(gpu(number, (), A) for number in range(4))) == [GPUS[0]] * 4
    assert islands(*(gpu(number, None, A if number < 2 else B) for number in range(4))) == [
        GPUS[0], GPUS[0], GPUS[2], GPUS[2]
    ]  # fmt: skip


def test_a_lost_gpu_keeps_its_island_and_its_name() -> None:
    found = NvlinkIslands()
    whole = [gpu(number, ("0000:06:00.0",)) for number in range(4)]
    assert islands(*whole, of=found) == [GPUS[0]] * 4
    assert islands(gpu(0, None, None), *whole[1:], of=found) == [GPUS[0]] * 4
    assert islands(*whole[1:], of=found) == [GPUS[0]] * 4, "the driver does not list it"


@given(
    st.lists(st.frozensets(st.sampled_from([*GPUS, *SWITCHES])), min_size=4, max_size=4),
    st.permutations(range(4)),
)
def test_islands_divide_the_gpus_in_any_order_of_the_readings(
    ends: list[frozenset[str]], order: list[int]
) -> None:
    found = islands(*(gpu(number, tuple(ends[number])) for number in order))
    assert found == islands(*(gpu(number, tuple(ends[number])) for number in range(4)))
    for one in range(4):
        assert found[one] == min(
            address for address, island in zip(GPUS, found, strict=True) if island == found[one]
        )
        for other in range(4):
            if ends[one] & {*ends[other], GPUS[other]}:
                assert found[one] == found[other]
