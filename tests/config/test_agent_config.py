"""Read the agent's configuration: accepted files, and the exact text of every fault.

``golden/config-faults.txt`` holds bad files and their faults, side by side: a line ``=== title``, the file, a line
``---->``, the faults. ``NODEAGENT_GOLDEN=write`` writes the present faults, for review.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from nodeagent.agent_config import Config, load
from nodeagent.config.file_errors import ConfigError, FileError
from nodeagent.config.formats import host_port, prefix_complaint
from nodeagent.kinds.resource_settings import GpuMemResource, GpuResource, MigResource, VfResource
from tests.support import golden
from tests.support.findings import one_item

HEAD = "apiVersion: nodeagent.io/v1alpha1\nkind: NodeAgentConfig\n"
GOLDEN = Path(__file__).parents[1] / "golden" / "config-faults.txt"


def blocks() -> dict[str, tuple[str, str]]:
    found = {}
    for block in GOLDEN.read_text().split("=== ")[1:]:
        title, _, rest = block.partition("\n")
        text, _, expected = rest.partition("---->\n")
        assert title not in found, f"two blocks are called {title}"
        found[title] = (text, expected.rstrip("\n"))
    return found


def complaints(text: str) -> str:
    try:
        load(text, name="file")
    except ConfigError as error:
        return str(error)
    return "loaded"


@one_item("title", blocks())
@pytest.mark.golden("tests/golden/config-faults.txt")
def test_a_bad_file_is_refused_with_the_exact_text(title: str) -> None:
    text, expected = blocks()[title]
    said = complaints(text)
    before = f"=== {title}\n{text}---->\n"
    golden.update(GOLDEN, lambda whole: whole.replace(before + expected, before + said))
    assert said != "loaded"


def test_all_faults_are_reported_in_the_order_of_the_file() -> None:
    text = (
        HEAD
        + "scanSeconds: 0\nresurces: []\nlog: {level: loud}\nresources:\n- {kind: gpu-mem, sliceMiB: 0}\n"
    )
    with pytest.raises(ConfigError) as caught:
        load(text, name="a.yaml")
    assert caught.value.name == "a.yaml"
    assert [(fault.line, fault.path) for fault in caught.value.errors] == [
        (3, "scanSeconds"),
        (4, "resurces"),
        (5, "log.level"),
        (7, "resources[0].sliceMiB"),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kind: a\nlisten: \x07\n", "file:2:9: not YAML: the character U+0007 is not allowed"),
        ("kind: \udce4\n", "file:1:7: not YAML: the character U+DCE4 is not allowed"),
        ("\r\nkind: \x00", "file:2:7: not YAML: the character U+0000 is not allowed"),
    ],
)
def test_unprintable_characters_are_named(text: str, said: str) -> None:
    assert complaints(text) == said


def test_messages_are_printable_ascii_and_short() -> None:
    text = HEAD + f'"\\e[31m{"k" * 500}": 1\nlog: {{level: "\\e[2J\\u202e{"v" * 500}"}}\n'
    with pytest.raises(ConfigError) as caught:
        load(text, name="file")
    for fault in caught.value.errors:
        assert str(fault).isascii()
        assert str(fault).isprintable()
        assert len(str(fault)) < 400


def test_at_most_a_hundred_faults_are_reported() -> None:
    with pytest.raises(ConfigError) as caught:
        load(HEAD + "".join(f"key{i}: 1\n" for i in range(500)), name="file")
    assert len(caught.value.errors) == 101
    assert caught.value.errors[-1].message == "more than 100 errors; the rest is not listed"


def test_a_conflict_with_a_faulty_value_is_reported_after_its_correction() -> None:
    text = (
        HEAD
        + "vfs:\n- {select: {netdevs: [a]}, count: x, minTxRateMbps: 9, maxTxRateMbps: 5, vfIndexes: [9]}\n"
    )
    assert [fault.path for fault in faults(text)] == ["vfs[0].count"]
    # The rates do not depend on the count, but the entry is invalid without it.
    assert [fault.path for fault in faults(text.replace("count: x", "count: 8"))] == [
        "vfs[0].minTxRateMbps",
        "vfs[0].vfIndexes[0]",
    ]


def test_an_unknown_key_does_not_hide_conflicts() -> None:
    text = HEAD + "resources:\n- {kind: gpu-mem, slice: 5}\n- {kind: gpu-mem, name: b}\n"
    assert [fault.path for fault in faults(text)] == ["resources[0].slice", "resources[1].select"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stateDirectory: /var/lib/nodeagent\n", "unknown key; known here: "),
        ("resources:\n- {kind: gpu-mem, memoryLimits: false}\n", "unknown key; known here: "),
        ("kubelet: {registration: socket}\n", "unknown key; known here: "),
        (
            "mode: dra\n",
            "unknown key; it is a setting of the entries of resources of kind gpu-mem, vf, nic, rdma and mig",
        ),
        (
            "resources: [{kind: gpu, mode: dra, select: {models: [a]}}]\n",
            "kinds gpu-mem, vf, nic, rdma and mig have it",
        ),
    ],
)
def test_the_mode_at_another_place_is_refused_with_its_place(text: str, message: str) -> None:
    (fault,) = faults(HEAD + text)
    assert message in fault.message


def test_claims_may_share_a_gpu_through_mps() -> None:
    only("resources: [{kind: gpu-mem, enforcement: mps, mode: dra}]\n")


def faults(text: str) -> tuple[FileError, ...]:
    with pytest.raises(ConfigError) as caught:
        load(text, name="file")
    return caught.value.errors


def only(body: str) -> Config:
    return load(HEAD + body, name="file")


def test_a_file_without_settings_is_the_default() -> None:
    assert only("") == Config()


def test_the_default_offers_one_resource_per_pf_and_slices() -> None:
    vf, memory, mig = Config().resources
    assert isinstance(vf, VfResource)
    assert vf.name == "nic{rail}"
    assert isinstance(memory, GpuMemResource)
    assert (memory.name, memory.slice_mib) == ("gpu-mem", 1024)
    assert isinstance(mig, MigResource)
    assert mig.name == "mig-{profile}"


def test_every_setting_is_read_into_its_field() -> None:
    read = only(
        """
