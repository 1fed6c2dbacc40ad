"""A real Prometheus scrapes the agent over TLS with a token, and answers every rule's and every panel's question."""

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

from nodeagent.sim.kubelet import PodSpec
from nodeagent.web.auth import Door
from nodeagent.web.metrics_page import MetricsPage
from nodeagent.web.server import Web
from nodeagent.web.web_settings import WebSettings
from tests.daemonset.test_monitoring import BOARDS, FOLDER, expressions, groups
from tests.support.certificates import Authority
from tests.support.running_agent import Node, node
from tests.support.scrape_inputs import facts, scrape_input

pytestmark = pytest.mark.needs("prometheus", "openssl")

EMPTY = {
    # What a healthy or a simulated machine does not have, and when the panel would show something.
    "Flaps per hour": "no link lost its carrier",
    "NVLinks down": "no NVLink is down",
    "Restarts of parts": "no part of the agent failed",
}
"""Panels that may show nothing, and why."""
ABSENT = {"nodeagent_series_dropped_total", "nodeagent_source_silent"}
"""What a node has a series of in trouble alone."""
CONTROLLER = ("nodeagent_fabric_", "nodeagent_controller_", "nodeagent_switch", "nodeagent_watch_")
"""Families that the controller states and no node; that they exist is tests/daemonset/test_monitoring.py's."""


class Prometheus:
    """One of Debian's, on loopback, with its data in a folder of its own; ends with its test."""

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
        async with asyncio.timeout(60):
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

    async def ask(self, expression: str) -> list[dict[str, Any]]:
        """The result of an instant query."""
        _, body = await self._get(f"/api/v1/query?query={urllib.parse.quote(expression)}")
        answer = json.loads(body)
        assert answer["status"] == "success", f"{expression}: {answer.get('error')}"
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result

    async def until(self, expression: str) -> list[dict[str, Any]]:
        async with asyncio.timeout(60):
            while not (found := await self.ask(expression)):
                await asyncio.sleep(0.1)
        return found

    async def targets(self) -> list[dict[str, Any]]:
        _, body = await self._get("/api/v1/targets")
        targets: list[dict[str, Any]] = json.loads(body)["data"]["activeTargets"]
        return targets


@asynccontextmanager
async def prometheus(job: dict[str, Any]) -> AsyncIterator[Prometheus]:
    with TemporaryDirectory(
        prefix="prometheus-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None
    ) as folder:
        made = Prometheus(Path(folder))
        try:
            await made.start(job)
            yield made
        finally:
            await made.stop()


def job(port: int, authority: Authority, tokens: Path) -> dict[str, Any]:
    return {
        "job_name": "nodeagent/nodeagent",
        "scheme": "https",
        "tls_config": {"ca_file": str(authority.certificate)},
        "authorization": {"credentials_file": str(tokens)},
        "static_configs": [{"targets": [f"127.0.0.1:{port}"], "labels": {"instance": "dgx-1"}}],
    }


def secured(folder: Path) -> tuple[Authority, Path, str]:
    """A CA, a token file, and the configuration that asks for them."""
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


async def test_the_agent_of_a_simulated_dgx_is_scraped_over_tls_with_a_token(tmp_path: Path) -> None:
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
            # A link goes down, and Prometheus says so.
            n.machine.set_link(0, up=False)
            await server.until('nodeagent_link_health_state{state="down"} == 1')
            await server.until('ALERTS{alertname="NodeLinkDown"}')
            # The agent is started again at the same place in the midst of it.
            port = n.port
            await n.stop_agent()
            await server.until("up == 0")
            await n.start_agent(
                n.configure(f'{config}listen: "127.0.0.1:{port}"\n'), listen=f"127.0.0.1:{port}"
            )
            await server.until("up == 1")


async def test_every_panel_and_every_rule_is_answered(tmp_path: Path) -> None:
    """By a machine that has everything and a fault of each kind, so that there is something to show."""
    await asyncio.to_thread(facts)  # which runs a loop of its own
    authority, tokens, _ = secured(tmp_path)
    certificate, key = authority.sign("all")
    files = {"certificate_file": certificate, "key_file": key, "token_file": tokens}
    door = Door(WebSettings(**{setting: str(path) for setting, path in files.items()}))
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    metrics = MetricsPage(lambda: scrape_input(at=time.clock_gettime(time.CLOCK_BOOTTIME)), 10_000)
    web = asyncio.create_task(Web({"/metrics": metrics.page}, door).run("127.0.0.1", 0, port.set_result))
    try:
        async with prometheus(job(await port, authority, tokens)) as server:
            await server.until("count_over_time(up[5m]) >= 3")
            await server.until("instance_state:nodeagent_links:count")
            unanswered = []
            for board in BOARDS:
                for title, expression in expressions(board):
                    asked = expression.replace("$instance", "dgx-1").replace("$__rate_interval", "5m")
                    if not await server.ask(asked) and title not in EMPTY:
                        unanswered.append((board, title, expression))
            assert not unanswered
            for group in groups():
                for rule in group["rules"]:
                    await server.ask(rule["expr"])
                    for part in re.findall(r"nodeagent_\w+(?:\{[^}]*\})?", rule["expr"]):
                        name = part.partition("{")[0]
                        if name.startswith(CONTROLLER):
                            continue
                        known = name in ABSENT or await server.ask(f"count({name})")
                        assert known, f"{rule.get('alert', rule.get('record'))}: nobody states {name}"
    finally:
        web.cancel()
        await asyncio.gather(web, return_exceptions=True)
