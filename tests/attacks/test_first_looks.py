"""Any file of a NIC or GPU that fails, is gone or hangs at the first start of the agent: no number is another later.

The machine is simulated, and its files are enumerated, so a new one is covered by itself. The sources, the memory of
rails and the offer are those of the agent. Three entries are tried at once: NICs by rail, by netdev, and as devices of
claims. While the file is unreadable, each device that is offered has the name that it has on the healthy machine, and
nothing else is stored; when the file can be read, all devices have these names. Then an agent starts again beside the
broken file, with what the first one has stored.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest

from nodeagent.agent_config import Config, load
from nodeagent.base.stored_file import StoredFile
from nodeagent.base.supervise import end_tasks
from nodeagent.discovery import Discovery, first_facts
from nodeagent.facts.inventory import Inventory
from nodeagent.facts.model import Snapshot
from nodeagent.host.sysfs import Tree
from nodeagent.kinds import DeviceKind
from nodeagent.kubelet.cdi_files import CdiSpecFiles
from nodeagent.kubelet.device_info import DeviceInfoFiles
from nodeagent.kubelet.offer_files import OfferFiles
from nodeagent.kubelet.rail_memory import RAILS_FORM, RailMemory, RailsFile
from nodeagent.kubelet.slice_sizes import SliceSizes
from nodeagent.offering.device_offering import DeviceOffering
from nodeagent.sources import bounded_scan
from nodeagent.sources.pci_source import PRODUCT_FILE
from nodeagent_lab.sim.machine import Machine
from tests.support.dead_files import dead
from tests.support.running_agent import HEAD, IN_MEMORY
from tests.support.waiting import LIMIT_S

MODEL = """\
name: first
product: {sys_vendor: nodeagent, product_name: First}
driver: {version: 580.95.05, cuda_version: "13.0"}
default_route: eno1
numa: {0: "0-3"}
complexes: {pci0000:00: 0}
parts:
  gpu: {kind: gpu, vendor: "10de", device: "2330", subsystem_device: "16c1", driver: nvidia, name: H100,
        memory_mib: 4096}
  nic: {kind: nic, vendor: "15b3", device: "1021", subsystem_device: "0041", driver: mlx5_core, rdma: true,
        speed_mbps: 400000, totalvfs: 8, vf_device: "101e"}
  old: {kind: nic, vendor: "8086", device: "1563", driver: ixgbe, speed_mbps: 10000, totalvfs: 8, vf_device: "1565"}
gpus:
  - {part: gpu, path: "pci0000:00/00:03.0/28:00.0"}
  - {part: gpu, path: "pci0000:00/00:05.0/48:00.0"}
nics:
  - {part: old, path: "pci0000:00/00:01.0/0b:00.0", netdev: eno1, num_vfs: 1}
  - {part: nic, path: "pci0000:00/00:02.0/20:00.0", netdev: ens2np0, num_vfs: 2}
  - {part: nic, path: "pci0000:00/00:04.0/40:00.0", netdev: ens4np0, num_vfs: 2}
