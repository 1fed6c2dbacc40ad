"""Alerts, dashboards and monitors: the tools that read them accept them, and their metrics exist."""

from __future__ import annotations

import ast
import inspect
import json
import re
import subprocess
import sys
from collections import Counter
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from msgspec.structs import replace

from hack.docs.metric_notes import AGENT
from hack.docs.metrics import CATALOG
from nodeagent import kinds
from nodeagent.fabric import compute
from nodeagent.fabric.jobs import JobFabric, JobKey
from nodeagent.facts.model import Holding, State
from nodeagent.features.cluster_jobs import JOB_FAMILIES
from nodeagent.features.switches.switch_asking import SWITCH_FAMILIES
from nodeagent.health import gpu, unusable_gpus
from nodeagent.health.nic import keys
from nodeagent.health.rules import NIC_RULES, gpu_rules, xids
from nodeagent.health.rules.gpu_rules import MEASURED_KEYS, RECOVERY_PREFIX
from nodeagent.health.structural import Fault
from nodeagent.kinds import mig, mps_clients
from nodeagent.metrics.controller_metrics import ControllerInput, render_page
from nodeagent.topology.plans import Progress
from tests.support.findings import one_item
from tests.support.scrape_inputs import facts, page, scrape_input, with_faults

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "daemonset" / "monitoring"
RUNBOOK = (ROOT / "docs" / "runbook.md").read_text()
BOARDS = ("fleet", "node", "gpus")


@cache
def groups() -> list[dict[str, Any]]:
    return yaml.safe_load((FOLDER / "rules.yaml").read_text())["groups"]


def rules(kind: str) -> dict[str, dict[str, Any]]:
    return {rule[kind]: rule for group in groups() for rule in group["rules"] if kind in rule}


def expressions(board: str) -> list[tuple[str, str]]:
    """Yield title and expression of every panel."""
    panels = json.loads((FOLDER / "dashboards" / f"{board}.json").read_text())["panels"]
    return [(panel["title"], target["expr"]) for panel in panels for target in panel.get("targets", ())]


def names(expression: str) -> set[str]:
    return set(re.findall(r"(?<![\w:])nodeagent_\w+", re.sub(r'"[^"]*"', "", expression)))


@cache
def fabric() -> frozenset[str]:
    """Return the metrics page of a controller that asks switches and knows a job."""
    progress = Progress(outcome=compute(()))
    writes = Counter({("create", "ok"): 1})
    asked = SimpleNamespace(reads=Counter({"ok": 1}), states=Counter({"silent": 1}), round_s=1.0, rounds=1)
    job = JobFabric(JobKey("ml", "JobSet", "llama"), {}, 1, (), (), (), 310.0, 1)
    jobs = SimpleNamespace(shown=[job])
    shown = ControllerInput(progress, {}, writes, Counter({"ok": 1}), {}, leading=True,
                             maintenance={("n", "", "", ""): 1.0}, away={("n", "l", "unreachable"): 1.0})  # fmt: skip
    return frozenset(
        re.findall(
            r"^(nodeagent_\w+)",
            render_page(shown, False, [(SWITCH_FAMILIES, asked), (JOB_FAMILIES, jobs)])[0].decode(),
            re.MULTILINE,
        )
    )


def test_every_alert_about_a_node_is_silent_while_work_on_it_is_planned() -> None:
    silent = "unless on (cluster, instance) instance:nodeagent_maintenance:end"
    of_link = "unless on (cluster, instance, device) instance_device:nodeagent_maintenance:end"
    for group in groups():
        for rule in group["rules"]:
            if "alert" in rule and group["name"] != "nodeagent-fabric":
                assert rule["expr"].endswith(silent), rule["alert"]
                of_nic = (
                    group["name"] == "nodeagent-links" or "by (cluster, instance, device)" in rule["expr"]
                )
                assert (of_link in rule["expr"]) is of_nic, rule["alert"]
            elif "alert" in rule and rule["alert"] != "NodeFabricNodesAway":
                assert "maintenance" not in rule["expr"], "it is about the controller"


def exposed() -> set[str]:
    histograms = {f.name for f in CATALOG.values() if f.type == "histogram"}
    return (
        CATALOG.keys()
        | fabric()
        | {f"{name}_{end}" for name in histograms for end in ("bucket", "sum", "count")}
    )