resourcePrefix: example.com
resources:
- {kind: vf, name: "{netdev}", select: {linkTypes: [infiniband], minSpeedMbps: 200000, rdma: true},
   preferred: pack}
- {kind: gpu-mem, name: m, sliceMiB: 512, reservedMiB: 0, select: {indexes: [2-7]}, passDeviceNodes: true}
- {kind: gpu, select: {indexes: [0, 1]}, deviceListStrategy: envvar}
kubelet: {podResources: false}
cdi: {generate: false, directory: /etc/cdi}
gpu: {driver: none, timeoutSeconds: 2.5, ignoreXids: [], xidClearSeconds: null}
vfs:
- {select: {netdevs: ["ens*"]}, count: 4, mtu: 9000, driver: vfio-pci, trust: true, spoofCheck: false,
   linkState: enable, minTxRateMbps: 1, maxTxRateMbps: 0, vfIndexes: [0-3]}
listen: null
scanSeconds: 5
log: {level: debug}
"""
    )
    vf, memory, gpu = read.resources
    assert isinstance(vf, VfResource)
    assert (vf.name, vf.select.link_types, vf.select.rdma, vf.preferred) == (
        "{netdev}",
        ("infiniband",),
        True,
        "pack",
    )
    assert isinstance(memory, GpuMemResource)
    assert (memory.slice_mib, memory.reserved_mib, memory.select.indexes) == (512, 0, ("2-7",))
    assert memory.pass_device_nodes
    assert isinstance(gpu, GpuResource)
    assert (gpu.select.indexes, gpu.device_list_strategy) == (("0", "1"), "envvar")
    assert read.kubelet.pod_resources is False
    assert (read.cdi.generate, read.cdi.directory) == (False, "/etc/cdi")
    assert (read.gpu.driver, read.gpu.timeout_seconds, read.gpu.ignore_xids) == ("none", 2.5, ())
    assert read.gpu.xid_clear_seconds is None
    entry = read.vfs[0]
    assert (entry.count, entry.mtu, entry.driver, entry.trust, entry.spoof_check) == (
        4,
        9000,
        "vfio-pci",
        True,
        False,
    )
    assert (entry.link_state, entry.min_tx_rate_mbps, entry.max_tx_rate_mbps) == ("enable", 1, 0)
    assert (read.listen, read.scan_seconds) == (None, 5.0)
    assert read.log.level == "debug"
    assert load(as_yaml(read), name="again") == read


def as_yaml(value: Config) -> str:
    return msgspec.json.encode(value).decode()


def test_the_type_of_a_setting_decides_how_a_scalar_is_read() -> None:
    """Texts that YAML 1.1 reads as integers to base 16, 10, 8 and 60, floats, booleans and dates."""
    read = only(
        "resources:\n- kind: vf\n  name: on\n  select:\n    vendors: [8086, 0403, 15b3, 1e03]\n"
        "    pciAddresses: [0000:17:00.0]\n    netdevs: [no, 2001-01-01]\n    vfIndexes: [0-3, 7]\n"
    )
    (vf,) = read.resources
    assert isinstance(vf, VfResource)
    assert vf.name == "on"
    assert vf.select.vendors == ("8086", "0403", "15b3", "1e03")
    assert vf.select.pci_addresses == ("0000:17:00.0",)
    assert vf.select.netdevs == ("no", "2001-01-01")
    assert vf.select.vf_indexes == ("0-3", "7")


@pytest.mark.parametrize(
    ("word", "value"), [("on", True), ("Yes", True), ("TRUE", True), ("off", False), ("no", False)]
)
def test_a_boolean_is_any_of_the_words_of_yaml_1_1(word: str, value: bool) -> None:
    assert only(f"kubelet: {{podResources: {word}}}\n").kubelet.pod_resources is value


def test_anchors_aliases_and_merge_keys_are_read() -> None:
    read = only(
        "resources:\n"
        "- &mem {kind: gpu-mem, name: a, sliceMiB: 256, reservedMiB: 0, select: {indexes: ['0']}}\n"
        "- <<: *mem\n  name: b\n  select: {indexes: ['1']}\n"
        "- <<: [{name: c, select: {indexes: ['2']}}, *mem]\n"
    )
    parts = [(r.name, r.slice_mib, r.select.indexes) for r in read.resources if isinstance(r, GpuMemResource)]
    assert parts == [("a", 256, ("0",)), ("b", 256, ("1",)), ("c", 256, ("2",))]


@pytest.mark.parametrize(
    "body",
    [
        # One template may serve two entries where a PF's netdev names the resource.
        "resources:\n- {kind: vf, name: 'a{netdev}', vfDriver: rdma}\n"
        "- {kind: vf, name: 'a{netdev}', vfDriver: vfio-pci}\n",
        # The two halves of each PF's VFs.
        "resources:\n- {kind: vf, select: {vfIndexes: [0-3]}}\n"
        "- {kind: vf, name: b, select: {vfIndexes: [4-7]}}\n",
        # Whether these select the same GPU depends on the machine.
        "resources:\n- {kind: gpu-mem, select: {models: ['*H100*']}}\n"
        "- {kind: gpu, select: {models: ['*A100*']}}\n",
        "resources:\n- {kind: gpu-mem, select: {indexes: [0]}}\n"
        "- {kind: gpu, select: {uuids: [GPU-5c8e1a50-0d1f-4c43-a3d6-1f2e3d4c5b6a]}}\n",
        # Different VFs of the same PFs.
        "vfs:\n- {select: {drivers: [ice]}, count: 8, vfIndexes: [0-3], trust: on}\n"
        "- {select: {drivers: [ice]}, count: 8, vfIndexes: [4-7], mtu: 9000}\n",
        # A rate of 0 is no limit.
        "vfs:\n- {select: {drivers: [ice]}, count: 0, minTxRateMbps: 100, maxTxRateMbps: 0}\n",
        "resources: []\n",
        f"resourcePrefix: {'.'.join(['a' * 60] * 4)}\n",
    ],
)
def test_a_configuration_that_suits_some_machine_is_accepted(body: str) -> None:
    assert isinstance(only(body), Config)


def test_a_prefix_leaves_room_for_the_quota_prefix_of_kubernetes() -> None:
    fits, too_long = (".".join(["a" * 60] * 3 + ["a" * n]) for n in (61, 62))
    assert (len(fits), len("requests." + fits)) == (244, 253)
    assert prefix_complaint(fits) is None
    assert prefix_complaint(too_long) == "is 245 characters long, at most 244 are allowed"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (":9808", ("", 9808)),
        ("0.0.0.0:0", ("0.0.0.0", 0)),
        ("localhost:65535", ("localhost", 65535)),
        ("[::1]:80", ("::1", 80)),
        ("[fe80::1%eth0]:80", ("fe80::1%eth0", 80)),
    ],
)
def test_an_address_is_host_and_port(text: str, parts: tuple[str, int]) -> None:
    assert host_port(text) == parts
    assert only(f"listen: '{text}'\n").listen == text


@pytest.mark.parametrize(
    "text", ["", "9808", ":65536", "::1:80", "[::1]", "a:b", ":", ":1 ", "http://x:1", ":-1"]
)
def test_an_invalid_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not an address"):
        host_port(text)


def test_the_structs_are_frozen() -> None:
    with pytest.raises(AttributeError):
        Config().listen = None
    assert hash(Config()) == hash(Config())


def test_importing_the_configuration_imports_nothing_heavy() -> None:
    """The agent imports it before its first registration."""
    script = "import sys, nodeagent.agent_config; print(*sorted(sys.modules))"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    modules = out.stdout.split()
    assert not {"jsonschema", "grpc", "asyncio", "google.protobuf"} & set(modules)
    rooms = ("cluster", "fabric", "kubelet", "metrics", "sampling", "sources", "topology", "web")
    of_rooms = [name for name in modules if name.startswith(tuple(f"nodeagent.{room}." for room in rooms))]
    assert of_rooms
    assert all(name.endswith("_settings") for name in of_rooms)


@pytest.mark.parametrize("setting", ["listen", "probeListen"])
@pytest.mark.parametrize("number", [0, 1, 9808, 65535, 65536, 99999, 123456789])
def test_a_suggested_address_is_accepted(setting: str, number: int) -> None:
    head = "apiVersion: nodeagent.io/v1alpha1\nkind: NodeAgentConfig\n"
    key = "listen: {}\n" if setting == "listen" else "web: {{probeListen: {}}}\n"
    with pytest.raises(ConfigError) as refused:
        load(head + key.format(number), name="x")
    hint = re.search(r"did you mean (\S+)\?", str(refused.value))
    assert (hint is not None) == (number <= 65535)
    if hint:
        load(head + key.format(f'"{hint[1]}"'), name="x")
