"""Every verb that reads a file of the user, with files that it cannot read.

Empty, a folder, a named pipe, binary, UTF-16, larger than any limit, a YAML bomb, JSON of another kind. Also a list of
other objects, a report of another version, one bad document among good ones; by name and through the standard input.
A verb must end with exit code 2 and one message that names the file, the line and what is expected. It must neither
print a traceback nor wait nor take memory for the whole of a huge file.
"""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from nodeagent.cli import main

REPORT = {
    "apiVersion": "nodeagent.io/v1alpha1",
    "kind": "NodeLinks",
    "metadata": {"name": "gpu-1"},
    "nodeName": "gpu-1",
    "links": [],
}
GOOD = json.dumps(REPORT)
VERBS: dict[str, tuple[list[str], str]] = {
    "plan": (["plan", "--from", "FILE"], "expected NodeLinks"),
    "plan-current": (["plan", "--from", "GOOD", "--current", "FILE"], "expected NodeLinks"),
    "plan-fabric": (["plan", "--from", "GOOD", "--fabric", "FILE"], ""),
    "explain": (["explain", "gpu-1", "--from", "FILE"], "expected NodeLinks"),
    "topology": (["topology", "--from", "FILE"], "expected NodeLinks"),
    "decode": (["decode", "FILE"], "expected a pcap or pcapng file"),
    "health-replay": (["health", "replay", "FILE"], "expected a recording"),
    "health-rules": (["health", "rules", "--config", "FILE"], ""),
    "health": (["health", "--root", "EMPTY", "--config", "FILE"], ""),
    "config-check": (["config", "check", "FILE"], ""),
    "scan": (["scan", "--root", "EMPTY", "--config", "FILE"], ""),
    "neighbors": (["neighbors", "--root", "EMPTY", "--config", "FILE"], ""),
    "vfs-show": (["vfs", "show", "--root", "EMPTY", "--config", "FILE"], ""),
    "vfs-apply": (["vfs", "apply", "--root", "EMPTY", "--config", "FILE"], ""),
    "run": (["run", "--root", "EMPTY", "--config", "FILE"], ""),
    "controller": (["controller", "--fabric", "FILE"], ""),
    "plan-kubeconfig": (["plan", "--kubeconfig", "FILE"], ""),
    "demo-machine": (["demo", "--once", "--machine", "./FILE.yaml"], ""),
}
FEEDS: dict[str, bytes | None] = {
    "absent": None,
    "empty": b"",
    "blank": b"\n \n---\n",
    "text": b"\nhello, world\nthis is no object\n",
    "binary": bytes(range(256)) * 64,
    "not-utf8": b"kind: NodeLinks\nnodeName: \xff\xfe\n",
    "utf16": GOOD.encode("utf-16"),
    "bomb": b"a: &a [x, x, x, x, x, x, x, x, x]\n"
    + b"".join(
        f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join([f'*{chr(97 + i)}'] * 9)}]\n".encode() for i in range(12)
    ),
    "deep": b"[" * 100_000,
    "deep-json": b'{"a":' * 100_000,
    "number": b"7\n",
    "json-text": b'"text"',
    "list-of-others": json.dumps(
        {"kind": "List", "items": [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}}]}, indent=1
    ).encode(),
    "other-version": json.dumps({**REPORT, "apiVersion": "nodeagent.io/v9"}, indent=1).encode(),
    "bad-among-good": f"{GOOD}\n---\n{GOOD}\n---\nhello\n".encode(),
    "bad-item-among-good": json.dumps([REPORT, "hello", REPORT], indent=1).encode(),
    "json-lines": f"{GOOD}\n7\n".encode(),
}
SPECIAL = ("folder", "pipe", "huge", "device")


def make(feed: str, path: Path) -> None:
    content = FEEDS.get(feed)
    if feed == "folder":
        path.mkdir()
    elif feed == "pipe":
        os.mkfifo(path)
    elif feed == "device":
        path.symlink_to("/dev/zero")
    elif feed == "huge":
        with path.open("wb") as file:
            file.truncate(1 << 40)
    elif content is not None:
        path.write_bytes(content)


class Ended(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


Run = Callable[..., Ended]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a verb in this process, as the console script does."""

    def run(words: list[str], stdin: bytes = b"") -> Ended:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        return Ended(main(words), *capsys.readouterr())

    return run


def check(done: Ended, name: str, expectation: str, case: tuple[str, ...]) -> None:
    error = done.stderr
    assert "Traceback" not in error, case
    content = case[0] == "config-check" and "cannot be read" not in error  # it was read: it found faults
    assert done.returncode == (1 if content else 2), (case, error)
    assert name in error, (case, error)
    assert expectation in error, (case, error)
    assert len(error) < 3000, case


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
def test_a_file_that_a_verb_cannot_read_is_named_with_what_is_expected(
    verb: str, tmp_path: Path, run: Run
) -> None:
    words, expectation = VERBS[verb]
    (tmp_path / "good.json").write_text(GOOD)
    (tmp_path / "root").mkdir()
    for feed in (*FEEDS, *SPECIAL):
        file = tmp_path / (f"{feed}.yaml" if verb == "demo-machine" else feed)
        make(feed, file)
        names = {
            "FILE": file,
            "./FILE.yaml": file,
            "GOOD": tmp_path / "good.json",
            "EMPTY": tmp_path / "root",
        }
        done = run([str(names.get(word, word)) for word in words])
        check(done, str(file), expectation, (verb, feed))


@pytest.mark.parametrize(
    ("feed", "line"),
    [
        ("text", 2), ("not-utf8", 2), ("utf16", 1), ("bomb", 2), ("number", 1), ("list-of-others", 4),
        ("other-version", 1), ("bad-among-good", 5), ("bad-item-among-good", 11), ("json-lines", 2),
        ("empty", 1), ("json-text", 1), ("binary", 2),
    ],
)  # fmt: skip
def test_the_first_offending_line_is_named(feed: str, line: int, tmp_path: Path, run: Run) -> None:
    file = tmp_path / "reports"
    make(feed, file)
    for done, name in (
        (run(["plan", "--from", str(file)]), str(file)),
        (run(["plan", "--from", "-"], file.read_bytes()), "standard input"),
    ):
        check(done, f"nodeagent: {name}:{line}: ", "expected NodeLinks", feed)
        assert done.stdout == ""
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "words", [["decode", "-"], ["health", "replay", "-"], ["plan", "--from", "-"]], ids=str
)
def test_the_standard_input_is_checked_as_a_file_is(words: list[str], run: Run) -> None:
    for feed, content in FEEDS.items():
        if content is not None:
            check(run(words, content), "standard input", "expected", (words, feed))


def test_a_line_of_a_recording_is_named(tmp_path: Path, run: Run) -> None:
    file = tmp_path / "samples"
    file.write_text('{"form": "nodeagent-samples", "version": 1}\n\n{"at": "soon"}\n{}\n')
    check(
        run(["health", "replay", str(file)]),
        f"{file}:3: this is not a sample",
        "expected a recording",
        "line",
    )


def test_what_kubectl_prints_is_read(tmp_path: Path, run: Run) -> None:
    """An empty list, a list with other objects beside reports, and empty documents between reports."""
    for content in (
        '{"apiVersion": "v1", "kind": "List", "items": []}',
        f'{{"kind": "List", "items": [{GOOD}, {{"kind": "Pod"}}]}}',
        f"---\n{GOOD}\n---\n---\n",
    ):
        file = tmp_path / "reports"
        file.write_text(content)
        done = run(["plan", "--from", str(file)])
        assert done.returncode == 0, done.stderr
        assert not re.search("expected", done.stderr)
