"""Network namespaces for tests: a thread in one, and a real lldpd as the switch."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from nodeagent_lab.sim.netns import Netns, veth

__all__ = ["Lldpd", "NamespaceThread", "Netns", "veth"]

T = TypeVar("T")
_CLONE_NEWNET = 0x4000_0000


class NamespaceThread:
    """A thread in a network namespace of its own; both end together.

    A socket always belongs to the namespace in which it was made, so any thread can use it.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self.run(self._enter)

    def run(self, function: Callable[..., T], *args: Any) -> T:
        return self._thread.submit(function, *args).result()

    def ip(self, command: str) -> None:
        """Run ip in the namespace: a child of the thread is in it too."""
        self.run(lambda: subprocess.run(["ip", *command.split()], check=True))

    def close(self) -> None:
        self._thread.shutdown()

    @staticmethod
    def _enter() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(_CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


class Lldpd:
    """A real lldpd in a namespace, with its own control socket."""

    def __init__(
        self,
        ns: Netns,
        name: str,
        *,
        netdevs: str = "*",
        settings: Sequence[str] = (),
        options: Sequence[str] = (),
    ) -> None:
        # lldpd drops root before it reads its settings through the socket, so the folder is accessible.
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
        """Run lldpcli with these arguments and return its output."""
        done = subprocess.run(
            self.cli(*words), check=True, timeout=30, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        return done.stdout

    def cli(self, *words: str) -> list[str]:
        return ["lldpcli", "-u", str(self.socket), *words]

    def stop(self) -> None:
        """Stop lldpd normally: it sends shutdown frames."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        if self.process.poll() is None:
            # On SIGTERM the worker ends with its monitor; SIGKILL must go to the whole group.
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
