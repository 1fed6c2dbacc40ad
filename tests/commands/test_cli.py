"""The command line: what is printed where, and the exit codes."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
import termios
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.docs.manual_page import manual_page
from nodeagent import cli
from nodeagent.cli import _parser, main
from nodeagent.commands import VERB_GROUPS, VERBS
from nodeagent.commands.completion import PAGE, parsers
from nodeagent.commands.controller import _lease
from nodeagent.console.options import Add, common_options, config_option, seconds, with_watch_apart
from nodeagent.console.terminal import beginnings
from nodeagent_lab.sim.machine import Machine
from tests.support import golden
from tests.support.default_signals import DEFAULT_SIGNALS
from tests.support.waiting import Lines

GOLDEN = Path(__file__).parents[1] / "golden"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "nodeagent", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.fixture(scope="module")
def dgx(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("machine") / "dgx"
    Machine.load("dgx-h100").write(root)
    return root


@pytest.mark.parametrize(
    "verb",
    [
        "",
        "run",
        "scan",
        "config",
        "config check",
        "doctor",
        "vfs",
        "vfs apply",
        "vfs show",
        "capture",
        "demo",
    ],
)
def test_every_verb_prints_its_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*verb.split(), "--help"])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert "usage: nodeagent" in printed
    if verb not in ("", "vfs", "config"):
        assert "--root DIR" in printed


def test_help_breaks_no_word_at_80_columns_and_no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for parser in parsers(_parser()):
        about, printed = parser.description or "", parser.format_help()
        commands = [line for line in about.splitlines() if re.match(r"  \S(?!.*  )", line)]
        longer = {line for line in printed.splitlines() if len(line) > 80}
        assert longer <= {
            "  nodeagent completion bash > ~/.local/share/bash-completion/completions/nodeagent"
        }
        assert {*commands} <= {*printed.splitlines()}, "a command is copied whole"
        assert {*about.split()} <= {*printed.split()}


def test_a_stdout_without_unicode_gets_escapes_and_the_verb_succeeds() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nodeagent", "health", "rules"], capture_output=True, timeout=60, check=False,
        env=os.environ | {"PYTHONIOENCODING": "latin-1:strict"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"\\u2265 2500 points" in done.stdout


@pytest.mark.golden("tests/golden/scan-dgx-h100.txt")
def test_a_scan_of_a_dgx_h100_is_as_reviewed(dgx: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scan", "--root", str(dgx)]) == 0
    golden.same(GOLDEN / "scan-dgx-h100.txt", capsys.readouterr().out)


def test_a_scan_on_a_narrow_terminal_shortens_uuids_to_unique_prefixes(dgx: Path) -> None:

    from nodeagent.agent_config import Config
    from nodeagent.commands.scan import listing
    from nodeagent.console.terminal import Screen

    seen = asyncio.run(listing.scan_machine(Config(), dgx))
    wide, narrow = listing.machine_table(seen, Screen(200)), listing.machine_table(seen, Screen(100))
    assert listing.machine_table(seen) == wide
    gpus = [line for line in narrow.splitlines() if "GPU-" in line]
    assert len({line.split()[1] for line in gpus}) == 8
    assert all(line.split()[1] in wide and len(line) <= 100 for line in gpus)
    alike = ["GPU-3a3372fa-989f", "GPU-3a3372fa-1111", "GPU-61ba988e-3ee2"]
    assert beginnings(alike) == ["GPU-3a3372fa-9", "GPU-3a3372fa-1", "GPU-61ba988e-3"]
    assert beginnings([]) == []
    assert beginnings(["a", "a"]) == ["a", "a"]


def test_a_scan_with_json_is_one_object(dgx: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scan", "--root", str(dgx), "--json"]) == 0
    seen = json.loads(capsys.readouterr().out)
    assert {
        entry["resource"]: sum(len(d["ids"]) for d in entry["devices"]) for entry in seen["resources"]
    } == {
        **{f"nvidia-dgx-h100/nic{rail}": 8 for rail in range(8)},
        "nvidia-dgx-h100/gpu-mem": 632,
    }
    near = {(entry["gpu"], entry["pf"]) for entry in seen["affinity"] if entry["affinity"] == "PIX"}
    assert len(near) == 8
    assert seen["gpus"][0]["health"] == {"state": "healthy", "reasons": [], "allocatable": True}


def test_a_scan_names_each_fault_with_its_reason(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    root = tmp_path / "r"
    machine = Machine.load("two-gpu-two-nic")
    machine.write(root)
    machine.set_link(0, up=False)
    machine.lose_gpu(1)
    machine.bind("0000:9a:00.2", None)
    config = tmp_path / "nodeagent.yaml"
    config.write_text(
        'apiVersion: nodeagent.io/v1alpha1\nkind: NodeAgentConfig\nhealth: {expected: [{links: ["*"]}]}\n'
    )
    assert main(["scan", "--root", str(root), "--config", str(config)]) == 0
    printed = capsys.readouterr().out
    assert "nic0 (enp24s0np0) 0000:18:00.0: down: carrier_down" in printed
    assert "gpu_lost" in printed
    assert "0000:9a:00.2: down: driver_unbound" in printed


def test_a_count_that_cannot_be_read_is_a_dash(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    Machine.load("two-gpu-two-nic").write(tmp_path)
    (tmp_path / "sys/bus/pci/devices/0000:18:00.0/sriov_numvfs").unlink()
    for verb in (["scan"], ["vfs", "show"]):
        assert main([*verb, "--root", str(tmp_path)]) == 0
        printed = capsys.readouterr().out
        assert " -/16 " in printed
        assert "None" not in printed


NUMBERS = {
    ("scan", "--wait"): [],
    ("neighbors", "--wait"): [],
    ("controller", "--lease"): [],
    ("demo", "--nodes"): ["--write", "/nowhere"],
    ("demo", "--unit-nodes"): ["--write", "/nowhere"],
    ("capture", "--samples"): ["/nowhere"],
    ("claim", "--nics"): ["--gpu-mem", "8"],
    ("claim", "--near-rail"): ["--gpu-mem", "8", "--nics", "2"],
    ("doctor", "--wait"): [],
    ("doctor", "--timeout"): [],
    ("rails check", "--seconds"): ["gpu-1", "gpu-2"],
}
"""Each option that takes a number, with the words that its verb needs besides."""


def test_the_table_has_every_option_that_takes_a_number() -> None:
    number = (int, float, seconds, _lease)
    assert NUMBERS.keys() == {
        (parser.prog.partition(" ")[2], action.option_strings[0])
        for parser in parsers(_parser())
        for action in parser._actions
        if action.type in number
    }


@pytest.mark.parametrize("number", ["-1", "nan", "inf", "1e400", "1e300", "soon", ""])
@pytest.mark.parametrize(("verb", "option"), NUMBERS)
def test_a_number_that_an_option_cannot_have_is_refused_with_its_name(
    verb: str, option: str, number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main([*verb.split(), *NUMBERS[verb, option], f"{option}={number}"])
    except SystemExit as ended:
        code = ended.code
    assert code in (1, 2)
    (*_, last) = capsys.readouterr().err.splitlines()
    assert option in last
    assert last.startswith("nodeagent")


WATCHING = {
    "cabling": (),
    "gpus": (),
    "health": (),
    "job": ("llama",),
    "neighbors": (),
    "scan": (),
    "trouble": (),
}
"""Each verb that watches, with the words that it needs."""


def test_the_table_has_every_verb_that_watches() -> None:
    assert WATCHING.keys() == {
        parser.prog.partition(" ")[2]
        for parser in parsers(_parser())
        for action in parser._actions
        if "--watch" in action.option_strings
    }


@pytest.mark.parametrize("verb", WATCHING)
def test_every_verb_takes_the_same_times_to_watch(verb: str) -> None:
    def watched(*words: str) -> float | None:
        found: float | None = _parser(verb).parse_args(with_watch_apart([verb, *words])).watch
        return found

    needed = WATCHING[verb]
    assert watched(*needed) is None
    own = 5.0 if verb in ("cabling", "job", "trouble") else 1.0
    assert watched(*needed, "--watch") == watched("--watch", *needed) == own, "a name is no time"
    assert watched("--watch", "--log-level", "error", *needed) == own
    for text, time_s in {
        "5s": 5.0,
        "5": 5.0,
        "1.5min": 90.0,
        "1 min": 60.0,
        "2h": 7200.0,
        "0.5s": 0.5,
    }.items():
        assert watched(*needed, "--watch", text) == watched(*needed, f"--watch={text}") == time_s


@pytest.mark.parametrize("time", ["-1", "nan", "inf", "1e400", "0", "0s", "soon", "", "8000000000", "5 days"])
@pytest.mark.parametrize("verb", WATCHING)
def test_a_time_that_is_none_is_refused_with_what_to_write(
    verb: str, time: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([verb, *WATCHING[verb], f"--watch={time}"])
    assert "--watch: " in capsys.readouterr().err.replace("\n", " ")


def test_the_verbs_of_the_help_are_grouped_by_who_needs_them_and_each_is_there_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([]) == 0
    text = capsys.readouterr().out
    with pytest.raises(SystemExit, match="0"):
        main(["help"])
    assert capsys.readouterr().out == text
    heads = [line[:-1] for line in text.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert heads == [*VERB_GROUPS, "other verbs", "options", "examples", "exit codes"]
    verbs, _, _ = text.partition("\noptions:\n")
    listed = [word for word in re.findall(r"^  (\w+)(?: |$)", verbs, re.M) if word in VERBS]
    assert listed == list(VERBS), "each once, in the order of the table"
    for title, of_group in VERB_GROUPS.items():
        part = verbs.partition(f"\n{title}:\n")[2].partition("\n\n")[0]
        assert tuple(re.findall(r"^  (\w+)(?: |$)", part, re.M)) == of_group


def test_help_of_a_verb_has_its_own_options_first(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["help", "trouble"])
    text = capsys.readouterr().out
    assert (
        text.index("--watch")
        < text.index("options of every verb:")
        < text.index("--root", text.index("options of"))
    )

    usage = text.partition("\n\n")[0]
    assert usage.index("--watch") < usage.index("--root")


def test_an_option_has_one_form_in_all_verbs() -> None:
    """Its short form, the number of its values and their name."""
    forms: dict[str, dict[tuple[object, ...], list[str]]] = {}
    for parser in whole_parsers():
        for action in parser._actions:
            for long in action.option_strings[-1:]:
                form = (*action.option_strings, action.nargs, action.metavar)
                forms.setdefault(long, {}).setdefault(form, []).append(parser.prog)
    several = {option: [*of_verbs.values()] for option, of_verbs in forms.items() if len(of_verbs) > 1}
    assert several.keys() == {"--from", "--nodes"}, several
    assert several["--from"][1] == ["nodeagent history"], "one document, and no folder of objects"
    assert several["--nodes"][1] == ["nodeagent demo"], "a number: there are no names yet"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("status", "trouble"),
        ("events", "history"),
        ("why", "explain"),
        ("map", "topology"),
        ("helth", "health"),
    ],
)
def test_a_word_that_is_no_verb_has_the_one_that_is_meant(
    typed: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([typed])
    assert f"did you mean {meant}?" in capsys.readouterr().err


SAMPLE = ["--from", "docs/samples/nodelinks.yaml"]


@pytest.mark.parametrize("verb", [["trouble", *SAMPLE], ["explain", "gpu-001", *SAMPLE]])
def test_a_document_is_the_same_in_json_and_yaml(verb: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    def printed(*form: str) -> str:
        code = main([*verb, *form])
        assert code in (0, 1)
        return re.sub(r"(?m)^(.*\btime\b.*)$", "", capsys.readouterr().out)

    def without_time(document: dict[str, Any]) -> dict[str, Any]:
        return {key: one for key, one in document.items() if key != "time"}

    assert main([*verb, "-o", "yaml"]) == main([*verb, "--json"])
    both = capsys.readouterr().out
    read = yaml.safe_load(both.partition("\n{")[0])
    assert without_time(read) == without_time(json.loads("{" + both.partition("\n{")[2]))
    assert printed("-o", "json") == printed("--json")
    assert printed("-o", "table") == printed()


def test_yaml_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scan", "--watch", "-o", "yaml"]) == 2
    assert "leave --watch out" in capsys.readouterr().err


def test_wide_shortens_nothing_whatever_the_width(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    Machine.load("two-gpu-two-nic").write(tmp_path)
    words = [sys.executable, "-m", "nodeagent", "health", "--root", str(tmp_path)]

    def in_terminal(*more: str) -> str:
        main_end, other_end = os.openpty()
        try:
            termios.tcsetwinsize(other_end, (24, 60))
            with subprocess.Popen([*words, *more], stdout=other_end, stderr=subprocess.DEVNULL) as program:
                os.close(other_end)
                text = b"".join(iter(partial(_read, main_end), b""))
                program.wait()
            return text.decode()
        finally:
            os.close(main_end)

    monkeypatch.delenv("COLUMNS", raising=False)
    whole = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
    assert not whole.search(in_terminal())
    assert whole.search(in_terminal("-o", "wide"))


def _read(file: int) -> bytes:
    try:
        return os.read(file, 65536)
    except OSError:  # the program has ended
        return b""


def test_a_pipe_is_decoded_while_it_is_open(tmp_path: Path) -> None:
    from tests.lldp.test_pcap import LLDP, pcap

    doing = [sys.executable, "-m", "nodeagent", "decode", "-"]
    with subprocess.Popen(doing, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(pcap(LLDP))
        process.stdin.flush()
        assert "ifname swp1" in Lines(process.stdout.fileno()).next()
        process.stdin.close()
        assert process.stdout.read() == b""
    assert process.returncode == 0


def test_an_unreadable_capture_is_an_error_with_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken.pcap"
    for content, why in ((None, "No such file or directory"), (b"", "empty"), (b"hello", "neither pcap nor")):
        if content is not None:
            broken.write_bytes(content)
        assert main(["decode", str(broken)]) == 2
        output = capsys.readouterr()
        assert output.out == ""
        assert output.err.startswith(f"nodeagent: {broken}: ")
        assert why in output.err


def test_a_root_without_a_machine_is_an_error_of_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["scan", "--root", str(tmp_path)]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert (
        output.err
        == f"nodeagent: {tmp_path} has no /sys: --root takes the root of a machine, a capture or a simulation\n"
    )


@pytest.mark.parametrize(("root", "config"), [("", ""), ("/host", "/etc/nodeagent.yaml")])
def test_an_empty_variable_is_none(root: str, config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODEAGENT_ROOT", root)
    monkeypatch.setenv("NODEAGENT_CONFIG", config)
    parser = argparse.ArgumentParser()
    common_options(parser)
    config_option(parser)
    read = parser.parse_args([])
    assert (read.root, read.config) == (Path(root or "/"), Path(config) if config else None)


def test_bad_usage_is_2() -> None:
    for arguments in (["scann"], ["run", "--listen", "9808"], ["vfs"], ["config"]):
        done = run(*arguments)
        assert done.returncode == 2, arguments
        assert done.stdout == ""
        assert "usage:" in done.stderr


def test_without_a_verb_the_help_is_printed() -> None:
    done = run()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == run("--help").stdout


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["scam"], '"scam" is unknown: did you mean scan?'),
        (["config", "chek"], '"chek" is unknown: did you mean check?'),
        (["scan", "--log-level", "debgu"], '"debgu" is unknown: did you mean debug?'),
        (["completion", "tcsh"], '"tcsh" is unknown: there is bash, zsh, fish'),
    ],
)
def test_an_unknown_word_is_answered_with_the_similar_one(
    words: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert hint in capsys.readouterr().err


def whole_parsers() -> list[argparse.ArgumentParser]:
    return list(parsers(_parser()))[1:]


def test_every_verb_and_part_has_the_common_options() -> None:
    assert len(whole_parsers()) > 20
    for parser in whole_parsers():
        missing = [one for one in ("--root DIR", "--log-level") if one not in parser.format_help()]
        assert not missing, f"give them to `{parser.prog}` by `common_options`: {missing}"


@pytest.mark.parametrize("level", [None, "debug", "error"])
def test_the_level_of_the_log_is_the_one_of_the_option(
    level: str | None, dgx: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [] if level is None else ["--log-level", level]
    for verb in (["scan"], ["vfs", "show"], ["config", "check"]):
        file = [str(GOLDEN.parent / "nowhere.yaml")] if "check" in verb else []
        main([*verb, *words, "--root", str(dgx), *file])
        if level or not file:
            assert logging.getLogger().level == getattr(logging, (level or "warning").upper())


@pytest.mark.golden("nodeagent/commands/nodeagent.1")
def test_the_manual_page_is_that_of_the_declared_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    golden.same(PAGE, manual_page())


def test_the_manual_page_has_every_verb_and_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["man"]) == 0
    page = capsys.readouterr().out
    for parser in whole_parsers():
        section = page.partition(f"\n.SS {parser.prog}\n".replace("-", r"\-"))[2].partition("\n.S")[0]
        for option in re.findall(r"(?<![\w-])--[a-z-]+", parser.format_usage()):
            assert option.replace("-", r"\-") in section, (parser.prog, option)
    requests = {line.split()[0] for line in page.splitlines() if line.startswith((".", "'"))}
    assert requests <= {".TH", ".SH", ".SS", ".PP", ".TP", ".B", ".I", ".nf", ".fi"}


def test_an_option_that_a_verb_has_already_is_refused_with_the_name_of_the_verb(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def declare(add: Add) -> None:
        add("first", lambda _: 0, "do nothing")
        parts = add("second", lambda _: 0, "do nothing").add_subparsers()
        common_options(parts.add_parser("third"), of_part=True)
        parts.choices["third"].add_mutually_exclusive_group().add_argument("--root")

    monkeypatch.setattr(cli, "declarations", lambda _only: [declare])
    with pytest.raises(ValueError, match=r"the verb second .*--root.*common_options"):
        cli.main(["second"])


@pytest.mark.needs("man")
def test_man_reads_the_manual_page_without_a_warning(tmp_path: Path) -> None:
    (tmp_path / "nodeagent.1").write_text(run("man").stdout)
    done = subprocess.run(
        ["man", "--warnings", "-l", str(tmp_path / "nodeagent.1")],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "MANWIDTH": "100", "LC_ALL": "C.UTF-8"},
    )
    assert done.stderr == ""
    assert "receive LLDP for this long" in " ".join(done.stdout.split())


COMPLETED = [("sca", "scan"), ("config ch", "check"), ("scan --jso", "--json"), ("plan --fro", "--from")]


@pytest.mark.needs("shtab")
@pytest.mark.parametrize(("typed", "completed"), COMPLETED)
def test_bash_completes(typed: str, completed: str, tmp_path: Path) -> None:
    (tmp_path / "c").write_text(run("completion", "bash").stdout)
    script = (
        'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))\n'
        "function=$(complete -p nodeagent | sed 's/.*-F \\([^ ]*\\) .*/\\1/')\n"
        "$function 2>/dev/null; echo ${COMPREPLY[@]}"
    )
    words = ["bash", "-c", script, "bash", str(tmp_path / "c"), "nodeagent", *typed.split()]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert completed in done.stdout.split()


@pytest.mark.needs("shtab", "fish")
@pytest.mark.parametrize(("typed", "completed"), COMPLETED)
def test_fish_completes(typed: str, completed: str, tmp_path: Path) -> None:
    (tmp_path / "c").write_text(run("completion", "fish").stdout)
    script = f'source {tmp_path / "c"}; complete --do-complete "nodeagent {typed}"'
    done = subprocess.run(
        ["fish", "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"HOME": str(tmp_path)},
    )
    assert completed in done.stdout.split()


@pytest.mark.needs("shtab", "zsh")
def test_zsh_reads_the_completion(tmp_path: Path) -> None:
    (tmp_path / "_nodeagent").write_text(run("completion", "zsh").stdout)
    script = f"fpath=({tmp_path} $fpath); autoload -Uz compinit; compinit -D; autoload +X _nodeagent"
    script += "; echo $_comps[nodeagent]"
    done = subprocess.run(["zsh", "-fc", script], capture_output=True, text=True, check=True)
    assert done.stdout == "_nodeagent\n"


@pytest.mark.parametrize("where", [("vfs", "--root", "{}", "show"), ("vfs", "show", "--root", "{}")])
def test_the_root_option_works_before_and_after_the_verb(
    where: tuple[str, ...], dgx: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([part.format(dgx) for part in where]) == 0
    assert "0000:18:00.0" in capsys.readouterr().out


def test_a_configuration_is_checked_on_a_machine_only_if_one_is_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "good.yaml"
    path.write_text("apiVersion: nodeagent.io/v1alpha1\nkind: NodeAgentConfig\n")
    nowhere = str(tmp_path / "nowhere")
    assert main(["config", "check", str(path)]) == 0
    assert main(["config", "--root", nowhere, "check", str(path)]) == 2
    assert main(["config", "check", "--root", nowhere, str(path)]) == 2
    assert "has no /sys" in capsys.readouterr().err


def test_a_configuration_is_checked_line_by_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(
        "apiVersion: nodeagent.io/v1alpha1\nkind: NodeAgentConfig\nresurces: []\nscanSeconds: fast\n"
        "resources:\n- kind: gpu-mem\n  sliceMib: 4\n"
    )
    assert main(["config", "check", str(path)]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith(f"{path}:3:1: ")
    assert "did you mean resources?" in lines[0]
    assert "scanSeconds" in lines[1]
    assert "did you mean sliceMiB?" in lines[2]


FABRIC = "apiVersion: nodeagent.io/v1alpha1\nkind: FabricConfig\n"
TOPOLOGY = (
    "apiVersion: nodeagent.io/v1alpha1\nkind: FabricTopology\n"
    "switches: [{name: leaf1, uplinks: [spine1]}, {name: spine1}]\n"
)
PLAN = "n1: {eth0: {switch: leaf1, port: Ethernet1}}\nn2: {eth0: {switch: leaf1, port: Ethernet2}}\n"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (FABRIC, "configuration of the controller"),
        (FABRIC + "topology: topology.yaml\n", "configuration of the controller, topology.yaml, 2 switches"),
        (TOPOLOGY, "fabric topology, 2 switches"),
        (PLAN, "cabling plan, 2 nodes, 2 links"),
    ],
)
def test_every_file_that_a_daemon_reads_is_checked(
    content: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "topology.yaml").write_text(TOPOLOGY)
    (tmp_path / "file.yaml").write_text(content)
    assert main(["config", "check", str(tmp_path / "file.yaml")]) == 0
    assert f"file.yaml: good, {words}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (FABRIC + "topolgy: topology.yaml\n", "file.yaml:3:1: topolgy: unknown key; did you mean topology?"),
        (FABRIC + "topology: topology.yaml\n", "topology.yaml: cannot be read"),
        (TOPOLOGY.replace("spine1}]", "spine2}]"), "did you mean spine2?"),
        (PLAN + "n3: {eth0: {switch: leaf1}}\n", "n3: eth0: must be {switch: NAME, port: NAME}"),
        (PLAN + "7: {eth0: {switch: leaf1, port: 3}}\n", "7: the name of a node must be text"),
        ("kind: FabricConfg\napiVersion: nodeagent.io/v1alpha1\n", "file.yaml:1:"),
        ("switch: [leaf1\n", "file.yaml:2:"),
    ],
)
def test_every_file_that_a_daemon_reads_has_its_faults_named(
    content: str, fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file.yaml").write_text(content)
    assert main(["config", "check", str(tmp_path / "file.yaml")]) == 1
    assert fault in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "must_be"),
    [
        ("resourcePrefix: x\nresources: []\n", "NodeAgentConfig"),
        ("outputs: [labels]\ntiers: []\n", "FabricConfig"),
        ("outputs: [labels]\nrails: {}\n", "FabricConfig"),
        ("switches: [{name: leaf1}]\ngroups: []\n", "FabricTopology"),
    ],
)
@pytest.mark.parametrize("kind", ["kind: Config\n", "kind: FabrikConfg\n", "kind: Pod\n", ""])
def test_a_file_with_a_wrong_kind_is_what_its_keys_are(
    kind: str, content: str, must_be: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file.yaml").write_text(f"apiVersion: nodeagent.io/v1alpha1\n{kind}{content}")
    assert main(["config", "check", str(tmp_path / "file.yaml")]) == 1
    faults = [line for line in capsys.readouterr().err.splitlines() if "kind:" in line]
    assert len(faults) == 1
    assert must_be in faults[0]


@pytest.mark.parametrize("kind", ["DaemonSet", "ConfigMap", "List"])
def test_a_file_of_another_kind_has_one_fault_that_names_the_kinds(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file.yaml").write_text(
        f"apiVersion: v1\nkind: {kind}\nmetadata: {{name: x}}\nspec: {{a: b}}\n"
    )
    assert main(["config", "check", str(tmp_path / "file.yaml")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert (
        f'file.yaml:2:1: kind: is "{kind}", must be one of NodeAgentConfig, FabricConfig, FabricTopology'
        in line
    )
    assert ("`data`" in line) == (kind == "ConfigMap")


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("NodeAgntConfig", 'file.yaml:1:7: kind: is "NodeAgntConfig", must be NodeAgentConfig'),
        ("FabricConfg", 'file.yaml:1:7: kind: is "FabricConfg", must be FabricConfig'),
        ("fabrictopology", 'file.yaml:1:7: kind: is "fabrictopology", must be FabricTopology'),
    ],
)
def test_a_misspelled_kind_is_compared_with_the_kind_that_is_meant(
    kind: str, fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file.yaml").write_text(f"kind: {kind}\napiVersion: nodeagent.io/v1alpha1\nswitchs: []\n")
    assert main(["config", "check", str(tmp_path / "file.yaml")]) == 1
    errors = capsys.readouterr().err
    assert fault in errors
    assert "switchs: unknown key" in errors


def test_a_port_that_a_cabling_plan_gives_to_two_links_is_noted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file.yaml").write_text(PLAN.replace("Ethernet2", "ethernet1"))
    assert main(["config", "check", str(tmp_path / "file.yaml")]) == 0
    assert "note: leaf1 ethernet1 is planned for n1 eth0 and for n2 eth0" in capsys.readouterr().out


def test_a_configuration_with_too_many_slices_is_an_error_with_the_size_that_fits(
    tmp_path: Path, dgx: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(
        "apiVersion: nodeagent.io/v1alpha1\nkind: NodeAgentConfig\nresources: [{kind: gpu-mem, sliceMiB: 1}]\n"
    )
    assert main(["config", "check", str(path)]) == 1
    assert f"{path}:3:" in (assumed := capsys.readouterr().err)
    assert "assumed: 8 GPUs of 81559 MiB" in assumed
    assert main(["config", "check", "--root", str(dgx), str(path)]) == 1
    assert "this machine" in capsys.readouterr().err


def test_the_default_configuration_is_good_and_a_missing_file_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", "defaults"]) == 0
    path = tmp_path / "default.yaml"
    path.write_text(capsys.readouterr().out)
    assert main(["config", "check", str(path)]) == 0
    assert "good" in capsys.readouterr().out
    assert main(["config", "schema"]) == 0
    assert json.loads(capsys.readouterr().out)["$schema"]
    assert main(["scan", "--config", str(tmp_path / "missing.yaml")]) == 2
    assert "cannot be read: No such file or directory" in capsys.readouterr().err


def test_a_closed_output_pipe_is_not_an_error(dgx: Path) -> None:
    done = subprocess.run(
        f"{sys.executable} -m nodeagent scan --root {dgx} --json | head -c 10; exit ${{PIPESTATUS[0]}}",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_daemon_exits_with_0_on_sigterm_without_a_kubelet(dgx: Path, tmp_path: Path) -> None:
    with subprocess.Popen(
        [
            *(sys.executable, "-m", "nodeagent", "run", "--root", str(dgx)),
            *("--kubelet-dir", str(tmp_path / "kubelet"), "--listen", "127.0.0.1:0"),
        ],
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "waiting for it" in line:
                break
        process.send_signal(signal.SIGTERM)
        rest = process.stderr.read()
        assert process.wait(20) == 0
    assert "Traceback" not in rest


@pytest.mark.slow
def test_the_demo_shows_everything_and_exits_with_0() -> None:
    done = run("demo", "--machine", "two-gpu-two-nic", "--once")
    assert (done.returncode, done.stderr) == (0, "")
    for text in (
        "Simulated",
        "pod too-big",
        "no exact multiple",
        "XID 79",
        "carrier back",
        "registered again",
    ):
        assert text in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_demo_leaves_no_process_and_no_folder(number: signal.Signals) -> None:
    """A closed terminal sends SIGHUP. The path is short because it has unix sockets."""
    command = [*DEFAULT_SIGNALS, sys.executable, "-u", "-m", "nodeagent", "demo"]
    command += ["--machine", "two-gpu-two-nic"]
    with tempfile.TemporaryDirectory(prefix="na-", dir="/tmp") as folder:
        environment = {**os.environ, "TMPDIR": folder}
        screen, terminal = os.openpty()  # without a terminal the demo ends by itself
        with open(screen) as shown, subprocess.Popen(command, stdout=terminal, env=environment) as process:
            os.close(terminal)
            assert any("press Ctrl-C" in line for line in shown)
            assert running(folder)
            process.send_signal(number)
            with suppress(OSError):  # the end of a terminal is EIO
                shown.read()
            process.wait(timeout=30)
        assert process.returncode == 130
        assert not running(folder)
        assert os.listdir(folder) == []


def running(word: str) -> list[str]:
    """The command lines with this word."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found.append(path.read_text())
    return [line for line in found if word in line]


def test_an_unknown_machine_is_an_error_that_lists_the_known_ones() -> None:
    done = run("demo", "--machine", "dgx-h1000", "--once")
    assert done.returncode == 2
    assert "dgx-h100" in done.stderr


@pytest.mark.parametrize("verb", [("plan", "--from"), ("decode",), ("health", "replay")])
def test_a_file_that_refuses_to_be_read_is_named(capsys, verb):
    assert cli.main([*verb, "/proc/self/mem"]) == 2
    assert capsys.readouterr().err.startswith("nodeagent: /proc/self/mem: Input/output error; expected ")