def promtool(*arguments: object) -> str:
    done = subprocess.run(
        ["promtool", *map(str, arguments)], cwd=FOLDER, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.needs("promtool")
def test_promtool_accepts_the_rules_and_their_tests_pass() -> None:
    assert f"SUCCESS: {len(rules('alert')) + len(rules('record'))} rules found" in promtool(
        "check", "rules", "--lint-fatal", "rules.yaml"
    )
    assert "SUCCESS" in promtool("test", "rules", "rules_test.yaml")


def test_rules_keep_the_clusters_apart() -> None:
    """Two clusters may have nodes of the same names, behind one Prometheus or Thanos."""
    text = (FOLDER / "rules.yaml").read_text()
    groups = re.findall(r"\b(?:by|on) \(([^)]*)\)", text)
    assert len(groups) > 15
    assert not [labels for labels in groups if "cluster" not in labels.split(", ")]


COUNTED = {
    "NodePcieAer": {"nodeagent_pcie_aer_errors_total", "nodeagent_pcie_info"},  # of GPUs, which have no rule
    "NodeNicFirmwareError": {"nodeagent_devlink_health_state", "nodeagent_pcie_info"},  # beside fw_fatal
}
"""The metrics that alerts read beside states and reasons."""


def test_alerts_about_devices_fire_on_the_verdict_of_the_agent() -> None:
    """A second threshold over raw metrics pages a person while ``nodeagent health`` is quiet."""
    for alert, rule in rules("alert").items():
        if not alert.startswith(("NodeAgent", "NodeFabric")):
            read = names(rule["expr"]) - {
                f"nodeagent_{kind}_health_{what}" for kind in ("link", "gpu") for what in ("state", "reason")
            }
            assert read == COUNTED.get(alert, set()), alert


def test_alerts_name_reasons_that_exist() -> None:
    reasons = keys(NIC_RULES) | gpu_reasons()
    named = {
        pattern.replace(".*", "*")
        for rule in rules("alert").values()
        for text in re.findall(r'reason=~?"([^"]*)"', rule["expr"])
        for pattern in re.sub(r"(\w+)\((\w+)\|(\w+)\)", r"\1\2|\1\3", text).split("|")
    }
    assert len(named) > 20
    assert not {name for name in named if not any(fnmatchcase(reason, name) for reason in reasons)}


def test_a_reason_that_withdraws_a_nic_has_an_alert() -> None:
    """Rules that set the link down fire by its state."""
    by_reason = [
        re.compile(text)
        for rule in rules("alert").values()
        for text in re.findall(r'reason=~?"([^"]*)"', rule["expr"])
    ]
    silent = {
        rule.key
        for rule in NIC_RULES
        if rule.withdraws
        and rule.state is not State.DOWN
        and not any(pattern.fullmatch(rule.key) for pattern in by_reason)
    }
    assert not silent


def test_every_alert_has_a_case_that_fires_and_one_that_does_not() -> None:
    tested: dict[str, set[float]] = {}
    for test in yaml.safe_load((FOLDER / "rules_test.yaml").read_text())["tests"]:
        alert = test["name"].split()[0]
        for case in test.get("promql_expr_test", ()):
            tested.setdefault(alert, set()).add(case["exp_samples"][0]["value"])
    assert {alert for alert, found in tested.items() if found >= {0, 1}} >= rules("alert").keys()


@one_item("alert", rules("alert"))
def test_an_alert_has_a_summary_a_description_and_a_runbook_link(alert: str) -> None:
    rule = rules("alert")[alert]
    assert {*rule["annotations"]} - {"map"} == {"summary", "description", "runbook"}
    if not alert.startswith(("NodeAgent", "NodeFabric")):
        assert rule["annotations"]["map"] == "/ui/#at=node:{{ $labels.instance }}"
    assert rule["labels"]["severity"] in ("critical", "warning")
    # A path in the repository, as a text: a link of no host would lead nowhere.
    assert rule["annotations"]["runbook"] == f"docs/runbook.md#{alert.lower()}"
    assert f"\n### {alert}\n" in RUNBOOK
    # A metric that no target has carries no instance label.
    where = next((of for of in ("job", "hypernode") if f" by (cluster, {of}" in rule["expr"]), "instance")
    assert f"$labels.{where} " in rule["annotations"]["summary"]


def test_the_runbook_covers_every_alert_and_every_reason_and_nothing_else() -> None:
    assert set(re.findall(r"^### (\w+)$", RUNBOOK, re.M)) == rules("alert").keys()
    section = RUNBOOK.partition("## Reasons")[2].partition("## Links")[0]
    cells = re.findall(r"^\| (`.*?) \|", section, re.M)
    named = {name for cell in cells for name in re.findall(r"`([a-z_]+\*?)`", cell)}
    reasons = keys(NIC_RULES) | gpu_reasons() | {fault.value for fault in Fault}
    missing = {reason for reason in reasons if not any(fnmatchcase(reason, pattern) for pattern in named)}
    assert not missing, "add them to the section Reasons of docs/runbook.md"
    assert not {pattern for pattern in named if not any(fnmatchcase(reason, pattern) for reason in reasons)}


def gpu_reasons() -> set[str]:
    """Return every key that a reason of a GPU may have; a key with a number or an action ends in ``*``."""
    found = set(MEASURED_KEYS) | {f"{RECOVERY_PREFIX}*"}
    for module in (gpu, unusable_gpus, gpu_rules, xids, kinds, mig, mps_clients):
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("Reason", "Rule"):
                found |= texts(node.args[0])
    assert {"gpu_lost", "gpu_unavailable", "driver_silent", "mig_enabled", "xid_*"} <= found
    return found


def texts(expression: ast.expr) -> set[str]:
    match expression:
        case ast.Constant(value=str(text)):
            return {text}
        case ast.IfExp(body=body, orelse=orelse):
            return texts(body) | texts(orelse)
        case ast.JoinedStr(values=[ast.Constant(value=str(text)), *_]):
            return {f"{text}*"}
    return set()


def test_rules_and_panels_query_existing_metrics() -> None:
    asked = {("rule", name) for group in groups() for rule in group["rules"] for name in names(rule["expr"])}
    asked |= {(board, name) for board in BOARDS for _, expr in expressions(board) for name in names(expr)}
    assert {name for _, name in asked} - exposed() == set()


def test_every_metric_that_rules_and_panels_query_is_documented() -> None:
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    documented = set(re.findall(r"^\| `(nodeagent_\w+)` \|", page, re.M))
    queried = {name for group in groups() for rule in group["rules"] for name in names(rule["expr"])}
    queried |= {name for board in BOARDS for _, expr in expressions(board) for name in names(expr)}
    assert len(queried) > 60
    assert {name for name in queried if re.sub("_(bucket|sum|count)$", "", name) not in documented} == (set())


def shared() -> str:
    """Return the metrics page of a node where two pods share a GPU and one of them holds a VF."""
    snapshot = with_faults(facts()[0])
    vf, *_, slices = snapshot.holdings or ()
    gpu = snapshot.gpus[0].uuid
    other = Holding("serve", "chat-0", "main", slices.resource, (f"{gpu}::30", f"{gpu}::31"))
    return page(scrape_input(replace(snapshot, holdings=(vf, slices, other))))


def autoscaling() -> list[str]:
    example = ROOT / "daemonset" / "examples" / "autoscaling" / "recording-rules.yaml"
    spec = yaml.safe_load(example.read_text())["spec"]
    return [rule["expr"] for group in spec["groups"] for rule in group["rules"]]


def asked() -> list[str]:
    """Yield every shipped query: of panels, recording rules, alerts, examples and docs/reference/metrics.md."""
    found = [expr for board in BOARDS for _, expr in expressions(board)]
    found += [rule["expr"] for group in groups() for rule in group["rules"]]
    found += autoscaling()
    text = " ".join((ROOT / "docs" / "reference" / "metrics.md").read_text().split("\n## ")[0].split())
    found += [code for code in re.findall(r"`([^`]+)`", text) if " on (" in code]
    return [re.sub(r"\$(instance|device)\b|\$__\w+", r"n1", one) for one in found]


@pytest.mark.needs("promtool")
def test_every_query_is_valid_where_pods_share_a_gpu(tmp_path: Path) -> None:
    """If the "one" side of a join is not unique, the whole query fails."""
    series = []
    for line in shared().splitlines():
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            series.append(
                {"series": name.replace("{", '{instance="n1",') if "{" in name else name + '{instance="n1"}',
                 "values": f"{value}x20"}
            )  # fmt: skip
    queries = asked()
    assert len(queries) > 60
    tests = [
        {
            "expr": f"0 * count({one}) or vector(0)",
            "eval_time": "9m",
            "exp_samples": [{"value": 0, "labels": "{}"}],
        }
        for one in queries
    ]
    # An autoscaler without a result scales nothing: both pods share the GPU, one holds a VF.
    tests += [{"expr": f"count({one})", "eval_time": "9m", "exp_samples": [{"value": n, "labels": "{}"}]}
              for n, one in zip((2, 1), autoscaling(), strict=True)]  # fmt: skip
    file = tmp_path / "queries.yaml"
    file.write_text(
        yaml.safe_dump({"tests": [{"interval": "1m", "input_series": series, "promql_expr_test": tests}]})
    )
    promtool("test", "rules", file)


def test_generated_files_match_their_sources(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "hack" / "monitoring.py", tmp_path], check=True)
    made = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    assert len(made) == 1 + len(BOARDS)
    for path in made:
        committed = FOLDER / path.relative_to(tmp_path)
        assert committed.read_text() == path.read_text(), f"{committed}: make monitoring"


