"""What `nodeagent run` imports. Each case is a process of its own: a module is imported once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAD = "apiVersion: nodeagent.io/v1alpha1\nkind: NodeAgentConfig\n"
WITHOUT_SYS = """\
import sys
from nodeagent import cli
cli.main(["run", "--config", sys.argv[1], "--root", sys.argv[2]])
from asyncio import sslproto
print(sslproto.ssl is not None, "_ssl" in sys.modules, "_hashlib" in sys.modules)
"""
"""A root without /sys ends the agent after its imports."""


@pytest.mark.parametrize(
    ("web", "loaded"),
    [("", "False False False"), ("web: {certificateFile: /cert.pem}\n", "True True False")],
)
def test_openssl_is_loaded_only_for_a_web_server_with_a_certificate(
    tmp_path: Path, web: str, loaded: str
) -> None:
    config = tmp_path / "nodeagent.yaml"
    config.write_text(HEAD + web)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_SYS, config, tmp_path],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "has no /sys" in done.stderr
    assert done.stdout.strip() == loaded
