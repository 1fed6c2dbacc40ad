"""Hostile text through every foreign door of the agent: no byte of it reaches the terminal or forges a line of the
log.

The text has a newline with a forged record, terminal escapes, C1 controls, bidirectional marks, line separators and
bytes that are not UTF-8.

The doors are the GPU driver, files of sysfs and their names, the product name, CDI specs, the kubelet and its pods,
the API server, LLDP, the command line, and unexpected errors. Every line of the log begins as a record or as a line
of a traceback, and is printable.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.base.supervise import keep
from nodeagent.console.log_lines import TRACE, LogLines
from nodeagent.facts.model import Health, Identifier, Neighbor, Reason, State
from nodeagent.kube.access import Access
from nodeagent.kube.client import ApiClient
from nodeagent.kube.failure import ApiError
from nodeagent.kube.resource import NODES
from nodeagent.kubelet.plugin import log as plugin_log
from nodeagent_lab.sim.apiserver import ApiServer
from nodeagent_lab.sim.kubelet import PodSpec
from tests.support.manifests import ROOT
from tests.support.running_agent import node
from tests.support.waiting import until

FORGED = "2026-11-22 00:00:00,000 ERROR nodeagent.forged the node is lost"
HOSTILE = f"a\n{FORGED}\r\x1b[2J\x1b]0;title\x07\x85\x9b31m\u202egnp\u2028\u2066\udcff\x00z"
RECORD = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (DEBUG|INFO|WARNING|ERROR|CRITICAL) [\w.]+ ")


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """Everything that the log gets at level DEBUG, in the form of the program."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(LogLines())
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield written
    root.removeHandler(handler)
    root.setLevel(before)


def check(text: str, *expected: str) -> None:
    assert text
    for line in text.removesuffix("\n").split("\n"):
        assert line.isprintable(), ascii(line)
        assert RECORD.match(line) or line.startswith(TRACE), ascii(line)
        assert not line.startswith(FORGED)
    for part in expected:
        assert part in text, f"{part} is in no line of:\n{text}"


def formatted(message: str, *arguments: object, error: BaseException | None = None) -> str:
    info = None if error is None else (type(error), error, error.__traceback__)
    record = logging.LogRecord("nodeagent.test", logging.WARNING, "file", 1, message, arguments, info)
    return LogLines().format(record)


@given(st.text(), st.text(st.characters()))
def test_any_record_is_one_line(message: str, argument: str) -> None:
    line = formatted("%s %r " + message.replace("%", "%%"), argument, argument)
    assert "\n" not in line
    check(line)


def test_the_traceback_of_an_error_with_hostile_text_forges_no_line() -> None:
    try:
        raise OSError(5, HOSTILE, HOSTILE)
    except OSError as error:
        text = formatted("It failed. reason=%s", error, error=error)
    check(text, "Traceback", "\\x1b[2J")


async def test_the_driver_sysfs_and_the_product_name(lines: io.StringIO) -> None:
    async with node() as n:
        facts = n.root / ".nodeagent/gpus.json"
        content = json.loads(facts.read_text())
        clean = HOSTILE.replace("\udcff", "")
        content["driver_version"] = clean
        content["gpus"][1] |= {
            "uuid": f"GPU-{clean}",
            "name": clean,
            "values": {clean: 1.0},
            "texts": {clean: clean},
        }
        content["gpus"][0] |= {"name": clean, "fault": clean, "values": {clean: 1.0}}
        content["events"] = [{"sequence": 9, "uuid": clean, "xid": 79}]
        facts.write_text(json.dumps(content))
        raw = os.fsencode(HOSTILE.replace("\x00", ""))
        (n.root / "sys/class/dmi/id/product_name").write_bytes(raw)
        name = HOSTILE.replace("\x00", "")
        device = n.root / "sys/bus/pci/devices" / name
        device.mkdir()
        (device / "class").write_bytes(b"0x02\n" + raw)
        specs = n.root / "etc/cdi"
        specs.mkdir(parents=True, exist_ok=True)
        (specs / f"{name}.json").write_bytes(raw)
        folder = n.root / "var/lib/nodeagent"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "gpus.json").write_text(
            json.dumps([{"uuid": clean, "index": 0, "pci_address": clean, "memory_mib": 1, "name": clean}])
        )
        (folder / "slices.json").write_bytes(raw)
        await n.kubelet.start()
        await n.start_agent()
        await n.until(lambda: n.agent.inventory.snapshot.gpus)
        content["events"].append({"sequence": 10, "uuid": clean, "xid": 48})
        facts.write_text(json.dumps(content))
        await n.until(lambda: "reports an XID" in lines.getvalue())
        await n.stop_agent()
    check(
        lines.getvalue(), "A GPU is not offered", "A remembered GPU cannot be true", "The GPU driver answers"
    )


