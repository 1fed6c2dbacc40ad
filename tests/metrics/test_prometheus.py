"""A real Prometheus scrapes the agent over TLS with a token and evaluates every rule and panel."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import time
import urllib.parse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml

from nodeagent.agent_features import AGENT
from nodeagent.web.auth import AccessControl
from nodeagent.web.metrics_page import MetricsPage
from nodeagent.web.server import WebServer
from nodeagent.web.web_settings import WebSettings
from nodeagent_lab.sim.kubelet import PodSpec
from tests.daemonset.test_monitoring import BOARDS, FOLDER, expressions, groups
from tests.support.certificates import Authority
from tests.support.running_agent import Node, node
from tests.support.scrape_inputs import facts, scrape_input
from tests.support.waiting import LIMIT_S

pytestmark = pytest.mark.needs("prometheus", "openssl")

EMPTY = {
    # A healthy or simulated machine has no series for these.
    "Bit error ratio before FEC": "a rate: the counters of this machine stand still",
    "Flaps per hour": "no link lost its carrier",
    "NVLinks down": "no NVLink is down",
    "Restarts of parts": "no part of the agent failed",
}
"""Panels that may show nothing, and why."""
ABSENT = {
    "nodeagent_series_dropped_total",
    "nodeagent_source_silent",
    "nodeagent_hanging_call_seconds",
}
"""Families that have series only in case of trouble."""
CONTROLLER = (
    "nodeagent_maintenance",
    "nodeagent_node_away",
    "nodeagent_gpu_trouble",
    "nodeagent_job_",
    "nodeagent_fabric_",
    "nodeagent_controller_",
    "nodeagent_switch",
    "nodeagent_watch_",
)
"""Families of the controller; tests/daemonset/test_monitoring.py checks that they exist."""


class Prometheus:
    """Debian's Prometheus on the loopback interface, with its own data folder; it ends with the test."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: asyncio.subprocess.Process | None = None
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]

    async def start(self, job: dict[str, Any]) -> None:
        config = self._folder / "prometheus.yml"
        settings = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(FOLDER / "rules.yaml")],
            "scrape_configs": [job],
        }
        config.write_text(yaml.safe_dump(settings))
        self._log = (self._folder / "log").open("wb")
        self._process = await asyncio.create_subprocess_exec(
            "prometheus",
            f"--config.file={config}",
            f"--storage.tsdb.path={self._folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
            stdout=self._log,
            stderr=self._log,
            env={**os.environ, "GOMAXPROCS": "2"},
        )
        async with asyncio.timeout(LIMIT_S):
            while not await self._ready():
                assert self._process.returncode is None, (self._folder / "log").read_text()
                await asyncio.sleep(0.05)

    async def stop(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGKILL)
            await self._process.wait()
        self._log.close()

    async def _ready(self) -> bool:
        try:
            return (await self._get("/-/ready"))[0] == 200
        except OSError:
            return False

    async def _get(self, path: str) -> tuple[int, str]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        return int(head.split()[1]), body.decode()

    async def query(self, expression: str) -> list[dict[str, Any]]:
        """The result of an instant query."""
        _, body = await self._get(f"/api/v1/query?query={urllib.parse.quote(expression)}")
        answer = json.loads(body)
        assert answer["status"] == "success", f"{expression}: {answer.get('error')}"
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result

    async def until(self, expression: str) -> list[dict[str, Any]]:
        async with asyncio.timeout(LIMIT_S):
            while not (result := await self.query(expression)):
                await asyncio.sleep(0.1)
        return result

    async def targets(self) -> list[dict[str, Any]]:
        _, body = await self._get("/api/v1/targets")
        targets: list[dict[str, Any]] = json.loads(body)["data"]["activeTargets"]
        return targets


@asynccontextmanager
async def prometheus(job: dict[str, Any]) -> AsyncIterator[Prometheus]:
    with TemporaryDirectory(
        prefix="prometheus-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None
    ) as folder:
        server = Prometheus(Path(folder))
        try:
            await server.start(job)
            yield server
        finally:
            await server.stop()


def job(port: int, authority: Authority, tokens: Path) -> dict[str, Any]:
    return {
        "job_name": "nodeagent/nodeagent",
        "scheme": "https",
        "tls_config": {"ca_file": str(authority.certificate)},
        "authorization": {"credentials_file": str(tokens)},
        "static_configs": [{"targets": [f"127.0.0.1:{port}"], "labels": {"instance": "dgx-1"}}],
    }


