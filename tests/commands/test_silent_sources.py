"""Verbs on a machine of which one source never answers: it is named, the verb fails, and its absence is no fact.

Only the silent source is looked at: whether the others answer in the shortened time depends on the machine.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from nodeagent import discovery
from nodeagent.agent_config import Config
from nodeagent.cli import main
from nodeagent.commands.health.node_documents import read_document
from nodeagent.console import running_sources
from nodeagent.console.running_sources import unanswered
from nodeagent.facts.inventory import Inventory
from nodeagent.sources import gpu_source, pci_source
from nodeagent_lab.sim.machine import Machine
from tests.support.dead_files import dead
from tests.support.running_agent import node

SILENT = "it did not answer within 0.5 s"
PCI, GPUS = f"source pci has failed: {SILENT}", f"source gpus has failed: {SILENT}"
Silence = Callable[[str], None]


async def never(*_: object, **__: object) -> None:
    await asyncio.Event().wait()


@pytest.fixture(scope="module")
def dgx(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("machine") / "dgx"
    Machine.load("dgx-h100").write(root)
    return root


@pytest.fixture
def silence(monkeypatch: pytest.MonkeyPatch) -> Silence:
    """Make a source wait for a machine that never answers."""
    monkeypatch.setattr(discovery, "FIRST_FACTS_S", 0.5)
    monkeypatch.setattr(running_sources, "READ_S", 0.0)
    watches = {"pci": (pci_source, "watch_pci"), "gpus": (gpu_source, "watch_gpus")}
    return lambda source: monkeypatch.setattr(*watches[source], never)


async def test_a_source_without_an_answer_is_marked_and_one_with_an_answer_is_not(silence: Silence) -> None:
    silence("pci")
    inventory = Inventory()
    inventory.publish("pci", product="x")
    inventory.mark_stale("gpus", "the driver hangs")
    await discovery.first_facts(inventory)
    reasons = {entry.source: entry.reason for entry in unanswered(inventory.snapshot.stale_sources)}
    assert reasons == {"gpus": "the driver hangs", "paths": SILENT}


def test_scan(dgx: Path, capsys: pytest.CaptureFixture[str], silence: Silence) -> None:
    silence("pci")
    assert main(["scan", "--root", str(dgx)]) == 2
    printed = capsys.readouterr().out
    assert "RESOURCES\n  not known\n" in printed, "the product is a part of each name"
    assert "NICS\n  not known\n" in printed
    assert "/nic" not in printed
    assert PCI in printed
    assert main(["scan", "--json", "--root", str(dgx)]) == 2
    seen = json.loads(capsys.readouterr().out)
    assert "pci" in [entry["source"] for entry in seen["silent"]]
    assert not [trouble for trouble in seen["troubles"] if trouble["source"] == "pci"]


def test_demo(capsys: pytest.CaptureFixture[str], silence: Silence) -> None:
    silence("pci")
    assert main(["demo", "--once"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("nodeagent: the simulated machine cannot be read: source ")
    assert PCI in err
    assert err.count("\n") == 1


def test_health(dgx: Path, capsys: pytest.CaptureFixture[str], silence: Silence) -> None:
    for source in ("pci", "gpus"):
        silence(source)
    assert main(["health", "--root", str(dgx)]) == 2
    printed = capsys.readouterr().out
    assert "HEALTH\n  not known\n" in printed
    assert PCI in printed
    assert GPUS in printed
    assert main(["health", "--json", "--root", str(dgx)]) == 2
    output = capsys.readouterr()
    assert json.loads(output.out) == []
    assert PCI in output.err
    assert main(["health", "GPU0", "--root", str(dgx)]) == 2
    assert GPUS in capsys.readouterr().err


def test_gpus(dgx: Path, capsys: pytest.CaptureFixture[str], silence: Silence) -> None:
    silence("gpus")
    assert main(["gpus", "--root", str(dgx)]) == 2
    printed = capsys.readouterr().out
    assert "GPUS\n  not known\n" in printed
    assert GPUS in printed
    assert main(["gpus", "--json", "--root", str(dgx)]) == 2
    assert json.loads(capsys.readouterr().out)["silent"] == SILENT


def test_the_page_of_a_node(dgx: Path, capsys: pytest.CaptureFixture[str], silence: Silence) -> None:
    silence("pci")
    assert main(["health", "--html", "--root", str(dgx)]) == 2
    assert "<html" in capsys.readouterr().out
    document, silent = asyncio.run(read_document(Config(), dgx))
    page = json.loads(document)
    assert silent
    assert page["stale"]["pci"] == SILENT
    assert page["resources"] == []
    assert not [message for message in page["troubles"] if message.startswith("nic")]


@pytest.mark.parametrize("source", ["pci", "gpus"])
def test_config_check(
    source: str, dgx: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], silence: Silence
) -> None:
    silence(source)
    file = tmp_path / "nodeagent.yaml"
    file.write_text(
        "apiVersion: nodeagent.io/v1alpha1\nkind: NodeAgentConfig\nresources: [{kind: vf}, {kind: gpu-mem}]\n"
    )
    assert main(["config", "check", str(file), "--root", str(dgx)]) == 2
    printed = capsys.readouterr().out
    assert f"{file}: not checked for this machine: source {source} has failed: {SILENT}\n" in printed
    assert "good" not in printed
    file.write_text(file.read_text().replace("kind: gpu-mem}", "kind: gpu-mem, sliceMiB: 1}"))
    if source == "gpus":
        assert main(["config", "check", str(file), "--root", str(dgx)]) == 1, "the GPUs are assumed"


@pytest.mark.slow
@pytest.mark.needs("root", "fuse")
async def test_remembered_and_neighbors_with_a_file_that_hangs(capsys: pytest.CaptureFixture[str]) -> None:
    """A NIC and a GPU whose class cannot be read are not missing, and the other devices are shown."""
    async with node() as n:
        await n.kubelet.start()
        await n.start_agent(n.configure(""))
        await n.allocatable("two-gpus-and-two-nics/nic1", 4)
        state = n.root / "var/lib/nodeagent"
        await n.until(lambda: (state / "rails.json").exists() and (state / "gpus.json").exists())
        await n.stop_agent()
        pf, gpu = n.machine.nic(0).address, n.machine.gpus[0].address
        files = [f"sys/bus/pci/devices/{address}/class" for address in (pf, gpu)]
        with dead(*((n.root / file).resolve() for file in files)):
            assert await asyncio.to_thread(main, ["remembered", "--json", "--root", str(n.root)]) == 0
            stored = json.loads(capsys.readouterr().out)
            assert await asyncio.to_thread(main, ["neighbors", "--root", str(n.root)]) == 2, (
                "no frames of a copy"
            )
            err = capsys.readouterr().err
        rails = {rail["pciAddress"]: rail["present"] for rail in stored["rails"]}
        assert rails == {pf: None, n.machine.nic(1).address: True}
        assert {one["pciAddress"]: one["onBus"] for one in stored["gpus"]}[gpu] is None
        assert [one["onBus"] for one in stored["gpus"]].count(True) == 1
        assert f"/{files[0]} does not answer: its device is left out" in err


async def test_an_agent_names_the_source_on_its_pages_and_to_the_verbs(
    capsys: pytest.CaptureFixture[str], silence: Silence
) -> None:
    silence("pci")
    async with node() as n:
        await n.kubelet.start()
        await n.start_agent(n.configure(""))
        await n.agent.offering.begun.wait()
        assert 'nodeagent_source_silent{source="pci"} 1' in (await n.get("/metrics"))[1]
        status, ready = await n.get("/readyz")
        assert status == 503
        assert SILENT in ready
        verb = ["health", "--root", str(n.root), "--config", str(n.config_file)]
        assert await asyncio.to_thread(main, verb) == 0
        output = capsys.readouterr()
        assert "answers" in output.err
        assert PCI in output.out
