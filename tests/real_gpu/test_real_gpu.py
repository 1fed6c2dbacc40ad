"""The agent, its verbs and MPS on a machine with a real NVIDIA GPU (`make test-gpu`).

Needs root, one idle GPU, its driver, and `nvidia-cuda-mps-control` for MPS. Nothing of the GPU is set: no mode, no
reset, no MIG. The kubelet is the stand-in, and pods are cgroups of the names that runtimes give them. Everything else
is real: the agent is the shipped program, and programs on the GPU are `cuda_program.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from nodeagent_lab.sim.kubelet import Kubelet, PodSpec
from tests.support.waiting import until

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(180)]

REPOSITORY = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("cuda_program.py")
MEMORY = "example.com/gpu-mem"
GIB = 1 << 30
SLACK_MIB = 1024
"""A CUDA context takes some hundred MiB of its own."""
CGROUPS = Path("/sys/fs/cgroup")


def keep(what: str, text: str) -> None:
    """Print what was seen, and add it to ``seen.txt`` in the folder that ``OUT`` names."""
    print(f"--- {what}\n{text}")
    if folder := os.environ.get("OUT"):
        with open(Path(folder, "seen.txt"), "a") as file:
            file.write(f"--- {what}\n{text}\n")


def nvidia_smi(*names: str) -> list[str]:
    """Ask NVIDIA's own program about the first GPU."""
    command = ["nvidia-smi", "-i", "0", f"--query-gpu={','.join(names)}", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [word.strip() for word in done.stdout.strip().split(",")]


def verb(*words: str, root: Path | None = None) -> subprocess.CompletedProcess[str]:
    place = ["--root", str(root)] if root else []
    command = [sys.executable, "-m", "nodeagent", *words, *place]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60)  # noqa: PLW1510


def answer(*words: str, root: Path | None = None) -> Any:
    done = verb(*words, "--json", root=root)
    assert done.returncode in (0, 1), done.stderr
    return json.loads(done.stdout)


