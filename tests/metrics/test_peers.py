"""The names of node_exporter's families in the table exist: a real node_exporter shows them."""

from __future__ import annotations

import asyncio
import re
import socket

import pytest

from hack.docs.metric_notes import AGENT

pytestmark = pytest.mark.needs("prometheus-node-exporter")

NAMED = {
    name
    for note in AGENT.values()
    for name in re.findall(r"\bnode_network_[a-z_]+", note.peers)
    if not name.endswith("_")  # "receive_errs of node_network_*"
} | {
    f"node_network_{noun}_total"
    for note in AGENT.values()
    for noun in re.findall(r"^(?:part of )?(\w+) of node_network_\*", note.peers)
}
NOT_ON_LOOPBACK = {"node_network_speed_bytes"}
"""Shown only on a machine with a real NIC."""


async def test_node_exporter_has_the_names_that_the_table_gives() -> None:
    """The loopback interface of any network namespace has all of them except a speed."""
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
            page = await scraped(port)
    finally:
        process.kill()
        await process.wait()
    shown = set(re.findall(r"^# TYPE (\w+)", page, re.M))
    assert len(NAMED) > 15
    assert NAMED - shown - NOT_ON_LOOPBACK == set()


async def scraped(port: int) -> str:
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except ConnectionError:
            await asyncio.sleep(0.05)  # it does not signal that it listens
            continue
        writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
        page = (await reader.read()).decode()
        writer.close()
        return page
