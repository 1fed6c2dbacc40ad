"""daemonset/kubectl-nodeagent: what it refuses before it asks a cluster, and what it passes on."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.manifests import DAEMONSET

ONE_POD = 'printf "<%s>\\n" "$@" >&2; printf "pod/nodeagent-x\\n"'


def run(folder: Path, *arguments: str, kubectl_does: str = ONE_POD) -> subprocess.CompletedProcess[str]:
    """With a kubectl that knows one pod on each node and prints its arguments, one on a line."""
    kubectl = folder / "kubectl"
    kubectl.write_text(f"#!/bin/sh\n{kubectl_does}\n")
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


@pytest.mark.parametrize("kubectl_does", ["exit 0", "echo refused >&2; exit 1"], ids=["no pod", "no server"])
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("health", "gpu-0"), 2),
        (("rails", "gpu-0"), 2),
        (("cordon", "gpu-0"), 2),
        (("remembered", "gpu-0"), 2),
        (("vfs", "gpu-0", "show"), 2),
        (("cordon", "gpu-0", "nic0", "--reason", "cable"), 1),
        (("uncordon", "gpu-0", "nic0"), 1),
        (("remembered", "gpu-0", "forget", "nic0"), 1),
        (("vfs", "gpu-0", "apply"), 1),
    ],
)
def test_without_an_agent_it_ends_as_the_verb_would(
    words: tuple[str, ...], code: int, kubectl_does: str, tmp_path: Path
) -> None:
    done = run(tmp_path, *words, kubectl_does=kubectl_does)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr, "it says why"
