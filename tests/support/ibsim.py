"""ibsim, the InfiniBand simulator of OpenFabrics, as an independent fabric: net files, its console, two ways in.

* A program that uses umad runs with libumad2sim: `smpquery`, `ibnetdiscover`, `opensm`, and Python with a small
  preload. One process is one port.
* ``IbsimPorts`` puts a Unix socket in place of each umad device of simulated machines, and passes its packets to ibsim.
  ibsim has ten places for clients, so each question connects, asks and disconnects.

Sources: ibsim 0.10, include/ibsim.h and ibsim/ibsim.c (the sockets and their messages).
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from tests.support.needs import UMAD2SIM

PRELOAD_SOURCE = Path(__file__).parents[1] / "infiniband" / "umad_preload.c"
NEEDS = ("cc", "ibsim", "umad2sim", "opensm", "smpquery", "ibnetdiscover")
_MAGIC = 0xDEADBEEF
_CONNECT, _DISCONNECT, _GET_PORTINFO = 1, 2, 8
_CONTROL = struct.Struct("=IIII64s")
_REQUEST = struct.Struct(">IIIII4xQ256s")
_PERMISSIVE = int.from_bytes(b"\xff\xff\0\0", "big")
"""LID 65535: sixteen bits in network order, in a word of the host."""
_HEADER_SIZE = 64
_ETIMEDOUT = 110
STATES = {1: "1: DOWN", 2: "2: INIT", 3: "3: ARMED", 4: "4: ACTIVE"}


class IbsimError(Exception):
    """ibsim refuses a request."""


class Ibsim:
    """A running ibsim with its console. ``name`` is the name of its sockets, unique on the machine."""

    def __init__(self, folder: Path, net: bytes) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.name = f"nodeagent-{os.getpid()}-{folder.name}"
        (folder / "net").write_bytes(net)
        console = folder / "console"
        os.mkfifo(console)
        # Open for reading and writing: ibsim ends at the end of its console.
        self._console = os.open(console, os.O_RDWR)
        self._log = (folder / "log").open("wb")
        self._process = subprocess.Popen(
            ["ibsim", "-s", "net"],
            cwd=folder,
            stdin=self._console,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=self.environment(),
        )
        self._wait("Network simulator ready")
        self._lock = threading.Lock()
        self._clients = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._log.close()
        os.close(self._console)

    def environment(self, host: str = "") -> dict[str, str]:
        return {**os.environ, "IBSIM_SOCKNAME": self.name, "SIM_HOST": host}

    def command(self, line: str) -> None:
        """A line of the console, such as ``Unlink "S-leaf0"[7]``. Returns when ibsim is ready again."""
        before = self.printed().count("sim>")
        os.write(self._console, f"{line}\n".encode())
        end = time.monotonic() + 30
        while self.printed().count("sim>") <= before:
            if time.monotonic() > end:
                raise IbsimError(f"no prompt after {line!r}: {self.printed()[-500:]}")
            time.sleep(0.002)

    def printed(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def _wait(self, text: str) -> None:
        end = time.monotonic() + 30
        while text not in self.printed():
            if self._process.poll() is not None or time.monotonic() > end:
                raise IbsimError(self.printed()[-1000:])
            time.sleep(0.005)

    # --- programs -------------------------------------------------------------------------------------

    def run(
        self, host: str, command: Sequence[str], preload: Sequence[Path] = (), timeout_s: float = 60
    ) -> str:
        """The output of a program that uses the port of a host."""
        libraries = ":".join(map(str, (*preload, UMAD2SIM)))
        done = subprocess.run(
            command,
            env={**self.environment(host), "LD_PRELOAD": libraries},
            cwd=self.folder,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=timeout_s,
            check=False,
        )
        if done.returncode:
            raise IbsimError(f"{command[0]}: {done.stdout}{done.stderr}")
        return done.stdout

    def sweep(self, host: str) -> None:
        """Let opensm configure the fabric once. Its end is the death of the subnet manager."""
        self.run(host, ["opensm", "-o", "-f", str(self.folder / "opensm.log")])

    # --- questions ------------------------------------------------------------------------------------

    def ask(self, host: str, mad: bytes) -> bytes | None:
        """Send a MAD from the port of a host; ``None`` without an answer."""
        with self._client(host) as (_, connection):
            connection.send(_REQUEST.pack(_PERMISSIVE, _PERMISSIVE, 0, 0, 0, len(mad), mad))
            try:
                reply = connection.recv(4096)
            except TimeoutError:
                return None
        *_, status, _, answered = _REQUEST.unpack(reply[: _REQUEST.size])
        return None if status == _ETIMEDOUT else answered

    def port_info(self, host: str) -> bytes:
        """The PortInfo of a host's port."""
        with self._client(host) as (number, _):
            return self._control(_GET_PORTINFO, number, b"\1")

    def _client(self, host: str) -> _IbsimClient:
        return _IbsimClient(self, host)

    def _control(self, kind: int, client: int, data: bytes, connection: socket.socket | None = None) -> bytes:
        control = connection or socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            control.settimeout(10)
            if connection is None:
                control.bind(b"")  # an abstract name of the kernel's choice
            control.sendto(_CONTROL.pack(_MAGIC, client, kind, 0, data), f"\0{self.name}:ctl\0".encode())
            _, _, answered, _, content = _CONTROL.unpack(control.recv(4096))
        finally:
            if connection is None:
                control.close()
        if answered != kind:
            raise IbsimError(f"ibsim refuses request {kind}: {self.printed()[-300:]}")
        return bytes(content)


