"""The cost of a scrape: the agent beside node_exporter, in one namespace with 72 veth interfaces.

    python hack/bench_metrics.py [--quick] [--json FILE] [--settings YAML]

Needs root and Debian's prometheus-node-exporter, and strace to count system calls. Each program serves its whole
page over an open HTTP connection, compressed with gzip as Prometheus requests it; the programs are scraped in turn.
The agent is `nodeagent run` with all features, on a simulated machine whose 72 NICs have the names of the interfaces:
netlink and ethtool are those of the real kernel.

node_exporter reads the kernel during a scrape, and the agent reads it between scrapes. So "CPU at 15 s" adds the cost
of everything that the agent does in 15 s to one scrape: of its readings, rules and scans. ``--settings`` switches parts
of that off, such as ``{scanSeconds: 600, samples: {linkSeconds: 15}}``.
"""

from __future__ import annotations

import argparse
import compileall
import contextlib
import gzip
import http.client
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.cpu_time import cpu_ns  # noqa: E402
from benchmarks.stand_in_cost import excess_share  # noqa: E402

import nodeagent  # noqa: E402
from nodeagent_lab.sim.machine import Machine  # noqa: E402
from nodeagent_lab.sim.netns import Netns  # noqa: E402

LINKS = 72
EVERY_S = 15.0
PERIOD_S = 30.0
"""The longest period of the agent: its full scan of the machine."""
PROGRAM = "prometheus-node-exporter"
NODE = ("--collector.disable-defaults", "--collector.netdev", "--collector.netclass", "--collector.ethtool")
ACCEPT = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"


def name(number: int) -> str:
    return f"rail{number}"


