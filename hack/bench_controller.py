"""The cost of the controller's start, and of `nodeagent plan --from`, at 100,000 nodes with 8 NICs each.

    python hack/bench_controller.py [NODES]

Each row is one process of the real program. Its CPU time, its time on the wall and its largest resident memory are
those of the process from its start to its end; the controller's end with the first write of its first plan.

* ``controller`` starts against a server with NODES reports as agents write them, with the managedFields that the API
  server stores, as many Nodes, and no HyperNode. The server refuses every write, and its watches have no events.
* ``plan --from`` reads the same reports from a file, as ``kubectl get nodelinks -A -o json`` prints them, and as one
  object in each line.

The fabric is that of ``bench_fabric.py``: units of 32 nodes and 8 leaves.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

UNIT, RAILS = 32, 8
NODES = 100_000
NAMESPACE = "nodeagent"
_STAMP = "2026-11-01T08:00:00Z"
_VERSION = "4711"


def link(rail: int) -> dict[str, Any]:
    return {
        "fabric": "compute",
        "lastTransitionTime": _STAMP,
        "mac": f"94:6d:%(mac)s:{rail:02x}",
        "name": f"nic{rail}",
        "neighbor": {
            "chassisID": {"subtype": "mac", "value": f"02:%(unit_mac)s:{rail:02x}:00:00"},
            "managementAddresses": [f"10.%(unit_address)s.{rail + 1}"],
            "portDescription": f"%(name)s rail {rail}",
            "portID": {"subtype": "ifname", "value": "swp%(port)ds0"},
            "systemName": f"su%(unit)04d-leaf-r{rail}",
        },
        "netdev": f"ens{rail + 1}f0np0",
        "pciAddress": f"0000:{rail * 16 + 10:02x}:00.0",
        "rail": rail,
        "speedMbps": 400_000,
        "state": "healthy",
    }


def report_template(*, managed: bool) -> dict[str, Any]:
    """A NodeLinks object as the API server has it, with a place for each value that differs between nodes.

    ``managed``: with the fields that kubectl leaves out.
    """
    links = [link(rail) for rail in range(RAILS)]
    metadata: dict[str, Any] = {
        "creationTimestamp": _STAMP,
        "generation": 3,
        "name": "%(name)s",
        "namespace": NAMESPACE,
        "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "%(name)s", "uid": "%(uid)s"}],
        "resourceVersion": "%(version)d",
        "uid": "%(uid)s",
    }
    if managed:
        fields = {
            "f:links": {f'k:{{"name":"{one["name"]}"}}': _fields(one) for one in links},
            "f:nodeName": {},
            "f:summary": {"f:health": {}, "f:links": {}, "f:switches": {}},
        }
        metadata["managedFields"] = [
            {
                "apiVersion": "nodeagent.io/v1alpha1",
                "fieldsType": "FieldsV1",
                "fieldsV1": fields,
                "manager": "nodeagent",
                "operation": "Apply",
                "time": _STAMP,
            }
        ]
    return {
        "apiVersion": "nodeagent.io/v1alpha1",
        "kind": "NodeLinks",
        "links": links,
        "metadata": metadata,
        "nodeName": "%(name)s",
        "summary": {"health": "healthy", "links": f"{RAILS}/{RAILS}", "switches": RAILS},
    }


def values(node: int) -> dict[str, Any]:
    """The values for the templates."""
    unit = node // UNIT
    return {
        "name": f"dgx-{node:06}",
        "uid": f"5f0c7b52-0d0e-4f4e-9d3a-{node:012x}",
        "version": 1_000_000 + node,
        "mac": f"{node >> 16:02x}:{node >> 8 & 255:02x}:{node & 255:02x}",
        "unit": unit,
        "unit_mac": f"{unit >> 8:02x}:{unit & 255:02x}",
        "unit_address": f"{unit >> 8}.{unit & 255}",
        "port": node % UNIT + 1,
    }


def _fields(value: dict[str, Any]) -> dict[str, Any]:
    deeper = {key: _fields(item) if isinstance(item, dict) else {} for key, item in value.items()}
    return {f"f:{key}": fields for key, fields in deeper.items()}


def node_template() -> dict[str, Any]:
    """The metadata of a Node, with as many labels as node feature discovery gives it."""
    labels = {f"feature.node.kubernetes.io/cpu-cpuid.F{i}": "true" for i in range(60)}
    labels |= {
        "kubernetes.io/hostname": "%(name)s",
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/os": "linux",
    }
    meta = {"name": "%(name)s", "uid": "%(uid)s", "resourceVersion": "%(version)d", "labels": labels}
    return {"metadata": meta}


def _text(template: dict[str, Any]) -> str:
    return json.dumps(template, separators=(",", ":"))


TEMPLATES = {"nodelinks": _text(report_template(managed=True)), "nodes": _text(node_template())}


class ListServer(ThreadingHTTPServer):
    """Answers lists of NodeLinks, Nodes and HyperNodes, and the lease; its watches have no events."""

    daemon_threads = True

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes
        self.lease: dict[str, Any] | None = None
        self.first_write = threading.Event()
        """Of a HyperNode."""
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    """One segment for head and body: else each answer waits for a delayed acknowledgment."""
    server: ListServer

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        kind = url.path.rsplit("/", 1)[1]
        if "/leases/" in url.path:
            if self.server.lease is None:
                self._answer(404, {"kind": "Status", "code": 404, "reason": "NotFound"})
            else:
                self._answer(200, self.server.lease)
        elif "watch" in query:
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.flush()
            threading.Event().wait(float(query["timeoutSeconds"]))
        else:
            first, limit = int(query.get("continue", 0)), int(query["limit"])
            total = self.server.nodes if kind in TEMPLATES else 0
            last = min(first + limit, total)
            metadata = {"resourceVersion": _VERSION, "continue": str(last) if last < total else ""}
            items = ",".join([TEMPLATES[kind] % values(node) for node in range(first, last)])
            self._send(200, f'{{"metadata":{json.dumps(metadata)},"items":[{items}]}}')

    def do_POST(self) -> None:
        body = self._body()
        if "/leases" not in self.path:
            self.server.first_write.set()
            self._answer(503, {"kind": "Status", "code": 503, "reason": "ServiceUnavailable"})
            return
        body["metadata"]["resourceVersion"] = "1"
        self.server.lease = body
        self._answer(201, body)

    def do_PATCH(self) -> None:
        body = self._body()
        if "/leases" not in self.path or self.server.lease is None:
            self._answer(503, {"kind": "Status", "code": 503, "reason": "ServiceUnavailable"})
            return
        self.server.lease["spec"] |= body["spec"]
        meta = self.server.lease["metadata"]
        meta["resourceVersion"] = str(int(meta["resourceVersion"]) + 1)
        self._answer(200, self.server.lease)

    def _body(self) -> dict[str, Any]:
        body: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        return body

    def _answer(self, status: int, body: Any) -> None:
        self._send(status, json.dumps(body))

    def _send(self, status: int, text: str) -> None:
        content = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        if status == 503:
            self.send_header("Retry-After", "60")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


def usage_of(pid: int) -> tuple[float, float]:
    """CPU seconds and the largest resident memory in MiB of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    cpu_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    status = Path(f"/proc/{pid}/status").read_text()
    peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return cpu_s, int(peak.split()[1]) / 1024