async def test_the_kubelet_its_pods_and_a_client_of_the_socket(lines: io.StringIO) -> None:
    async with node() as n:
        n.kubelet.refuse(HOSTILE.replace("\udcff", ""))
        await n.kubelet.start()
        await n.start_agent()
        await n.until(lambda: "forged" in lines.getvalue())
        n.kubelet.refuse(None)
        await n.allocatable("two-gpus-and-two-nics/nic0", 4)
        resource = "two-gpus-and-two-nics/gpu-mem"
        await n.allocatable(resource, 158)
        pod = PodSpec.single(HOSTILE.replace("\udcff", ""), {resource: 1})
        admitted = await n.kubelet.admit(pod)
        assert admitted.phase == "Running", admitted
        await n.until(lambda: n.agent.inventory.snapshot.holdings)
        await n.stop_agent()
    check(lines.getvalue(), "registration")


async def test_the_api_server(lines: io.StringIO) -> None:
    server = await ApiServer(seed=1).start()
    client = ApiClient(Access(server.url, token=server.token("agent")))
    server.fail("500", times=None, message=HOSTILE.replace("\udcff", ""))

    async def ask() -> None:
        await client.get(NODES, "gpu-0")

    try:
        with pytest.raises(ApiError) as failed:
            await ask()
        logging.getLogger("nodeagent.test").warning("It failed. reason=%s", failed.value)
        task = asyncio.create_task(keep("ask", ask))
        await until(lambda: "will be started again" in lines.getvalue())
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    finally:
        await client.close()
        await server.stop()
    check(lines.getvalue(), "It failed.", "A part of the agent failed", f"{TRACE}Traceback")


def test_neighbors_health_and_threads(lines: io.StringIO) -> None:
    """Facts are escaped by their source; the formatter does not depend on it."""
    log = logging.getLogger("nodeagent.test")
    neighbor = Neighbor(
        HOSTILE, Identifier("local", HOSTILE), Identifier("ifname", HOSTILE), HOSTILE, HOSTILE
    )
    log.warning("A link has a neighbor. neighbor=%s link=%s", neighbor, HOSTILE)
    log.warning("It is unhealthy. health=%s", Health(State.DOWN, (Reason("x", HOSTILE),)))
    plugin_log.info("Devices were allocated. resource=%s count=%d first=%s", HOSTILE, 1, HOSTILE)
    check(lines.getvalue())


def test_the_program_escapes_its_errors_and_the_end_of_a_thread() -> None:
    code = (
        "import sys, threading\n"
        "from nodeagent.console.log_lines import log_to_stderr\n"
        "log_to_stderr('debug')\n"
        "def fail(): raise ValueError(sys.argv[1])\n"
        "thread = threading.Thread(target=fail, name=sys.argv[1]); thread.start(); thread.join()\n"
    )
    hostile = HOSTILE.replace("\x00", "")
    done = subprocess.run([sys.executable, "-c", code, hostile], cwd=ROOT, capture_output=True, check=True)
    check(done.stderr.decode(), "A thread ended by a defect")
    done = subprocess.run(
        [sys.executable, "-m", "nodeagent", "scan", "--root", hostile.replace("/", "")],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    (line,) = done.stderr.decode().removesuffix("\n").split("\n")
    assert line.startswith("nodeagent: ")
    assert line.isprintable()


CALLERS_GO = """
import asyncio, sys
from nodeagent.console.log_lines import log_to_stderr
log_to_stderr("info")
import grpc
from grpc._cython.cygrpc import ExecuteBatchError

async def watch(request, context):
    yield b""
    raised.set()
    raise ExecuteBatchError(request.decode())

async def main(path):
    global raised
    raised = asyncio.Event()
    server = grpc.aio.server()
    handlers = {"Watch": grpc.unary_stream_rpc_method_handler(watch)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("a.Service", handlers),))
    server.add_insecure_port("unix:" + path)
    await server.start()
    async with grpc.aio.insecure_channel("unix:" + path) as channel:
        for text in sys.argv[2:]:
            raised.clear()
            call = channel.unary_stream("/a.Service/Watch")(text.encode())
            await call.read()
            await raised.wait()
            await asyncio.sleep(0.05)
            call.cancel()  # gRPC tells the caller nothing
    await server.stop(None)

asyncio.run(main(sys.argv[1]))
"""
"""gRPC's server reports what a write raises: here what it raises of itself if the caller has gone in the middle of a
message, before gRPC hears of that."""


def test_a_caller_that_goes_in_the_middle_of_a_message_is_no_traceback(tmp_path: Path) -> None:
    gone, misused = 'Failed "execute_batch": (SendMessageOperation,)', "Failed grpc_call_start_batch: 8"
    done = subprocess.run(
        [sys.executable, "-c", CALLERS_GO, str(tmp_path / "a.sock"), gone, misused, gone],
        cwd=ROOT,
        env=os.environ | {"GRPC_VERBOSITY": "ERROR"},  # its client may say that the server has gone
        capture_output=True,
        check=True,
    )
    log = done.stderr.decode()
    check(log, misused)
    assert log.count("Traceback") == 1
    assert gone not in log
