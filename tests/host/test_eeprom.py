"""EEPROMs of transceivers: images of each standard, built from the standards' tables."""

from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.host.eeprom import IDENTIFIER, decode_module, missing
from nodeagent.host.eeprom.cmis import CMIS
from nodeagent.host.eeprom.image import (
    DIAGNOSTICS,
    AlarmThresholds,
    Area,
    EepromError,
    Image,
    Medium,
    plausible_thresholds,
)
from nodeagent.host.eeprom.sff8472 import SFF8472
from nodeagent.host.eeprom.sff8636 import SFF8636
from nodeagent.sampling.transceiver_reader import module_values

Pages = dict[tuple[int, int], bytearray]
"""By I2C address and page, 256 bytes: the lower half of every page is that of page 0."""


def blank(identifier: int) -> Pages:
    pages: Pages = {(0x50, 0): bytearray(256)}
    pages[0x50, 0][0] = identifier
    return pages


def put(pages: Pages, page: int, at: int, form: str, *values: float | bytes, i2c: int = 0x50) -> None:
    struct.pack_into(f">{form}", pages.setdefault((i2c, page), bytearray(256)), at, *values)


def read(pages: Pages) -> tuple[Image, set[tuple[int, int, int]]]:
    """Read like the sampler; unreadable areas are missing. Returns the touched bytes too."""
    image, tried, touched = Image(), set[Area](), set[tuple[int, int, int]]()
    wanted: tuple[Area, ...] = (IDENTIFIER,)
    while wanted:
        for area in wanted:
            tried.add(area)
            touched |= {(area.i2c, area.page, area.start + n) for n in range(area.length)}
            if (area.i2c, area.page) in pages:
                image.put(area, bytes(pages[area.i2c, area.page][area.start : area.start + area.length]))
        wanted = tuple(area for area in missing(image) if area not in tried)
    return image, touched


def cmis_image(*, medium: int = 2, flat: bool = False, lanes: int = 4) -> Pages:
    pages = blank(0x19)
    put(pages, 0, 1, "BBB", 0x50, 0x80 if flat else 0, 3 << 1)
    put(pages, 0, 14, "hH", int(45.5 * 256), 33_000)
    put(pages, 0, 85, "B", medium)
    put(pages, 0, 129, "16s", b"ACME OPTICS     ")
    put(pages, 0, 148, "16s2s16s", b"AO-400-DR4      ", b"B2", b"SN0001          ")
    put(pages, 0, 212, "B", 0x0A if medium == 4 else 0)
    if not flat:
        put(pages, 1, 159, "BB", 3, 0x07 | 1 << 3)  # bias in units of 4 microamperes
        put(pages, 2, 128, "4h", 75 * 256, -5 * 256, 70 * 256, 0)
        put(pages, 2, 136, "4H", 34_650, 31_350, 34_000, 32_000)
        put(pages, 2, 176, "4H", 50_000, 2_000, 40_000, 3_000)
        put(pages, 2, 184, "4H", 3_000, 500, 2_500, 700)
        put(pages, 2, 192, "4H", 50_000, 1_000, 40_000, 2_000)
        for lane in range(lanes):
            put(pages, 0x11, 154 + 2 * lane, "H", 10_000 + lane)
            put(pages, 0x11, 170 + 2 * lane, "H", 2_000)
            put(pages, 0x11, 186 + 2 * lane, "H", 0 if lane == 1 else 9_000)
            put(pages, 0x11, 206 + lane, "B", 0x10)
    return pages


def test_a_cmis_module_has_lanes_and_thresholds():
    image, _ = read(cmis_image())
    module = decode_module(image)
    assert (module.kind, module.medium, module.state) == ("OSFP", Medium.OPTICAL, "ready")
    assert (module.vendor, module.part, module.serial, module.revision) == (
        *("ACME OPTICS", "AO-400-DR4", "SN0001", "B2"),
    )
    assert module.celsius == 45.5
    assert module.volts == pytest.approx(3.3)
    assert sorted(module.lanes) == [0, 1, 2, 3], "lanes without an application carry nothing"
    assert module.lanes[0].rx_power == pytest.approx(0.0009)
    assert module.lanes[1].rx_power == 0, "darkness is zero and no logarithm of it"
    assert module.lanes[3].tx_power == pytest.approx(0.0010003)
    assert module.lanes[0].bias == pytest.approx(0.008)
    assert module.limits["celsius"].high_alarm == 75
    assert module.limits["celsius"].low_alarm == -5
    assert module.limits["rx_power"].low_alarm == pytest.approx(0.0001)
    assert module.limits["bias"].high_warning == pytest.approx(0.01)


