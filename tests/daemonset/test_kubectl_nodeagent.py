"""daemonset/kubectl-nodeagent: what it refuses before it asks a cluster, and what it passes on."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.manifests import DAEMONSET


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """With a kubectl that knows one pod on each node and prints its arguments, one on a line."""
    kubectl = folder / "kubectl"
    kubectl.write_text('#!/bin/sh\nprintf "<%s>\\n" "$@" >&2\nprintf "pod/nodeagent-x\\n"\n')
    kubectl.chmod(0o755)
    return subprocess.run(
        [DAEMONSET / "kubectl-nodeagent", *arguments],
        env={"PATH": f"{folder}:/usr/bin:/bin"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("health",),
        ("health", ""),
        ("", "gpu-0"),
        ("health", "gpu 0"),
        ("health", "gpu-0,status.phase=Failed"),
        ("health", "gpu-0\ngpu-1"),
        ("health", ".*", "--all"),
        ("-n", "", "health", "gpu-0"),
        ("--namespace=", "health", "gpu-0"),
        ("-n", "a b", "health", "gpu-0"),
        ("--context", "", "health", "gpu-0"),
        ("--context=", "health", "gpu-0"),
        ("--context",),
        ("--kubeconfig", "x", "health", "gpu-0"),
    ],
)
def test_a_wrong_word_asks_no_cluster(words: tuple[str, ...], tmp_path: Path) -> None:
    done = run(tmp_path, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert "kubectl nodeagent [-n NAMESPACE]" in done.stderr
    assert "<" not in done.stderr


def test_the_words_of_the_verb_arrive_as_they_are(tmp_path: Path) -> None:
    done = run(
        tmp_path, "-n", "gpu", "--context", "my cluster", "cordon", "gpu-0", "nic0", "--reason", "a  b *", ""
    )
    assert done.returncode == 0
    assert done.stderr.count("<my cluster>") == 3
    assert done.stderr.endswith("<nodeagent>\n<cordon>\n<nic0>\n<--reason>\n<a  b *>\n<>\n")