class _IbsimClient:
    """A client of ibsim at one node, for one exchange at a time."""

    def __init__(self, ibsim: Ibsim, host: str) -> None:
        self._ibsim, self._host = ibsim, host

    def __enter__(self) -> tuple[int, socket.socket]:
        ibsim = self._ibsim
        ibsim._lock.acquire()
        ibsim._clients += 1
        number = (os.getpid() << 12 | ibsim._clients % 4096) & 0x7FFF_FFFF
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(f"\0{ibsim.name}:in{number}\0")
        self._socket.settimeout(2.0)
        data = struct.pack("=III32s", number, 0, 0, self._host.encode())
        self._number = struct.unpack_from("=I", ibsim._control(_CONNECT, 0, data))[0]
        self._socket.connect(f"\0{ibsim.name}:out{self._number}\0")
        return self._number, self._socket

    def __exit__(self, *_: object) -> None:
        try:
            self._ibsim._control(_DISCONNECT, self._number, b"")
        finally:
            self._socket.close()
            self._ibsim._lock.release()


class IbsimPorts:
    """Sockets in place of umad devices (``nodeagent.host.umad``), each connected to a port of ibsim."""

    def __init__(self, ibsim: Ibsim, places: Mapping[Path, str]) -> None:
        """``places`` maps the place of each device to the host's name in the net file."""
        self._ibsim = ibsim
        self._selector = selectors.DefaultSelector()
        self._listening: list[socket.socket] = []
        self.questions: list[tuple[str, bytes]] = []
        for place, host in places.items():
            place.unlink(missing_ok=True)
            listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            folder = os.open(place.parent, os.O_PATH)
            listening.bind(f"/proc/self/fd/{folder}/{place.name}")
            os.close(folder)
            listening.listen(16)
            self._listening.append(listening)
            self._selector.register(listening, selectors.EVENT_READ, host)
        self._wake, woken = socket.socketpair()
        self._listening.append(woken)
        self._selector.register(woken, selectors.EVENT_READ, None)
        self._thread = threading.Thread(target=self._serve, name="ibsim ports", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._wake.send(b"\0")
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()
        self._wake.close()
        self._selector.close()

    def _serve(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    return
                ready: Any = key.fileobj
                if ready in self._listening:
                    self._selector.register(ready.accept()[0], selectors.EVENT_READ, key.data)
                    continue
                packet = ready.recv(4096)
                if not packet:
                    self._selector.unregister(ready)
                    ready.close()
                    continue
                with suppress(OSError):
                    ready.send(self._reply(key.data, packet))

    def _reply(self, host: str, packet: bytes) -> bytes:
        header, mad = packet[:_HEADER_SIZE], packet[_HEADER_SIZE:]
        self.questions.append((host, mad))
        answered = self._ibsim.ask(host, mad)
        status = _ETIMEDOUT if answered is None else 0
        return (
            header[:4] + struct.pack("=I", status) + header[8:] + (mad[:24] if answered is None else answered)
        )
