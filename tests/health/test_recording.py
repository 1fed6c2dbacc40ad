"""The JSON-lines form of recorded samples."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.health.recording import (
    LINE_MAX,
    Header,
    RecordingError,
    Subject,
    decode_recording,
    encode_recorded,
    lines,
)
from nodeagent.measurements.sample import Sample, Source
from nodeagent.measurements.table import MEASUREMENTS

HEADER = Header(
    agent="1",
    boot_id="b",
    booted_at=17.5,
    devices=(Subject("0000:18:00.0", netdev="eth0", path=("pci0000:15", "0000:18:00.0")),),
)
SAMPLE = Sample(5.25, "0000:18:00.0", Source.LINK, {"carrier": 1.0}, {"ext_state": "no-cable"})

samples = st.builds(
    Sample,
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(),
    st.sampled_from(Source),
    st.dictionaries(st.sampled_from(sorted(MEASUREMENTS)), st.floats(allow_nan=False, allow_infinity=False)),
    st.dictionaries(st.text(), st.text()),
)


def read(data: bytes) -> tuple[Header, list[Sample]]:
    header, rest = decode_recording(io.BytesIO(data))
    return header, list(rest)


@given(st.lists(samples, max_size=5))
def test_a_recording_is_read_as_it_was_written(recorded):
    data = encode_recorded(HEADER) + b"".join(encode_recorded(sample) for sample in recorded)
    assert read(data) == (HEADER, recorded)


def test_a_sample_is_one_line_without_unknown_fields():
    assert encode_recorded(Sample(1.0, "a", Source.FEC)) == b'{"at":1.0,"device":"a","source":"fec"}\n'
    assert b"rdma" not in encode_recorded(HEADER)


def test_a_last_line_that_is_cut_short_is_ignored():
    assert read(encode_recorded(HEADER) + encode_recorded(SAMPLE) + encode_recorded(SAMPLE)[:-9]) == (
        HEADER,
        [SAMPLE],
    )


@pytest.mark.parametrize("line", [b"{}\n", b"[]\n", b'{"at":1,"device":"a","source":"tea"}\n', b"\xff\n"])
def test_a_broken_line_is_reported_with_its_number(line):
    with pytest.raises(RecordingError, match="line 3"):
        read(encode_recorded(HEADER) + encode_recorded(SAMPLE) + line + encode_recorded(SAMPLE))


def test_a_line_without_an_end_is_bounded():
    file = io.BytesIO(encode_recorded(HEADER) + encode_recorded(SAMPLE) + b"x" * (3 * LINE_MAX))
    header, samples = decode_recording(lines(file))
    with pytest.raises(RecordingError, match="line 3: it is longer than"):
        list(samples)
    assert header == HEADER
    assert file.tell() <= 2 * LINE_MAX


def test_unknown_fields_are_ignored():
    line = b'{"at":1,"device":"a","source":"fec","values":{"unheard_of":1},"new":[1]}\n'
    assert read(encode_recorded(HEADER) + line)[1] == [Sample(1, "a", Source.FEC, {"unheard_of": 1})]


def test_another_version_is_refused_with_the_remedy():
    with pytest.raises(RecordingError, match=r"version 2.*recorded"):
        read(encode_recorded(HEADER).replace(b'"version":1', b'"version":2'))


@pytest.mark.parametrize("data", [b"", b"\n", b'{"form":"tea"}\n', b"\0" * 40])
def test_another_file_is_refused(data):
    with pytest.raises(RecordingError, match="line 1"):
        read(data)


@given(st.binary(max_size=200))
def test_any_bytes_are_samples_or_a_recording_error(data):
    for text in (data, encode_recorded(HEADER) + data):
        try:
            read(text)
        except RecordingError:
            continue
