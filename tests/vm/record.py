"""Write ``docs/verified.md``: the results of a complete run, with figures and limits."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.vm.conftest import Run

HEAD = """\
# What was verified where

`NODEAGENT_GOLDEN=write make test-vm` writes this page after a run in which every test passes; do not edit it. The guest
itself reports the facts about the machine.
"""

KUBERNETES = """\
## On a real Kubernetes

Kubernetes 1.36.2 (98b35193, built from MicroShift 8e16b12f, with OpenShift's patches), etcd 3.5.30, containerd 2.1.9 and runc 1.1.5,
2026-11-24. The agent ran outside a pod, with the token of its pod, the rights and all policies of `daemonset`, on a
simulated DGX. By hand; not part of `make test`.

| promise | tried | result |
| --- | --- | --- |
| mode dra alone becomes ready | real kubelet; a claim of 40 GiB allocated, prepared, its pod Running | `/readyz` 200 |
| no resource is ready; refused slices are not | a policy that refuses the slices of GPUs; taken away again | 200; 503 with the words of the API server; 200 |
| `enforcement: evict` evicts | real kubelet, Deployment with 40 GiB, 60 used; its successor keeps its share | evicted with its UID, successor untouched, Events on pod and Node |
| a failed device evicts; a budget is kept | XID 79; one budget (429); two budgets (500) | evicted; `EvictionRefused`; the same, and no other pod waits |
| an eviction has no other option | grace period, resource version, other UID; pods of `kube-system` and `nodeagent` | 403, 403, 409; 422 |
| `railsDown: 2` counts rails | a storage port and one rail down for 50 s; a second rail; its return | no taint; taint; no taint |
| the choice of Volcano, quantities, locks | stand-ins of scheduler and kubelet; limit 1000 stored as `1k`; two placements in a row; a pod without a choice | 1,000 slices; each lock released once; both pods named |
| only the scheduler writes the choice | `choice.yaml`; tokens of scheduler, plugin and agent | as written there |
| every writer passes the policies | reports, Events, marks, evictions, slices, deviceshare, HyperNodes, labels, taints, leases, by tokens of their accounts | no write refused |
| an unwritable state folder | read-only folder without a file, one NIC unplugged, restart | Event, metric, remark, 200; eight rails as in the report |
"""  # noqa: E501 - rows of a table

READ = """\
## Read in the source of other programs

| what | program, commit, date of reading |
| --- | --- |
| the choice is sent with the Binding (`DefaultBinder.Bind`; since abc0792a3, after 1.15); a lock is set before it and never removed within five minutes, in whole seconds (`nodelock.go`); a percentage counts before an amount, for each GPU (since 1.14) | Volcano ed72c7c8, 2026-11-24 |
| the account `kube-system/volcano-device-plugin` reports and erases the choice; one release for each allocated pod | volcano-vgpu-device-plugin 4fb76ba1, 2026-11-24 |
| annotations of a Binding are merged into the pod with the name of its node, in one write (`BindingREST`); an update of `pods/status` keeps the spec and the owners, and no annotation | Kubernetes in MicroShift 8e16b12f, 2026-11-24 |
"""  # noqa: E501 - rows of a table

LIMITS = """\
## Limits of these tests

- **Other NICs.** The VFs are real to the kernel; the NIC is QEMU's model of an Intel 82576. Functions of NIC firmware
  are missing, above all those of mlx5: VF limits, trust, eswitch modes, LLDP agents in the NIC.
- **RDMA and InfiniBand.** The model has none: RDMA devices, their exclusive mode, GUIDs and IPoIB are tested only
  with recorded and simulated trees.
- **GPUs.** The guest has none; NVML is tested against a stand-in library. On 2026-11-24 its limits of memory were
  compared with `nvml.h` of CUDA 13.4 (nvidia-nvml-dev 13.4.92), `memacct.c` of NVIDIA's open kernel modules 615.71.09
  (61dcc937) and `dmem.c` of Linux (34f3e259); the states of the NVLink fabric with that `nvml.h`, and with
  `gpu_fabric_probe.c` and `subdevice_ctrl_gpu_kernel.c` of 595.45.04 (df1c9a3d). No real driver answered.
- **MPS.** Without a GPU, so without its servers and clients: NVIDIA's `nvidia-cuda-mps-control` 535.261.03 (Debian 12,
  non-free, 2026-11-24) held the same conversation as the stand-in of the tests. Its daemons, and an open session with
  one, outlived new agents and a killed `nodeagent mps`, and one that hung was replaced. `.ci/run` unpacks the program
  where Debian's non-free archive can be reached. By hand: `apt-get download nvidia-cuda-mps`, `dpkg -x` into a folder,
  then `make test ARGS=tests/limits` with its `usr/bin` in PATH.
