"""The script by which a container with devices of device plugins learns its pairs says what a claim would say."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from nodeagent.cli import main
from nodeagent.dra.told_pairs import told
from nodeagent.facts.model import Function, Gpu, Snapshot
from nodeagent.kinds.tell_script import PROGRAMS, script
from nodeagent.kinds.vf import VfPool
from tests.support.kind_machines import dgx, gpu_of, pf_of, vf_of

SHELLS = (("dash",), ("bash", "--posix", "-eu"))


def node(snapshot: Snapshot, root: Path, *, here: Iterable[Gpu] | None = None) -> None:
    """Lay out ``/sys`` as containers see it. ``here``: GPUs whose device nodes the container has; ``None``: the folder
    of the driver in ``/proc`` is not there."""
    devices = root / "sys/bus/pci/devices"
    devices.mkdir(parents=True)
    places = [(it.pci_address, it.pci_path, it.numa_node, "0x030200", "0x10de") for it in snapshot.gpus]
    places += [(it.pci_address, it.pci_path, it.numa_node, "0x020000", "0x15b3") for it in snapshot.functions]
    for address, path, numa, kind, vendor in places:
        folder = root / "sys/devices" / "/".join(path)
        folder.mkdir(parents=True, exist_ok=True)
        for name, value in (("class", kind), ("vendor", vendor), ("numa_node", -1 if numa is None else numa)):
            (folder / name).write_text(f"{value}\n")
        (devices / address).symlink_to(folder)
    for it in snapshot.functions:
        if it.parent is not None:
            (devices / it.pci_address / "physfn").symlink_to((devices / it.parent).resolve())
    if here is None:
        return
    (root / "dev").mkdir()
    for gpu in here:
        (root / f"dev/nvidia{gpu.minor}").touch()
    for gpu in snapshot.gpus:
        folder = root / "proc/driver/nvidia/gpus" / gpu.pci_address
        folder.mkdir(parents=True)
        text = f"Model: \t\t {gpu.name}\nGPU UUID: \t {gpu.uuid}\nDevice Minor: \t {gpu.minor}\nGPU Excluded:\t No\n"
        (folder / "information").write_text(text)


def environment(snapshot: Snapshot, *vfs: Function, planes: bool = False) -> dict[str, str]:
    """The variables of device plugins: a resource for each PF, as ``nic{rail}`` names it."""
    pfs = sorted({vf.parent or "" for vf in vfs})
    env: dict[str, str] = {}
    for number, pf in enumerate(pfs):
        name = f"nic{number // 2}p{number % 2}" if planes else f"nic{number}"
        kind = VfPool(f"nvidia-dgx-h100/{name}", (pf,))
        env |= dict(kind.allocate(snapshot, [vf.pci_address for vf in vfs if vf.parent == pf]).env)
    return env


def run(
    root: Path, env: dict[str, str], *programs: str, shell: tuple[str, ...] = SHELLS[0]
) -> dict[str, str]:
    """The variables that a shell has after the script, without those that it had."""
    file = root / "tell.sh"
    file.write_text(script(programs or PROGRAMS))
    ran = subprocess.run(
        [*shell, "-c", f". {file}\nenv"],
        env={**env, "PATH": "/usr/bin:/bin", "NODEAGENT_TELL_ROOT": str(root)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stderr == ""
    after = dict(line.split("=", 1) for line in ran.stdout.splitlines() if "=" in line)
    return {
        name: value for name, value in after.items() if name.startswith(("VLLM", "UCX", "NVSHMEM", "NCCL"))
    }


def of_claim(snapshot: Snapshot, vfs: Iterable[Function], gpus: Iterable[Gpu] = ()) -> dict[str, str]:
    names = {vf.pci_address for vf in vfs}
    return dict(told(dict.fromkeys(PROGRAMS, names), {it.uuid for it in gpus}, (), snapshot))


def without_rails(found: dict[str, str]) -> dict[str, str]:
    """A claim knows rails by the devices of the node, which these tests do not have."""
    return {name: value for name, value in found.items() if name != "NCCL_IB_HCA"}


@pytest.mark.parametrize("shell", SHELLS, ids=lambda it: it[0])
def test_a_container_with_all_rails_learns_the_pair_of_each_gpu(
    tmp_path: Path, shell: tuple[str, ...]
) -> None:
    facts = dgx()
    node(facts, tmp_path, here=facts.gpus)
    vfs = [it for it in facts.functions if it.vf_index == 2]
    found = run(tmp_path, environment(facts, *vfs), shell=shell)
    assert without_rails(found) == without_rails(of_claim(facts, vfs))
    assert found["VLLM_NIC_SELECTION_VARS"] == "UCX_NET_DEVICES:1,NVSHMEM_HCA_LIST:1"
    assert found["VLLM_GPU_NIC_PCIE_MAPPING"].count("=") == 8
    rdma = [it.rdma.device for it in vfs if it.rdma]
    assert found["NCCL_IB_HCA"] == "=" + ",".join(f"{name}:1:{rail}" for rail, name in enumerate(rdma))


def test_only_the_gpus_of_the_container_are_in_pairs(tmp_path: Path) -> None:
    facts = dgx()
    own = (facts.gpus[1], facts.gpus[6])
    node(facts, tmp_path, here=own)
    vfs = [it for it in facts.functions if it.vf_index == 0]
    found = run(tmp_path, environment(facts, *vfs), "vllm")
    assert found == {
        "VLLM_GPU_NIC_PCIE_MAPPING": of_claim(facts, vfs, own)["VLLM_GPU_NIC_PCIE_MAPPING"],
        "VLLM_NIC_SELECTION_VARS": "UCX_NET_DEVICES:1",
    }


def test_planes_of_a_rail_are_told_to_nccl(tmp_path: Path) -> None:
    facts = dgx()
    node(facts, tmp_path)
    vfs = [it for it in facts.functions if it.vf_index == 0][:4]
    names = [it.rdma.device for it in vfs if it.rdma]
    assert run(tmp_path, environment(facts, *vfs, planes=True), "nccl") == {
        "NCCL_IB_HCA": "=" + ",".join(f"{name}:1:{n // 2}:{n % 2}" for n, name in enumerate(names))
    }


def test_rail_ten_comes_after_rail_two_and_a_name_without_a_rail_first(tmp_path: Path) -> None:
    facts = dgx()
    node(facts, tmp_path)
    vfs = [it for it in facts.functions if it.vf_index == 0][:3]
    env: dict[str, str] = {}
    for name, vf in zip(("nic10", "nic2", "rdma"), vfs, strict=True):
        env |= dict(VfPool(f"x/{name}", (vf.parent or "",)).allocate(facts, [vf.pci_address]).env)
    ten, two, bare = (vf.rdma.device for vf in vfs if vf.rdma)
    assert run(tmp_path, env, "nccl") == {"NCCL_IB_HCA": f"={bare}:1,{two}:1:2,{ten}:1:10"}


def test_a_container_without_a_gpu_gets_the_list_of_its_devices(tmp_path: Path) -> None:
    facts = dgx()
    node(facts, tmp_path, here=())
    vfs = [it for it in facts.functions if it.vf_index == 1][:2]
    both = ",".join(f"{vf.rdma.device}:1" for vf in vfs if vf.rdma)
    env = environment(facts, *vfs)
    assert run(tmp_path, env, "vllm", "ucx") == {"UCX_NET_DEVICES": both}
    assert run(tmp_path, env, "nvshmem") == {"NVSHMEM_HCA_LIST": both}


@pytest.mark.parametrize("shell", SHELLS, ids=lambda it: it[0])
def test_without_a_vf_with_rdma_the_shell_goes_on_and_says_so(tmp_path: Path, shell: tuple[str, ...]) -> None:
    facts = dgx()
    node(facts, tmp_path)
    file = tmp_path / "tell.sh"
    file.write_text(script(PROGRAMS))
    for root in (tmp_path, tmp_path / "nothing"):
        ran = subprocess.run(
            [*shell, "-c", f". {file}\necho goes on"],
            env={"PATH": "/usr/bin:/bin", "NODEAGENT_TELL_ROOT": str(root)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert ran.stdout == "goes on\n"
        assert ran.stderr.startswith("nodeagent: this container has no VF with an RDMA device")


def test_vfs_with_vhost_nodes_and_vfs_of_dpdk_are_told_apart(tmp_path: Path) -> None:
    facts = dgx()
    node(facts, tmp_path)
    vfs = [it for it in facts.functions if it.vf_index == 0][:2]
    bound = replace(vfs[1], driver="vfio-pci", vfio_group="7", rdma=None)
    facts = replace(facts, functions=tuple(bound if it == vfs[1] else it for it in facts.functions))
    kind = VfPool("x/nic0", tuple(vf.parent or "" for vf in vfs), vhost_net=True)
    env = dict(kind.allocate(facts, [vf.pci_address for vf in vfs]).env)
    assert vfs[0].rdma is not None
    assert run(tmp_path, env, "ucx") == {"UCX_NET_DEVICES": f"{vfs[0].rdma.device}:1"}


@st.composite
def machines(draw: st.DrawFn) -> tuple[Snapshot, list[Function], list[Gpu] | None]:
    """GPUs and NICs anywhere in the PCI trees of two CPUs, the VFs of a container, and its GPUs if they are known."""
    place = st.tuples(st.integers(0, 2), st.integers(0, 1), st.sampled_from((None, 0, 1)))

    def path(root: int, leg: int, address: str) -> tuple[str, ...]:
        return (
            f"pci0000:{root:02x}",
            f"0000:{root:02x}:{leg:02x}.0",
            f"0000:{root + 1:02x}:{leg:02x}.0",
            address,
        )

    gpus, functions = [], []
    for index, (root, leg, numa) in enumerate(draw(st.lists(place, min_size=1, max_size=4))):
        gpu = gpu_of(index)
        gpus.append(replace(gpu, numa_node=numa, pci_path=path(root, leg, gpu.pci_address)))
    for rail, (root, leg, numa) in enumerate(draw(st.lists(place, min_size=1, max_size=4))):
        pf = pf_of(rail, 2)
        functions += [
            replace(it, numa_node=numa, pci_path=path(root, leg, it.pci_address))
            for it in (pf, vf_of(pf, 0), vf_of(pf, 1))
        ]
    vfs = [it for it in functions if it.parent is not None]
    mine = draw(st.lists(st.sampled_from(vfs), min_size=1, unique_by=lambda it: it.pci_address))
    here = draw(st.none() | st.lists(st.sampled_from(gpus), min_size=1, unique_by=lambda it: it.uuid))
    ordered = tuple(sorted(functions, key=lambda it: it.pci_address))
    return Snapshot(gpus=tuple(gpus), functions=ordered), mine, here


@given(machines())
@example((dgx(), [it for it in dgx().functions if it.vf_index == 0][:3], [dgx().gpus[5], dgx().gpus[2]]))
def test_the_script_and_a_claim_say_the_same_on_every_machine(
    drawn: tuple[Snapshot, list[Function], list[Gpu] | None],
) -> None:
    facts, vfs, here = drawn
    with TemporaryDirectory() as folder:
        node(facts, Path(folder), here=here)
        env = environment(facts, *vfs)
        assert without_rails(run(Path(folder), env)) == without_rails(of_claim(facts, vfs, here or ()))
        listed = run(Path(folder), env, "ucx", "nvshmem")
    names = of_claim(replace(facts, gpus=()), vfs)
    assert listed == {name: names[name] for name in ("UCX_NET_DEVICES", "NVSHMEM_HCA_LIST")}


def test_the_verb_prints_the_script_of_the_programs_and_its_help_names_them_all(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["tell", "nvshmem", "vllm"]) == 0
    assert capsys.readouterr().out == script(["vllm", "nvshmem"])
    assert main(["tell"]) == 0
    assert capsys.readouterr().out == script(PROGRAMS)
    with pytest.raises(SystemExit):
        main(["tell", "vlm"])
    assert "'vlm' is not one of vllm, ucx, nvshmem, nccl" in " ".join(capsys.readouterr().err.split())
    with pytest.raises(SystemExit):
        main(["tell", "--help"])
    assert f"programs to tell: {', '.join(PROGRAMS)}" in " ".join(capsys.readouterr().out.split())
