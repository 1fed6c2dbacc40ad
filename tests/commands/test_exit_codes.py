"""One table of exit codes: each verb of the parser has a row, and does what it says.

Cases: ``good`` nothing is wrong, ``found`` something is, ``blind`` there is no cluster or no agent, ``unknown`` a name
that does not exist. A case is missing where a verb has none.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from nodeagent.cli import _parser, main
from nodeagent.commands.completion import PAGE, parsers
from nodeagent.console.exit_codes import EXIT_CODES, LOOKS, RUNS, SHOWS, WRITES, table
from nodeagent_lab.sim.machine import Machine
from tests.commands.test_cabling import hall, write
from tests.commands.test_maintain import cluster, work
from tests.health.test_cordons import node_without_agent
from tests.support import golden
from tests.support.manifests import DAEMONSET, ROOT

VFS = (
    "apiVersion: nodeagent.io/v1alpha1\nkind: NodeAgentConfig\n"
    "vfs:\n- {select: {vendors: ['15b3']}, count: 6}\n"
)
SAMPLE = "docs/samples/nodelinks.yaml"
CASES: dict[str, dict[str, str]] = {
    "doctor": {"good": "--root MACHINE", "found": "--root MACHINE --config BAD"},
    "trouble": {"good": "--from HALL", "found": f"--from {SAMPLE}", "blind": ""},
    "job": {"blind": "x", "unknown": "x --from HALL"},
    "cabling": {"good": "--from HALL", "found": f"--from {SAMPLE}", "blind": ""},
    "diff": {"blind": "x", "unknown": "gpu-9999 --from HALL"},
    "rails": {"blind": "--root EMPTY"},
    "rails check": {"blind": "a b --root EMPTY"},
    "rails traffic": {"blind": "--root EMPTY"},
    "health --problem": {"blind": "links --root EMPTY"},
    "config check": {"good": "CONFIG", "found": "BAD", "blind": "NOWHERE"},
    "config from": {"good": "sriovdp THEIRS", "found": "sriovdp LOST", "blind": "sriovdp NOWHERE"},
    "health": {"good": "--root MACHINE", "unknown": "nic99 --root MACHINE"},
    "scan": {"good": "--root MACHINE"},
    "neighbors": {"good": "--root INFINIBAND", "blind": "--root MACHINE"},
    "gpus": {"good": "--root MACHINE"},
    "history": {"blind": "--root EMPTY"},
    "vfs show": {"good": "--root MACHINE"},
    "plan": {"good": f"--from {SAMPLE}", "blind": ""},
    "explain": {"good": f"gpu-001 --from {SAMPLE}", "unknown": f"gpu-9999 --from {SAMPLE}", "blind": "x"},
    "topology": {
        "good": f"--from {SAMPLE}",
        "unknown": f"--format hostfile --nodes gpu-001,gpu-9999 --from {SAMPLE}",
        "blind": "",
    },
    "claim": {"good": "--gpu-mem 40Gi"},
    "tell": {"good": "vllm", "unknown": "vlm"},
    "completion": {"good": "bash"},
    "config features": {"good": "", "wrong": "--config BAD"},
    "config defaults": {"good": ""},
    "config schema": {"good": ""},
    "decode": {"blind": "NOWHERE"},
    "man": {"good": ""},
    "maintain": {"blind": "leaf2 --until 1h"},
    "cordon": {"good": "--root MACHINE", "unknown": "nic99 --reason x --root MACHINE"},
    "uncordon": {"unknown": "nic99 --root MACHINE"},
    "remembered": {"good": "--root MACHINE", "unknown": "forget nic99 --root MACHINE"},
    "vfs apply": {
        "good": "--root MACHINE",
        "blind": "--root EMPTY --config VFS",
        "wrong": "--root MACHINE --config BAD",
    },
    "capture": {"good": "FOLDER --root MACHINE"},
    "run": {"wrong": "--root MACHINE --config BAD", "unknown": "--root NOWHERE"},
    "controller": {"wrong": "--fabric BAD"},
    "mps": {"unknown": "--root NOWHERE"},
    "attach": {"unknown": "--root NOWHERE"},
    "demo": {"wrong": "--node a --faults x", "unknown": "--machine nosuch", "few": "--nodes 0"},
}  # fmt: skip


def codes(verb: str, case: str) -> int:
    """The code in the table."""
    return {
        "good": 0,
        "found": 1,
        "unknown": 2,
        "wrong": 2,
        "few": 2,
        "blind": 1 if EXIT_CODES[verb] is WRITES else 2,
    }[case]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("places")
    Machine.load("two-gpu-two-nic").write(folder / "machine")
    Machine.load("dgx-h100-infiniband").write(folder / "infiniband")
    (folder / "empty").mkdir()
    files = {
        "BAD": "apiVersion: nodeagent.io/v1alpha1\nkind: NodeAgentConfig\nresorces: []\n",
        "CONFIG": "apiVersion: nodeagent.io/v1alpha1\nkind: NodeAgentConfig\n",
        "VFS": VFS,
        "THEIRS": '{"resourceList": [{"resourceName": "a", "selectors": {"pfNames": ["b"]}}]}',
        "LOST": '{"resourceList": [{"resourceName": "a", "selectors": {"pKeys": ["b"]}}]}',
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    named = {name: str(folder / name) for name in (*files, "NOWHERE", "FOLDER")}
    named["HALL"] = str(write(folder / "hall.json", hall().reports()))
    return {**named, **{it: str(folder / it.lower()) for it in ("MACHINE", "INFINIBAND", "EMPTY")}}


def leaves(parser: argparse.ArgumentParser) -> Iterator[str]:
    """The words of each verb, and of each part of a verb that has parts alone."""
    for each in parsers(parser):
        words = each.prog.partition(" ")[2]
        below = [one for one in each._actions if isinstance(one, argparse._SubParsersAction)]
        if words and not any(one.required for one in below):
            yield words


def test_each_verb_has_a_row_and_its_cases() -> None:
    verbs = {*leaves(_parser())}
    assert verbs | {"health --problem"} == EXIT_CODES.keys() == CASES.keys()
    for verb, row in EXIT_CODES.items():
        if row is LOOKS and verb not in ("doctor",):
            assert {"blind", "unknown"} & CASES[verb].keys(), verb


@pytest.mark.parametrize(("verb", "case"), [(verb, case) for verb, cases in CASES.items() for case in cases])
def test_a_verb_ends_as_its_row_says(
    verb: str,
    case: str,
    places: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nowhere/kubeconfig")
    monkeypatch.setenv("HOME", places["EMPTY"])
    monkeypatch.chdir(ROOT)
    words = [places.get(word, word) for word in f"{verb} {CASES[verb][case]}".split()]
    try:
        code = main(words)
    except SystemExit as ended:
        code = int(ended.code or 0)
    said = capsys.readouterr()
    assert code == codes(verb, case), said.err
    if code == 2:
        assert said.err or said.out, "it says why"
    if case == "blind" and EXIT_CODES[verb] is SHOWS:
        assert not said.out, "an empty list would say that there is nothing"


@pytest.mark.parametrize(
    "verb", [verb for verb, row in EXIT_CODES.items() if row is not RUNS and " --" not in verb]
)
def test_a_word_that_is_no_option_is_2(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*verb.split(), "--no-such-option"])
    assert ended.value.code == 2


def test_a_folder_that_is_no_machine_has_no_cordons_and_gets_no_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong --root said that nothing is cordoned, and got a state folder."""
    for words, code in ((["cordon"], 2), (["cordon", "nic0", "--reason", "x"], 1), (["uncordon", "nic0"], 1)):
        assert main([*words, "--root", str(tmp_path)]) == code
        out, err = capsys.readouterr()
        assert f"{tmp_path} has no /sys" in err
        assert not out
    assert not list(tmp_path.iterdir())