- **A kubelet.** The one in the guest is `nodeagent.sim.kubelet`, which follows the source of the real one.
  It runs no containers: `ip link set netns` moves the VF in place of a CNI plugin.
- **A DGX.** Its PCIe switches and its number of NICs are simulated; its firmware is not.
- **Time.** The accelerator tcg emulates everything in software on a shared machine: the figures show that nothing
  waits for a timer; they do not show the speed of a node.
"""


def text(run: Run, passed: Iterable[str]) -> str:
    facts, nic = run.step("facts"), run.nic
    packages = run.manifest["packages"]
    lines = [HEAD, "## On a real kernel with SR-IOV", ""]
    lines += table(
        ("", ""),
        [
            ("date", datetime.now(UTC).strftime("%Y-%m-%d")),
            ("nodeagent", facts["nodeagent"].removeprefix("nodeagent ")),
            ("kernel", f"{facts['kernel']} ({facts['build']})"),
            ("drivers", f"{nic['pf_driver']}, {nic['vf_driver']}, vfio-pci, from that kernel"),
            (
                "QEMU",
                f"{packages['qemu-system-x86']}, machine q35, accelerator {run.machine['machine']['accel']}",
            ),
            ("NICs", f"{len(run.pfs)} {nic['model']} on NUMA nodes {nic['numa_nodes']}, VFs {nic['vfs']}"),
            ("Python", f"{facts['python']}, the installed wheel"),
            ("kubelet", "nodeagent.sim.kubelet"),
            ("LLDP", f"lldpd {packages['lldpd']}"),
        ],
    )
    lines += ["", "Each line is a test:", ""]
    lines += [f"- {sentence(name)}" for name in passed]
    cable, removed, restart = run.step("cable"), run.step("removed"), run.step("restart")
    lines += [
        "",
        "Seconds from the event in the kernel or in QEMU until the kubelet receives the device list:",
        "",
    ]
    lines += table(
        ("cause", "s"),
        [
            ("the cable of a PF is pulled (worst of three)", worst(cable, "down_s")),
            ("the cable is plugged in again, with negotiation", worst(cable, "up_s")),
            ("the VFs of a PF are removed", f"{removed['gone_s']:.2f}"),
            ("of these in the kernel", f"{removed['kernel_s']:.2f}"),
            ("the VFs are created again and probed by their driver", f"{removed['back_s']:.2f}"),
            ("the driver of all VFs is loaded", f"{run.step('late')['healthy_s']:.2f}"),
            ("the agent is restarted", f"{restart['again_s']:.2f}"),
            ("the whole run, with boot", f"{run.seconds:.0f}"),
        ],
    )
    return "\n".join([*lines, "", KUBERNETES, READ, LIMITS])


def sentence(name: str) -> str:
    """``…::test_a_pulled_cable`` → ``a pulled cable``."""
    return name.rpartition("::")[2].partition("[")[0].removeprefix("test_").replace("_", " ")


def worst(rounds: list[dict[str, float]], key: str) -> str:
    return f"{max(one[key] for one in rounds):.2f}"


def table(head: tuple[str, str], rows: Iterable[tuple[str, str]]) -> list[str]:
    return [
        f"| {head[0]} | {head[1]} |",
        "| --- | --- |",
        *(f"| {left} | {right} |" for left, right in rows),
    ]