def secured(folder: Path) -> tuple[Authority, Path, str]:
    """A CA, a token file, and the configuration that uses both."""
    authority = Authority(folder)
    certificate, key = authority.sign("agent")
    tokens = folder / "token"
    tokens.write_text("secret")
    return (
        authority,
        tokens,
        f"web: {{certificateFile: {certificate}, keyFile: {key}, tokenFile: {tokens}}}\n",
    )


async def working(n: Node, config: str) -> None:
    await n.kubelet.start()
    await n.start_agent(n.configure(config))
    await n.allocatable("nvidia-dgx-h100/gpu-mem", 632)
    await n.allocatable("nvidia-dgx-h100/nic0", 8)
    devices = {"nvidia-dgx-h100/nic0": 1, "nvidia-dgx-h100/gpu-mem": 20}
    assert (await n.kubelet.admit(PodSpec.single("worker", devices))).phase == "Running"
    assert n.agent is not None
    inventory = n.agent.inventory
    await n.until(lambda: bool(inventory.snapshot.holdings))


@pytest.mark.slow
async def test_prometheus_scrapes_the_agent_of_a_simulated_dgx_over_tls_with_a_token(tmp_path: Path) -> None:
    authority, tokens, config = secured(tmp_path)
    async with node("dgx-h100") as n:
        await working(n, config)
        async with prometheus(job(n.port, authority, tokens)) as server:
            await server.until('up{job="nodeagent/nodeagent"} == 1')
            (links,) = await server.until("count(nodeagent_link_carrier == 1)")
            assert float(links["value"][1]) >= 8
            await server.until("count(nodeagent_device_pod_info{pod='worker'}) == 2")
            (target,) = await server.targets()
            assert target["lastError"] == ""
            # A link goes down, and Prometheus fires the alert.
            n.machine.set_link(0, up=False)
            await server.until('nodeagent_link_health_state{state="down"} == 1')
            await server.until('ALERTS{alertname="NodeLinkDown"}')
            # The agent restarts at the same address during the alert.
            port = n.port
            await n.stop_agent()
            await server.until("up == 0")
            await n.start_agent(
                n.configure(f'{config}listen: "127.0.0.1:{port}"\n'), listen=f"127.0.0.1:{port}"
            )
            await server.until("up == 1")


@pytest.mark.slow
async def test_every_panel_and_every_rule_has_a_result(tmp_path: Path) -> None:
    """The machine has every device and a fault of each kind, so that every panel has data."""
    await asyncio.to_thread(facts)  # it runs its own event loop
    authority, tokens, _ = secured(tmp_path)
    certificate, key = authority.sign("all")
    files = {"certificate_file": certificate, "key_file": key, "token_file": tokens}
    access = AccessControl(WebSettings(**{setting: str(path) for setting, path in files.items()}))
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    further = [family for row in AGENT for family in row.families]
    metrics = MetricsPage(
        lambda: scrape_input(at=time.clock_gettime(time.CLOCK_BOOTTIME)), WebSettings(), further
    )
    web = asyncio.create_task(
        WebServer({"/metrics": metrics.page}, access).run("127.0.0.1", 0, port.set_result)
    )
    try:
        async with prometheus(job(await port, authority, tokens)) as server:
            await server.until("count_over_time(up[5m]) >= 3")
            await server.until("instance_state:nodeagent_links:count")
            without_result = []
            for board in BOARDS:
                for title, expression in expressions(board):
                    query = expression.replace("$instance", "dgx-1").replace("$__rate_interval", "5m")
                    query = query.replace("$cluster", ".*")
                    if any(part in query for part in CONTROLLER):
                        await server.query(query)  # a valid query; this server has no controller
                    elif not await server.query(query) and title not in EMPTY:
                        without_result.append((board, title, expression))
            assert not without_result
            for group in groups():
                for rule in group["rules"]:
                    await server.query(rule["expr"])
                    for part in re.findall(r"nodeagent_\w+(?:\{[^}]*\})?", rule["expr"]):
                        name = part.partition("{")[0]
                        if name.startswith(CONTROLLER):
                            continue
                        known = name in ABSENT or await server.query(f"count({name})")
                        assert known, f"{rule.get('alert', rule.get('record'))}: no family is named {name}"
    finally:
        web.cancel()
        await asyncio.gather(web, return_exceptions=True)
