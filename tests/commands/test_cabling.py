"""cabling: the state of each link of a generated hall, against a plan in each form, and against the derived tree."""

from __future__ import annotations

import csv
import io
import json
import random
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import yaml
from msgspec import structs

from nodeagent.cli import main
from nodeagent.fabric import NodeLinks
from nodeagent.fabric.nodelinks import Metadata, NodeLink
from tests.support.halls import Hall
from tests.support.waiting import LIMIT_S, Lines

RAILS = 4


def hall() -> Hall:
    return Hall([[f"su{unit}-leaf{rail}" for rail in range(RAILS)] for unit in range(2)], 8)


def write(file: Path, reports: list[NodeLinks]) -> Path:
    items = [
        json.loads(
            msgspec.json.encode(
                structs.replace(report, api_version="nodeagent.io/v1alpha1", kind="NodeLinks")
            )
        )
        for report in reports
    ]
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    return file


def plan_of(made: Hall) -> dict[str, dict[str, dict[str, str]]]:
    """The plan that the present cables are as."""
    plan: dict[str, dict[str, dict[str, str]]] = {}
    for report in made.reports():
        for link in report.links:
            assert link.neighbor is not None
            port = {"switch": str(link.neighbor.system_name), "port": link.neighbor.port_id.value}
            plan.setdefault(report.node_name, {})[link.name] = port
    return plan


def write_plan(file: Path, plan: dict[str, dict[str, dict[str, str]]]) -> Path:
    cables = [
        (node, link, end["switch"], end["port"]) for node, ends in plan.items() for link, end in ends.items()
    ]
    if file.suffix == ".csv":
        lines = ["Port,node,link,switch,label"] + [f"{p},{n},{link},{s},x" for n, link, s, p in cables]
        file.write_text("\n".join(lines))
    elif file.suffix == ".dot":
        lines = [f'  "{n}":"{link}" -- "{s}":"{p}" [color=red];' for n, link, s, p in cables[::2]]
        lines += [f"  {s}:{p} -- {n}:{link}" for n, link, s, p in cables[1::2]]
        file.write_text("\n".join(["graph hall {", *lines, '  "leaf":"swp1" -- "spine":"swp2"', "}"]))
    else:
        file.write_text(yaml.safe_dump(plan))
    return file


def states(capsys: pytest.CaptureFixture[str], *options: object) -> tuple[int, set[tuple[str, ...]]]:
    """The exit code, and state, node, link, present and right switch of each listed link."""
    code = main(["cabling", "--json", *map(str, options)])
    listed = json.loads(capsys.readouterr().out)
    return code, {(one["state"], one["node"], one["link"], one["switch"], one["toSwitch"]) for one in listed}


def faulty(made: Hall) -> set[tuple[str, ...]]:
    """Add one fault of each kind."""
    made.cables["su0-n00", 1], made.cables["su0-n00", 2] = "su0-leaf2", "su0-leaf1"
    made.cables["su0-n01", 0] = "su1-leaf0"
    del made.cables["su1-n03", 3]
    return {
        ("elsewhere", "su0-n00", "rail1", "su0-leaf2", "su0-leaf1"),
        ("elsewhere", "su0-n00", "rail2", "su0-leaf1", "su0-leaf2"),
        ("elsewhere", "su0-n01", "rail0", "su1-leaf0", "su0-leaf0"),
        ("missing", "su1-n03", "rail3", "", "su1-leaf3"),
    }


def with_slow_and_without_lldp(reports: list[NodeLinks]) -> list[NodeLinks]:
    """rail0 of su1-n05 is slow, and rail1 of su1-n06 receives no LLDP."""
    made = []
    for report in reports:
        links = list(report.links)
        if report.node_name == "su1-n05":
            links[0] = structs.replace(links[0], speed_mbps=100_000)
        if report.node_name == "su1-n06":
            links[1] = structs.replace(links[1], neighbor=None)
        made.append(structs.replace(report, links=tuple(links)))
    return made


SLOW_AND_WITHOUT_LLDP = {
    ("slow", "su1-n05", "rail0", "su1-leaf0", "su1-leaf0"),
    ("no-lldp", "su1-n06", "rail1", "", "su1-leaf1"),
}


