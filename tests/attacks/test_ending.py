"""SIGTERM and SIGINT end a daemon soon, whatever hangs.

The agent and the controller run as real processes. In turn a file of the machine, a state file, a CDI spec or the
configuration does not answer (FUSE). Then the kubelet or the API server accepts connections and answers nothing. At
the end the reader of the log does not read.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import TemporaryDirectory
from urllib.request import urlopen

import pytest

from nodeagent_lab.sim.machine import Machine
from tests.support.dead_files import dead
from tests.support.default_signals import DEFAULT_SIGNALS
from tests.support.running_agent import HEAD, IN_MEMORY
from tests.support.waiting import LIMIT_S, Lines

PORT = 20_000 + os.getpid() % 10_000
"""No port that the kernel chooses for a client: a client of such a port may connect to itself."""
END_S = 10.0
"""The end takes less than a second on an idle machine; without this end it never comes."""
KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "http://127.0.0.1:SERVER"}}]
users: [{name: u, user: {token: t}}]
"""


class Daemon:
    """A process with its log, line by line."""

    def __init__(self, *arguments: object, stderr: int = subprocess.PIPE) -> None:
        command = [*DEFAULT_SIGNALS, sys.executable, "-m", "nodeagent", *map(str, arguments)]
        self.process = subprocess.Popen(command, stderr=stderr, env=os.environ | {"NODE_NAME": "n1"})
        self._lines: SimpleQueue[str] = SimpleQueue()
        self.log = ""
        self._reading = threading.Thread(target=self._read, daemon=True)
        if self.process.stderr is not None:
            self._reading.start()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stderr is not None:
            self._reading.join(LIMIT_S)
            assert not self._reading.is_alive(), "another process holds the log"
            self.process.stderr.close()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._lines.put(line.decode())
        self._lines.put("")

    def until(self, text: str) -> None:
        """Wait for the text in the log, which is printed if it does not come. At its end the log has no more lines."""
        until = time.monotonic() + LIMIT_S
        while text not in self.log:
            try:
                line = self._lines.get(timeout=max(0.0, until - time.monotonic()))
            except Empty:
                line = ""
            assert line, f"the log has no {text!r}:\n{self.log}"
            self.log += line

    def ends(self, number: signal.Signals = signal.SIGTERM) -> None:
        assert self.process.poll() is None, self.log
        self.process.send_signal(number)
        assert self.process.wait(END_S) == 0


class Place:
    """The folders of one agent on a simulated machine."""

    def __init__(self, folder: Path, resources: ExitStack) -> None:
        self.folder, self.root, self.kubelet = folder, folder / "r", folder / "k"
        self.machine = Machine.load("two-gpu-two-nic")
        self.machine.write(self.root)
        (self.kubelet / "device-plugins").mkdir(parents=True)
        self.state = self.root / "var/lib/nodeagent"
        self.state.mkdir(parents=True, exist_ok=True)
        self.config = folder / "c.yaml"
        self.config.write_text(HEAD)
        self.resources = resources

    def dead(self, path: Path, content: str | None = "{}") -> None:
        """Let a file that exists hang, or a folder without ``content``."""
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            path.mkdir(exist_ok=True)
        elif not path.exists():
            path.write_text(content)
        self.resources.enter_context(dead(path))

    def agent(self, listen: str = "127.0.0.1:0", stderr: int = subprocess.PIPE) -> Daemon:
        daemon = Daemon(
            "run", "--root", self.root, "--kubelet-dir", self.kubelet, "--config", self.config,
            "--listen", listen, stderr=stderr,
        )  # fmt: skip
        self.resources.callback(daemon.close)
        return daemon


@pytest.fixture
def place() -> Iterator[Place]:
    with TemporaryDirectory(prefix="na-", dir=IN_MEMORY) as folder, ExitStack() as resources:
        yield Place(Path(folder), resources)


