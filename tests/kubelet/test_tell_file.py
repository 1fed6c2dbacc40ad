"""Containers of device plugins mount the script of their pairs: it is on the disk before a device is offered."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeagent.agent_config import load
from nodeagent.facts.model import Mount
from nodeagent.kinds import DeviceKind
from nodeagent.kinds.tell_script import script
from nodeagent.kubelet.cdi_files import CdiSpecFiles
from nodeagent.kubelet.device_info import DeviceInfoFiles
from nodeagent.kubelet.offer_files import OfferFiles
from nodeagent.offering.offer import Offer
from tests.support.dra_node import machine
from tests.support.virtual_time import run

HEAD = "apiVersion: nodeagent.io/v1alpha1\nkind: NodeAgentConfig\nresourcePrefix: x\nresources:\n"


def kinds(*entries: str) -> tuple[DeviceKind, ...]:
    text = HEAD + "".join(f"- {{kind: vf, {entry}}}\n" for entry in entries)
    return tuple(Offer(load(text, name="test.yaml")).kinds(machine()))


def files(folder: Path) -> OfferFiles:
    return OfferFiles(
        DeviceInfoFiles(folder / "devinfo"),
        CdiSpecFiles(folder / "cdi"),
        tell_script=folder / "state/tell.sh",
    )


def mounts(kind: DeviceKind) -> tuple[Mount, ...]:
    device = kind.devices(machine())[0].ids[0]
    return kind.allocate(machine(), [device]).mounts


@pytest.mark.parametrize("entry", ["tell: [vllm]", "ncclIbHca: true"])
def test_a_container_mounts_the_script_of_the_state_folder(entry: str) -> None:
    expected = (Mount("/var/lib/nodeagent/tell.sh", "/var/run/nodeagent.io/tell.sh", read_only=True),)
    assert [mounts(kind) for kind in kinds(entry)] == [expected, expected]
    assert [mounts(kind) for kind in kinds("tell: []")] == [(), ()]


def test_the_script_has_the_programs_of_all_entries_and_stays_without_them(tmp_path: Path) -> None:
    path, written = tmp_path / "state/tell.sh", files(tmp_path)
    both = kinds(
        "name: 'a{rail}', tell: [vllm], select: {pciAddresses: ['0000:40:*']}",
        "name: 'b{rail}', ncclIbHca: true, select: {pciAddresses: ['0000:41:*']}",
    )

    async def steps() -> None:
        await written.prepare(kinds("preferred: pack"), machine())
        assert not path.exists(), "nobody asks for it"
        written.failed.set()
        await written.prepare(both, machine())
        assert path.read_text() == script(["vllm", "nccl"])
        assert path.stat().st_mode & 0o777 == 0o644
        path.unlink()
        written.failed.set()
        await written.prepare(both, machine())
        assert path.exists(), "a container that restarts mounts it"
        written.failed.set()
        await written.prepare(kinds("preferred: pack"), machine())
        assert path.exists(), "containers that have it may restart"

    run(steps())


def test_while_it_cannot_be_written_its_resources_are_withheld_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file in the place of the folder")
    telling, silent = kinds("tell: [ucx]")[0], kinds("preferred: pack")[0]
    written = files(tmp_path)

    async def steps() -> None:
        await written.prepare((telling, silent), machine())
        assert "tell.sh" in str(written.obstacle(telling, machine()))
        assert written.obstacle(silent, machine()) is None
        (tmp_path / "state").unlink()
        written.failed.set()
        await written.prepare((telling, silent), machine())
        assert written.obstacle(telling, machine()) is None

    run(steps())