@pytest.mark.parametrize("form", [".yaml", ".csv", ".dot", ""])
def test_each_fault_is_listed_with_and_without_a_plan(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = hall()
    options = ["--plan", write_plan(tmp_path / f"plan{form}", plan_of(made))] if form else []
    source = write(tmp_path / "links.json", made.reports())
    assert states(capsys, "--from", source, *options) == (0, set())
    expected = faulty(made) | SLOW_AND_WITHOUT_LLDP
    source = write(tmp_path / "links.json", with_slow_and_without_lldp(made.reports()))
    assert states(capsys, "--from", source, *options) == (1, expected)


def exchange(made: Hall, link: str, one: str, other: str) -> list[NodeLinks]:
    """Exchange the ports of two nodes on a leaf switch."""
    ends = {report.node_name: report.links[int(link[4:])].neighbor for report in made.reports()}
    reports = []
    for report in made.reports():
        neighbor = ends[{one: other, other: one}.get(report.node_name, report.node_name)]
        links = [structs.replace(at, neighbor=neighbor) if at.name == link else at for at in report.links]
        reports.append(structs.replace(report, links=tuple(links)))
    return reports


@pytest.mark.parametrize("size", [4, 8, 16])
@pytest.mark.parametrize("on_leaf", [1, 2])
def test_ports_out_of_the_order_of_their_group_are_listed(
    size: int, on_leaf: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where each leaf switch serves two rails. The other groups are right."""
    made = Hall([[f"su{unit}-leaf{rail // on_leaf}" for rail in range(RAILS)] for unit in range(2)], size)
    source = write(tmp_path / "links.json", made.reports())
    assert states(capsys, "--order", "--from", source) == (0, set())
    reports = exchange(made, "rail2", "su1-n01", "su1-n03")
    source = write(tmp_path / "links.json", reports)
    assert states(capsys, "--from", source) == (0, set())
    assert main(["cabling", "--order", "--json", "--from", str(source)]) == 1
    listed = json.loads(capsys.readouterr().out)
    right = {
        (report.node_name, link.name): link.neighbor for report in made.reports() for link in report.links
    }
    assert {(one["node"], one["link"]) for one in listed} == {("su1-n01", "rail2"), ("su1-n03", "rail2")}
    for one in listed:
        end = right[one["node"], one["link"]]
        assert (one["state"], one["toSwitch"], one["toPort"]) == (
            "elsewhere",
            end.system_name,
            end.port_id.value,
        )
    assert [one["note"] for one in listed] == ["exchanged with su1-n03", "exchanged with su1-n01"]


def test_a_hall_without_an_order_of_ports_has_no_deviation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = hall()
    cables = [*made.cables]
    random.Random(3).shuffle(cables)
    for node, rail in cables:  # switches number their ports in this order
        made._neighbor(node, rail)
    source = write(tmp_path / "links.json", made.reports())
    assert main(["cabling", "--order", "--from", str(source)]) == 0
    assert "leaf groups without an order of ports, not compared: 2" in capsys.readouterr().err


@pytest.mark.parametrize("form", [".yaml", ".csv", ".dot", "netbox.csv"])
@pytest.mark.parametrize("longer", ["the plan", "the cluster"])
def test_a_plan_may_have_names_with_or_without_domain_and_interfaces_in_either_form(
    form: str, longer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = hall()
    in_plan, in_cluster = (".dc1.example.com", "") if longer == "the plan" else ("", ".dc1.example.com")
    planned = {
        f"{node}{in_plan}": {
            link: {
                "switch": f"{end['switch'].upper()}{in_plan}",
                "port": end["port"].replace("Eth", "Ethernet"),
            }
            for link, end in ends.items()
        }
        for node, ends in plan_of(made).items()
    }
    if form == "netbox.csv":
        rows = [
            {
                "side_a_device": end["switch"],
                "side_a_name": end["port"],
                "side_b_device": node,
                "side_b_name": link,
            }
            for node, ends in planned.items()
            for link, end in ends.items()
        ]
        plan = write_rows(tmp_path / form, rows)
    else:
        plan = write_plan(tmp_path / f"plan{form}", planned)
    made.names = {switch: f"{switch}{in_cluster}" for leaves in made.leaf for switch in leaves}
    made.cables["su0-n01", 0] = "su1-leaf0"
    source = write(tmp_path / "links.json", [renamed(report, in_cluster) for report in made.reports()])
    code, found = states(capsys, "--from", source, "--plan", plan)
    assert code == 1
    assert [(state, node, link) for state, node, link, *_ in found] == [
        ("elsewhere", f"su0-n01{in_cluster}", "rail0")
    ]


def renamed(report: NodeLinks, domain: str) -> NodeLinks:
    node = f"{report.node_name}{domain}"
    return structs.replace(report, metadata=Metadata(name=node), node_name=node)


def test_a_plan_finds_a_wrong_port_and_a_node_without_a_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = hall()
    planned = plan_of(made)
    planned["su0-n02"]["rail1"]["port"] = "Eth1/64"
    planned["su0-n99"] = {"rail0": {"switch": "su0-leaf0", "port": "Eth1/63"}}
    options = ("--plan", write_plan(tmp_path / "plan.csv", planned))
    source = write(tmp_path / "links.json", made.reports())
    assert states(capsys, "--from", source, *options) == (
        1,
        {
            ("elsewhere", "su0-n02", "rail1", "su0-leaf1", "su0-leaf1"),
            ("missing", "su0-n99", "rail0", "", "su0-leaf0"),
        },
    )


def plan_object(name: str, content: str, **more: str) -> str:
    """As `kubectl create configmap cabling-plan --from-file=FILE --dry-run=client` makes it."""
    data = {name: content, **more}
    return json.dumps(
        {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "cabling-plan"}, "data": data}
    )


def test_the_plan_may_be_among_the_objects(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = hall()
    planned = plan_of(made)
    planned["su0-n02"]["rail1"]["port"] = "Eth1/64"
    plan = write_plan(tmp_path / "plan.csv", planned)
    reports = write(tmp_path / "links.json", made.reports())
    source = tmp_path / "objects"
    source.mkdir()
    reports.rename(source / "links.json")
    (source / "plan.json").write_text(plan_object("plan.csv", plan.read_text()))
    found = states(capsys, "--from", source, "--plan", "-")
    assert found == (1, {("elsewhere", "su0-n02", "rail1", "su0-leaf1", "su0-leaf1")})
    assert found == states(capsys, "--from", source / "links.json", "--plan", plan)


@pytest.mark.parametrize(
    ("objects", "fault"),
    [
        ("", "no cabling plan for --plan -"),
        (plan_object("a.csv", "x", **{"b.csv": "y"}), "2 cabling plans for --plan -"),
        (plan_object("a.csv", "x"), "a.csv:1: "),
    ],
)
def test_a_plan_that_is_not_among_the_objects_is_named(
    objects: str, fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "links.json", hall().reports())
    if objects:
        (tmp_path / "plan.json").write_text(objects)
    assert main(["cabling", "--from", str(tmp_path), "--plan", "-"]) == 2
    said = capsys.readouterr()
    assert (said.out, fault in said.err) == ("", True), said.err


def test_cables_of_infiniband_come_from_the_operators_file_where_the_switch_does_not_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def report(node: str, *guids: int) -> NodeLinks:
        links = tuple(
            NodeLink(
                name=f"nic{rail}", rail=rail, fabric="compute", state="healthy", link_type="infiniband",
                mac=f"00:00:10:49:fe:80:00:00:00:00:00:00:{guid.to_bytes(8).hex(':')}",
            )
            for rail, guid in enumerate(guids)
        )  # fmt: skip
        return NodeLinks(metadata=Metadata(name=node), node_name=node, links=links)

    nodes = {f"gpu-{n}": (2 * n + 16, 2 * n + 17) for n in range(3)}
    discovered, plan = [], {}
    for n, (node, guids) in enumerate(nodes.items()):
        for rail, guid in enumerate(guids):
            discovered += [
                f'Ca\t1 "H-{guid:016x}"\t\t# "{node} mlx5_{rail}"',
                f'[1]({guid:x}) \t"S-{0xA0 + rail:016x}"[{n + 1}]\t\t# lid 1 lmc 0 "MF0;leaf{rail}:X/U1" lid 2 4xNDR',
            ]
            plan.setdefault(node, {})[f"nic{rail}"] = {"switch": f"leaf{rail}", "port": str(n + 1)}
    plan["gpu-2"]["nic0"], plan["gpu-2"]["nic1"] = plan["gpu-2"]["nic1"], plan["gpu-2"]["nic0"]
    (tmp_path / "cables").write_text("\n".join(discovered))
    fabric = tmp_path / "fabric.yaml"
    fabric.write_text("apiVersion: nodeagent.io/v1alpha1\nkind: FabricConfig\ninfinibandCables: cables\n")
    reports = write(tmp_path / "links.json", [report(node, *guids) for node, guids in nodes.items()])
    planned = write_plan(tmp_path / "hall.yaml", plan)
    code, found = states(capsys, "--from", reports, "--plan", planned, "--fabric", fabric)
    assert code == 1
    assert found == {
        ("elsewhere", "gpu-2", "nic0", "leaf0", "leaf1"),
        ("elsewhere", "gpu-2", "nic1", "leaf1", "leaf0"),
    }
    assert states(capsys, "--from", reports, "--fabric", fabric) == (0, set())
    assert main(["topology", "--format", "html", "--from", str(reports), "--fabric", str(fabric)]) == 0
    assert '"systemName":"leaf1"' in capsys.readouterr().out, "the panel of a link has its neighbor"
    assert main(["cabling", "--from", str(reports), "--plan", str(planned)]) == 1
    assert "no InfiniBand neighbor" in capsys.readouterr().out


def test_a_shifted_rack_is_listed_link_by_link(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = hall()
    for rail in range(RAILS):
        made.cables["su0-n00", rail] = f"su0-leaf{(rail + 1) % RAILS}"
    code, listed = states(capsys, "--from", write(tmp_path / "links.json", made.reports()))
    assert code == 1
    assert listed == {
        ("elsewhere", "su0-n00", f"rail{rail}", f"su0-leaf{(rail + 1) % RAILS}", f"su0-leaf{rail}")
        for rail in range(RAILS)
    }


def test_the_table_starts_with_the_cables_to_move_and_ends_with_the_sums(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = hall()
    faulty(made)
    reports = with_slow_and_without_lldp(made.reports())
    random.Random(0).shuffle(reports)
    assert main(["cabling", "--from", str(write(tmp_path / "links.json", reports))]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:7]] == ["miscabled"] * 3 + ["missing", "no-lldp", "slow"]
    assert lines[-3].split() == ["LEAF", "GROUP", "MISCABLED", "MISSING", "NO-LLDP", "SLOW", "PLANNED"]
    assert [line.split()[1:] for line in lines[-2:]] == [
        ["3", "0", "0", "0", "29"],
        ["0", "1", "1", "1", "29"],
    ]


EXPORT = (
    "ID,Label,Termination A,Termination B,Device A,Device B,Rack A,Rack B,Location A,Location B,Site A,Site B,Status,"
    "Profile,Type,Tenant,Tenant Group,Color,Color Name,Length,Description,Comments,Tags,Created,Last updated"
)
"""The header of a NetBox 4 export of all data."""


def export(made: Hall, header: str = EXPORT) -> list[dict[str, str]]:
    """The rows that NetBox writes for the planned cables, every second one with the node at side B."""
    heads, rows = header.split(","), []
    for number, (node, ends) in enumerate(plan_of(made).items()):
        for link, end in ends.items():
            near = (
                f"{link} (to {end['switch']})" if number % 3 == 0 else link,
                node.upper(),
                f"R{number // 4:02}",
            )
            far = (end["port"], end["switch"], "R99")
            one, other = (near, far) if number % 2 else (far, near)
            row = dict.fromkeys(heads, "")
            row |= {"ID": str(len(rows)), "Status": "connected", "Type": "mmf-om4"}
            for side, (termination, device, rack) in (("A", one), ("B", other)):
                row |= {f"Termination {side}": termination, f"Device {side}": device, f"Rack {side}": rack}
            rows.append(row)
    return rows


def write_rows(file: Path, rows: list[dict[str, str]]) -> Path:
    with file.open("w", newline="", encoding="utf-8-sig") as stream:
        writer = csv.DictWriter(stream, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return file


def test_an_export_of_netbox_is_a_plan_with_racks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = hall()
    rows = export(made)
    other = dict.fromkeys(rows[0], "") | {"Status": "connected"}
    rows += [
        other
        | {"Device A": "SU0-N00", "Termination A": "PSU1", "Device B": "pdu-1", "Termination B": "outlet 3"},
        other
        | {
            "Device A": "su0-leaf0",
            "Termination A": "Eth1/60",
            "Device B": "spine1",
            "Termination B": "Eth1",
        },
        rows[0] | {"Device A": "su1-leaf3", "Termination A": "Eth1/7", "Status": "decommissioning"},
    ]
    plan = ["--plan", write_rows(tmp_path / "netbox.csv", rows)]
    source = write(tmp_path / "links.json", made.reports())
    assert states(capsys, "--from", source, *plan) == (0, set())
    expected = faulty(made) | SLOW_AND_WITHOUT_LLDP
    source = write(tmp_path / "links.json", with_slow_and_without_lldp(made.reports()))
    assert states(capsys, "--from", source, *plan) == (1, expected)
    assert main(["cabling", "--from", str(source), *map(str, plan)]) == 1
    tables = [table.splitlines() for table in capsys.readouterr().out.split("\n\n")]
    assert [table[0].split()[0] for table in tables] == ["STATE", "RAIL", "RACK", "LEAF"]
    assert [line.split()[:3] for line in tables[0][1:3]] == [["miscabled", "R00", "su0-n00"]] * 2
    assert [line.split() for line in tables[1][1:]] == [
        ["0", "1", "0", "0", "1", "14"],
        ["1", "1", "0", "1", "0", "14"],
        ["2", "1", "0", "0", "0", "15"],
        ["3", "0", "1", "0", "0", "15"],
    ]
    assert [line.split() for line in tables[2][1:]] == [
        ["R00", "3", "0", "0", "0", "13"],
        ["R01", "0", "0", "0", "0", "16"],
        ["R02", "0", "1", "0", "0", "15"],
        ["R03", "0", "0", "1", "1", "14"],
    ]


def test_a_file_for_the_import_of_netbox_is_a_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = hall()
    rows = [
        {
            f"side_{side.lower()}_{name}": row[f"{column} {side}"]
            for side in "AB"
            for name, column in (("device", "Device"), ("name", "Termination"))
        }
        for row in export(made)
    ]
    expected = {("elsewhere", "su0-n01", "rail0", "su1-leaf0", "su0-leaf0")}
    made.cables["su0-n01", 0] = "su1-leaf0"
    source = write(tmp_path / "links.json", made.reports())
    plan = write_rows(tmp_path / "import.csv", rows)
    assert states(capsys, "--from", source, "--plan", plan) == (1, expected)


def test_a_breakout_cable_of_netbox_has_several_terminations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One port of the switch for two links, and two ports for one link, of which any is right."""
    made = hall()
    rows = export(made)
    node = "su0-n01"
    mine = [row for row in rows if node.upper() in (row["Device A"], row["Device B"])]
    mine[0]["Termination B"] += ",Eth1/61"
    source = write(tmp_path / "links.json", made.reports())
    assert states(capsys, "--from", source, "--plan", write_rows(tmp_path / "n.csv", rows)) == (0, set())
    mine[0]["Termination A"] += f",{mine[1]['Termination A']}"
    rows.remove(mine[1])
    code, listed = states(capsys, "--from", source, "--plan", write_rows(tmp_path / "n.csv", rows))
    assert (code, {(one[1], one[2]) for one in listed}) == (1, {(node, "rail1")})


def test_csv_has_a_line_for_each_link(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "links.json", hall().reports())
    assert main(["cabling", "--csv", "--all", "--from", str(source)]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len(rows) == 2 * 8 * RAILS
    assert {row["state"] for row in rows} == {"planned"}


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("plan.csv", "node,link,switch\na,b,c", "plan.csv:1: the header has no column port"),
        (
            "plan.csv",
            "node,link,switch,port\na,,c,d",
            "plan.csv:2: a cable needs a node, a link and a switch",
        ),
        ("plan.csv", "node,link,switch,port\na,b,c,d\na,b,e,f", "plan.csv:3: b of a is listed twice"),
        (
            "netbox.csv",
            "Label,Termination A,Termination B,Status\nx,rail0,Eth1/1,connected",
            "netbox.csv:1: the header has no column device a: export all data of the cables",
        ),
        (
            "netbox.csv",
            'Device A,Termination A,Device B,Termination B\n"su0-n00,su0-n01",rail0,su0-leaf0,Eth1/1',
            "netbox.csv:2: a cable of a node has several devices at one end",
        ),
        (
            "netbox.csv",
            "Device A,Termination A,Device B,Termination B\nhost-1,rail0,su0-leaf0,Eth1/1",
            "netbox.csv: no cable in it leads from a link of a node to a switch",
        ),
        ("plan.dot", "graph x {\nsu0-n00 -- leaf\n}", "plan.dot:2: this line is no cable"),
        ("plan.csv", "node,link,switch,port", "plan.csv: no cable in it"),
        ("plan.dot", "graph hall {\n}", "plan.dot: no cable in it"),
        (
            "plan.dot",
            'graph hall {\n"host-1":"rail0" -- "leaf":"swp1"\n}',
            "devices need the names of the nodes",
        ),
        ("plan.yaml", "{}", "plan.yaml: no cable in it"),
        ("plan.csv", f"node,link,switch,port\n{'a' * 140_000},b,c,d", "plan.csv:2: field larger than"),
        ("plan.csv", 'node,link,switch,port\na,b,c,"d\ne,f,g,h\n', "plan.csv:3: unexpected end of data"),
        (
            "plan.csv",
            "node,link,switch,port\n\x1b[2Ja,b,c,d\n\x1b[2Ja,b,c,d",
            "b of \\x1b[2Ja is listed twice",
        ),
        ("plan.yaml", "a: {b: leaf1}", "must be {switch: NAME, port: NAME}"),
        ("plan.yaml", "[", "expected a cabling plan"),
    ],
)
def test_a_plan_with_errors_is_refused_with_its_line(
    name: str, text: str, fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text(text)
    source = write(tmp_path / "links.json", hall().reports())
    assert main(["cabling", "--from", str(source), "--plan", str(tmp_path / name)]) == 2
    assert fault in capsys.readouterr().err


def test_a_hall_without_a_report_is_not_as_planned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert states(capsys, "--from", write(tmp_path / "links.json", [])) == (2, set())
    links = [link for link in hall().reports()[0].links if link.name == "none"]
    empty = structs.replace(hall().reports()[0], links=tuple(links))
    source = write(tmp_path / "links.json", [*hall().reports()[1:], empty])
    assert states(capsys, "--from", source) == (1, {("missing", "su0-n00", "", "", "")})


def test_a_report_that_does_not_count_is_a_missing_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a plan or without. A report in the name of another node does not replace the report of this node."""
    made = hall()
    plan = plan_of(made)
    options = ["--plan", write_plan(tmp_path / "plan.csv", plan)]
    made.cables["su0-n01", 0] = "su1-leaf0"
    forged = structs.replace(hall().report("su0-n01"), metadata=hall().report("su0-n02").metadata)
    reports = [report for report in made.reports() if report.node_name != "su0-n02"]
    source = write(tmp_path / "links.json", [*reports, forged])
    wrong = ("elsewhere", "su0-n01", "rail0", "su1-leaf0", "su0-leaf0")
    assert states(capsys, "--from", source) == (1, {wrong, ("missing", "su0-n02", "", "", "")})
    missing = {("missing", "su0-n02", f"rail{rail}", "", f"su0-leaf{rail}") for rail in range(RAILS)}
    assert states(capsys, "--from", source, *options) == (1, {wrong, *missing})


def test_links_beside_the_plan_and_cables_of_no_node_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = plan_of(hall())
    del plan["su0-n00"]["rail1"], plan["su1-n00"]
    file = write_plan(tmp_path / "plan.dot", plan)
    source = write(tmp_path / "links.json", hall().reports())
    assert main(["cabling", "--from", str(source), "--plan", str(file)]) == 0
    err = capsys.readouterr().err
    assert "links that are not in the plan, left out: 5, such as rail1 of su0-n00" in err
    assert "cables of the plan that lead to no node of the cluster, left out: 1" in err


def test_a_cell_of_csv_is_one_line_and_no_formula(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = hall().report("su0-n00")
    links = []
    for link, name in zip(report.links, ("=cmd()", "+x\x1b[2J", "@y\nz", "-1"), strict=True):
        assert link.neighbor is not None
        neighbor = structs.replace(link.neighbor, system_name=name)
        links.append(structs.replace(link, neighbor=neighbor))
    source = write(tmp_path / "links.json", [structs.replace(report, links=tuple(links))])
    assert main(["cabling", "--csv", "--all", "--from", str(source)]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {row["switch"] for row in rows} == {"'=cmd()", r"'+x\x1b[2J", r"'@y\nz", "'-1"}


@pytest.mark.slow
def test_watch_prints_documents_and_lines_of_csv_too(tmp_path: Path) -> None:
    """First all that differ from the plan, then each link that has changed."""
    for form in ("json", "csv"):
        made = hall()
        made.cables["su0-n01", 0] = "su1-leaf0"
        source = write(tmp_path / "links.json", made.reports())
        words = [
            "cabling",
            "--watch",
            "1",
            *(["-o", "json"] if form == "json" else ["--csv"]),
            "--from",
            str(source),
        ]
        watch = subprocess.Popen(
            [sys.executable, "-m", "nodeagent", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert watch.stdout is not None
            lines = Lines(watch.stdout.fileno())

            def document(lines: Lines = lines, form: str = form) -> list[tuple[str, str]]:
                if form == "csv":
                    state, _, _, node, *_ = next(csv.reader([lines.next()]))
                    return [(node, state)]
                text = ""
                while not text.endswith("\n]\n"):
                    text += lines.next()
                return [(one["node"], one["state"]) for one in json.loads(text)]

            if form == "csv":
                assert lines.next().startswith("state,")
            assert document() == [("su0-n01", "elsewhere")]
            made.cables["su0-n01", 0] = "su0-leaf0"
            write(tmp_path / "new.json", made.reports()).rename(source)
            assert document() == [("su0-n01", "planned")]
        finally:
            watch.kill()
            watch.communicate(timeout=LIMIT_S)


def test_watch_prints_each_link_that_changes(tmp_path: Path) -> None:
    made = hall()
    source = write(tmp_path / "links.json", made.reports())
    command = [sys.executable, "-m", "nodeagent", "cabling", "--watch", "1", "--from", str(source)]
    watch = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert watch.stdout is not None
        assert watch.stderr is not None
        lines = Lines(watch.stdout.fileno())
        sums = [lines.next().split() for _ in range(RAILS + 5)]
        assert [line[-1] for line in sums if line] == ["PLANNED", *["16"] * RAILS, "PLANNED", "32", "32"]
        made.cables["su0-n01", 0] = "su1-leaf0"
        write(tmp_path / "new.json", made.reports()).rename(source)
        assert lines.next() == ("su0-n01 rail0: miscabled at su1-leaf0 Eth1/9, belongs to su0-leaf0\n")
        source.rename(tmp_path / "away.json")
        assert "links.json" in Lines(watch.stderr.fileno()).next()
        made.cables["su0-n01", 0] = "su0-leaf0"
        write(tmp_path / "new.json", made.reports()).rename(source)
        assert lines.next() == "su0-n01 rail0: planned at su0-leaf0 Eth1/2\n"
    finally:
        watch.send_signal(signal.SIGINT)
        try:
            watch.communicate(timeout=LIMIT_S)
        finally:
            watch.kill()
    assert watch.returncode == 130
