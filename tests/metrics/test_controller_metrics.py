"""The metrics page of the controller: every family, both formats, and the values."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

from msgspec import structs
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from nodeagent import __version__
from nodeagent.controller_features import CONTROLLER, families_of_controller
from nodeagent.fabric import compute
from nodeagent.fabric.jobs import JobFabric, JobKey
from nodeagent.fabric.outcome import Anomaly, AnomalyKind
from nodeagent.metrics.controller_metrics import ControllerInput, render_page


def full_input() -> ControllerInput:
    """The input of a leader."""
    outcome = replace(compute(()), placed=8, waiting=1)
    return ControllerInput(
        progress=SimpleNamespace(outcome=outcome, plans=3, plan_s=0.25, suppressed=7),
        mirrors={
            "nodes": SimpleNamespace(objects={"a": 1, "b": 2}, age_s=1.5, restarts=Counter({"expired": 2}))
        },
        hypernode_writes=Counter({("create", "ok"): 4}),
        label_writes=Counter({"conflict": 1}),
        restarts={"mirrors": 5},
        leading=True,
        feature_writes=[(("apply", "railpartners", "ok"), 8)],
        maintenance={("n", "nic0", "enp1", "0000:18:00.0"): 1.8e9, ("n", "", "", ""): 1.7e9},
        away={("n", "nodeagent-t1-leaf", "unreachable"): 1.7e9},
        gpus={("n", "nodeagent-t1-leaf", "3", "unhealthy"): 1.7e9},
        odd={"NIC firmware": 3},
    )


SHOWN = {
    "switches": SimpleNamespace(
        reads=Counter({"ok": 6}), states=Counter({"silent": 2}), round_s=0.5, rounds=9
    ),
    "marks": SimpleNamespace(spared=3, counts={"taint": 2}),
    "rails": SimpleNamespace(legs={"good": 46, "bad": 2}),
    "jobs": SimpleNamespace(
        shown=[
            JobFabric(
                JobKey("ml", "JobSet", "llama"),
                {"a": ("n",)},
                1,
                (("n", "nic0"),),
                (),
                (("n", "GPU 3"),),
                stalled_s=420.0,
                rails_below=1,
            )
        ]
    ),
}
"""The object that each feature with families shows."""


def page(shown: ControllerInput, *, openmetrics: bool) -> str:
    features = [(row.families, SHOWN[row.name]) for row in CONTROLLER if row.families and shown.leading]
    return render_page(shown, openmetrics, features)[0].decode()


def samples(text: str) -> dict[str, float]:
    """The value of each series, by its text."""
    return {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if not line.startswith("#")
    }


def test_every_family_with_a_value_is_on_the_page_with_its_type_and_help() -> None:
    shown = {family.name: family for family in read_openmetrics(page(full_input(), openmetrics=True))}
    without_series = {"nodeagent_fabric_hypernodes"}  # no node, no HyperNode
    for family in families_of_controller():
        if family.name not in without_series:
            assert shown[family.base].type == family.type
            assert shown[family.base].documentation == family.help


def test_both_formats_have_the_same_values() -> None:
    shown = full_input()
    openmetrics = page(shown, openmetrics=True)
    assert openmetrics.endswith("# EOF\n")
    assert samples(page(shown, openmetrics=False)) == samples(openmetrics)
    assert len(list(read_text(page(shown, openmetrics=False)))) == len(list(read_openmetrics(openmetrics)))


def test_the_values_of_a_leader() -> None:
    values = samples(page(full_input(), openmetrics=False))
    expected = {
        f'nodeagent_build_info{{version="{__version__}"}}': 1,
        "nodeagent_controller_leader": 1,
        "nodeagent_fabric_plans_total": 3,
        'nodeagent_rail_legs{state="bad"}': 2,
        'nodeagent_controller_writes_total{object="railpartners",result="ok",verb="apply"}': 8,
        "nodeagent_fabric_suppressed_writes_total": 7,
        "nodeagent_fabric_plan_duration_seconds": 0.25,
        'nodeagent_fabric_nodes{state="placed"}': 8,
        'nodeagent_fabric_nodes{state="waiting"}': 1,
        "nodeagent_fabric_breaker_open": 0,
        'nodeagent_watch_objects{resource="nodes"}': 2,
        'nodeagent_watch_age_seconds{resource="nodes"}': 1.5,
        'nodeagent_watch_lists_total{cause="expired",resource="nodes"}': 2,
        'nodeagent_controller_writes_total{object="hypernode",result="ok",verb="create"}': 4,
        'nodeagent_controller_writes_total{object="node",result="conflict",verb="patch"}': 1,
        'nodeagent_fabric_marked_nodes{mark="taint"}': 2,
        "nodeagent_fabric_spared_nodes": 3,
        'nodeagent_switch_reads_total{result="ok"}': 6,
        'nodeagent_switches{state="read"}': 0,
        'nodeagent_switches{state="silent"}': 2,
        "nodeagent_switch_rounds_total": 9,
        "nodeagent_switch_round_duration_seconds": 0.5,
        'nodeagent_task_restarts_total{task="mirrors"}': 5,
    }
    assert expected.items() <= values.items()


def test_anomalies_of_planned_work_do_not_count() -> None:
    def of(node: str, link: str) -> Anomaly:
        return Anomaly(AnomalyKind.LINK_LOSS, node, link, "leaf1", "")

    shown = full_input()
    outcome = replace(
        compute(()),
        anomalies=(of("n", "nic9"), of("m", "nic0"), of("m", "enp1"), of("m", "nic1"), of("", "")),
    )
    planned = {("n", "", "", ""): 1.7e9, ("m", "nic0", "enp1", ""): 1.8e9}
    shown = structs.replace(
        shown,
        progress=SimpleNamespace(outcome=outcome, plans=1, plan_s=0.1, suppressed=0),
        maintenance=planned,
    )
    assert samples(page(shown, openmetrics=False))['nodeagent_fabric_anomalies{kind="link-loss"}'] == 2


def test_a_replica_that_does_not_lead_has_no_fabric_and_no_switches() -> None:
    idle = SimpleNamespace(outcome=None, plans=0, plan_s=0.0, suppressed=0)
    values = samples(
        page(ControllerInput(idle, {}, Counter(), Counter(), {}, leading=False), openmetrics=False)
    )
    assert values["nodeagent_controller_leader"] == 0
    assert not [name for name in values if name.startswith(("nodeagent_fabric_nodes", "nodeagent_switch"))]
