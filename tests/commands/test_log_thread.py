"""The log of a daemon never blocks its writer, keeps the order of its lines, and counts those that it drops."""

from __future__ import annotations

import os

import pytest

from nodeagent.console import log_lines
from nodeagent.console.log_lines import LogThread
from tests.support.waiting import Lines


@pytest.fixture
def pipe() -> tuple[int, int]:
    return os.pipe()


def test_lines_are_written_in_their_order(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    log = LogThread(writing)
    for number in range(100):
        log.write(f"line {number}\n")
    log.drain(30)
    lines = Lines(reading)
    assert [lines.next() for _ in range(100)] == [f"line {number}\n" for number in range(100)]


def test_lines_without_room_are_dropped_and_counted(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = pipe
    monkeypatch.setattr(log_lines, "LINES_MAX", 10)
    log = LogThread(writing)
    for number in range(1000):
        log.write(f"{number} {'x' * 1000}\n")
    log.drain(0.01)
    lines = Lines(reading)
    lost = lines.until(lambda line: "lines of the log were lost" in line)
    assert int(lost.split()[0]) > 100
    log.write("last\n")
    lines.until(lambda line: line == "last\n")
    os.close(reading)


def test_a_log_without_a_reader_is_no_error(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    os.close(reading)
    log = LogThread(writing)
    log.write("line\n")
    log.drain(30)
    log.write("line\n")
    log.drain(30)