def row(what: str, size_mb: float, cpu_s: float, wall_s: float, peak_mib: float) -> None:
    print(f"{what:<28}{size_mb:10.0f}{cpu_s:10.1f}{wall_s:10.1f}{peak_mib:12.0f}", flush=True)


def start_cost(nodes: int, folder: Path) -> tuple[float, float, float]:
    """The CPU time and the time in s of the controller until its first write, and its peak of memory in MiB."""
    server = ListServer(nodes)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    config = folder / "kubeconfig"
    config.write_text(
        json.dumps(
            {
                "current-context": "bench",
                "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
                "clusters": [{"name": "bench", "cluster": {"server": server.url}}],
                "users": [{"name": "bench", "user": {}}],
            }
        )
    )
    command = [
        sys.executable,
        "-m",
        "nodeagent",
        "controller",
        "--log-level",
        "error",
        "--kubeconfig",
        str(config),
        "--namespace",
        NAMESPACE,
    ]
    began = time.monotonic()
    with subprocess.Popen(command) as process:
        try:
            while not server.first_write.wait(1.0):
                if process.poll() is not None:
                    raise SystemExit("the controller has ended")
            wall_s = time.monotonic() - began
            cpu_s, peak_mib = usage_of(process.pid)
        finally:
            process.terminate()
    server.shutdown()
    return cpu_s, wall_s, peak_mib


def plan_cost(file: Path) -> tuple[float, float, float]:
    """The CPU time and the time in s of `nodeagent plan` with this file, and its peak of memory in MiB."""
    command = [sys.executable, "-m", "nodeagent", "plan", "--from", str(file)]
    began = time.monotonic()
    # The remark on the missing ConfigMap is expected.
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_utime + usage.ru_stime, time.monotonic() - began, usage.ru_maxrss / 1024


def as_kubectl(nodes: int) -> Iterator[str]:
    """The output of ``kubectl get nodelinks -A -o json``."""
    lines = json.dumps(report_template(managed=False), indent=4).splitlines()
    template = "\n".join(f"        {line}" for line in lines)
    yield '{\n    "apiVersion": "v1",\n    "items": [\n'
    for node in range(nodes):
        yield template % values(node) + (",\n" if node < nodes - 1 else "\n")
    yield '    ],\n    "kind": "List",\n    "metadata": {\n        "resourceVersion": ""\n    }\n}\n'


def as_lines(nodes: int) -> Iterator[str]:
    template = _text(report_template(managed=False))
    for node in range(nodes):
        yield template % values(node) + "\n"


def main() -> None:
    nodes = int(sys.argv[1]) if sys.argv[1:] else NODES
    print(f"{nodes} nodes\n{'':<28}{'MB read':>10}{'CPU, s':>10}{'wall, s':>10}{'peak, MiB':>12}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        size_mb = sum(map(len, TEMPLATES.values())) * nodes / 1e6
        row("controller", size_mb, *start_cost(nodes, Path(folder)))
        for what, lines in (("plan --from, kubectl's list", as_kubectl), ("plan --from, lines", as_lines)):
            file = Path(folder) / "links.json"
            with file.open("w") as target:
                target.writelines(lines(nodes))
            row(what, file.stat().st_size / 1e6, *plan_cost(file))


if __name__ == "__main__":
    main()
