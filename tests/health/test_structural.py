"""The structural faults of PFs and VFs, and the health that ``NicJudge`` derives from them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from nodeagent.facts.model import HEALTHY, Function, Health, Link, Rdma, Reason, State
from nodeagent.health.health_settings import ExpectedLinks, GuardSettings, HealthSettings, RuleSettings
from nodeagent.health.nic import NicJudge
from nodeagent.health.structural import Fault, find_faults, with_hanging

PF = Function(
    pci_address="0000:1a:00.0",
    vendor="15b3",
    device="1021",
    driver="mlx5_core",
    netdev="eth0",
    link_type="ethernet",
    rdma=None,
    vfio_group=None,
    vdpa=None,
    numa_node=0,
    pci_path=("pci0000:15", "0000:1a:00.0"),
    num_vfs=2,
    total_vfs=16,
)
VF = replace(PF, pci_address="0000:1a:00.1", netdev="eth0v0", parent=PF.pci_address, vf_index=0, num_vfs=None)
GUEST = replace(VF, pci_address="0000:1a:00.2", driver="vfio-pci", netdev=None, vfio_group="45", vf_index=1)
OTHER = replace(PF, pci_address="0000:3a:00.0", netdev="eth1")
ALL = (PF, VF, GUEST)
UP = Link(
    "eth0", PF.pci_address, None, admin_up=True, carrier=True, operstate="up", speed_mbps=None, mtu=None
)


class Judged:
    """``NicJudge`` without holds, gate and guard: its health follows the facts of the moment."""

    def __init__(self) -> None:
        keys = ("device_missing", "carrier_down")
        settings = HealthSettings(
            rules=tuple(RuleSettings(rule=key, clear_for_seconds=0) for key in keys),
            expected=(ExpectedLinks(links=("*",)),),
            guard=GuardSettings(share=1.0),
        )
        self.engine = NicJudge(settings)
        self.known: tuple[Function, ...] = ()
        self.now = 0.0

    def look(self, functions: Any, links: Any) -> tuple[Function, ...]:
        self.now += 1
        self.known, faults = find_faults(functions, links, self.known)
        self.engine.take_facts(self.known, links, faults)
        return self.engine.judge(self.now)


def judge(functions: Any, links: Any) -> tuple[Function, ...]:
    return Judged().look(functions, links)


def keys(function: Function) -> list[str]:
    return [reason.key for reason in function.health.reasons]


def states(functions: tuple[Function, ...]) -> list[tuple[State, bool]]:
    return [(function.health.state, function.health.allocatable) for function in functions]


def test_a_pf_with_carrier_and_its_vfs_are_healthy() -> None:
    assert judge(ALL, [UP]) == ALL


def test_only_health_changes() -> None:
    judged = judge(ALL, [replace(UP, carrier=False)])
    assert tuple(replace(function, health=HEALTHY) for function in judged) == ALL


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"carrier": False}, Fault.CARRIER_DOWN),
        ({"carrier": False, "operstate": "up"}, Fault.CARRIER_DOWN),
        ({"carrier": None, "operstate": "down"}, Fault.CARRIER_DOWN),
        ({"carrier": None, "operstate": "lowerlayerdown"}, Fault.CARRIER_DOWN),
        ({"admin_up": False, "carrier": None, "operstate": "down"}, Fault.ADMIN_DOWN),
    ],
)
def test_a_fault_of_a_pf_applies_to_its_vfs(change: dict[str, Any], key: str) -> None:
    judged = judge(ALL, [replace(UP, **change)])
    assert states(judged) == [(State.DOWN, False)] * 3
    assert [keys(function) for function in judged] == [[key]] * 3
    assert all("PF 0000:1a:00.0 (eth0)" in function.health.reasons[0].detail for function in judged)


def test_a_fault_of_a_pf_does_not_apply_to_another_pf() -> None:
    judged = judge((*ALL, OTHER), [replace(UP, carrier=False), replace(UP, pci_address=OTHER.pci_address)])
    assert judged[-1] == OTHER


def test_recovery_is_immediate() -> None:
    judged = Judged()
    assert judged.look(ALL, [replace(UP, carrier=False)]) != ALL
    assert judged.look(ALL, [UP]) == ALL


@pytest.mark.parametrize("operstate", ["down", "unknown", None, "dormant"])
def test_the_carrier_has_priority_over_the_operstate(operstate: str | None) -> None:
    assert judge(ALL, [replace(UP, operstate=operstate)]) == ALL


@pytest.mark.parametrize(
    ("carrier", "state"), [(True, State.HEALTHY), (False, State.DOWN), (None, State.UNKNOWN)]
)
def test_on_infiniband_an_ipoib_netdev_that_is_set_down_is_no_fault(
    carrier: bool | None, state: State
) -> None:
    pf = replace(PF, link_type="infiniband")
    link = replace(UP, admin_up=False, carrier=carrier, operstate=None)
    assert judge([pf], [link])[0].health.state == state


def test_a_vf_in_the_namespace_of_a_pod_is_healthy() -> None:
    judged = Judged()
    judged.look((PF, VF), [UP])
    assert states(judged.look((PF, replace(VF, netdev=None, rdma=None)), [UP])) == [(State.HEALTHY, True)] * 2


@pytest.mark.parametrize("allocatable", [True, False])
def test_a_pf_without_a_visible_link_is_unknown_and_keeps_its_devices(allocatable: bool) -> None:
    node = Judged()
    node.look(ALL, [replace(UP, carrier=allocatable)])
    moved = (replace(PF, netdev=None), VF, GUEST)
    judged = node.look(moved, [])
    known = [] if allocatable else ["carrier_down"]
    assert states(judged) == [(State.UNKNOWN if allocatable else State.DOWN, allocatable)] * 3
    assert [keys(function) for function in judged] == [[*known, Fault.LINK_UNSEEN]] * 3
    assert node.look(moved, []) == judged


def test_a_link_that_was_never_visible_is_unknown_and_allocatable() -> None:
    assert states(judge(ALL, [])) == [(State.UNKNOWN, True)] * 3


def test_a_carrier_that_the_kernel_does_not_report_is_unknown() -> None:
    judged = judge(ALL, [replace(UP, carrier=None, operstate="unknown")])
    assert states(judged) == [(State.UNKNOWN, True)] * 3


def test_a_pf_without_a_driver_is_down() -> None:
    judged = judge([replace(PF, driver=None, netdev=None), VF], [])
    assert states(judged) == [(State.DOWN, False)] * 2
    assert keys(judged[1]) == [Fault.DRIVER_UNBOUND]


def test_a_vf_without_a_driver_is_down_alone() -> None:
    judged = judge((PF, replace(VF, driver=None), GUEST), [UP])
    assert states(judged) == [(State.HEALTHY, True), (State.DOWN, False), (State.HEALTHY, True)]
    assert judged[1].health.reasons == (Reason("driver_unbound", "VF 0000:1a:00.1 has no driver"),)


@pytest.mark.parametrize(
    ("guid", "lacks"),
    [
        ("0000:0000:0000:0000", True),
        ("ffff:ffff:ffff:ffff", True),  # as ib-sriov-cni leaves it
        ("0e42:a103:0116:054c", False),
        (None, False),  # it cannot be read
    ],
)
def test_an_infiniband_vf_without_a_guid_is_down_alone(guid: str | None, lacks: bool) -> None:
    vf = replace(VF, link_type="infiniband", rdma=Rdma("mlx5_8", node_guid=guid))
    judged = judge((PF, vf, GUEST), [UP])
    assert [key for key in keys(judged[1]) if key == Fault.GUID_MISSING] == [Fault.GUID_MISSING] * lacks
    assert judged[1].health.allocatable is not lacks
    assert keys(judge((PF, replace(vf, link_type="ethernet")), [UP])[1]) == []
    given = NicJudge(HealthSettings(vf_guids="fromCni"))
    functions, faults = find_faults((PF, vf), [UP])
    given.take_facts(functions, (UP,), faults)
    assert given.judge(0.0)[1].health.allocatable


@pytest.mark.parametrize("driver", ["vfio-pci", "mlx5_vfio_pci"])
def test_a_vf_for_vfio_without_an_iommu_group_is_down_alone(driver: str) -> None:
    lone = replace(GUEST, driver=driver, vfio_group=None)
    judged = judge((PF, VF, lone), [UP])
    assert states(judged) == [(State.HEALTHY, True), (State.HEALTHY, True), (State.DOWN, False)]
    assert keys(judged[2]) == [Fault.IOMMU_GROUP_MISSING]
    for group in ("45", "noiommu-0"):
        assert states(judge((PF, VF, replace(lone, vfio_group=group)), [UP]))[2] == (State.HEALTHY, True)


def test_the_gravest_reason_is_first_and_outweighs_an_unknown_link() -> None:
    unbound = replace(VF, driver=None)
    assert keys(judge((PF, unbound), [replace(UP, carrier=False)])[1]) == [
        Fault.DRIVER_UNBOUND,
        Fault.CARRIER_DOWN,
    ]
    hidden = judge((replace(PF, netdev=None), unbound), [])[1]
    assert keys(hidden) == [Fault.DRIVER_UNBOUND, Fault.LINK_UNSEEN]
    assert hidden.health.state == State.DOWN


def test_a_vf_without_its_pf_is_down() -> None:
    (judged,) = judge([VF], [])
    assert states((judged,)) == [(State.DOWN, False)]
    assert keys(judged) == [Fault.DEVICE_MISSING]


def test_a_missing_function_stays_listed_until_it_returns() -> None:
    node = Judged()
    node.look(ALL, [UP])
    gone = node.look((PF, VF), [UP])
    assert [function.pci_address for function in gone] == [function.pci_address for function in ALL]
    assert states(gone) == [(State.HEALTHY, True), (State.HEALTHY, True), (State.DOWN, False)]
    assert gone[2].health.reasons[0].detail == "VF 0000:1a:00.2 is missing; its PF has 2 VFs now"
    assert node.look((PF, VF), [UP]) == gone
    assert node.look(ALL, [UP]) == ALL


def test_a_missing_pf_takes_its_vfs_down() -> None:
    node = Judged()
    node.look(ALL, [UP])
    judged = node.look([VF], [])
    assert [set(keys(function)) for function in judged] == [{Fault.DEVICE_MISSING}] * 3
    assert states(judged) == [(State.DOWN, False)] * 3


facts = st.tuples(
    st.lists(st.sampled_from([PF, VF, GUEST, OTHER]), unique=True),
    st.lists(
        st.builds(
            replace,
            st.just(UP),
            pci_address=st.sampled_from([PF.pci_address, OTHER.pci_address]),
            admin_up=st.booleans(),
            carrier=st.sampled_from([True, False, None]),
            operstate=st.sampled_from([None, "up", "down", "unknown"]),
        ),
        max_size=2,
    ),
)


@given(st.lists(facts, min_size=1, max_size=4))
def test_health_is_consistent_with_the_faults_and_no_function_disappears(history: list[Any]) -> None:
    closed = {fault.value for fault in Fault}
    known: tuple[Function, ...] = ()
    node = Judged()
    for functions, links in history:
        listed, faults = find_faults(functions, links, known)
        assert [function.pci_address for function in listed] == sorted(
            {function.pci_address for function in (*functions, *known)}
        )
        assert {reason.key for reasons in faults.values() for reason in reasons} <= closed
        assert all(function.health == HEALTHY for function in listed), "a source derives no health"
        assert find_faults(functions, links, listed) == (listed, faults), "the same facts change no fault"
        known = listed
        judged = node.look(functions, links)
        for function in judged:
            health: Health = function.health
            assert (health.state == State.HEALTHY) == (health == HEALTHY)
            if health.state == State.DOWN:
                assert not health.allocatable
            own = {reason.key for reason in faults.get(function.pci_address, ())}
            assert own <= {reason.key for reason in health.reasons}
        assert node.look(functions, links) == judged, "the same facts change no health"


def test_a_function_whose_file_hangs_does_not_answer_and_keeps_its_other_faults() -> None:
    functions, faults = find_faults(ALL, [replace(UP, carrier=False)])
    more = with_hanging(faults, functions, {PF.pci_address, "0000:ff:00.0", ""})
    assert [reason.key for reason in more[PF.pci_address]] == ["not_answering", "carrier_down"]
    assert "does not answer: reading its files in sysfs hangs" in more[PF.pci_address][0].detail
    assert more.keys() == {PF.pci_address, *faults}
    assert with_hanging(faults, functions, ()) == faults