@pytest.mark.parametrize("board", BOARDS)
def test_a_dashboard_is_complete(board: str) -> None:
    model = json.loads((FOLDER / "dashboards" / f"{board}.json").read_text())
    ids = [panel["id"] for panel in model["panels"]]
    assert len(set(ids)) == len(ids)
    places = [panel["gridPos"] for panel in model["panels"]]
    cells = [
        (x, y) for p in places for x in range(p["x"], p["x"] + p["w"]) for y in range(p["y"], p["y"] + p["h"])
    ]
    assert len(set(cells)) == len(cells), "panels lie over each other"
    assert max(x for x, _ in cells) < 24
    assert all(panel["description"].endswith(".") for panel in model["panels"] if panel["type"] != "row")


@pytest.mark.parametrize("board", BOARDS)
def test_a_dashboard_shows_one_cluster_or_all(board: str) -> None:
    """The value of All matches series without the label too: a single Prometheus has no external label."""
    model = json.loads((FOLDER / "dashboards" / f"{board}.json").read_text())
    variable = next(one for one in model["templating"]["list"] if one["name"] == "cluster")
    assert (variable["includeAll"], variable["allValue"]) == (True, ".*")
    for title, expression in expressions(board):
        selectors = re.findall(
            r"(?<![\w:])(?:nodeagent_\w+|\w+:nodeagent_[\w:]+|up)(?![\w:])(\{[^}]*)?", expression
        )
        assert selectors, title
        assert all(selector.startswith('{cluster=~"$cluster"') for selector in selectors), (title, expression)


