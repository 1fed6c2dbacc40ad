"""The cost of the fabric map: in Debian's Chromium, on the wire, and in the controller.

    python hack/bench_ui.py

* ``first paint``: from the start of the navigation to the second frame after the first drawing, of the file of 1,024
  nodes with 8 links. Median of RUNS.
* ``pan``: frames per second while a fabric of 10,240 nodes (81,920 cells) moves in each frame: all cells in the window,
  and at the size at which their names can be read. Chromium has no GPU here and draws with the processor.
* ``bytes``: the document of 1,024 and of 10,240 nodes, as JSON and as it is sent.
* ``viewers``: CPU time of the server's process for one change of 1,024 nodes, with 1 and with 10 viewers that fetch
  each document, in a process of their own. It contains the plan, the document, the compression and the answers.
"""

from __future__ import annotations

import asyncio
import gzip
import statistics
import sys
import tempfile
import time
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).parents[1]))

from nodeagent.base.bounded_calls import in_thread
from nodeagent.fabric import IMMEDIATE, FabricRules, Planner
from nodeagent.fabric.fabric_view import fabric_view
from nodeagent.web import live_document
from nodeagent.web.live_document import LiveDocument
from nodeagent.web.server import WebServer
from nodeagent.web.ui_files import self_contained
from nodeagent.web.ui_pages import UI_PREFIX, UiPages
from tests.support import fabrics
from tests.support.chromium import Browser

RUNS = 7
CHANGES = 20
PAINTED = "performance.getEntriesByName('nodeagent-painted')[0]?.startTime"
PAN = """
new Promise((resolve) => {
  const { fabricMap: map } = document.getElementById("map");
  const times = [];
  let steps = 0;
  const step = (now) => {
    times.push(now);
    map.pan(steps < 60 ? 5 : -5, steps < 60 ? 3 : -3);
    if ((steps += 1) < 120) requestAnimationFrame(step);
    else resolve(times.slice(1).map((time, i) => time - times[i]));
  };
  requestAnimationFrame(step);
})
"""
VIEWER = """
import asyncio, sys
HEAD = b"\\r\\nHost: a\\r\\nAccept-Encoding: gzip\\r\\nConnection: close\\r\\n\\r\\n"
async def view(port):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /ui/events HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n")
    while line := await reader.readline():
        if line.startswith(b"event: document"):
            other, sender = await asyncio.open_connection("127.0.0.1", port)
            sender.write(b"GET /ui/document.json HTTP/1.1" + HEAD)
            await other.read()
            sender.close()
async def main():
    await asyncio.gather(*(view(int(sys.argv[1])) for _ in range(int(sys.argv[2]))))
asyncio.run(main())
"""


def planner(nodes: int) -> tuple[Planner, fabrics.Cables]:
    cables = fabrics.rails(nodes // 32, 32)
    made = Planner(FabricRules(hysteresis=IMMEDIATE))
    for node, row in cables.items():
        made.report(node, fabrics.links(node, row))
    return made, cables


def document(nodes: int) -> bytes:
    made, _ = planner(nodes)
    return msgspec.json.encode(fabric_view(made.prepare(0.0)(), 0.0, time.time()))


def in_chromium(folder: Path) -> None:
    browser = Browser(folder / "profile")
    try:
        small, large = folder / "small.html", folder / "large.html"
        small.write_text(self_contained("fabric", document(1024)))
        large.write_text(self_contained("fabric", document(10_240)))
        for name, file, runs in (("1,024", small, RUNS), ("10,240", large, 3)):
            times = []
            for _ in range(runs):
                tab = browser.tab(f"file://{file}")
                times.append(tab.until(PAINTED))
                tab.close()
            low, high = min(times), max(times)
            middle = statistics.median(times)
            print(f"first paint of {name} nodes: median {middle:.0f} ms, {low:.0f} to {high:.0f}, n={runs}")
        tab = browser.tab(f"file://{large}")
        tab.until(PAINTED)
        for what, prepare in (("all 81,920 cells", "0"), ("at a readable size", "map.zoom(4)")):
            tab.value(
                f"(() => {{ const {{ fabricMap: map }} = document.getElementById('map'); {prepare}; }})()"
            )
            tab.value(PAN)  # draws the bitmaps of this zoom
            gaps = tab.value(PAN)
            slow = sorted(gaps)[int(len(gaps) * 0.95)]
            rate = 1000 / statistics.mean(gaps)
            print(f"pan, {what}: {rate:.0f} frames/s, 95 % within {slow:.0f} ms, n={len(gaps)}")
        tab.close()
    finally:
        browser.close()


async def with_viewers(viewers: int) -> float:
    """CPU seconds of this process for one change."""
    made, cables = planner(1024)
    node, row = next(iter(cables.items()))
    changed = asyncio.Event()

    async def make() -> bytes:
        prepared = made.prepare(0.0)
        return await in_thread(lambda: msgspec.json.encode(fabric_view(prepared(), 0.0, time.time())))

    live = LiveDocument(make, lambda: changed.wait())  # noqa: PLW0108 - each change is a new event
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    server = WebServer({}, folders={UI_PREFIX: UiPages("fabric", live).answer})
    task = asyncio.create_task(server.run("127.0.0.1", 0, port.set_result))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", VIEWER, str(await port), str(viewers)
    )
    try:
        while live.viewers < viewers or not live.made:
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.5)
        began, first = time.process_time(), live.made
        while live.made < first + CHANGES:
            made.report(node, fabrics.links(node, row[: 7 - live.made % 2]))
            before, old = live.made, changed
            changed = asyncio.Event()
            old.set()
            while live.made == before:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        return (time.process_time() - began) / (live.made - first)
    finally:
        process.kill()
        await process.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        in_chromium(Path(folder))
    for nodes in (1024, 10_240):
        body = document(nodes)
        print(f"bytes of {nodes} nodes: {len(body)} as JSON, {len(gzip.compress(body, 6))} as sent")
    live_document.REST_S, live_document.REST_SHARE = 0.05, 0.0
    for viewers in (1, 10):
        cost_ms = asyncio.run(with_viewers(viewers)) * 1000
        print(f"viewers: {viewers}: {cost_ms:.1f} ms of CPU for each change, n={CHANGES}")


if __name__ == "__main__":
    main()
