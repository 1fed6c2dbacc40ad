"""A real lldpd as the switch, in a network namespace of the tests' own."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from nodeagent.sim.netns import Netns, veth

__all__ = ["Lldpd", "Netns", "veth"]


class Lldpd:
    """A real lldpd as the switch, in a namespace, with a control socket of its own."""

    def __init__(
        self,
        ns: Netns,
        name: str,
        *,
        netdevs: str = "*",
        settings: Sequence[str] = (),
        options: Sequence[str] = (),
    ) -> None:
        # lldpd gives up root before it reads its settings through the socket, so the way there is open.
        self._folder = tempfile.TemporaryDirectory(prefix="lldpd-")
        folder = Path(self._folder.name)
        folder.chmod(0o755)
        self.socket = folder / "control"
        setup = folder / "settings"
        setup.write_text("\n".join((f"configure system hostname {name}", *settings)) + "\n")
        self._log = (folder / "log").open("wb")
        self.process = subprocess.Popen(
            ns.command("lldpd", "-d", "-u", str(self.socket), "-O", str(setup), "-I", netdevs, *options),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )

    def __enter__(self) -> Lldpd:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def say(self, *words: str) -> str:
        """Hand words to lldpcli."""
        done = subprocess.run(
            self.cli(*words), check=True, timeout=30, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        return done.stdout

    def cli(self, *words: str) -> list[str]:
        return ["lldpcli", "-u", str(self.socket), *words]

    def stop(self) -> None:
        """As an operator does: it takes leave of its neighbors."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        if self.process.poll() is None:
            # The worker follows its monitor by itself on SIGTERM, and has to go with it on SIGKILL.
            if number == signal.SIGKILL:
                os.killpg(self.process.pid, number)
            else:
                self.process.send_signal(number)
            try:
                self.process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait(timeout=20)
        self._log.close()
        self._folder.cleanup()
