"""job --rails: the matrix from levels and from figures, in 80 columns and as JSON; rails traffic of a node."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs

from nodeagent.cli import main
from nodeagent.commands.plan import job as job_verb
from nodeagent.commands.plan.job_rails import rails_document, rails_lines
from nodeagent.console.terminal import Screen
from nodeagent.fabric.jobs import by_job, job_pod
from nodeagent.fabric.nodelinks import RailLevel, TrafficLevel
from nodeagent.fabric.traffic_figures import PodFigures, TrafficFigures, VfFigures
from tests.commands.test_job import file, preview, scene
from tests.commands.test_trouble import NOW

SILENT = "2027-01-15T07:54:43Z"
GBPS = 125_000_000.0


def levels(word: str, **other: Any) -> dict[str, TrafficLevel]:
    """The level of each pod of the job llama, by node."""
    _, pods = scene()
    found = {}
    for pod in pods:
        name = pod["metadata"]["name"]
        if name.startswith("llama"):
            values = {"namespace": "ml", "pod": name, "level": word} | other
            found[pod["spec"]["nodeName"]] = TrafficLevel(**values)
    return found


def with_levels(found: dict[str, TrafficLevel], folder: Path) -> str:
    reports, pods = scene()
    made = [
        structs.replace(one, traffic=(found[one.node_name],)) if one.node_name in found else one
        for one in reports
    ]
    return file(made, pods, folder)


def figures(node: str, pod: str, *gbps: float, **other: Any) -> dict[str, Any]:
    vfs = [
        {"link": f"rail{n}", "pciAddress": f"0000:{n:02x}:00.2", "seconds": 30.0,
         "sent": one * GBPS, "received": one * GBPS,
         "sentPackets": one * 1000, "receivedPackets": one * 1000, "quietS": 10.0 if one else 240.0}
        for n, one in enumerate(gbps)
    ]  # fmt: skip
    answer = {"namespace": "ml", "pod": pod, "vfs": vfs, "gpus": {str(n): 1.0 for n in range(8)}} | other
    return {"kind": "NodeTraffic", "node": node, "pods": [answer]}


def asked(folder: Path, *documents: dict[str, Any]) -> str:
    (folder / "traffic.json").write_text("\n".join(map(json.dumps, documents)) + "\n")
    return str(folder)


def answers(folder: Path, change: dict[str, Any] | None = None) -> str:
    """The answers of all agents, with one changed."""
    with_levels(levels("moving"), folder)
    documents = [figures(node, level.pod, 98.7, 99.1, 98.2, 97.5) for node, level in levels("moving").items()]
    documents = [change if change and change["node"] == one["node"] else one for one in documents]
    return asked(folder, *documents)


def run(source: str, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main(["job", "llama", "--rails", "--from", source, *words])
    return code, capsys.readouterr().out


def test_without_levels_the_setting_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(file(*scene(), tmp_path), capsys)
    assert code == 0
    assert "set traffic.report" in out


def test_levels_are_words_and_figures_are_offered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = levels("moving")
    low = RailLevel(link="rail2", pci_address="x", level="below", since=SILENT)
    found["su1-n00"] = structs.replace(found["su1-n00"], rails=(low,))
    code, out = run(with_levels(found, tmp_path), capsys)
    assert code == 1
    assert "llama-node-3-0-abcde carries less than half of its other rails on rail2" in out
    assert "kubectl nodeagent asks the agents" in out
    row = next(
        line.split()
        for line in out.splitlines()
        if line.startswith("  llama-node-3-0") and " carries " not in line
    )
    assert row[1:5] == ["ok", "ok", "low", "ok"]


def test_a_stalled_job_fits_80_columns_and_names_who_did_not_arrive(tmp_path: Path) -> None:
    found = levels("silent", since=SILENT, gpus="waiting", longest_pause_seconds=90)
    found["su1-n01"] = structs.replace(found["su1-n01"], idle_gpus=(5,))
    reports, pods = scene()
    made = preview([structs.replace(one, traffic=(found[one.node_name],)) if one.node_name in found else one
                    for one in reports], pods, tmp_path)  # fmt: skip
    jobs = by_job(map(job_pod, made.pods))
    (name,) = (one for one in jobs if one.name == "llama")
    document = rails_document(made, name, jobs[name], NOW)
    assert (document["stalled"], document["silentSeconds"]) == (True, 317)
    text = [part for line in rails_lines(document, Screen(80)) for part in line.split("\n")]
    assert [line for line in text if len(line) > 80] == []
    assert "did not arrive" in " ".join(text)
    assert document["odd"][0]["sentence"] == (
        "all rails silent for 5 min 17 s, the GPUs of 6 pods busy, su1-n01/5 at 0 %: it did not arrive "
        "(llama-node-4-0-abcde)"
    )


def test_a_stall_is_told_without_the_option_and_without_any_metric(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_verb.show_job, "__defaults__", (lambda: NOW,))
    for gpus, told in (("waiting", 317), ("idle", None)):
        source = with_levels(levels("silent", since=SILENT, gpus=gpus, longest_pause_seconds=90), tmp_path)
        main(["job", "llama", "--from", source, "--json"])
        assert json.loads(capsys.readouterr().out)["job"]["stalledSeconds"] == told
        assert main(["job", "llama", "--from", source]) == (told is not None)
        out = " ".join(capsys.readouterr().out.split())
        assert ("stalled: its rails are silent and its GPUs wait for 5 min 17 s" in out) is (told is not None)


def test_the_report_of_a_former_node_says_nothing_of_a_pod(tmp_path: Path) -> None:
    """A pod that moved is still named by the node that it left, which is one of the job."""
    found = levels("silent", since=SILENT, gpus="waiting")
    first, second, *_ = found
    reports, pods = scene()
    left = structs.replace(found[first], level="moving", pod=found[second].pod)
    traffic = {node: (level,) for node, level in found.items()} | {first: (found[first], left)}
    made = preview([structs.replace(one, traffic=traffic.get(one.node_name, ())) for one in reports],
                   pods, tmp_path)  # fmt: skip
    jobs = by_job(map(job_pod, made.pods))
    (name,) = (one for one in jobs if one.name == "llama")
    assert rails_document(made, name, jobs[name], NOW)["stalled"]


def test_pods_of_one_name_in_two_namespaces_are_two_jobs(tmp_path: Path) -> None:
    reports, pods = scene()
    other = [
        {**pod, "metadata": {**pod["metadata"], "namespace": "other"}}
        for pod in pods
        if pod["metadata"]["name"].startswith("llama")
    ]
    silent = levels("silent", since=SILENT, gpus="waiting")
    made = preview(
        [
            structs.replace(
                one,
                traffic=(
                    silent[one.node_name],
                    structs.replace(silent[one.node_name], namespace="other", level="moving"),
                ),
            )
            if one.node_name in silent
            else one
            for one in reports
        ],
        [*pods, *other],
        tmp_path,
    )
    jobs = by_job(map(job_pod, made.pods))
    found = {
        name.namespace: rails_document(made, name, jobs[name], NOW)["stalled"]
        for name in jobs
        if name.name == "llama"
    }
    assert found == {"ml": True, "other": False}


def test_figures_are_gbit_per_second(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(answers(tmp_path), capsys)
    assert code == 0
    assert "Nothing is odd." in out
    row = next(
        line.split()
        for line in out.splitlines()
        if line.startswith("  llama-node-3-0") and " carries " not in line
    )
    assert row[1:7] == ["98.7", "99.1", "98.2", "97.5", "100", "%"]
    code, out = run(str(tmp_path), capsys, "--json")
    (cell, *_) = json.loads(out)["job"]["pods"][0]["rails"].values()
    assert cell == {
        "vfs": 1, "level": "moves", "sentGbps": 98.7, "receivedGbps": 98.7, "packetsPerSecond": 197400
    }  # fmt: skip


def test_a_dark_rail_and_a_half_rail_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pod = levels("moving")["su1-n00"].pod
    code, out = run(answers(tmp_path, figures("su1-n00", pod, 98.0, 30.0, 97.0, 0.0)), capsys)
    assert code == 1
    assert f"{pod} sends nothing on rail3, its peers do, for 4 min" in out
    assert f"{pod} carries 30 % of its peers on rail1" in out


def test_what_is_not_measured_is_no_zero(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pod = levels("moving")["su1-n00"].pod
    silent = figures("su1-n00", pod, 0.0, 0.0, 0.0, 0.0)
    for vf in silent["pods"][0]["vfs"]:
        vf |= {"measured": False}
        del vf["quietS"]
    code, out = run(answers(tmp_path, silent), capsys)
    row = next(
        line.split() for line in out.splitlines() if line.startswith(f"  {pod} ") and " carries " not in line
    )
    assert row[1:5] == ["?", "?", "?", "?"]
    assert "not measured" in out
    assert code == 0
    code, out = run(str(tmp_path), capsys, "--json")
    rails = next(one for one in json.loads(out)["job"]["pods"] if one["name"] == pod)["rails"]
    assert {(one["level"], one["sentGbps"]) for one in rails.values()} == {("unmeasured", None)}


def test_an_answer_that_cannot_be_read_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with_levels(levels("moving"), tmp_path)
    code = main(
        [
            "job",
            "llama",
            "--rails",
            "--from",
            asked(tmp_path, {"kind": "NodeTraffic", "node": "n", "pods": 3}),
        ]
    )
    shown = capsys.readouterr()
    assert code == 0
    assert "the traffic of n is ignored" in shown.err


def test_the_nodes_of_a_job_alone_are_for_the_plugin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out = run(file(*scene(), tmp_path), capsys, "--nodes-alone")
    assert (code, out.split()) == (0, ["su0-n00", "su0-n01", "su0-n02", "su1-n00", "su1-n01", "su2-n03"])


def test_of_many_pods_the_odd_ones_are_shown_first(tmp_path: Path) -> None:
    reports, pods = scene()
    made = preview(reports, pods, tmp_path)
    jobs = by_job(map(job_pod, made.pods))
    (name,) = (one for one in jobs if one.name == "llama")
    document = rails_document(made, name, jobs[name], NOW)
    document["pods"] = [document["pods"][0] | {"name": f"p{n:03d}"} for n in range(100)]
    document |= {"from": "levels", "odd": [{"sentence": "p099 is odd", "pods": ["p099"]}]}
    text = "\n".join(rails_lines(document))
    assert text.index("p099 ") < text.index("p000")
    assert "and 76 pods more: --json has all" in text


def test_without_an_agent_the_verb_of_a_node_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rails", "traffic", "--root", str(tmp_path)]) == 2
    assert "start it with traffic.report" in capsys.readouterr().err


def test_the_document_of_a_node_is_read_by_job(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    vf = VfFigures("nic0", "0000:1a:00.2", 5.0, 1e9, 2e9, 10.0, 20.0, 0.0)
    told = TrafficFigures(node="su0-n00", pods=(PodFigures("ml", "p0", (vf,), {"0": 0.5}, 0.0),))
    monkeypatch.setattr("nodeagent.console.agent_query.ask_for", lambda *_: (told, "/run/agent.sock"))
    assert main(["rails", "traffic", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["node"] == "su0-n00"
    assert document["time"].endswith("Z")
    assert document["source"] == "/run/agent.sock"
    assert msgspec.convert(document, TrafficFigures) == told
    assert main(["rails", "traffic"]) == 0
    assert "ml/p0" in capsys.readouterr().out