@pytest.fixture
def mute() -> Iterator[socket.socket]:
    """A server whose kernel accepts connections, and that answers nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        server.settimeout(LIMIT_S)
        yield server


@pytest.mark.slow
@pytest.mark.needs("root", "fuse")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_attribute_of_the_machine_hangs(place: Place, number: signal.Signals) -> None:
    place.dead((place.root / "sys/class/dmi/id/product_name").resolve())
    agent = place.agent()
    agent.until("source=pci step='/sys/class/dmi/id/product_name'")
    agent.until("Serving metrics")
    agent.ends(number)


@pytest.mark.slow
@pytest.mark.needs("root", "fuse")
@pytest.mark.parametrize("name", ["health.json", "slices.json"])
def test_a_state_file_hangs(place: Place, name: str) -> None:
    place.dead(place.state / name)
    agent = place.agent()
    agent.until(f"{place.state / name} reason=")
    agent.until("Serving metrics")
    agent.ends()


@pytest.mark.slow
@pytest.mark.needs("root", "fuse")
def test_the_state_folder_hangs(place: Place) -> None:
    place.dead(place.state, None)
    agent = place.agent()
    agent.until("Serving metrics")
    agent.ends()


@pytest.mark.slow
@pytest.mark.needs("root", "fuse")
@pytest.mark.parametrize("content", ["{}", None])
def test_a_cdi_spec_or_its_folder_hangs(place: Place, content: str | None) -> None:
    folder = place.root / "var/run/cdi"
    place.dead(folder if content is None else folder / "nodeagent-gpu.json", content)
    agent = place.agent()
    agent.until("A call does not answer")
    agent.until("Serving metrics")
    agent.ends()


@pytest.mark.slow
@pytest.mark.needs("root", "fuse")
def test_the_configuration_hangs_under_a_running_agent(place: Place) -> None:
    agent = place.agent()
    agent.until("Serving metrics")
    place.dead(place.config)
    agent.process.send_signal(signal.SIGHUP)
    agent.until(
        "The changed configuration is refused, the running one stays. error='configuration: no answer"
    )
    agent.ends()


@pytest.mark.slow
@pytest.mark.needs("root", "fuse")
def test_the_configuration_hangs_at_the_start(place: Place) -> None:
    """SIGTERM cannot end a process that hangs here and is the first of its pod: the process ends by itself."""
    place.dead(place.config)
    agent = place.agent()
    agent.until(f"{place.config}: cannot be read: no answer within 10 s")
    assert agent.process.wait(END_S) == 2


HANGING_MAIN_THREAD = "threading.Event().wait()"
UNENDING_TASK = """\
while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass"""


@pytest.mark.parametrize("part", [HANGING_MAIN_THREAD, UNENDING_TASK])
def test_a_part_that_does_not_end_is_named_and_the_process_ends(part: str) -> None:
    """The order of the end needs the main thread and each task. Without them the process is ended."""
    program = f"""\
import asyncio, logging, signal, threading
from nodeagent.base.ending import end_at
async def main():
    logging.basicConfig()
    end_at([signal.SIGTERM])
    logging.warning("ready")
    {part}
asyncio.run(main())
"""
    command = [*DEFAULT_SIGNALS, sys.executable, "-c", program]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            lines = Lines(process.stderr.fileno())
            assert "ready" in lines.next()
            process.terminate()
            lines.until(lambda line: "Stopped, although a part of the process hangs" in line)
            assert process.wait(END_S) == 0
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.needs("root", "fuse")
def test_the_kubelets_folder_hangs_and_the_agent_serves(place: Place) -> None:
    place.dead(place.kubelet / "device-plugins", None)
    agent = place.agent(f"127.0.0.1:{PORT}")
    agent.until("A call does not answer; its thread is abandoned. source=the kubelet's folder")
    with urlopen(f"http://127.0.0.1:{PORT}/healthz", timeout=30) as page:
        assert page.read() == b"ok\n"
    agent.ends()


def test_a_kubelet_that_answers_nothing(place: Place) -> None:
    with socket.socket(socket.AF_UNIX) as kubelet:
        kubelet.bind(str(place.kubelet / "device-plugins/kubelet.sock"))
        kubelet.listen(64)
        kubelet.settimeout(LIMIT_S)
        agent = place.agent()
        with kubelet.accept()[0]:
            agent.until("Serving metrics")
            agent.ends()


@pytest.mark.slow
def test_an_api_server_that_answers_nothing(place: Place, mute: socket.socket) -> None:
    kubeconfig = place.folder / "kubeconfig"
    kubeconfig.write_text(KUBECONFIG.replace("SERVER", str(mute.getsockname()[1])))
    place.config.write_text(
        f"{HEAD}cluster: {{access: kubeconfig, kubeconfig: {kubeconfig}, conditions: true, report: true}}\n"
    )
    agent = place.agent()
    with mute.accept()[0]:
        agent.ends()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_controller_and_an_api_server_that_answers_nothing(
    tmp_path: Path, mute: socket.socket, number: signal.Signals
) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(KUBECONFIG.replace("SERVER", str(mute.getsockname()[1])))
    controller = Daemon(
        "controller", "--kubeconfig", kubeconfig, "--namespace", "n", "--listen", "127.0.0.1:0"
    )
    try:
        with mute.accept()[0]:
            controller.ends(number)
    finally:
        controller.close()


def test_the_reader_of_the_log_does_not_read(place: Place) -> None:
    """The pipe is full, so that the next line of the log blocks its writer. The agent serves nevertheless."""
    reading, writing = os.pipe()
    try:
        os.set_blocking(writing, False)
        with suppress(BlockingIOError):
            while True:
                os.write(writing, bytes(65536))
        os.set_blocking(writing, True)
        agent = place.agent(f"127.0.0.1:{PORT}", stderr=writing)
        until = time.monotonic() + 60
        answer = b""
        while not answer and time.monotonic() < until:
            with suppress(OSError), urlopen(f"http://127.0.0.1:{PORT}/healthz", timeout=5) as page:
                answer = page.read()
        assert answer == b"ok\n"
        agent.ends()
    finally:
        os.close(reading)
        os.close(writing)