def test_a_passive_cable_with_cmis_has_no_measured_values():
    module = decode_module(read(cmis_image(medium=3, flat=True))[0])
    assert (module.medium, module.celsius, module.volts, module.lanes, module.limits) == (
        *(Medium.PASSIVE, None, None, {}, {}),
    )
    assert module.part == "AO-400-DR4"


def test_an_unreadable_page_affects_only_its_own_values():
    pages = cmis_image()
    del pages[0x50, 2]
    module = decode_module(read(pages)[0])
    assert module.limits == {}
    assert module.lanes[0].rx_power == pytest.approx(0.0009)
    del pages[0x50, 1]
    assert decode_module(read(pages)[0]).lanes == {}


def sff8636_image(*, technology: int = 0, revision: int = 8) -> Pages:
    pages = blank(0x11)
    put(pages, 0, 1, "BB", revision, 0)
    put(pages, 0, 22, "h", int(38.25 * 256))
    put(pages, 0, 26, "H", 32_900)
    for lane in range(4):
        put(pages, 0, 34 + 2 * lane, "H", 5_000 * lane)
        put(pages, 0, 42 + 2 * lane, "H", 3_000)
        put(pages, 0, 50 + 2 * lane, "H", 8_000)
    put(pages, 0, 147, "B", technology << 4)
    put(pages, 0, 148, "16s", b"ACME\xff\x1b[2J\0")
    put(pages, 0, 168, "16s2s", b"Q28-SR4", b"A ")
    put(pages, 0, 196, "16s", b"SN2")
    put(pages, 0, 220, "B", 0x3C)
    put(pages, 3, 128, "4h", 70 * 256, 0, 65 * 256, 5 * 256)
    put(pages, 3, 144, "4H", 36_000, 30_000, 35_000, 31_000)
    put(pages, 3, 176, "4H", 20_000, 500, 18_000, 600)
    put(pages, 3, 184, "4H", 5_000, 1_000, 4_500, 1_200)
    put(pages, 3, 192, "4H", 20_000, 500, 18_000, 600)
    return pages


def test_a_qsfp28_is_read_and_its_hostile_name_is_escaped():
    module = decode_module(read(sff8636_image())[0])
    assert (module.kind, module.medium, module.celsius) == ("QSFP28", Medium.OPTICAL, 38.25)
    assert module.vendor == "ACME??[2J"
    assert (module.part, module.revision, module.serial) == ("Q28-SR4", "A", "SN2")
    assert [lane.rx_power for lane in module.lanes.values()] == pytest.approx([0, 0.0005, 0.001, 0.0015])
    assert module.lanes[2].bias == pytest.approx(0.006)
    assert module.limits["celsius"].high_warning == 65
    assert module.limits["rx_power"].low_alarm == pytest.approx(0.00005)


def test_the_thresholds_of_a_passive_qsfp_cable_are_not_read():
    pages = sff8636_image(technology=0xA)
    put(pages, 0, 220, "B", 0)
    image, touched = read(pages)
    module = decode_module(image)
    assert (module.medium, module.celsius, module.lanes, module.limits) == (Medium.PASSIVE, None, {}, {})
    assert not [byte for byte in touched if byte[1] == 3]


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        ((75, -5, 70, 0), (75, -5, 70, 0)),
        ((75, -5, 0, 0), (75, -5, 75, -5)),  # warnings that nobody has filled in
        ((75, -5, 20, 40), (75, -5, 75, -5)),  # each on the other's side
        ((75, -5, 80, 0), (75, -5, 75, -5)),
        ((0, 0, 41, 39), None),  # alarms that nobody has filled in
        ((-1, -1, 20, 0), None),
        ((-5, 75, 0, 70), None),
    ],
)
def test_a_warning_is_between_the_alarms_or_it_is_none(words: tuple[int, ...], kept: tuple[int, ...] | None):
    pages = sff8636_image()
    put(pages, 3, 128, "4h", *(256 * word for word in words))
    limits = decode_module(read(pages)[0]).limits.get("celsius")
    assert limits == (AlarmThresholds(*kept) if kept else None)


@given(st.lists(st.floats(-50, 100), min_size=4, max_size=4))
def test_plausible_thresholds_are_in_order(values: list[float]):
    for limits in plausible_thresholds({"celsius": AlarmThresholds(*values)}).values():
        assert limits.low_alarm <= limits.low_warning < limits.high_warning <= limits.high_alarm
        assert (limits.high_alarm, limits.low_alarm) == (values[0], values[1])


