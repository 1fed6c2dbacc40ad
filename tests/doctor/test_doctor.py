"""The doctor's reports as a whole: tables, JSON, hanging reads, hostile names, and that nothing changes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hack.docs.doctor_findings import finding_tables
from nodeagent import doctor
from nodeagent.agent_config import Config
from nodeagent.cli import main
from nodeagent.doctor import capabilities, reads
from nodeagent.doctor.capabilities import ProcessRights, StateDirectory
from nodeagent.doctor.finding import Finding, Level, as_table
from nodeagent.doctor.kubelet_checks import KubeletFacts
from nodeagent.doctor.reads import Target
from nodeagent.host.sysfs import SysfsError, Tree
from nodeagent_lab.sim.machine import Machine
from nodeagent_lab.sim.machine.blueprint import MACHINES
from tests.support import golden
from tests.support.dead_files import dead
from tests.support.drawn_trees import BROKEN, Link, grow

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests/golden"
HEAD = "apiVersion: nodeagent.io/v1alpha1\nkind: NodeAgentConfig\n"


def keys(report: doctor.DoctorReport, *levels: str) -> set[str]:
    return {one.key for one in report.findings if not levels or one.level in levels}


@pytest.fixture
def small(tmp_path: Path) -> tuple[Machine, Path]:
    machine = Machine.load("two-gpu-two-nic")
    machine.write(tmp_path / "r")
    return machine, tmp_path / "r"


# --- whole reports --------------------------------------------------------------------------------------


@pytest.mark.golden("tests/golden/doctor-dgx-h100.txt")
def test_the_report_of_a_healthy_node_is_golden(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Machine.load("dgx-h100").write(tmp_path / "r")
    assert main(["doctor", "--root", str(tmp_path / "r")]) == 0
    golden.same(GOLDEN / "doctor-dgx-h100.txt", capsys.readouterr().out)


@pytest.mark.golden("tests/golden/doctor-broken.txt")
def test_the_report_of_a_broken_node_is_golden(
    small: tuple[Machine, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, root = small
    monkeypatch.chdir(root.parent)
    Path("nodeagent.yaml").write_text(
        f"{HEAD}resources:\n- kind: gpu-mem\n- kind: vf\n  vfDriver: vfio-pci\n- kind: vf\n  name: fast\n"
        "  vfDriver: netdevice\n  select: {minSpeedMbps: 800000}\n"
        "vfs:\n- select: {pciAddresses: ['0000:18:00.0']}\n  count: 32\n"
        "- select: {pciAddresses: ['0000:9a:00.0']}\n  count: 2\n"
    )
    machine.bind("0000:9a:00.2", None)
    machine.lose_gpu(1)
    machine.set_recovery_action(0, "node_reboot")
    (root / "dev/nvidia-uvm").unlink()
    for group in (root / "sys/kernel/iommu_groups").iterdir():
        grow(group, {"type": "identity"})
    spec = {"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu"}
    uuids = [gpu["uuid"] for gpu in json.loads((root / ".nodeagent/gpus.json").read_text())["gpus"]]
    devices = [{"name": uuid, "containerEdits": {"env": ["A=b"]}} for uuid in uuids]
    grow(
        root,
        {
            "etc/containerd/config.toml": 'version = 2\nimports = ["/etc/containerd/conf.d/*.toml"]',
            "etc/containerd/conf.d/cdi.toml": '[plugins."io.containerd.grpc.v1.cri"]\nenable_cdi = false',
            "etc/cdi/a.json": json.dumps(spec | {"devices": devices}),
            "etc/cdi/b.json": json.dumps(spec | {"devices": devices[:1]}),
            "etc/cdi/c.yaml": "kind: [",
            "proc/sys/kernel/osrelease": "4.18.0-553.el8.x86_64",
        },
    )
    assert main(["doctor", "--root", "r", "--config", "nodeagent.yaml"]) == 1
    golden.same(GOLDEN / "doctor-broken.txt", capsys.readouterr().out)


def test_json_is_one_object(small: tuple[Machine, Path], capsys: pytest.CaptureFixture[str]) -> None:
    _, root = small
    assert main(["doctor", "--root", str(root), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert set(printed) == {"node", "time", "source", "version", "summary", "findings"}
    assert printed["version"] == 1
    assert set(printed["summary"]) == {"ok", "note", "warn", "fix"}
    assert sum(printed["summary"].values()) == len(printed["findings"])
    assert all(set(one) == {"group", "key", "level", "what", "why", "remedy"} for one in printed["findings"])
    assert all(one["why"] and one["remedy"] for one in printed["findings"] if one["level"] in ("fix", "warn"))


def test_this_machine_can_be_examined() -> None:
    report = doctor.examine(doctor.DoctorOptions())
    assert not keys(report) & {"check_failed", "check_hung"}
    assert {"capabilities", "boot_id"} <= keys(report)


def test_links_of_this_host_are_not_taken_for_those_of_a_simulated_machine(
    small: tuple[Machine, Path],
) -> None:
    """overlays/kind: a command answers in place of lldpd, and the container has no link of the machine. The doctor
    said that no link has carrier."""
    _, root = small
    config = root.parent / "nodeagent.yaml"
    config.write_text(f"{HEAD}lldp: {{source: lldpd, command: [cat, /dev/null]}}\n")
    report = doctor.examine(doctor.DoctorOptions(root, config))
    assert not [one for one in report.findings if one.key.startswith("lldp_")]


@pytest.mark.parametrize("name", sorted(path.stem for path in MACHINES.glob("*.yaml")))
def test_what_the_nics_lack_is_told_once_and_not_as_an_entry_without_devices(
    name: str, tmp_path: Path
) -> None:
    root = tmp_path / "r"
    Machine.load(name).write(root)
    (root / "dev/infiniband/rdma_cm").unlink()
    for vf in (path.parent for path in (root / "sys/bus/pci/devices").glob("*/physfn")):
        for address in vf.glob("net/*/address"):
            address.write_text("00:00:00:00:00:00\n")
    found = doctor.examine(doctor.DoctorOptions(root)).findings
    assert "rdma_cm_missing" in {it.key for it in found}
    assert len([it for it in found if "rdma_cm" in it.what]) == 1
    assert len([it for it in found if "MAC address" in it.what]) == 1
    assert "config_idle" not in {it.key for it in found}


STORED = (*(form.name for form in capabilities.FORMS), "claims/0b5e1a52.json")


@pytest.mark.parametrize("name", STORED)
def test_a_stored_file_of_no_bytes_is_broken(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    state = capabilities._state(Tree(tmp_path), "/")
    assert list(state.broken) == [name]
    (found,) = capabilities._judge_state(state)
    assert found.key == "state_broken"


def test_each_stored_file_that_the_documentation_names_is_looked_at() -> None:
    first, *_ = (ROOT / "docs/stored-files.md").read_text().partition("Files for other programs")
    named = set(re.findall(r"^\| `([\w/-]+\.json)`", first, re.MULTILINE)) - {
        "claims/UID.json",
        "cordons.json",
    }
    assert named == {form.name for form in capabilities.FORMS}


def found_with(*, uid: int, kubelet: bool) -> list[Finding]:
    """The findings for a machine whose process has no rights and can write nowhere."""
    refused = {"/var/run/cdi": "no permission to write"}
    rights = ProcessRights(
        uid=uid, folders=refused, state=StateDirectory("/var/lib/nodeagent", "no permission")
    )
    facts = KubeletFacts(folder="/var/lib/kubelet", exists=kubelet)
    outcomes = {name: reads.ReadOutcome() for name in ("nics", "gpus", "paths", "rails", "lldp")}
    names = ("configuration", "machine", "infiniband", "runtime", "agent")
    outcomes |= {name: reads.ReadOutcome() for name in names}
    outcomes |= {"rights": reads.ReadOutcome(rights), "kubelet": reads.ReadOutcome(facts)}
    target = Target(Tree(Path("/")), Config(), recorded=False, kubelet_dir=Path("/var/lib/kubelet"))
    return list(doctor._findings(outcomes, target))


def test_for_an_ordinary_user_without_a_kubelet_no_node_comes_first_and_no_right_is_to_fix() -> None:
    laptop = found_with(uid=1000, kubelet=False)
    assert (laptop[0].key, laptop[0].level) == ("no_node", Level.NOTE)
    assert laptop[0].what.startswith("no node, no root: ")
    assert not [one for one in laptop if one.level in (Level.FIX, Level.WARN)]
    assert as_table(doctor.TOPICS, laptop).startswith("THIS MACHINE\n")


@pytest.mark.parametrize(("uid", "kubelet"), [(0, False), (0, True), (1000, True)])
def test_on_a_node_or_as_root_missing_rights_are_findings(uid: int, kubelet: bool) -> None:
    keys = {one.key: one.level for one in found_with(uid=uid, kubelet=kubelet)}
    assert "no_node" not in keys
    assert keys["net_raw_missing"] is keys["folder_unwritable"] is Level.FIX


def test_a_root_without_a_machine_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SysfsError, match="has no /sys"):
        doctor.examine(doctor.DoctorOptions(tmp_path))


def test_a_configuration_with_faults_is_a_finding(
    small: tuple[Machine, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    _, root = small
    path = tmp_path / "bad.yaml"
    path.write_text(HEAD + "resources:\n- kind: gpu-mem\n  sliceMib: 512\nscanSeconds: never\n")
    assert main(["doctor", "--root", str(root), "--config", str(path)]) == 1
    printed = capsys.readouterr().out
    assert "sliceMiB" in printed
    assert "scanSeconds" in printed
    assert main(["doctor", "--root", str(root), "--config", str(tmp_path / "absent.yaml")]) == 1
    assert "config_unreadable" in capsys.readouterr().out


# --- nothing hangs, nothing is changed ------------------------------------------------------------------


@pytest.mark.needs("root", "fuse")
@pytest.mark.parametrize(
    ("file", "check"),
    [
        ("proc/sys/kernel/osrelease", "machine"),
        ("etc/containerd/config.toml", "runtime"),
        ("etc/cdi/hung.yaml", "paths"),
    ],
)
def test_a_hanging_file_is_a_finding_and_the_other_checks_run(
    small: tuple[Machine, Path], file: str, check: str
) -> None:
    _, root = small
    path = root / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    with dead(path):
        done = subprocess.run(
            [sys.executable, "-m", "nodeagent", "doctor", "--root", root, "--timeout", "1", "--json"],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    findings = json.loads(done.stdout)["findings"]
    assert f"{check}: no answer within 1 s" in [one["what"] for one in findings if one["key"] == "check_hung"]
    assert {"sriov", "driver"} <= {one["key"] for one in findings}
    assert done.returncode == 1


@pytest.mark.needs("root", "fuse")
def test_a_configuration_that_hangs_is_a_finding(small: tuple[Machine, Path], tmp_path: Path) -> None:
    _, root = small
    config = tmp_path / "config.yaml"
    config.touch()
    with dead(config):
        report = doctor.examine(doctor.DoctorOptions(root, config, timeout_s=0.2))
    assert report.hung
    assert not report.good


def test_a_configuration_that_is_a_pipe_is_refused_with_the_remedy(
    small: tuple[Machine, Path], tmp_path: Path
) -> None:
    _, root = small
    os.mkfifo(tmp_path / "pipe.yaml")
    report = doctor.examine(doctor.DoctorOptions(root, tmp_path / "pipe.yaml"))
    assert not report.hung
    assert any("it is a named pipe; put a regular file there" in finding.what for finding in report.findings)


def test_outcomes_have_the_order_of_the_tasks() -> None:
    import asyncio
    import threading

    gate = threading.Event()

    async def slow() -> str:
        await asyncio.sleep(0)
        return "late"

    def broken() -> None:
        raise KeyError("x")

    outcomes = reads.run(
        {
            "hung": reads.ReadTask(gate.wait, 0.05),
            "broken": reads.ReadTask(broken, 5),
            "slow": reads.ReadTask(slow, 5),
            "quick": reads.ReadTask(lambda: 7, 5),
        }
    )
    gate.set()
    assert list(outcomes) == ["hung", "broken", "slow", "quick"]
    assert outcomes["hung"].hung_s == 0.05
    assert isinstance(outcomes["broken"].error, KeyError)
    assert (outcomes["slow"].value, outcomes["quick"].value) == ("late", 7)


def test_a_failing_read_is_a_finding(small: tuple[Machine, Path]) -> None:
    _, root = small
    listed = root / "sys/bus/pci/devices"
    for link in listed.iterdir():
        link.unlink()
    listed.rmdir()
    listed.write_text("no folder")
    report = doctor.examine(doctor.DoctorOptions(root))
    assert "machine" in {one.group for one in report.findings}
    grow(root, {".nodeagent/unreadable": "EIO /sys/bus/pci/devices"})
    report = doctor.examine(doctor.DoctorOptions(root))
    assert any("/sys/bus/pci/devices cannot be read" in one.what for one in report.findings)
    assert "check_failed" in keys(report, "fix")


def state(root: Path) -> list[tuple[object, ...]]:
    found = []
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = Path(folder, name)
            status = path.lstat()
            found.append((str(path), status.st_mode, status.st_size, status.st_mtime_ns, status.st_ino))
    return sorted(found, key=str)


def test_nothing_is_changed(small: tuple[Machine, Path]) -> None:
    _, root = small
    kubelet = root.parent / "kubelet"
    (kubelet / "device-plugins").mkdir(parents=True)
    (kubelet / "device-plugins/nodeagent.lock").touch()
    before = state(root.parent)
    doctor.examine(doctor.DoctorOptions(root, kubelet_dir=kubelet))
    assert state(root.parent) == before


# --- hostile --------------------------------------------------------------------------------------------

EVIL = "\x1b[2J\x07\u202e\udcff"


def test_names_of_the_machine_are_escaped_for_the_terminal(
    small: tuple[Machine, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    _, root = small
    name = f"evil{EVIL}.json"
    for folder in ("etc/cdi", "var/run/cdi"):
        (root / folder).mkdir(parents=True, exist_ok=True)
        Path(os.fsdecode(os.path.join(os.fsencode(root / folder), os.fsencode(name)))).write_text("{")
    grow(
        root,
        {
            "proc/sys/kernel/osrelease": f"5.1{EVIL}",
            "sys/class/dmi/id/product_name": f"Box {EVIL}",
            "etc/containerd/config.toml": f"version = 2\n# {EVIL}\n[plugins\n",
            "sys/bus/pci/devices/0000:18:00.0/sriov_totalvfs": f"a{EVIL}",
        },
    )
    for options in ([], ["--json"]):
        main(["doctor", "--root", str(root), *options])
        printed = capsys.readouterr().out
        assert not [line for line in printed.splitlines() if not line.isprintable()]
        assert "evil" in printed


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"kind": 1, "devices": [{"name": 2}]}', "[" * 100_000])
@pytest.mark.parametrize("file", ["etc/cdi/x.json", "etc/cdi/x.yaml", "etc/containerd/config.toml"])
def test_any_file_content_is_at_most_a_finding(small: tuple[Machine, Path], file: str, content: str) -> None:
    _, root = small
    grow(root, {file: content})
    assert "check_failed" not in keys(doctor.examine(doctor.DoctorOptions(root)))


def test_directories_and_loops_instead_of_files_are_at_most_findings(small: tuple[Machine, Path]) -> None:
    _, root = small
    grow(
        root,
        {
            "etc/cdi/a.json": BROKEN,
            "etc/cdi/b.yaml": Link("b.yaml"),
            "etc/containerd/config.toml": BROKEN,
            "etc/crio/crio.conf": BROKEN,
        },
    )
    report = doctor.examine(doctor.DoctorOptions(root))
    assert "check_failed" not in keys(report)
    assert {"cdi_broken", "runtime_config_broken"} <= keys(report)


# --- the text -------------------------------------------------------------------------------------------


def test_a_narrow_terminal_gets_wrapped_and_indented_lines() -> None:
    finding = Finding("machine", "some_key", Level.WARN, "word " * 40, "reason " * 30, "remedy")
    lines = as_table(doctor.TOPICS, [finding], 80).splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert lines[0] == "MACHINE"
    assert lines[1].startswith("  warn  some_key  word")
    assert lines[2].startswith(" " * 18 + "word")
    assert [
        line.split()[0]
        for line in lines
        if line[:24].strip() in ("why:", "do:") or line[18:].startswith(("why:", "do:"))
    ] == ["why:", "do:"]


def test_equal_advice_is_printed_once() -> None:
    findings = [Finding("machine", "k", Level.FIX, what, "because", "correct it") for what in ("a", "b", "c")]
    table = as_table(doctor.TOPICS, findings)
    assert table.count("because") == 1
    assert table.index("because") > table.index("fix   k  c")


# --- the documentation ----------------------------------------------------------------------------------


@pytest.mark.golden("docs/reference/doctor.md")
def test_the_documentation_lists_every_finding() -> None:
    tables = f"\n{finding_tables(doctor.TOPICS)}\n"
    golden.same_between(
        ROOT / "docs/reference/doctor.md", "<!-- findings: begin -->\n", "<!-- findings: end -->", tables
    )


def test_every_key_is_used_and_declared_once() -> None:
    declared = [key for topic in doctor.TOPICS for key in topic.entries]
    assert len(declared) == len(set(declared))
    source = "".join(path.read_text() for path in (ROOT / "nodeagent/doctor").glob("*.py"))
    used = set(re.findall(r"\b(?:TOPIC|DOCTOR|PLACE)\.(?:ok|note|warn|fix)\(\s*\"(\w+)\"", source))
    used |= set(re.findall(r"\bsay\(\s*\"(\w+)\"", source))
    assert used == set(declared)
    assert all(
        (entry.why and entry.remedy) or entry == ("", "")
        for t in doctor.TOPICS
        for entry in t.entries.values()
    )