"""
"""The first NIC is that of the default route: the agent never offers its VF."""
ENTRIES = {
    "rails": "[{kind: vf, select: {rdma: true}}, {kind: gpu-mem, name: 'gpu-mem{gpu}', sliceMiB: 1024}]",
    "netdevs": "[{kind: vf, name: '{netdev}', select: {minSpeedMbps: 100000}}]",
    "claims": "[{kind: vf, mode: dra, select: {drivers: [mlx5_core]}}, {kind: gpu-mem, mode: dra, sliceMiB: 1024}]",
    "one": "[{kind: vf, name: vfs, select: {linkTypes: [ethernet], netdevs: ['e*'], exclude: ['enx*']}}]",
}
Names = dict[str, frozenset[str]]
"""The devices by the name under which pods get them."""


class Plugins:
    """The devices that the kubelet gets."""

    def update(self, kinds: Iterable[DeviceKind], snapshot: Snapshot, removed: frozenset[str]) -> None:
        pass


def names_of(offering: DeviceOffering, snapshot: Snapshot) -> Names:
    """The devices that can be given out now, by name."""
    names = {
        kind.resource: frozenset(
            id_ for entry in kind.devices(snapshot) if entry.health.allocatable for id_ in entry.ids
        )
        for kind in offering.offered
    }
    names |= {
        f"{device.name} {getattr(device, 'rail', None)}": device.hardware
        for pool in offering.dra.current.pools.values()
        for device in pool or ()
    }
    return {name: ids for name, ids in names.items() if ids}


class Look:
    """The sources of one agent, and an offer for each of ``ENTRIES``."""

    def __init__(self, root: Path, state: Path) -> None:
        self.state = state
        self.inventory = Inventory()
        rails = {name: RailMemory(state / name) for name in ENTRIES}
        self.discovery = Discovery(self.inventory, lambda: config("rails"), root, rails=rails["rails"])
        self.tree = self.discovery._tree
        files = OfferFiles(DeviceInfoFiles(state / "devinfo"), CdiSpecFiles(state / "cdi"))
        self.offerings = {
            name: DeviceOffering(
                config(name),
                self.inventory,
                Plugins(),
                files,
                SliceSizes(state / name),
                rails[name],
                self.discovery.forget_nics,
            )
            for name in ENTRIES
        }

    async def names(self) -> dict[str, Names]:
        """Offer what is known now."""
        self.inventory.publish("pods", holdings=())
        shown = {}
        for name, offering in self.offerings.items():
            snapshot = await offering.offer_now()
            shown[name] = names_of(offering, snapshot)
        return shown

    def rails(self) -> dict[str, dict[str, int]]:
        return {name: dict(offering.rails) for name, offering in self.offerings.items()}

    def stored(self) -> dict[str, dict[str, int]]:
        """The rails in the files."""
        found = {}
        for name in ENTRIES:
            content = StoredFile(self.state / name, RAILS_FORM).read() or RailsFile()
            found[name] = {
                rail.pci_address or "": rail.number for rails in content.numbering.values() for rail in rails
            }
        return found


def config(name: str) -> Config:
    prompt = [
        f"{{rule: {rule}, clearForSeconds: 0}}"
        for rule in ("carrier_down", "device_missing", "not_answering")
    ]
    rules = f"health: {{rules: [{', '.join(prompt)}]}}\n"
    return load(f"{HEAD}{rules}resources: {ENTRIES[name]}\n", name="test")


@asynccontextmanager
async def look(root: Path, state: Path, broken: str = "", code: int = errno.EIO) -> AsyncIterator[Look]:
    """An agent that has published its first facts. ``broken`` is the real path of a file that fails."""
    made = Look(root, state)
    if broken:
        made.tree._unreadable[broken] = code
    running = asyncio.create_task(made.discovery.run())
    try:
        await first_facts(made.inventory)
        yield made
    finally:
        await end_tasks((running,))


def mend(made: Look) -> None:
    """The file can be read again, and an event of the kernel makes the agent look."""
    made.tree._unreadable.clear()
    made.discovery.forget_nics(())


def assert_true(now: dict[str, Names], rails: dict[str, dict[str, int]], right: Right) -> None:
    """Each device has the name of the healthy machine, if it has one."""
    for name, names in now.items():
        for resource, ids in names.items():
            assert ids <= right.names[name].get(resource, frozenset()), (resource, ids, right.names[name])
        assert rails[name].items() <= right.rails[name].items(), (rails[name], right.rails[name])


class Right(NamedTuple):
    """The facts that agents find on the healthy machine."""

    names: dict[str, Names]
    rails: dict[str, dict[str, int]]


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    with TemporaryDirectory(prefix="first-", dir=IN_MEMORY, ignore_cleanup_errors=True) as folder:
        (Path(folder) / "model.yaml").write_text(MODEL)
        made = Machine.load(Path(folder) / "model.yaml")
        made.write(Path(folder) / "r")
        yield Path(folder) / "r"


@pytest.fixture(scope="module")
def right(root: Path) -> Right:
    async def find() -> Right:
        with TemporaryDirectory(prefix="first-", dir=IN_MEMORY) as folder:
            async with look(root, Path(folder)) as made:
                return Right(await made.names(), made.rails())

    return asyncio.run(find())


@pytest.fixture(scope="module")
def read_files(root: Path) -> tuple[str, ...]:
    """The paths of all files that the agent reads until its first offer, as it names them."""
    seen: set[str] = set()

    class Recorder(Tree):
        def _readable(self, path: str) -> str:
            if self.path(path).is_file():
                seen.add(path)
            return super()._readable(path)

    async def find() -> None:
        with (
            TemporaryDirectory(prefix="first-", dir=IN_MEMORY) as folder,
            pytest.MonkeyPatch.context() as patch,
        ):
            patch.setattr("nodeagent.discovery.Tree", Recorder)
            async with look(root, Path(folder)) as made:
                await made.names()

    asyncio.run(find())
    return tuple(sorted(path for path in seen if not path.startswith("/.nodeagent")))


def test_the_right_names_are_those_of_the_healthy_machine(right: Right) -> None:
    nics = {"0000:20:00.0": 0, "0000:40:00.0": 1}
    assert right.rails == {"rails": nics, "netdevs": nics, "claims": nics, "one": nics}
    assert right.names["rails"].keys() == {"first/nic0", "first/nic1", "first/gpu-mem0", "first/gpu-mem1"}
    assert right.names["netdevs"].keys() == {"first/ens2np0", "first/ens4np0"}
    assert right.names["one"] == {
        "first/vfs": frozenset(f"0000:{bus}:00.{n}" for bus in (20, 40) for n in (1, 2))
    }
    assert {name for name in right.names["claims"] if name.startswith("nic")} == {
        "nic-0000-20-00-0 0",
        "nic-0000-40-00-0 1",
    }


async def check(root: Path, right: Right, path: str, code: int, real: str) -> None:
    with TemporaryDirectory(prefix="first-", dir=IN_MEMORY) as folder:
        async with look(root, Path(folder), real, code) as made:
            assert_true(await made.names(), made.rails(), right)
            for name, rails in made.stored().items():
                assert rails.items() <= right.rails[name].items(), (path, rails)
            mend(made)
            await settled(made, right, path)
        async with look(root, Path(folder), real, code) as made:
            assert_true(await made.names(), made.rails(), right)
            assert made.rails() == made.stored() == right.rails, path


async def settled(made: Look, right: Right, path: str) -> None:
    """Wait until each device has its name. Anything else that is offered meanwhile fails."""
    try:
        async with asyncio.timeout(LIMIT_S):
            while (names := await made.names()) != right.names or made.rails() != right.rails:
                assert_true(names, made.rails(), right)
                await made.inventory.changed(made.inventory.snapshot.revision)
    except TimeoutError:
        pytest.fail(f"{path}: {names} in place of {right.names}")
    assert made.stored() == right.rails, path


PARTS = 4


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.ENOENT], ids=errno.errorcode.get)
async def test_a_file_that_cannot_be_read_at_the_first_start_gives_no_device_another_name(
    code: int, part: int, root: Path, right: Right, read_files: tuple[str, ...]
) -> None:
    tree = Tree(root)
    assert "/sys/bus/pci/devices/0000:20:00.0/sriov_numvfs" in read_files
    # A machine without DMI has no product name: this file alone may be absent on a healthy machine.
    files = [path for path in read_files if code != errno.ENOENT or path != PRODUCT_FILE]
    for path in files[part::PARTS]:
        await check(root, right, path, code, str(tree.path(path)).removeprefix(str(tree.root)))


@pytest.mark.slow
@pytest.mark.needs("root", "fuse")
@pytest.mark.parametrize("part", range(PARTS))
def test_a_file_that_hangs_at_the_first_start_gives_no_device_another_name(
    part: int, root: Path, right: Right, read_files: tuple[str, ...]
) -> None:
    files = [path for path in read_files if path.startswith("/sys/") and "0000:40" not in path]
    for path in files[part::PARTS]:
        with TemporaryDirectory(prefix="first-", dir=IN_MEMORY, ignore_cleanup_errors=True) as folder:
            with dead(Tree(root).path(path)):
                asyncio.run(look_at_hanging(root, Path(folder), path, right))
            # In a loop of its own: a call that hangs is that of the agent of its loop.
            asyncio.run(look_again(root, Path(folder), path, right))


async def look_at_hanging(root: Path, folder: Path, path: str, right: Right) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_READ_S", "_READ_AGAIN_S"):
            patch.setattr(bounded_scan, name, 0.1)
        async with look(root, folder) as made:
            assert_true(await made.names(), made.rails(), right)
            for name, rails in made.stored().items():
                assert rails.items() <= right.rails[name].items(), (path, rails)


async def look_again(root: Path, folder: Path, path: str, right: Right) -> None:
    async with look(root, folder) as made:
        await settled(made, right, path)
