"""The walk of an on-call engineer: nine faults of the demo's fabric, each to its cause, whose pods, and what to do.

In a terminal of 80 columns one verb says it in its first 24 lines, and the list of the map says the same.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

import pytest

from tests.support.chromium import Browser, Tab
from tests.web.test_demo_page import INSIDE, press, running_demo, shows

pytestmark = [pytest.mark.needs("chromium"), pytest.mark.slow]
COLUMNS, LINES = 80, 24


class Fault(NamedTuple):
    """A ``button`` of the demo, and what is then said: the place and the cause, a pod, and the remedy."""

    button: str
    where: str
    what: str
    cause: str
    pod: str
    remedy: str


SLOW = Fault("", "gpu-008 nic7", "degraded", "x8 of x16", "finetune-1", "reseat the card, or move it")
LEAF = Fault(
    "switch hall1-su1-leaf2 off", "hall1-su1-leaf2", "4 links of 4 nodes went down at once", "gpu-001",
    "llama-70b-0", "check the switch hall1-su1-leaf2",
)  # fmt: skip
LIGHT = Fault(
    "the light of gpu-001 fades", "gpu-001 nic0", "degraded", "lane 3: -11.2 dBm", "llama-70b-0",
    "clean or replace the module",
)  # fmt: skip
CABLE = Fault(
    "plug a cable into the wrong unit", "gpu-004 nic3", "miscabled", "is cabled to hall1-su2-leaf3", "diffusion-1",
    "move the cable to hall1-su1-leaf3",
)  # fmt: skip
FLAP = Fault(
    "flaps", "gpu-004 nic0", "degraded", "losses of the carrier in", "diffusion-1", "reseat or replace cable and optics"
)  # fmt: skip
XID = Fault(
    "XID 79", "gpu-001 GPU 0", "unhealthy", "the GPU has fallen off the bus", "llama-70b-0", "drain the node"
)
NODE = Fault(
    "cut the power of gpu-002", "gpu-002", "unreachable", "its kubelet does not answer", "llama-70b-1",
    "check its power, its console (BMC)",
)  # fmt: skip
AGENT = Fault(
    "the agent of gpu-004 crashes", "gpu-004", "no agent", "its agent does not run: CrashLoopBackOff",
    "diffusion-1", "kubectl get pods -A -o wide",
)  # fmt: skip


def terminal(printed: str, *words: str) -> str:
    """The first screen of a verb, in the words that the demo prints for another terminal; without its line breaks."""
    kubeconfig, fabric = (re.search(rf"{word}[ =](\S+)", printed) for word in ("KUBECONFIG", "--fabric"))
    assert kubeconfig
    assert fabric
    done = subprocess.run(
        [sys.executable, "-m", "nodeagent", *words, "--fabric", fabric[1]],
        env={**os.environ, "KUBECONFIG": kubeconfig[1], "NODEAGENT_COLUMNS": str(COLUMNS)},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1, done
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= COLUMNS, "no line is cut by the terminal"
    return " ".join(" ".join(lines[:LINES]).split())


def walk(tab: Tab, printed: str, faults: Sequence[Fault]) -> None:
    for fault in faults:
        press(tab, fault.button)
        shows(tab, "#lists", fault.cause)
        for text in (fault.where, fault.what, f"research/{fault.pod}", f"do {fault.remedy}"):
            shows(tab, "#lists", text)
        said = terminal(printed, "trouble")
        block = said[said.index(f"{fault.where}") :]
        for text in (fault.what, fault.cause, f"research/{fault.pod}", f"do: {fault.remedy}"):
            assert text in block, (fault.button, said)
        press(tab, fault.button)
        tab.until(f"!{INSIDE}.querySelector('#lists').innerText.includes({fault.cause!r})", 60)


def test_faults_of_links_and_a_slow_training(browser: Browser) -> None:
    with running_demo("--nodes", "8") as (url, printed):
        tab = browser.tab(url)
        shows(tab, "#lists", "jobs Job research/finetune")
        shows(tab, "#lists", f"do {SLOW.remedy}")
        said = terminal(printed, "job", "finetune")
        for text in (SLOW.where, SLOW.cause, f"research/{SLOW.pod}", f"do: {SLOW.remedy}"):
            assert text in said, said
        walk(tab, printed, (LEAF, LIGHT, CABLE, FLAP))
        tab.close()


def test_faults_of_gpus_nodes_agents_and_the_controller(browser: Browser) -> None:
    with running_demo("--nodes", "8") as (url, printed):
        tab = browser.tab(url)
        shows(tab, "#lists", "jobs Job research/finetune")
        walk(tab, printed, (XID, NODE, AGENT))
        press(tab, "kill the leading")
        assert SLOW.cause in terminal(printed, "trouble"), "without a leader the verb reads the cluster"
        shows(tab, "#state", "nodeagent-controller-1 leads")
        shows(tab, "#lists", SLOW.cause)
        tab.close()


def test_a_dead_rack_of_2048_nodes_is_one_line_with_its_jobs(browser: Browser) -> None:
    with running_demo("--nodes", "2048") as (url, printed):
        tab = browser.tab(url)
        shows(tab, "#summary", "2048 nodes · 64 leaf groups")
        press(tab, "power of a whole rack")
        shows(tab, "#summary", "32 nodes away")
        shows(tab, "#lists", "32 nodes went away at once")
        shows(tab, "#lists", "jobs Job research/diffusion, Job research/finetune")
        said = terminal(printed, "trouble")
        for text in (
            "32 nodes went away at once", "gpu-[0033-0064]", "jobs: Job research/diffusion, Job research/finetune",
            "do: check what they share: the power of the rack", "1 trouble in 2048 nodes",
        ):  # fmt: skip
            assert text in said, said
        tab.close()