def test_forgetting_every_rail_where_none_is_stored_says_so(
    places: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["remembered", "forget", "--all-rails", "--root", places["MACHINE"]]) == 2
    assert capsys.readouterr().err.startswith("nodeagent: no rail is stored in ")


async def test_an_unknown_name_gets_a_similar_one(
    places: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    two_entries = node_without_agent(tmp_path)
    assert main(["explain", "gpu-04", "--from", str(ROOT / SAMPLE)]) == 2
    assert "similar are gpu-004" in capsys.readouterr().err
    assert await asyncio.to_thread(main, ["health", "nic11", "--root", places["MACHINE"]]) == 2
    assert "; similar are nic1" in capsys.readouterr().err
    assert await asyncio.to_thread(main, ["health", "gpu 1", "--root", places["MACHINE"]]) == 2
    assert "; similar are GPU1; there are:" in capsys.readouterr().err
    assert main(["cordon", "nic9", "--reason", "x", *two_entries]) == 2
    assert "there are: nic0" in capsys.readouterr().err
    async with cluster(tmp_path) as (_, verb):
        assert await verb("su0-leaf00", "--until", "1h") == 2
        assert "similar are su0-leaf0" in capsys.readouterr().err


def test_the_manual_and_the_help_have_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line.strip() for line in table().splitlines()]
    page = PAGE.read_text().replace("\\-", "-").partition(".SH EXIT STATUS")[2]
    for line in lines:
        assert line in page
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "exit codes:" in capsys.readouterr().out


@pytest.mark.golden("docs/reference/commands.md")
def test_the_reference_has_the_table() -> None:
    begin = "<!-- exit codes -->\n```\n"
    golden.same_between(ROOT / "docs/reference/commands.md", begin, "```\n", f"{table()}\n")


# --- a reader of stdout that has gone ---------------------------------------------------------------------