class Program:
    """A program on the GPU."""

    def __init__(
        self,
        *words: str,
        cgroup: Path | None = None,
        env: dict[str, str] | None = None,
    ) -> None:
        command = [sys.executable, str(PROGRAM), *words]
        if cgroup is not None:
            enter = 'echo $$ > "$0" && exec "$@"'
            command = ["sh", "-c", enter, str(cgroup / "cgroup.procs"), *command]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, text=True, env={**os.environ, **(env or {})}
        )

    def says(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ask(self, *words: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(words) + "\n")
        self.process.stdin.flush()
        return self.says()

    def end(self) -> int:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        return self.process.wait(30)


@contextlib.contextmanager
def program(*words: str, **options: Any) -> Iterator[Program]:
    """A program that ends with the block. ``options`` are those of ``Program``."""
    made = Program(*words, **options)
    try:
        with made.process:
            yield made
            made.process.kill()
    finally:
        made.process.kill()


@contextlib.contextmanager
def container(pod: PodSpec, number: int = 1) -> Iterator[Path]:
    """A cgroup with the name that containerd and the kubelet give it (driver systemd)."""
    uid = pod.uid.replace("-", "_")
    slice_ = CGROUPS / "kubepods.slice" / f"kubepods-pod{uid}.slice"
    made = slice_ / f"cri-containerd-{number:064x}.scope"
    made.mkdir(parents=True)
    try:
        yield made
    finally:
        for folder in (made, slice_, slice_.parent):
            for _ in range(50):
                try:
                    folder.rmdir()
                    break
                except OSError:
                    subprocess.run(["sleep", "0.1"], check=True)


class Agent:
    """The shipped program between a real GPU and the stand-in kubelet."""

    def __init__(self, folder: Path, settings: str) -> None:
        self.folder = folder
        self.kubelet = Kubelet(folder / "k", seed=3)
        self.logs = folder / "pods"
        self.logs.mkdir()
        self.state = folder / "s"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self.config = folder / "nodeagent.yaml"
        self.config.write_text(
            "apiVersion: nodeagent.io/v1alpha1\nkind: NodeAgentConfig\nresourcePrefix: example.com\n"
            f"cdi: {{directory: {folder}/cdi}}\nhealth: {{stateDirectory: {self.state}}}\n"
            + settings.replace("PODS", str(self.logs))
        )
        self.log = open(folder / "log", "wb")  # noqa: SIM115 - for the life of the agent
        self.process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        await self.kubelet.start()
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "nodeagent", "run", "--config", str(self.config)),
                *("--kubelet-dir", str(self.kubelet.directory), "--listen", self.address),
            ],
            cwd=REPOSITORY,
            stdout=self.log,
            stderr=self.log,
        )

    async def end(self) -> None:
        if self.process is not None:
            self.process.terminate()
            try:
                await asyncio.to_thread(self.process.wait, 20)
            except subprocess.TimeoutExpired:
                self.process.kill()
        await self.kubelet.stop()
        self.log.close()

    def said(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    async def slices(self) -> int:
        """Wait for the slices of the GPU, and return how many there are."""
        await until(lambda: self.kubelet.allocatable().get(MEMORY, 0) > 0, self.said())
        return self.kubelet.allocatable()[MEMORY]

    async def pod(self, name: str, slices: int) -> tuple[PodSpec, Any]:
        """Admit a pod, with a folder of logs as the kubelet makes it. Return what its container gets."""
        pod = PodSpec.single(name, {MEMORY: slices})
        (self.logs / f"{pod.namespace}_{pod.name}_{pod.uid}").mkdir()
        admission = await self.kubelet.admit(pod)
        assert admission.phase == "Running", admission.message
        return pod, admission.given["main"]

    async def ask(self, *words: str) -> Any:
        return await asyncio.to_thread(answer, *words, *self.own(words[0]))

    def own(self, name: str) -> tuple[str, ...]:
        """The option with which a verb asks this agent."""
        return ("--config", str(self.config)) if name == "gpus" else ("--agent", self.address)

    async def until_ask(self, good: Any, *words: str, seconds: int = 40) -> Any:
        found: Any = None
        for _ in range(seconds * 4):
            found = await self.ask(*words)
            if good(found):
                return found
            await asyncio.sleep(0.25)
        pytest.fail(f"{' '.join(words)}: {json.dumps(found)[:3000]}\n{self.said()[-3000:]}")


@contextlib.asynccontextmanager
async def agent(settings: str) -> AsyncIterator[Agent]:
    with tempfile.TemporaryDirectory(prefix="na-", ignore_cleanup_errors=True) as folder:
        made = Agent(Path(folder), settings)
        try:
            await made.start()
            yield made
        finally:
            await made.end()


DRIVER = next(
    folder
    for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib")
    if Path(folder, "libcuda.so.1").exists() or folder == "/usr/lib"
)
PLAIN = f"resources: [{{kind: gpu-mem}}]\ngpu: {{driverRoot: {DRIVER}, health: {{readSeconds: 1}}}}\n"
ACCOUNTED = (
    f"resources: [{{kind: gpu-mem}}]\ngpu:\n  driverRoot: {DRIVER}\n  profiling: true\n"
    "  health: {processes: true, readSeconds: 1}\n  accounting: {podLogs: PODS, graceSeconds: 2}\n"
)
SHARED = PLAIN.replace("{kind: gpu-mem}", "{kind: gpu-mem, enforcement: mps}")


def test_values_are_those_of_nvidia_smi() -> None:
    uuid, name, bus, memory, serial, limit, driver = nvidia_smi(
        "uuid", "name", "pci.bus_id", "memory.total", "serial", "power.limit", "driver_version"
    )
    (gpu,) = answer("gpus")["gpus"]
    assert (gpu["uuid"], gpu["model"]) == (uuid, name)
    assert gpu["memoryBytes"] == int(memory) << 20
    assert gpu["powerLimitWatts"] == float(limit)
    assert abs(gpu["celsius"] - float(nvidia_smi("temperature.gpu")[0])) <= 3
    assert answer("gpus")["driver"] == driver
    (seen,) = answer("scan")["gpus"]
    assert seen["pciAddress"] == bus.lower()[4:]
    assert seen["health"]["state"] == "healthy"
    assert serial.isdigit()


@pytest.mark.parametrize("scramble", [(), ("--scramble",)], ids=["plain", "scrambled"])
def test_a_capture_shows_the_machine_elsewhere(tmp_path: Path, scramble: tuple[str, ...]) -> None:
    serial, uuid = nvidia_smi("serial", "uuid")
    place = tmp_path / "capture"
    done = verb("capture", *scramble, str(place))
    assert done.returncode == 0, done.stderr
    (here,), (there,) = answer("scan")["gpus"], answer("scan", root=place)["gpus"]
    if scramble:
        assert there["uuid"] != here["uuid"]
        assert there["pciAddress"] == here["pciAddress"]
    else:
        assert there == here
    content = b"".join(path.read_bytes() for path in place.rglob("*") if path.is_file())
    assert serial.encode() not in content
    assert (uuid.encode() in content) is not bool(scramble)


def test_this_machine_is_a_guest_if_its_processor_says_so() -> None:
    guest = re.search(r"^flags\s*:.*\bhypervisor\b", Path("/proc/cpuinfo").read_text(), re.M) is not None
    assert answer("scan")["guest"] is guest


async def test_a_pod_gets_what_a_program_needs() -> None:
    async with agent(PLAIN) as a:
        memory, reserved = map(int, nvidia_smi("memory.total", "memory.reserved"))
        assert await a.slices() == (memory - reserved) // 1024
        _, given = await a.pod("one", 40)
        (device,) = given.cdi_devices
        (spec,) = [json.loads(path.read_text()) for path in (a.folder / "cdi").glob("*.json")]
        kind, _, name = device.partition("=")
        assert spec["kind"] == kind
        (entry,) = [one for one in spec["devices"] if one["name"] == name]
        nodes = [
            node["path"]
            for part in (entry, spec)
            for node in part.get("containerEdits", {}).get("deviceNodes", ())
        ]
        assert "/dev/nvidia0" in nodes
        assert "/dev/nvidiactl" in nodes
        for node in nodes:
            assert Path(node).is_char_device()
        mounts = spec.get("containerEdits", {}).get("mounts", ())
        assert any(mount["containerPath"].endswith("/libcuda.so.1") for mount in mounts)
        for mount in mounts:
            assert Path(mount["hostPath"]).is_file()


async def test_the_memory_and_load_of_a_program_are_those_of_its_pod() -> None:
    async with agent(ACCOUNTED) as a:
        await a.slices()
        pod, _ = await a.pod("within", 20)
        other, _ = await a.pod("over", 4)
        with (
            container(pod) as first,
            container(other, 2) as second,
            program("hold", "16384", cgroup=first) as within,
            program("hold", "8192", cgroup=second) as over,
        ):
            assert within.says() == "held 16384"
            assert over.says() == "held 8192"
            assert within.ask("busy", "25") == "busy"

            def both(found: Any) -> bool:
                return {use["pod"] for use in found["gpus"][0]["pods"] if use["usedBytes"]} == {
                    "within",
                    "over",
                }

            found = await a.until_ask(both, "gpus")
            uses = {use["pod"]: use for use in found["gpus"][0]["pods"]}
            assert 16384 << 20 <= uses["within"]["usedBytes"] <= (16384 + SLACK_MIB) << 20
            assert 8192 << 20 <= uses["over"]["usedBytes"] <= (8192 + SLACK_MIB) << 20
            await a.until_ask(lambda found: (found["gpus"][0]["utilization"] or 0) > 0.5, "gpus")
            keep("nodeagent gpus", verb("gpus", *a.own("gpus")).stdout)
            keep("nodeagent health GPU0", verb("health", "GPU0", "--agent", a.address).stdout)
            with urllib.request.urlopen(f"http://{a.address}/metrics") as page:
                keep("/metrics", page.read().decode())
        await a.until_ask(lambda found: not any(use["usedBytes"] for use in found["gpus"][0]["pods"]), "gpus")


@pytest.mark.parametrize(("act", "xid"), [("fault", 31), ("misaligned", 13)])
async def test_a_program_that_fails_leaves_its_xid_and_a_healthy_gpu(act: str, xid: int) -> None:
    async with agent(PLAIN) as a:
        before = await a.slices()
        with program("hold", "64") as neighbor:
            assert neighbor.says() == "held 64"
            with program(act) as bad:
                assert bad.says().startswith("failed")
                assert bad.process.wait(30) != 0
            await until(lambda: f"xid={xid} severity=ignore" in a.said(), a.said())
            assert neighbor.ask("hold", "64") == "held 64"
        (gpu,) = (await a.ask("gpus"))["gpus"]
        assert gpu["state"] == "healthy"
        assert a.kubelet.allocatable()[MEMORY] == before


@contextlib.contextmanager
def mps_daemons(a: Agent) -> Iterator[None]:
    """`nodeagent mps` beside the agent. No server is left at its end."""
    command = [sys.executable, "-m", "nodeagent", "mps", "--directory", str(a.state / "mps")]
    with open(a.folder / "mps.log", "wb") as log:
        mps = subprocess.Popen(command, cwd=REPOSITORY, stdout=log, stderr=log)
    try:
        yield
    finally:
        keep("nodeagent mps", (a.folder / "mps.log").read_text())
        keep(
            "daemon and server", "".join(file.read_text() for file in a.state.glob("mps/*/log/*.log"))[-6000:]
        )
        mps.terminate()
        mps.wait(30)
    listing = subprocess.run(["nvidia-smi"], capture_output=True, text=True, check=True).stdout
    assert "nvidia-cuda-mps-server" not in listing


def of_mps(given: Any) -> dict[str, str]:
    """The variables of a container. The paths in it are those of the host."""
    return {name: value for name, value in given.env if name.startswith("CUDA_")}


async def test_mps_keeps_each_program_within_its_share() -> None:
    async with agent(SHARED) as a:
        with mps_daemons(a):
            await a.slices()
            small = of_mps((await a.pod("small", 8))[1])
            large = of_mps((await a.pod("large", 32))[1])
            with program("hold", "6144", env=small) as one, program("hold", "24576", env=large) as two:
                assert one.says() == "held 6144"
                assert two.says() == "held 24576"
                memory, reserved = map(int, nvidia_smi("memory.total", "memory.reserved"))
                # A program sees how much of its share is free, and the whole memory of the GPU.
                for client, share, held in ((one, 8192, 6144), (two, 32768, 24576)):
                    _, free, seen = client.ask("memory").split()
                    assert share - held - SLACK_MIB <= int(free) <= share - held
                    assert abs(int(seen) - (memory - reserved)) <= 1
                assert one.ask("hold", "4096") == "refused 2 by cuMemAlloc_v2"
                assert two.ask("hold", "4096") == "held 4096"
                assert one.ask("managed", "16384") == "refused 2 by cuMemAllocManaged"
                assert one.ask("busy", "1") == "busy"
                assert one.says() == "idle"
                assert (await a.ask("gpus"))["gpus"][0]["utilization"] is not None
                with program("hold", "6144", env=small) as again:
                    assert again.says() == "held 6144", "each process has the share"
                with program(
                    "hold", "16384", env={**small, "CUDA_MPS_PIPE_DIRECTORY": "/nowhere"}
                ) as free_one:
                    assert free_one.says() == "held 16384", "its own environment is the program's"


async def test_a_client_that_fails_takes_the_gpu_from_all_clients() -> None:
    """The server gives its error to all of them, and serves the next."""
    async with agent(SHARED) as a:
        with mps_daemons(a):
            await a.slices()
            given = of_mps((await a.pod("one", 8))[1])
            with program("hold", "64", env=given) as neighbor:
                assert neighbor.says() == "held 64"
                with program("fault", env=given) as bad:
                    assert bad.says() == "failed cuCtxSynchronize: 700"
                assert neighbor.ask("busy", "1") == "busy"
                assert re.fullmatch(r"failed \w+: 700", neighbor.says())
            with program("hold", "64", env=given) as later:
                assert later.says() == "held 64"
            await until(lambda: "xid=31 severity=ignore" in a.said(), a.said())
        (gpu,) = (await a.ask("gpus"))["gpus"]
        assert gpu["state"] == "healthy"
