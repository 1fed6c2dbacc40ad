"""The NVLink domain of a GPU over several readings of the driver."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nodeagent.host.gpu_driver import GpuReading
from nodeagent.sources.gpu_publisher import NvlinkDomains

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
