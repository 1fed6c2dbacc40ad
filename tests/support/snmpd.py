"""A real snmpd in a network namespace, with the LLDP-MIB of a real lldpd as its AgentX subagent."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path

from tests.support.namespaces import Lldpd, Netns

COMMUNITY = "c0mmunity-of-tests"
PASSWORD = "passw0rd-of-tests"
USERS = {
    ("sha1", "aes128"): "SHA {p} AES {p}",
    ("sha224", "aes128"): "SHA-224 {p} AES {p}",
    ("sha256", "aes128"): "SHA-256 {p} AES {p}",
    ("sha384", "aes128"): "SHA-384 {p} AES {p}",
    ("sha512", "aes128"): "SHA-512 {p} AES {p}",
    ("sha512", "aes256"): "SHA-512 {p} AES-256 {p}",
    ("md5", "des"): "MD5 {p} DES {p}",
    ("sha256", ""): "SHA-256 {p}",
}
"""The settings of SNMP v3 and their form in snmpd.conf; the user is named after them."""


def user(auth: str, privacy: str) -> str:
    return f"{auth}-{privacy or 'none'}"


class Switch:
    """snmpd on port 161 of every address of the namespace, and lldpd with the bridge capability."""

    def __init__(self, ns: Netns, name: str, *settings: str) -> None:
        self._ns = ns
        self._folder = tempfile.TemporaryDirectory(prefix="snmpd-")
        self.folder = Path(self._folder.name)
        self.folder.chmod(0o755)
        self.process: subprocess.Popen[bytes] | None = None
        self._users = [
            f"createUser {user(*how)} {words.format(p=PASSWORD)}\nrouser {user(*how)} {'priv' if how[1] else 'auth'}"
            for how, words in USERS.items()
        ]
        self.start()
        self._wait_for_socket()
        self.lldpd = Lldpd(
            ns,
            name,
            settings=(
                "configure lldp tx-interval 1",
                "configure system capabilities enabled bridge",
                *settings,
            ),
            options=("-x", "-X", str(self.folder / "agentx")),
        )

    def _wait_for_socket(self) -> None:
        """lldpd that finds no socket at its start looks again after 15 s."""
        until = time.monotonic() + 30
        while not (self.folder / "agentx").exists() and time.monotonic() < until:
            time.sleep(0.02)

    def start(self) -> None:
        configuration = self.folder / "snmpd.conf"
        configuration.write_text(
            "\n".join(
                (
                    "agentaddress udp:161",
                    "master agentx",
                    f"agentXSocket {self.folder}/agentx",
                    "agentXPerms 0777 0777",
                    f"rocommunity {COMMUNITY}",
                    *self._users,
                    f"[snmp] persistentDir {self.folder}",
                )
            )
            + "\n"
        )
        self.process = subprocess.Popen(
            self._ns.command("snmpd", "-f", "-Lf", str(self.folder / "log"), "-C", "-c", str(configuration)),
            env={**os.environ, "SNMP_PERSISTENT_DIR": str(self.folder), "MIBS": ""},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def stop_agent(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(timeout=20)
            self.process = None

    def __enter__(self) -> Switch:
        return self

    def __exit__(self, *_: object) -> None:
        self.lldpd.stop()
        self.stop_agent()
        self._folder.cleanup()