def unread(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a verb whose stdout is a pipe without a reader."""
    read, written = os.pipe()
    os.close(read)
    try:
        return subprocess.run(
            [sys.executable, "-m", "nodeagent", *words],
            stdout=written,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env={**os.environ, **env},
            timeout=60,
        )
    finally:
        os.close(written)


GONE = "nodeagent: the reader of the output has gone; this is written all the same:"


async def test_maintain_writes_all_links_though_nobody_reads_what_it_prints(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (server, _):
        words = ("maintain", "su0-leaf0", "--until", "1h", "--kubeconfig", str(tmp_path / "kubeconfig"))
        done = await asyncio.to_thread(unread, *words)
        assert work(server).keys() == {f"node-0{i}" for i in range(4)}
        assert work(server, of_report=True).keys() == work(server).keys()
        assert done.returncode == 1
        first, *lines = done.stderr.splitlines()
        assert first == GONE
        assert [line.partition(" ")[0] for line in lines] == [f"node-0{i}/nic0" for i in range(4)]


async def test_maintain_says_what_is_written_when_the_rest_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with cluster(tmp_path) as (server, verb):
        server.fail("403", verb="patch", resource="nodes", name="node-02", times=None)
        assert await verb("su0-leaf0", "--until", "1h") == 1
        out, err = capsys.readouterr()
        assert [line.partition(" ")[0] for line in out.splitlines()] == ["node-00/nic0", "node-01/nic0"]
        assert "node-02" in err
        assert work(server).keys() == {"node-00", "node-01"}


def test_the_other_verbs_write_all_though_nobody_reads_what_they_print(
    tmp_path: Path,
) -> None:
    two_entries = node_without_agent(tmp_path)

    def listed() -> str:
        words = [sys.executable, "-m", "nodeagent", "cordon", *two_entries]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout

    done = unread("cordon", "nic0", "sto0", "--reason", "x", *two_entries)
    assert (done.returncode, done.stderr.splitlines()[0]) == (1, GONE)
    assert done.stderr.count("is cordoned") == 2
    assert "0000:18:00.0" in listed()
    assert "0000:4f:00.0" in listed()
    done = unread("uncordon", "nic0", "sto0", *two_entries)
    assert (done.returncode, done.stderr.count("is offered again")) == (1, 2)
    assert "Nothing is cordoned" in listed()
    done = unread("remembered", "forget", "--all-rails", *two_entries)
    assert (done.returncode, done.stderr.count("is forgotten")) == (1, 2)
    assert main(["remembered", "forget", "nic0", *two_entries]) == 2
    root = tmp_path / "machine"
    Machine.load("two-gpu-two-nic").write(root)
    done = unread("capture", str(tmp_path / "copy"), "--root", str(root))
    assert done.returncode == 1
    assert GONE in done.stderr.splitlines()
    assert (tmp_path / "copy/.nodeagent/machine.yaml").exists()
    config = tmp_path / "vfs.yaml"
    config.write_text(VFS.replace("count: 6", "count: 4, mtu: 4200"))
    words = ("vfs", "apply", "--force", "--root", str(root), "--config", str(config), "--log-level", "error")
    done = unread(*words)
    assert done.returncode == 1
    assert GONE in done.stderr.splitlines()
    assert done.stderr.count("→ 4200") == 2
    mtus = [path.read_text().strip() for path in root.glob("sys/bus/pci/devices/*/net/*/mtu")]
    assert mtus.count("4200") == 2


def test_each_verb_that_writes_is_run_without_a_reader() -> None:
    """Those above: a new one needs its own."""
    tried = {"maintain", "cordon", "uncordon", "capture", "vfs apply", "remembered"}
    assert {verb for verb, row in EXIT_CODES.items() if row is WRITES} == tried


def test_a_verb_that_shows_is_no_failure_without_a_reader_and_a_fault_stays_one(
    places: dict[str, str],
) -> None:
    done = unread("scan", "--root", places["MACHINE"])
    assert done.returncode == 0
    assert "Broken" not in done.stderr
    done = unread("trouble", "--from", str(ROOT / SAMPLE))
    assert done.returncode == 2, "what was found is not all said"
    assert "Broken" not in done.stderr


# --- the init container -----------------------------------------------------------------------------------


def command_of_manifest() -> str:
    for one in yaml.safe_load_all((DAEMONSET / "base/node/daemonset.yaml").read_text()):
        for container in one["spec"]["template"]["spec"].get("initContainers", ()):
            if container["name"] == "vfs":
                shell, dash_c, command = container["command"]
                assert (shell, dash_c) == ("sh", "-c")
                return command
    raise AssertionError("no init container vfs")


@pytest.mark.parametrize(
    ("root", "config", "starts"),
    [
        ("MACHINE", "CONFIG", True),
        ("EMPTY", "VFS", True),
        ("MACHINE", "BAD", False),
        ("MACHINE", "NOWHERE", False),
    ],
)
def test_the_init_container_stops_a_node_for_a_faulty_configuration_alone(
    root: str, config: str, starts: bool, places: dict[str, str], tmp_path: Path
) -> None:
    """The shipped command, with the paths of this machine; the chart has the same."""
    command = command_of_manifest()
    assert command in (DAEMONSET / "chart/templates/agent.yaml").read_text()
    program = tmp_path / "nodeagent"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m nodeagent "$@"\n')
    program.chmod(0o755)
    here = command.replace("/host", places[root]).replace("/etc/nodeagent/nodeagent.yaml", places[config])
    done = subprocess.run(
        ["sh", "-c", here],
        capture_output=True,
        check=False,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        timeout=60,
    )
    assert (done.returncode == 0) is starts, done.stderr
