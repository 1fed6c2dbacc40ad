"""The script by which a container with devices of device plugins learns which NIC belongs to which GPU.

Each resource of a container is allocated by a call of its own, and of equal variables the kubelet keeps one: no answer
can hold the pairs. In the container they are known: the VFs are in its variables, and ``/sys`` has the PCI tree of the
host. The script needs a POSIX shell and awk. It chooses as ``nodeagent.dra.told_pairs`` does for claims, among the GPUs
whose device nodes the container has, or among all where ``/proc`` does not name them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_args

from nodeagent.kinds.resource_settings import Program

PROGRAMS: tuple[Program, ...] = get_args(Program)
TELL_SCRIPT = "/var/run/nodeagent.io/tell.sh"
"""Its place in a container."""
SCRIPT_NAME = "tell.sh"
"""Its name in the folder of the agent's state."""


def script(programs: Iterable[str]) -> str:
    """Return the text of the script for these programs.

    A shell reads it with ``.`` and has the variables of ``told_pairs`` then. ``NODEAGENT_TELL_ROOT`` is a folder before
    ``/sys``, ``/proc`` and ``/dev``.
    """
    named = set(programs)
    return _SCRIPT.replace("@PROGRAMS@", " ".join(name for name in PROGRAMS if name in named))


_SCRIPT = r"""# Written by nodeagent. A shell that reads this file has the variables by which programs find the NIC of
# each GPU: . /var/run/nodeagent.io/tell.sh
eval "$(
  root=${NODEAGENT_TELL_ROOT-}
  known=$(env)
  for device in "$root"/sys/bus/pci/devices/*; do
    address=${device##*/} class='' vendor='' numa=-1 minor='' pf=-
    { read -r class < "$device/class"; } 2>/dev/null || :
    case $class in
      0x0300*|0x0302*)
        { read -r vendor < "$device/vendor"; } 2>/dev/null || :
        [ "$vendor" = 0x10de ] || continue
        while read -r first second rest; do
          [ "$first $second" != 'Device Minor:' ] || minor=$rest
        done 2>/dev/null < "$root/proc/driver/nvidia/gpus/$address/information" || :
        [ -z "$minor" ] || [ -e "$root/dev/nvidia$minor" ] || continue
        kind=gpu ;;
      0x02*)
        case $known in *"\"$address\""*) kind=nic ;; *) continue ;; esac
        [ ! -e "$device/physfn" ] || pf=$(cd -P "$device/physfn" && pwd -P) ;;
      *) continue ;;
    esac
    { read -r numa < "$device/numa_node"; } 2>/dev/null || :
    printf '%s %s %s %s %s\n' "$kind" "$address" "$numa" "${pf##*/}" "$(cd -P "$device" && pwd -P)"
  done | awk -v programs=' @PROGRAMS@ ' '
    function asked(program) { return index(programs, " " program " ") }

    # The VFs of one variable: their RDMA devices, rail and plane.
    function take(text, name,    piece, vf, part, tag) {
      tag = ""
      if (match(name, /_NIC[0-9]+(P[0-9]+)?_INFO$/)) {
        tag = substr(name, RSTART + 4)
        sub(/_INFO$/, "", tag)
        sub(/P/, ":", tag)
      }
      while (match(text, /"deviceID":"[^"]*"[}],"rdma":[{][^}]*[}]/)) {
        piece = substr(text, RSTART, RLENGTH)
        text = substr(text, RSTART + RLENGTH)
        split(piece, part, "\"")
        vf = part[4]
        if (match(piece, /"rdma_dev":"[-_.A-Za-z0-9]+"/)) {
          rdma[vf] = substr(piece, RSTART + 12, RLENGTH - 13)
          tags[vf] = tag
        }
      }
    }

    # 0: at most one PCIe switch between them, 1: several, 2: a host bridge, 3: one NUMA node, 4: another one.
    function far(a, b,    i, m, n, most, left, right) {
      m = split(path[a], left, "/")
      n = split(path[b], right, "/")
      for (i = 1; i <= m && i <= n && left[i] == right[i]; i++);
      if (i == 1) return numa[a] >= 0 && numa[a] == numa[b] ? 3 : 4
      if (i == 2) return 2
      most = m > n ? m : n
      return most - i + 1 <= 2 ? 0 : 1
    }

    function sort(list, count, key,    i, j, held) {
      for (i = 2; i <= count; i++) {
        held = list[i]
        for (j = i - 1; j > 0 && key[list[j]] > key[held]; j--) list[j + 1] = list[j]
        list[j + 1] = held
      }
    }

    BEGIN {
      for (name in ENVIRON) if (name ~ /^PCIDEVICE_[A-Z0-9_]*_INFO$/) take(ENVIRON[name], name)
    }

    {
      if ($1 == "nic" && !($2 in rdma)) next
      if ($1 == "gpu") gpu[++gpus] = $2; else nic[++nics] = $2
      numa[$2] = $3
      pf[$2] = $4
      $5 = substr($5, index($5, "/sys/devices/") + 12)
      at = index($5, "/pci")
      path[$2] = at ? substr($5, at + 1) : ""
      key[$2] = $2
    }

    END {
      if (!nics) {
        print "nodeagent: this container has no VF with an RDMA device: nothing to tell" > "/dev/stderr"
        exit
      }
      sort(nic, nics, key)
      sort(gpu, gpus, key)
      for (i = 1; i <= nics; i++) list = list (i > 1 ? "," : "") rdma[nic[i]] ":1"
      for (i = 1; i <= gpus; i++) {
        least = 5
        for (j = 1; j <= nics; j++) if (far(gpu[i], nic[j]) < least) least = far(gpu[i], nic[j])
        near[gpu[i]] = least
        choice = 0
        for (j = 1; j <= nics; j++) choice += far(gpu[i], nic[j]) == least
        key[gpu[i]] = sprintf("%06d %s", choice, gpu[i])
        ordered[i] = gpu[i]
      }
      sort(ordered, gpus, key)
      for (i = 1; i <= gpus; i++) {
        best = ""
        for (j = 1; j <= nics; j++) {
          if (far(ordered[i], nic[j]) != near[ordered[i]]) continue
          if (best == "" || used[pf[nic[j]]] + 0 < used[pf[best]] + 0 ||
              (used[pf[nic[j]]] + 0 == used[pf[best]] + 0 && used[nic[j]] + 0 < used[best] + 0)) best = nic[j]
        }
        used[pf[best]]++
        used[best]++
        pair[ordered[i]] = best
      }
      for (i = 1; i <= gpus; i++) mapping = mapping (i > 1 ? "," : "") gpu[i] "=" pair[gpu[i]]
      if (asked("vllm") && gpus) {
        print "export VLLM_GPU_NIC_PCIE_MAPPING='\''" mapping "'\''"
        more = asked("nvshmem") ? ",NVSHMEM_HCA_LIST:1" : ""
        print "export VLLM_NIC_SELECTION_VARS='\''UCX_NET_DEVICES:1" more "'\''"
      } else {
        if (asked("ucx")) print "export UCX_NET_DEVICES='\''" list "'\''"
        if (asked("nvshmem")) print "export NVSHMEM_HCA_LIST='\''" list "'\''"
      }
      if (asked("nccl")) {
        for (i = 1; i <= nics; i++) {
          n = split(tags[nic[i]], place, ":")
          key[nic[i]] = sprintf("%06d %06d %s", n ? place[1] + 1 : 0, n > 1 ? place[2] + 1 : 0, nic[i])
        }
        sort(nic, nics, key)
        list = ""
        for (i = 1; i <= nics; i++)
          list = list (i > 1 ? "," : "") rdma[nic[i]] ":1" (tags[nic[i]] == "" ? "" : ":" tags[nic[i]])
        print "export NCCL_IB_HCA='\''=" list "'\''"
      }
    }
  '
)"
"""
