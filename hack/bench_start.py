"""How long the agent takes to its first answer on /healthz, and the controller to its own, with little CPU.

    python hack/bench_start.py [--only agent|controller]... [--quota MILLICORES]... [--times NUMBER]

Needs root and the CPU controller of cgroups. Each start is in a cgroup of its own whose quota (CFS bandwidth) is what a
container has left of a machine whose CPUs are all taken: its request. The machine is a simulated DGX H100 without a
kubelet, and modules are compiled to byte code, as in the image. The CPU time hardly depends on the load of this
machine, the wall time is about the CPU time divided by the quota.
"""

from __future__ import annotations

import argparse
import http.client
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

from benchmarks.cpu_time import cpu_ns  # noqa: E402
from benchmarks.stage import ENVIRONMENT, NODEAGENT  # noqa: E402

from nodeagent_lab.sim.machine import Machine  # noqa: E402

PERIOD_US = 100_000
"""The kubelet's default for the period of quotas (cpuCFSQuotaPeriod)."""
QUOTAS = (None, 200, 100, 50, 25, 10)
LIMIT_S = 300.0
LOOK_S = 0.02
CGROUPS = Path("/sys/fs/cgroup")


class Start(NamedTuple):
    """Seconds until the first answer: on the clock, and of CPU."""

    wall_s: float
    cpu_s: float


@contextmanager
def group(millicores: int | None) -> Iterator[Path]:
    """A CPU cgroup with this quota, of version 1 or 2. Raises ``OSError`` where there is none."""
    first = (CGROUPS / "cpu").is_dir()
    path = (CGROUPS / "cpu" if first else CGROUPS) / f"nodeagent-bench-{os.getpid()}"
    path.mkdir()
    quota = None if millicores is None else millicores * PERIOD_US // 1000
    try:
        if first:
            (path / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (path / "cpu.cfs_quota_us").write_text(str(-1 if quota is None else quota))
        else:
            (path / "cpu.max").write_text(f"{'max' if quota is None else quota} {PERIOD_US}")
        yield path
    finally:
        with suppress(OSError):
            path.rmdir()


def started(command: tuple[str, ...], port: int, millicores: int | None) -> Start:
    """Start a process and wait for its first answer."""
    with group(millicores) as folder:
        began = time.monotonic()
        with subprocess.Popen(
            ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(folder), *command],
            env=ENVIRONMENT,
            stderr=subprocess.DEVNULL,
        ) as process:
            try:
                while not answers(port):
                    if process.poll() is not None or time.monotonic() - began > LIMIT_S:
                        raise RuntimeError(f"no answer: {command}")
                    time.sleep(LOOK_S)
                return Start(time.monotonic() - began, cpu_ns(process.pid) / 1e9)
            finally:
                process.kill()


def answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def command(row: str, folder: Path, port: int) -> tuple[str, ...]:
    listen = ("--listen", f"127.0.0.1:{port}")
    if row == "agent":
        kubelet = ("--root", str(folder / "host"), "--kubelet-dir", str(folder / "kubelet"))
        return (*NODEAGENT, "run", *kubelet, *listen)
    return (*NODEAGENT, "controller", "--kubeconfig", str(folder / "kubeconfig"), *listen)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", action="append", choices=("agent", "controller"))
    parser.add_argument("--quota", action="append", type=int, metavar="MILLICORES")
    parser.add_argument("--times", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="na-", dir="/dev/shm") as name:
        folder = Path(name)
        Machine.load("dgx-h100").write(folder / "host")
        (folder / "kubeconfig").write_text(KUBECONFIG)
        print(f"{'':12}{'quota':>8}{'n':>4}{'wall, longest':>16}{'CPU, median':>14}{'CPU, longest':>15}")
        for row in options.only or ("agent", "controller"):
            started(command(row, folder, port := free_port()), port, None)  # compiles the modules
            for quota in options.quota or QUOTAS:
                made = [
                    started(command(row, folder, port := free_port()), port, quota)
                    for _ in range(options.times)
                ]
                cpu = [one.cpu_s for one in made]
                limit = "none" if quota is None else f"{quota}m"
                longest = max(one.wall_s for one in made)
                print(
                    f"{row:12}{limit:>8}{len(made):>4}{longest:>14.1f} s{statistics.median(cpu):>12.2f} s"
                    f"{max(cpu):>13.2f} s",
                    flush=True,
                )


KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: none
clusters: [{name: none, cluster: {server: "http://127.0.0.1:9"}}]
users: [{name: none, user: {token: none}}]
contexts: [{name: none, context: {cluster: none, user: none}}]
"""
"""An API server that does not answer: the controller listens without one."""

if __name__ == "__main__":
    main()
