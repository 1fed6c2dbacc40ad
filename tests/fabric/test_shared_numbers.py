"""Two nodes with one number in the prefix of a rail are an anomaly, before any pod has an address."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import structs

from nodeagent.fabric.nodelinks import NodeLinks
from nodeagent.fabric.outcome import Anomaly, AnomalyKind
from tests.support.fabrics import Cluster, links, rails

PREFIX = "10.103.0.0/16"
Numbers = Mapping[str, tuple[str | None, int | None]]


def numbered(report: NodeLinks, prefix: str | None, number: int | None) -> NodeLinks:
    """The report with a number on its first link."""
    first, *others = report.links
    return structs.replace(report, links=(structs.replace(first, vf_prefix=prefix, number=number), *others))


def hall(numbers: Numbers) -> Cluster:
    cluster = Cluster()
    for node, row in rails(1, 6, 4).items():
        cluster.exist(node)
        cluster.report(numbered(links(node, row), *numbers.get(node, (None, None))))
    cluster.rest()
    return cluster


def found(cluster: Cluster) -> list[Anomaly]:
    assert cluster.outcome is not None
    return list(cluster.outcome.anomalies)


def test_two_nodes_with_one_number_are_named_once_with_their_nics() -> None:
    one = (PREFIX, 7)
    (anomaly,) = found(hall({"su000-n001": one, "su000-n004": one, "su000-n002": (PREFIX, 8)}))
    assert (anomaly.kind, anomaly.node, anomaly.link) == (AnomalyKind.SHARED_NUMBER, "su000-n001", "rail0")
    assert anomaly.nodes == ("su000-n001", "su000-n004")
    assert anomaly.message == (
        "2 nodes (su000-n001, su000-n004) have the number 7 in 10.103.0.0/16, on rail0 of su000-n001, "
        "rail0 of su000-n004: their pods would have the same addresses; give each NIC an address of its own"
    )


def test_another_prefix_another_number_or_none_is_no_anomaly() -> None:
    numbers: Numbers = {
        "su000-n000": (PREFIX, 7),
        "su000-n001": (PREFIX, 8),
        "su000-n002": ("10.203.0.0/16", 7),
        "su000-n003": (PREFIX, None),
        "su000-n004": (PREFIX, None),
    }
    assert found(hall(numbers)) == []


def test_an_address_of_its_own_ends_the_anomaly() -> None:
    cluster = hall({"su000-n001": (PREFIX, 7), "su000-n004": (PREFIX, 7)})
    assert len(found(cluster)) == 1
    cluster.report(numbered(cluster.reports["su000-n004"], PREFIX, 9))
    cluster.rest()
    assert found(cluster) == []


def test_a_long_prefix_or_an_odd_number_of_a_stranger_does_no_harm() -> None:
    """The API server refuses both; a report that it has taken in an older version must not stop the plan."""
    assert found(hall({"su000-n001": (PREFIX, -7), "su000-n002": (PREFIX, -7)})) == []
    cluster = hall({"su000-n001": ("x" * 2000, 7), "su000-n002": (PREFIX, 7)})
    assert [one for one in found(cluster) if one.kind is AnomalyKind.SHARED_NUMBER] == []
    assert cluster.outcome is not None
    assert [one.node for one in cluster.outcome.unplaced] == ["su000-n001"]
