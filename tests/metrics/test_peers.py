"""The names of others that the catalog gives: node_exporter is asked whether it has them."""

from __future__ import annotations

import asyncio
import re
import socket

import pytest

from nodeagent.metrics.catalog import CATALOG

pytestmark = pytest.mark.needs("prometheus-node-exporter")

GIVEN = {
    name
    for family in CATALOG.values()
    for name in re.findall(r"\bnode_network_[a-z_]+", family.peers)
    if not name.endswith("_")  # "receive_errs of node_network_*"
} | {
    f"node_network_{noun}_total"
    for family in CATALOG.values()
    for noun in re.findall(r"^(?:part of )?(\w+) of node_network_\*", family.peers)
}
UNSTATED = {"node_network_speed_bytes"}
"""What it says of a machine with a real NIC alone."""


async def test_node_exporter_has_what_the_catalog_says_it_has() -> None:
    """In whatever network namespace this runs: the loopback interface has all but a speed."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        "prometheus-node-exporter",
        "--collector.disable-defaults",
        "--collector.netdev",
        "--collector.netclass",
        f"--web.listen-address=127.0.0.1:{port}",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(30):
            page = await asked(port)
    finally:
        process.kill()
        await process.wait()
    there = set(re.findall(r"^# TYPE (\w+)", page, re.M))
    assert len(GIVEN) > 15
    assert GIVEN - there - UNSTATED == set()


async def asked(port: int) -> str:
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except ConnectionError:
            await asyncio.sleep(0.05)  # nobody announces that it listens
            continue
        writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
        page = (await reader.read()).decode()
        writer.close()
        return page
