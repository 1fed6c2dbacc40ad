"""The values of a function that the host cannot read while a pod holds it. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from nodeagent.facts.model import Function


def keep_pod_values(previous: Iterable[Function], now: Iterable[Function]) -> tuple[Function, ...]:
    """``now``, with the values that the host cannot read while a pod holds the function.

    In the exclusive mode of the RDMA subsystem the RDMA device moves into the pod's network namespace, but a
    restarted container needs its device nodes again. A change of driver drops the old values.
    """
    known = {function.pci_address: function for function in previous}
    merged = []
    for function in now:
        before = known.get(function.pci_address)
        if before is not None and before.driver is not None and before.driver == function.driver:
            # During enumeration a PF does not list its VFs yet.
            index = before.vf_index if function.vf_index is None else function.vf_index
            merged.append(
                replace(
                    function,
                    rdma=function.rdma or before.rdma,
                    link_type=function.link_type or before.link_type,
                    vf_index=index if function.parent == before.parent else function.vf_index,
                )
            )
        else:
            merged.append(function)
    return tuple(merged)
