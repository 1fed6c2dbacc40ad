"""The counts of the kernel log, read from a pipe that returns one record for each read as /dev/kmsg does."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

import pytest

from nodeagent.host.kmsg import KernelLog
from nodeagent.measurements.reader_status import ReaderStatus
from nodeagent.measurements.sample import Sample, Source
from nodeagent.sampling.kernel_log import KernelLogReader
from tests.sampling.test_readers import PF, pf


async def test_a_line_about_a_function_of_no_pf_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    records, kernel = os.pipe2(os.O_DIRECT)
    monkeypatch.setattr(KernelLog.__init__, "__defaults__", (f"/proc/self/fd/{records}",))
    for number, device in enumerate(("0000:ff:00.0", PF)):
        os.write(kernel, f"3,{number},1,-;mlx5_core {device}: Fatal error 3 detected\n".encode())
    published: asyncio.Queue[Sequence[Sample]] = asyncio.Queue()

    def failed(_source: Source, error: Exception, _duration_s: float) -> None:
        raise error

    status = ReaderStatus(Source.KERNEL)
    reader = KernelLogReader(lambda: (pf(),), lambda: status, published.put_nowait, failed)
    start = asyncio.Event()
    start.set()
    following = asyncio.create_task(reader.follow(start))
    news = asyncio.create_task(published.get())
    await asyncio.wait((following, news), timeout=40, return_when=asyncio.FIRST_COMPLETED)
    assert news.done(), following
    (sample,) = news.result()
    assert (sample.device, sample.values["kernel_events/firmware_fatal"]) == (PF, 1)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    os.close(records)
    os.close(kernel)