def test_a_panel_of_faults_without_a_fault_is_not_empty() -> None:
    """Without series Grafana shows `No data`, as if the monitoring were broken."""
    panels = [
        panel
        for board in BOARDS
        for panel in json.loads((FOLDER / "dashboards" / f"{board}.json").read_text())["panels"]
    ]
    empty = {
        panel["title"]: panel["fieldConfig"]["defaults"].get("noValue")
        for panel in panels
        if "targets" in panel
    }
    assert empty["Reasons"] == "no fault"
    filtered = {
        panel["title"]
        for panel in panels
        for target in panel.get("targets", ())
        if re.search(r"> 0\)?$|== 0\)?$", target["expr"])
    }
    assert filtered
    assert not {title for title in filtered if not empty[title]}


NVIDIAS = (
    "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_GPU_UTIL",
    "DCGM_FI_DEV_FB_USED", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
)  # fmt: skip
"""The fields of dcgm-exporter's own dashboard (12239), at its commit d5e5f510."""


def test_the_dashboard_of_gpus_answers_what_nvidias_does() -> None:
    queried = {name for _, expression in expressions("gpus") for name in names(expression)}
    peers = {f"nodeagent_{noun}": note.peers.replace(" _", " DCGM_FI_PROF_") for noun, note in AGENT.items()}
    for field in NVIDIAS:
        assert queried & {name for name, text in peers.items() if re.search(rf"\b{field}\b", text)}, field
    titles = dict(expressions("gpus"))
    assert titles["Power of all"].startswith("sum(nodeagent_gpu_power_watts")
    assert titles["Average temperature"].startswith("avg(nodeagent_gpu_temperature_celsius")


def test_the_fleet_shows_the_controller() -> None:
    queried = {name for _, expression in expressions("fleet") for name in names(expression)}
    assert {
        "nodeagent_controller_leader",
        "nodeagent_fabric_breaker_open",
        "nodeagent_controller_writes_total",
        "nodeagent_fabric_suppressed_writes_total",
    } <= queried


def test_the_monitors_select_the_pods_and_the_port_of_the_agent() -> None:
    monitor, _controller = yaml.safe_load_all((FOLDER / "podmonitor.yaml").read_text())
    *_, service_monitor = yaml.safe_load_all((FOLDER / "servicemonitor.yaml").read_text())
    manifests = yaml.safe_load_all((ROOT / "daemonset" / "base" / "node" / "daemonset.yaml").read_text())
    node = next(one for one in manifests if one["kind"] == "DaemonSet")
    labels = {"app.kubernetes.io/name": "nodeagent", "app.kubernetes.io/component": "agent"}
    for spec in (monitor["spec"], service_monitor["spec"]):
        assert spec["selector"]["matchLabels"] == labels
    assert monitor["spec"]["podMetricsEndpoints"][0]["port"] == "metrics"
    endpoints = (*monitor["spec"]["podMetricsEndpoints"], *service_monitor["spec"]["endpoints"])
    # Otherwise Prometheus renames our labels pod and namespace to exported_pod and exported_namespace, and joins fail.
    assert all(endpoint["honorLabels"] for endpoint in endpoints)
    (container,) = node["spec"]["template"]["spec"]["containers"]
    assert "metrics" in {port["name"] for port in container["ports"]}