def sff8472_image(*, monitoring: int = 0x60, cable: int = 0) -> Pages:
    pages = blank(0x03)
    put(pages, 0, 8, "B", cable)
    put(pages, 0, 20, "16s", b"ACME            ")
    put(pages, 0, 40, "16s4s", b"S28-SR          ", b"1.0 ")
    put(pages, 0, 68, "16s", b"SN3             ")
    put(pages, 0, 92, "B", monitoring)
    put(pages, 0, 0, "4h", 80 * 256, -10 * 256, 75 * 256, -5 * 256, i2c=DIAGNOSTICS)
    put(pages, 0, 8, "16H", *(4, 1, 3, 2) * 4, i2c=DIAGNOSTICS)
    put(pages, 0, 56, "5f", 0, 0, 0, 2, -3, i2c=DIAGNOSTICS)
    for at in (76, 80, 84, 88):
        put(pages, 0, at, "Hh", 0x0180, 10, i2c=DIAGNOSTICS)  # a slope of 1.5
    put(pages, 0, 96, "hHHHH", 30 * 256, 33_000, 3_000, 6_000, 5_000, i2c=DIAGNOSTICS)
    return pages


def test_an_internally_calibrated_sfp_is_decoded():
    module = decode_module(read(sff8472_image())[0])
    assert (module.kind, module.vendor, module.serial, module.celsius) == ("SFP", "ACME", "SN3", 30)
    assert module.lanes[0].rx_power == pytest.approx(0.0005)
    assert module.limits["celsius"].high_alarm == 80


def test_an_externally_calibrated_sfp_is_decoded():
    module = decode_module(read(sff8472_image(monitoring=0x50))[0])
    assert module.celsius == pytest.approx((1.5 * 30 * 256 + 10) / 256)
    assert module.volts == pytest.approx((1.5 * 33_000 + 10) * 1e-4)
    assert module.lanes[0].rx_power == pytest.approx((2 * 5_000 - 3) * 1e-7)
    assert module.lanes[0].bias == pytest.approx((1.5 * 3_000 + 10) * 2e-6)


def test_no_light_is_zero_and_not_negative():
    pages = sff8472_image(monitoring=0x50)
    put(pages, 0, 104, "H", 0, i2c=DIAGNOSTICS)
    assert decode_module(read(pages)[0]).lanes[0].rx_power == 0
    put(pages, 0, 56, "5f", math.nan, 0, 0, 1, 0, i2c=DIAGNOSTICS)
    assert decode_module(read(pages)[0]).lanes[0].rx_power == 0


@pytest.mark.parametrize("monitoring", [0x00, 0x64])
def test_an_sfp_without_readable_diagnostics_has_only_its_identity(monitoring):
    image, touched = read(sff8472_image(monitoring=monitoring))
    assert decode_module(image).celsius is None
    assert not [byte for byte in touched if byte[0] == DIAGNOSTICS]


def test_direct_attach_copper_has_no_measured_values():
    module = decode_module(read(sff8472_image(cable=0x04))[0])
    assert (module.medium, module.lanes) == (Medium.PASSIVE, {})


def test_flags_that_are_cleared_by_reading_are_never_read():
    latched = {
        *((0x50, 0, byte) for byte in range(8, 14)),
        *((0x50, 0x11, byte) for byte in range(134, 154)),
    }
    assert not read(cmis_image())[1] & latched
    assert not read(sff8636_image())[1] & {(0x50, 0, byte) for byte in range(3, 22)}
    assert not read(sff8472_image())[1] & {(DIAGNOSTICS, 0, byte) for byte in range(112, 118)}


def test_every_area_is_valid_for_one_kernel_request():
    """net/ethtool/eeprom.c, eeprom_parse_request: within one half, and pages other than 0 in the upper one."""
    areas = [
        *(*SFF8472.first, *SFF8472.further(read(sff8472_image())[0])),
        *(*SFF8636.first, *SFF8636.further(read(sff8636_image())[0])),
        *(*CMIS.first, *CMIS.further(read(cmis_image())[0])),
    ]
    assert len(areas) > 12
    for area in areas:
        assert area.start // 128 == (area.start + area.length - 1) // 128, area
        assert area.page == 0 or area.start >= 128, area


def test_an_unknown_kind_is_an_error():
    with pytest.raises(EepromError, match="0x99"):
        read(blank(0x99))


@given(st.sampled_from([0x03, 0x0D, 0x11, 0x18, 0x19]), st.binary(min_size=256, max_size=256), st.data())
def test_any_bytes_decode_to_a_module_with_finite_values(identifier, content, data):
    pages = {
        (i2c, page): bytearray(
            data.draw(st.sampled_from([content, content[::-1], bytes(256), b"\xff" * 256]))
        )
        for i2c in (0x50, DIAGNOSTICS)
        for page in (0, 1, 2, 3, 0x11)
    }
    pages[0x50, 0][0] = identifier
    values, texts = module_values(decode_module(read(pages)[0]))
    assert all(math.isfinite(value) for value in values.values())
    assert all(text.isprintable() and text.isascii() for text in texts.values())
    assert all(value >= 0 for name, value in values.items() if name.startswith("rx_power_watts/"))