def model() -> str:
    """72 NICs behind nine root ports."""
    lines = [
        "name: bench",
        "product: {sys_vendor: nodeagent, product_name: Bench}",
        'numa: {0: "0-1"}',
        "complexes: {pci0000:00: 0}",
        "parts:",
        '  nic: {kind: nic, vendor: "15b3", device: "1021", driver: mlx5_core, speed_mbps: 400000}',
        "nics:",
    ]
    lines += [
        f'  - {{part: nic, path: "pci0000:00/00:{port + 1:02x}.0/{port + 1:02x}:00.{number}", '
        f"netdev: {name(8 * port + number)}}}"
        for port in range(LINKS // 8)
        for number in range(8)
    ]
    return "\n".join(lines) + "\n"


@dataclass
class Target:
    """One program and its target_file."""

    title: str
    port: int
    command: list[str]
    pid: int = 0
    durations: list[float] = field(default_factory=list)
    cpu_ms: float = 0.0
    idle_cpu_ms_per_s: float = 0.0
    syscalls: float | None = None
    idle_syscalls_per_s: float | None = None
    rss_mib: float = 0.0
    peak_mib: float = 0.0
    packed: int = 0
    plain: int = 0
    samples: int = 0
    of_links: int = 0


# --- setup ------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def namespace() -> Iterator[Netns]:
    with Netns() as ns:
        pairs = [f"link add {name(n)} type veth peer name {name(n + 1)}" for n in range(0, LINKS, 2)]
        ups = [f"link set {name(n)} up" for n in range(LINKS)]
        batch = "\n".join(["link set lo up", *pairs, *ups]) + "\n"
        subprocess.run(ns.command("ip", "-batch", "-"), input=batch, text=True, check=True)
        yield ns


def programs(folder: Path, settings: str) -> list[Target]:
    root, config = folder / "machine", folder / "nodeagent.yaml"
    (folder / "model.yaml").write_text(model())
    machine = Machine.load(folder / "model.yaml")
    machine.write(root)
    shutil.rmtree(root / ".nodeagent")  # without it the agent samples this kernel
    kubelet = folder / "kubelet"
    (kubelet / "device-plugins").mkdir(
        parents=True
    )  # as on a node; without it the agent looks for it twice a second
    document = {
        "apiVersion": "nodeagent.io/v1alpha1",
        "kind": "NodeAgentConfig",
        "listen": "127.0.0.1:9808",
        "links": {"select": {"netdevs": ["rail*"]}},
    }
    config.write_text(yaml.safe_dump(document | yaml.safe_load(settings)))
    agent = [sys.executable, "-m", "nodeagent", "run", "--root", str(root), "--config", str(config)]
    agent += ["--kubelet-dir", str(kubelet)]
    return [
        Target("nodeagent", 9808, agent),
        Target(
            "node_exporter",
            9101,
            [
                PROGRAM,
                *NODE,
                "--no-collector.netclass.netlink",
                "--no-collector.netdev.netlink",
                "--web.listen-address=127.0.0.1:9101",
            ],
        ),
        Target(
            "node_exporter, netlink",
            9102,
            [PROGRAM, *NODE, "--collector.netclass.netlink", "--web.listen-address=127.0.0.1:9102"],
        ),
    ]


@contextlib.contextmanager
def running(ns: Netns, targets: list[Target], folder: Path) -> Iterator[None]:
    """Run the programs with their own /sys, which shows the interfaces of the namespace."""
    processes = []
    try:
        for n, target in enumerate(targets):
            inside = 'mount -t sysfs sysfs /sys && exec "$@"'
            command = ns.command("unshare", "--mount", "sh", "-c", inside, "sh", *target.command)
            with (folder / f"log{n}").open("wb") as log:
                process = subprocess.Popen(
                    command, stdout=log, stderr=log, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
                )
            target.pid = process.pid
            processes.append(process)
        yield
    except BaseException:
        for n, target in enumerate(targets):
            print(target.title, (folder / f"log{n}").read_text()[-2000:], file=sys.stderr)
        raise
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(timeout=20)


# --- in the namespace: the client -------------------------------------------------------------------------


class Client:
    """Scrapes over one open connection."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)

    def scrape(self) -> bytes:
        headers = {"Accept": ACCEPT, "Accept-Encoding": "gzip"}
        self._connection.request("GET", "/metrics", headers=headers)
        answer = self._connection.getresponse()
        body = answer.read()
        if answer.status != 200 or answer.getheader("Content-Encoding") != "gzip":
            raise SystemExit(f"status {answer.status}, {answer.getheader('Content-Encoding')}")
        return body


def wait_for(port: int) -> None:
    for _ in range(300):
        with contextlib.suppress(OSError):
            Client(port).scrape()
            return
        time.sleep(0.1)
    raise SystemExit(f"no answer on port {port}")


def memory(pid: int) -> tuple[float, float]:
    status = Path(f"/proc/{pid}/status").read_text()
    kib = dict(re.findall(r"(VmRSS|VmHWM):\s+(\d+)", status))
    return int(kib["VmRSS"]) / 1024, int(kib["VmHWM"]) / 1024


def measure(targets: list[Target], *, scrapes: int, idle_s: float) -> None:
    clients = {target.title: Client(target.port) for target in targets}
    for target in targets:
        wait_for(target.port)
    time.sleep(20)  # each reader of the agent has run once, and all modules are loaded
    for target in targets:
        for _ in range(3):
            body = clients[target.title].scrape()
        page = gzip.decompress(body).decode()
        lines = [line for line in page.splitlines() if line and not line.startswith("#")]
        target.packed, target.plain, target.samples = len(body), len(page), len(lines)
        target.of_links = sum('="rail' in line for line in lines)
    for _ in range(scrapes):  # in turn, so that a busy moment of the machine affects every program
        for target in targets:
            before, began = cpu_ns(target.pid), time.perf_counter()
            clients[target.title].scrape()
            target.durations.append(1000 * (time.perf_counter() - began))
            target.cpu_ms += (cpu_ns(target.pid) - before) / 1e6 / scrapes
        time.sleep(0.05)
    if shutil.which("strace"):
        for target in targets:
            if target is targets[0]:
                target.idle_syscalls_per_s = count(target, None, 0, PERIOD_S) / PERIOD_S
                # Only the main thread serves a scrape; readers have threads of their own.
                rest = count(target, None, 0, 10.0, threads=False) / 10.0
                took = count(target, clients[target.title], 200, 10.0, threads=False)
                target.syscalls = max(0.0, took - 10.0 * rest) / 200
            else:  # it does nothing between two scrapes
                target.idle_syscalls_per_s = count(target, None, 0, 2.0) / 2.0
                target.syscalls = count(target, clients[target.title], 5, 5.0) / 5
    # Last: after three readings at the longest period, counters without events cost less.
    before = {target.title: cpu_ns(target.pid) for target in targets}
    time.sleep(idle_s)
    for target in targets:
        target.idle_cpu_ms_per_s = (cpu_ns(target.pid) - before[target.title]) / 1e6 / idle_s
        target.rss_mib, target.peak_mib = memory(target.pid)


def count(
    target: Target, client: Client | None, scrapes: int, seconds: float, *, threads: bool = True
) -> float:
    """System calls of the process in this time, with this number of scrapes."""
    with tempfile.NamedTemporaryFile("r") as counts:
        tracing = subprocess.Popen(
            [
                "strace",
                *(["-f"] if threads else []),
                "-c",
                "-qq",
                "-U",
                "calls,name",
                "-o",
                counts.name,
                "-p",
                str(target.pid),
            ],
            stderr=subprocess.PIPE,
        )
        time.sleep(1.0)
        ends = time.monotonic() + seconds
        for _ in range(scrapes):
            client.scrape()
        time.sleep(max(0.0, ends - time.monotonic()))
        tracing.terminate()
        tracing.wait(timeout=20)
        rows = [line.split() for line in counts.read().splitlines()]
    extra = (seconds + 1.0) / seconds if not scrapes else 1.0  # strace traces for one second more
    return (
        sum(int(row[0]) for row in rows if len(row) == 2 and row[0].isdigit() and row[1] != "total") / extra
    )


# --- the table --------------------------------------------------------------------------------------------


def table(targets: list[Target]) -> str:
    head = (
        "",
        "p50 ms",
        "p95 ms",
        "CPU ms",
        "CPU at 15 s",
        "syscalls",
        "at 15 s",
        "RSS MiB",
        "peak",
        "kB",
        "kB gz",
        "samples",
        "per link",
    )
    rows = [head]
    for target in targets:
        ordered = sorted(target.durations)
        rows.append(
            (
                target.title,
                f"{statistics.median(ordered):.2f}",
                f"{ordered[int(0.95 * (len(ordered) - 1))]:.2f}",
                f"{target.cpu_ms:.2f}",
                f"{target.cpu_ms + EVERY_S * target.idle_cpu_ms_per_s:.1f}",
                "-" if target.syscalls is None else f"{target.syscalls:.0f}",
                "-"
                if target.idle_syscalls_per_s is None or target.syscalls is None
                else f"{target.syscalls + EVERY_S * target.idle_syscalls_per_s:.0f}",
                f"{target.rss_mib:.1f}",
                f"{target.peak_mib:.1f}",
                f"{target.plain / 1000:.0f}",
                f"{target.packed / 1000:.0f}",
                str(target.samples),
                f"{target.of_links / LINKS:.1f}",
            )
        )
    widths = [max(len(row[n]) for row in rows) for n in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if n else cell.ljust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def goals_reached(targets: list[Target]) -> list[str]:
    """Each goal with its result."""
    ours, default, netlink = targets
    p50 = {target.title: statistics.median(target.durations) for target in targets}
    cpu_ms = {target.title: target.cpu_ms + EVERY_S * target.idle_cpu_ms_per_s for target in targets}
    goals = [
        ("samples per link, at least node_exporter's", ours.of_links / LINKS, default.of_links / LINKS, True),
        ("p50 in ms, at most an eighth of the default's", p50[ours.title], p50[default.title] / 8, False),
        ("p50 in ms, at most half of netlink mode's", p50[ours.title], p50[netlink.title] / 2, False),
        (
            "CPU ms in 15 s, at most half of the default's",
            cpu_ms[ours.title],
            cpu_ms[default.title] / 2,
            False,
        ),
        ("resident MiB, at most 60", ours.rss_mib, 60.0, False),
    ]
    if ours.syscalls is not None:
        goals.append(("system calls of a scrape, at most 120", ours.syscalls, 120.0, False))
    lines = []
    for what, reached, goal, more in goals:
        good = reached >= goal if more else reached <= goal
        lines.append(f"{'reached' if good else 'MISSED '}  {what}: {reached:.2f} of {goal:.2f}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="few scrapes: for a first impression, not to be quoted"
    )
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--settings", default="{}", metavar="YAML", help="further settings of the agent")
    parser.add_argument("--client", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client is not None:
        targets = [Target(**fields) for fields in json.loads(options.client.read_text())]
        measure(targets, scrapes=10 if options.quick else 60, idle_s=PERIOD_S)
        options.client.write_text(json.dumps([vars(target) for target in targets]))
        return
    if os.geteuid() != 0 or shutil.which(PROGRAM) is None:
        print(f"bench_metrics needs root and {PROGRAM}; nothing was measured.")
        return
    # As the image does: modules that the agent compiles at its start stay in its memory.
    compileall.compile_dir(Path(nodeagent.__file__).parent, quiet=1)
    with (
        tempfile.TemporaryDirectory(
            prefix="bench-metrics-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None
        ) as place,
        namespace() as ns,
    ):
        folder = Path(place)
        targets = programs(folder, options.settings)
        with running(ns, targets, folder):
            target_file = folder / "targets.json"
            target_file.write_text(json.dumps([vars(target) for target in targets]))
            quick = ["--quick"] if options.quick else []
            subprocess.run(
                ns.command(sys.executable, __file__, "--client", str(target_file), *quick), check=True
            )
            targets = [Target(**fields) for fields in json.loads(target_file.read_text())]
            excess_ms = 1000 * EVERY_S * excess_share(folder / "machine") / 100
    print(f"{LINKS} veth interfaces, scraped in turn; load {os.getloadavg()[0]:.1f}")
    print(table(targets))
    print("\n".join(goals_reached(targets)))
    print(
        f"Of the agent's CPU at 15 s, {excess_ms:.1f} ms are for the simulated files, which a node does not pay."
    )
    if options.json is not None:
        options.json.write_text(
            json.dumps([{**vars(target), "command": None} for target in targets], indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
