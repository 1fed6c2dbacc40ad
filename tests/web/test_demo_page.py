"""`nodeagent demo --ui` in Debian's Chromium: the buttons change the simulated machines, and the page shows it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.chromium import Browser, Tab

pytestmark = pytest.mark.needs("chromium")
INSIDE = "document.querySelector('iframe').contentDocument"


@contextmanager
def demo(*arguments: str) -> Iterator[str]:
    """A running demo. Yields the address that it prints."""
    with running_demo(*arguments) as (url, _):
        yield url


@contextmanager
def running_demo(*arguments: str) -> Iterator[tuple[str, str]]:
    """A running demo. Yields the address that it prints, and all that it has printed."""
    environment = {
        name: value for name, value in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY")
    }
    with subprocess.Popen(
        [sys.executable, "-m", "nodeagent", "demo", "--ui", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        lines = []
        try:
            for line in process.stdout:
                lines.append(line)
                if found := re.search(r"Open (http://127\.0\.0\.1:\d+/)", line):
                    yield found[1], "".join(lines)
                    break
            else:
                pytest.fail("".join(lines))
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)


def shows(tab: Tab, selector: str, text: str) -> None:
    tab.until(f"{INSIDE}?.querySelector({selector!r})?.innerText.includes({text!r})", 60)


def press(tab: Tab, title: str) -> None:
    tab.click_on("#faults button", title)
    tab.until("document.getElementById('done').textContent.length > 3", 60)


@pytest.mark.slow
def test_the_buttons_of_the_fabric_change_it_and_the_page_survives_the_end_of_the_leader(browser: Browser):
    with demo("--nodes", "8") as url:
        tab = browser.tab(url)
        shows(tab, "#summary", "8 nodes · 2 leaf groups · 103 healthy · 1 degraded · 0 anomalies")
        shows(tab, "#lists", "pods research/finetune-1")
        shows(tab, "#lists", "jobs Job research/finetune")
        press(tab, "plug a cable")
        shows(tab, "#lists", "do move the cable to hall1-su1-leaf3")
        press(tab, "plug a cable")
        press(tab, "off")
        shows(tab, "#summary", "4 down")
        shows(tab, "#lists", "4 links of 4 nodes went down at once")
        press(tab, "off")
        shows(tab, "#summary", "103 healthy · 1 degraded · 0 anomalies")
        press(tab, "XID 79")
        shows(tab, "#lists", "the GPU has fallen off the bus")
        press(tab, "XID 79")
        press(tab, "flaps")
        shows(tab, "#lists", "losses of the carrier in")
        press(tab, "flaps")
        press(tab, "crashes again and again")
        shows(tab, "#lists", "its agent does not run: CrashLoopBackOff")
        shows(tab, "#summary", "1 node away")
        press(tab, "crashes again and again")
        shows(tab, "#summary", "103 healthy · 1 degraded · 0 anomalies")
        press(tab, "power of a whole rack")
        shows(tab, "#summary", "4 nodes away")
        shows(tab, "#lists", "4 nodes went away at once")
        press(tab, "power of a whole rack")
        shows(tab, "#summary", "103 healthy · 1 degraded · 0 anomalies")
        slider = f"{INSIDE}.querySelector('#history input')"
        tab.value(f"{slider}.value = -720, {slider}.dispatchEvent(new Event('input'))")
        shows(tab, "#history", "Nothing that is known up to then.")
        shows(tab, "#history", "This controller knows none before 20")
        press(tab, "add a node")
        shows(tab, "#summary", "9 nodes")
        shows(tab, "#history", "Nothing that is known up to then.")
        tab.value(f"{slider}.value = 0, {slider}.dispatchEvent(new Event('input'))")
        shows(tab, "#history", "up to now")
        tab.until(f"{INSIDE}.querySelectorAll('#history li').length > 3", 60)
        press(tab, "kill the leading")
        shows(tab, "#state", "nodeagent-controller-1 leads")
        refused = urllib.request.Request(f"{url}faults/cable", method="POST")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(refused)
        rebound = urllib.request.Request(f"{url}faults", headers={"Host": "attacker.example"})
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(rebound)
        tab.close()


@pytest.mark.slow
def test_the_gpus_of_the_node_have_load(browser: Browser):
    with demo("--machine", "two-gpu-two-nic") as url:
        tab = browser.tab(url)
        tab.until(f"/[1-9][0-9]? ?%[^·]*load/.test({INSIDE}?.querySelector('#gpus')?.innerText)", 60)
        tab.close()


@pytest.mark.slow
def test_the_buttons_of_the_node_withdraw_devices_and_give_them_back(browser: Browser):
    with demo("--machine", "two-gpu-two-nic") as url:
        tab = browser.tab(url)
        shows(tab, "#gpus", "trainer")
        press(tab, "falls off the bus")
        shows(tab, "#trouble", "xid_79")
        press(tab, "pull the cable")
        shows(tab, "#trouble", "carrier_down")
        shows(tab, "#nics", "withdrawn")
        press(tab, "falls off the bus")
        press(tab, "pull the cable")
        shows(tab, "#health", "No rule is active")
        tab.close()
