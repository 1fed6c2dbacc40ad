"""The counts of the kernel log, read from a pipe that returns one record for each read as /dev/kmsg does."""

from __future__ import annotations

import asyncio
import os

import pytest

from nodeagent.host.kmsg import KernelLog
from nodeagent.sampling import event_readers
from nodeagent.sampling.event_readers import KernelLogReader
from tests.sampling.test_readers import PF, pf

SXID = "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 48 LTSSM Fault Up"


async def test_only_lines_after_the_start_are_messages_about_nvlinks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those before it may be weeks old, and the GPU was reset since."""
    monkeypatch.setattr(event_readers, "_LOG_GAP_S", 0.0)
    records, kernel = os.pipe2(os.O_DIRECT)
    monkeypatch.setattr(KernelLog.__init__, "__defaults__", (f"/proc/self/fd/{records}",))
    taken: list[int] = []
    following = KernelLogReader(
        lambda: (pf(),), lambda messages: taken.extend(m.link or 0 for m in messages)
    ).follow()
    os.write(kernel, f"3,1,1,-;{SXID}\n".encode())
    await asyncio.wait_for(anext(following), 40)
    assert taken == []
    os.write(kernel, f"3,2,1,-;{SXID.replace('48', '49')}\n".encode())
    await asyncio.wait_for(anext(following), 40)
    assert taken == [49]
    await following.aclose()
    os.close(records)
    os.close(kernel)


async def test_a_line_about_a_function_of_no_pf_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    records, kernel = os.pipe2(os.O_DIRECT)
    monkeypatch.setattr(KernelLog.__init__, "__defaults__", (f"/proc/self/fd/{records}",))
    for number, device in enumerate(("0000:ff:00.0", PF)):
        os.write(kernel, f"3,{number},1,-;mlx5_core {device}: Fatal error 3 detected\n".encode())
    following = KernelLogReader(lambda: (pf(),)).follow()
    ((sample,), _duration_s) = await asyncio.wait_for(anext(following), 40)
    assert (sample.device, sample.values["kernel_events/firmware_fatal"]) == (PF, 1)
    await following.aclose()
    os.close(records)
    os.close(kernel)


async def test_the_last_line_about_the_power_of_the_slot_counts_that_of_before_the_start_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_readers, "_LOG_GAP_S", 0.0)
    records, kernel = os.pipe2(os.O_DIRECT)
    monkeypatch.setattr(KernelLog.__init__, "__defaults__", (f"/proc/self/fd/{records}",))
    following = KernelLogReader(lambda: (pf(),)).follow()
    low = "mlx5_pcie_event:299:(pid 2): Detected insufficient power on the PCIe slot (27W)."
    enough = "mlx5_pcie_event:304:(pid 2): PCIe slot advertised sufficient power (75W)."
    seen = []
    for number, lines in enumerate(((low,), (low, enough), (enough, low))):
        for line in lines:
            os.write(kernel, f"4,{number},1,-;mlx5_core {PF}: {line}\n".encode())
        ((sample,), _duration_s) = await asyncio.wait_for(anext(following), 40)
        seen.append((sample.values["slot_power_low"], sample.values["kernel_events/insufficient_power"]))
    assert seen == [(1, 1), (0, 2), (1, 3)]
    await following.aclose()
    os.close(records)
    os.close(kernel)


async def test_a_nic_whose_driver_says_nothing_about_its_slot_has_no_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    records, kernel = os.pipe2(os.O_DIRECT)
    monkeypatch.setattr(KernelLog.__init__, "__defaults__", (f"/proc/self/fd/{records}",))
    os.write(kernel, f"4,1,1,-;mlx5_core {PF}: PCIe slot power capability was not advertised.\n".encode())
    following = KernelLogReader(lambda: (pf(),)).follow()
    ((sample,), _duration_s) = await asyncio.wait_for(anext(following), 40)
    assert "slot_power_low" not in sample.values
    await following.aclose()
    os.close(records)
    os.close(kernel)
