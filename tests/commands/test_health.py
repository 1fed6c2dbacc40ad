"""`nodeagent health` with an agent behind TLS and a token, and with a server that is no agent."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import threading
from pathlib import Path

import pytest

from nodeagent.attach.attach_files import AttachFiles, AttachState
from nodeagent.cli import main
from nodeagent.console.agent_query import fetch_page
from nodeagent.console.options import load_config
from nodeagent.facts.device_pods import pods_by_device
from nodeagent.facts.model import PodNetdev
from nodeagent_lab.sim.kubelet import PodSpec
from tests.support.certificates import Authority
from tests.support.running_agent import node
from tests.support.waiting import LIMIT_S


@pytest.mark.needs("openssl")
async def test_the_command_reads_an_agent_behind_tls_and_a_token(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    certificate, key = Authority(tmp_path).sign("agent")
    token = tmp_path / "token"
    token.write_text("one\ntwo\n")
    async with node() as n:
        made = n.configure(f"web: {{certificateFile: {certificate}, keyFile: {key}, tokenFile: {token}}}\n")
        await n.kubelet.start()
        await n.start_agent(made)
        verb = ["health", "--json", "--agent", f"127.0.0.1:{n.port}"]
        assert await asyncio.to_thread(main, [*verb, "--config", str(n.config_file)]) == 0
        output = capsys.readouterr()
        assert "no agent" not in output.err
        assert {one["kind"] for one in json.loads(output.out)} == {"nic", "gpu"}
        assert await asyncio.to_thread(main, verb) == 2
        assert "--config" in capsys.readouterr().err, "the error contains the remedy"
        token.write_text("three\n")
        other = tmp_path / "other.yaml"
        wrong = tmp_path / "wrong"
        wrong.write_text("wrong\n")
        other.write_text(n.config_file.read_text().replace(str(token), str(wrong)))
        assert await asyncio.to_thread(main, [*verb, "--config", str(other)]) == 2
        assert "401" in capsys.readouterr().err
        wrong.unlink()
        assert await asyncio.to_thread(main, [*verb, "--config", str(other)]) == 2
        assert str(wrong) in capsys.readouterr().err


@pytest.mark.needs("openssl")
async def test_the_command_presents_the_certificate_of_the_agent_on_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.sign("agent")
    async with node() as n:
        made = n.configure(
            f"web: {{certificateFile: {certificate}, keyFile: {key}, clientCaFile: {authority.certificate}}}\n"
        )
        await n.kubelet.start()
        await n.start_agent(made)
        verb = ["health", "--json", "--agent", f"127.0.0.1:{n.port}", "--config", str(n.config_file)]
        assert await asyncio.to_thread(main, verb) == 0, capsys.readouterr().err
        for name, put in (("pipe", os.mkfifo), ("empty", Path.touch)):
            put(tmp_path / name)
            n.config_file.write_text(n.config_file.read_text().replace(str(key), str(tmp_path / name)))
            key = tmp_path / name
            assert await asyncio.wait_for(asyncio.to_thread(main, verb), 20) == 2
            error = capsys.readouterr().err
            assert str(tmp_path / name) in error
            assert "--config" in error


def test_a_server_that_is_no_agent_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    for answer in (b"", b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"):
        with socket.create_server(("127.0.0.1", 0)) as server:

            def serve(server: socket.socket = server, answer: bytes = answer) -> None:
                server.settimeout(LIMIT_S)
                connection, _ = server.accept()
                with connection:
                    connection.recv(4096)
                    connection.sendall(answer)

            thread = threading.Thread(target=serve)
            thread.start()
            assert main(["health", "--agent", f"127.0.0.1:{server.getsockname()[1]}"]) == 2
            thread.join()
            assert "127.0.0.1" in capsys.readouterr().err


@pytest.mark.parametrize("agent", [True, False], ids=["of an agent", "a short look"])
async def test_the_kubelet_is_told_nothing_about_a_device_that_nobody_offers(
    agent: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """An agent that observes alone, then one that offers the slices of GPUs and no VF."""
    async with node() as n:
        for resources, told in (
            ("[]", {"nic": "-", "gpu": "-"}),
            ("[{kind: gpu-mem}]", {"nic": "-", "gpu": "Healthy"}),
        ):
            made = n.configure(f"resources: {resources}\n")
            if agent:
                await n.kubelet.start()
                await n.start_agent(made)
                await n.until(n.agent.offering.begun.is_set)
                await n.until(lambda: {one.kind for one in n.agent.health.explain()} == {"nic", "gpu"})
            place = ["--root", str(n.root), "--config", str(n.config_file)]
            assert await asyncio.to_thread(main, ["health", *place]) == 0
            lines = capsys.readouterr().out.splitlines()
            at = next(line.index("KUBELET") for line in lines if "KUBELET" in line)
            rows = {"gpu": r" *GPU\d", "nic": r".* 0000:"}
            for kind, begin in rows.items():
                words = {line[at:].split()[0] for line in lines if re.match(begin, line)}
                assert words == {told[kind]}, lines
            assert await asyncio.to_thread(main, ["health", "--json", *place]) == 0
            views = json.loads(capsys.readouterr().out)
            views = views["devices"] if isinstance(views, dict) else views
            assert {one["kind"]: one["offered"] for one in views} == {
                kind: word != "-" for kind, word in told.items()
            }
            if agent:
                await n.stop_agent()
                await n.kubelet.stop()


async def test_a_nic_shows_which_pod_has_which_vf_under_which_name_and_address(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with node() as n:
        await n.kubelet.start()
        await n.start_agent(
            n.configure('resources: [{kind: vf, name: "nic{rail}"}]\nattach: {interface: "rail{rail}"}\n')
        )
        vf = next(
            one
            for one in n.agent.inventory.snapshot.functions
            if one.parent is not None and one.parent in n.agent.offering.rails
        )
        files = AttachFiles(n.root / "var/lib/nodeagent")
        files.folder.mkdir(parents=True, exist_ok=True)
        netdev = PodNetdev(vf.pci_address, "ml", "worker-0", "rail0", ("10.100.16.7/16", "fd00::7/64"))
        files.write_state(AttachState(netdevs=(netdev,)))
        await n.until(lambda: n.agent.inventory.snapshot.pod_netdevs)
        place = ["--root", str(n.root)]
        assert await asyncio.to_thread(main, ["health", str(vf.parent), *place]) == 0
        table = capsys.readouterr().out.partition("NETDEVS IN PODS\n")[2].splitlines()[:2]
        assert [line.split() for line in table] == [
            ["POD", "DEVICE", "NETDEV", "ADDRESS"],
            ["ml/worker-0", vf.pci_address, "rail0", "10.100.16.7/16,", "fd00::7/64"],
        ]
        assert await asyncio.to_thread(main, ["health", "--json", str(vf.parent), *place]) == 0
        (told,) = json.loads(capsys.readouterr().out)["podNetdevs"]
        assert (told["pod"], told["netdev"]) == ("worker-0", "rail0")
        page = await asyncio.to_thread(fetch_page, "/ui/document.json", load_config(None), n.root, None)
        (of_page,) = (
            one
            for nic in json.loads(page.body or b"")["nics"]
            for one in nic["vfs"]
            if one["address"] == vf.pci_address
        )
        assert (of_page["podNetdev"], of_page["podAddresses"]) == ("rail0", ["10.100.16.7/16", "fd00::7/64"])


async def test_a_fault_has_its_pods_and_what_to_do_in_the_words_of_the_node_page(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with node() as n:
        await n.kubelet.start()
        await n.start_agent(node_name="gpu-17")
        await n.kubelet.until(lambda: len(n.kubelet.allocatable()) == 3, 15)
        nic = next(name for name in n.kubelet.capacity() if "/nic" in name)
        assert (await n.kubelet.admit(PodSpec.single("trainer", {nic: 1}))).admitted
        await n.until(lambda: n.agent.inventory.snapshot.holdings)
        pf = n.machine.pfs[1 + int(nic[-1])]
        n.machine.set_link(pf.address, up=False)

        await n.until(
            lambda: any(one.device == pf.address and one.reasons for one in n.agent.health.explain())
        )
        await n.until(lambda: pf.address in pods_by_device(n.agent.inventory.snapshot))
        place = ["--root", str(n.root)]
        assert await asyncio.to_thread(main, ["health", "--json", *place]) == 0
        views = json.loads(capsys.readouterr().out)
        view = next(one for one in views if one["device"] == pf.address)
        assert view["pods"] == ["default/trainer"]
        assert view["remedy"] == "check cable, optics and the switch port"
        page = await asyncio.to_thread(fetch_page, "/ui/document.json", load_config(None), n.root, None)
        of_page = next(one for one in json.loads(page.body or b"")["nics"] if one["address"] == pf.address)
        assert (of_page["pods"], of_page["remedy"]) == (view["pods"], view["remedy"])
        assert await asyncio.to_thread(main, ["health", *place]) == 0
        text = capsys.readouterr().out
        assert f"pods: {view['pods'][0]}\n" in text
        assert f"do: {view['remedy']}\n" in text
