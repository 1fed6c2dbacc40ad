"""Check the results of the guest: the installed agent on a real kernel whose NICs have real VFs.

Each test checks one step of ``guest/guest.py``. Its name becomes a line of ``docs/reference/verified.md``.
"""

from __future__ import annotations

import json
import re
from collections import Counter

from prometheus_client.parser import text_string_to_metric_families

from nodeagent.fabric.node_values import exceptions
from tests.vm.conftest import Run

UNSET = "00:00:00:00:00:00"


def addresses(run: Run) -> dict[str, list[str]]:
    return run.step("apply")["there"]


def healths(devices: dict, resource: str) -> set[str]:
    return {device["health"] for device in devices[resource].values()}


def ids(devices: dict) -> dict[str, list[str]]:
    return {resource: sorted(devices) for resource, devices in devices.items()}


def only(run: Run, devices: dict, rail: int) -> None:
    """Check that exactly the devices of one PF are Unhealthy and that every device is listed."""
    for number, pf in enumerate(run.pfs):
        resource = run.resource(number)
        assert sorted(devices[resource]) == addresses(run)[pf]
        assert healths(devices, resource) == {"Unhealthy" if number == rail else "Healthy"}, resource


def pf_of(outcome: dict, address: str) -> dict:
    return next(pf for pf in outcome["answer"]["pfs"] if pf["function"]["pciAddress"] == address)


# --- creating VFs -----------------------------------------------------------------------------------------


def test_pfs_without_vfs_keep_their_rails_and_offer_nothing(run: Run) -> None:
    seen = run.step("bare")["scan"]
    assert run.step("bare")["config"]["code"] == 0
    functions = {function["pciAddress"]: function for function in seen["functions"]}
    assert len(run.pfs) == len(run.nic["numa_nodes"])
    for pf in run.pfs:
        assert functions[pf]["driver"] == run.nic["pf_driver"]
        assert functions[pf]["numVfs"] == 0
        assert functions[pf]["totalVfs"] >= max(run.nic["vfs"])
    offered = {entry["resource"]: entry["devices"] for entry in seen["resources"]}
    assert offered == {run.resource(rail): [] for rail in range(len(run.pfs))}


def test_vfs_apply_creates_the_configured_vfs_and_a_second_run_changes_nothing(run: Run) -> None:
    data = run.step("apply")
    assert [data[name]["code"] for name in ("show", "first", "second")] == [0, 0, 0]
    for number, pf in enumerate(run.pfs):
        count = run.nic["vfs"][number]
        assert f"sriov_numvfs 0 → {count}" in pf_of(data["show"], pf)["changes"]
        assert pf_of(data["show"], pf)["state"] == "differs"
        assert pf_of(data["first"], pf)["state"] == "changed"
        assert pf_of(data["second"], pf)["state"] == "unchanged"
        assert pf_of(data["second"], pf)["changes"] == []
        assert len(data["there"][pf]) == count
    assert data["after"] == data["there"]


def test_vfs_apply_configures_the_vfs_of_the_selected_pf_and_the_kernel_confirms_it(run: Run) -> None:
    by_address = {link.get("parentdev"): link for link in run.step("apply")["ip"]}
    for number, pf in enumerate(run.pfs):
        link = by_address[pf]
        assert link["mtu"] == (1600 if number == 2 else 1500)
        assert [vf["trust"] for vf in link["vfinfo_list"]] == [number == 2] * run.nic["vfs"][number]


def test_vf_addresses_follow_offset_and_stride_across_device_numbers(run: Run) -> None:
    data = run.step("apply")
    for pf, vfs in data["there"].items():
        offset, stride = data["offset"][pf]
        assert vfs == [routed(pf, offset + index * stride) for index in range(len(vfs))]
    assert any(len({vf[:-2] for vf in vfs}) > 1 for vfs in data["there"].values())


def routed(pf: str, further: int) -> str:
    """Return the PCI address ``offset`` routing IDs after the PF's (PCIe Base, SR-IOV: First VF Offset, VF Stride)."""
    domain, bus, device, function = re.fullmatch(r"(\w+):(\w+):(\w+)\.(\w)", pf).groups()
    number = (int(bus, 16) << 8 | int(device, 16) << 3 | int(function)) + further
    return f"{domain}:{number >> 8:02x}:{number >> 3 & 31:02x}.{number & 7}"


def test_vfs_without_a_mac_set_by_the_pf_are_offered(run: Run) -> None:
    links = {link.get("parentdev"): link for link in run.step("apply")["ip"]}
    assert {vf["address"] for pf in run.pfs for vf in links[pf]["vfinfo_list"]} == {UNSET}
    devices = run.step("late")["after"]
    assert all(healths(devices, run.resource(rail)) == {"Healthy"} for rail in range(len(run.pfs)))


# --- compared values ----------------------------------------------------------------------------------------


def compared_texts(before: dict) -> dict[str, str]:
    """The values of a PF in the form of ``nodeagent diff``, from the output of ethtool and from sysfs."""
    rings, channels, pause, driver = (before[part] for part in ("rings", "channels", "pause", "driver"))
    equal, words = rings["RX"] == rings["TX"], {"rx": "RX", "tx": "TX", "autoneg": "Autonegotiate"}
    generation = {
        "2.5 GT/s PCIe": "gen1",
        "5.0 GT/s PCIe": "gen2",
        "8.0 GT/s PCIe": "gen3",
        "16.0 GT/s PCIe": "gen4",
    }
    return {
        "rings": rings["RX"] if equal else f"rx {rings['RX']} tx {rings['TX']}",
        "channels": channels["Combined"],
        "pause": " ".join(word for word, key in words.items() if pause[key] == "on") or "none",
        "NIC driver": driver["driver"],
        "NIC firmware": driver["firmware-version"],
        "IOMMU": before["type"],
        "NIC PCIe": f"{generation[before['current_link_speed']]} x{before['current_link_width']}",
        "MTU": before["mtu"],
        "VFs": before["sriov_numvfs"],
    }


def values_of(shown: dict, side: str) -> dict[str, str]:
    return {one["value"]: one[side] for one in shown["answer"]["values"]}


def test_the_compared_values_of_a_capture_are_those_of_ethtool_and_sysfs(run: Run) -> None:
    data = run.step("compared")
    assert [capture["code"] for capture in data["captures"]] == [0, 0]
    seen = values_of(data["same"], "here")
    assert seen == values_of(data["same"], "other")
    assert seen["kernel"] == run.step("facts")["kernel"]
    assert seen["boot parameters"] == "intel_iommu=on"
    assert "intel_iommu=on" in data["command_line"]
    wanted = [compared_texts(one) for one in data["before"]]
    for name in wanted[0]:
        usual, others = exceptions(seen[name])
        found = Counter(
            [*others.values(), *[usual] * (len(wanted) - sum(len(of.split(",")) for of in others))]
        )
        assert set(found) == {one[name] for one in wanted}, name


def test_a_changed_ring_pause_and_mtu_of_one_pf_are_the_only_differences(run: Run) -> None:
    data = run.step("compared")
    before, after = (compared_texts(data[moment][1]) for moment in ("before", "after"))
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"rings", "pause", "MTU"}
    here, other = (values_of(data["differ"], side) for side in ("here", "other"))
    assert here.keys() == changed
    for name in changed:
        usual, others = exceptions(other[name])
        assert after[name] in others.values()
        assert usual == before[name] or name == "MTU", name


# --- discovery --------------------------------------------------------------------------------------------


def test_vfs_without_a_driver_are_unhealthy_and_become_healthy_when_it_is_loaded(run: Run) -> None:
    data = run.step("late")
    for rail, pf in enumerate(run.pfs):
        resource = run.resource(rail)
        assert healths(data["before"], resource) == {"Unhealthy"}
        assert healths(data["after"], resource) == {"Healthy"}
        assert sorted(data["after"][resource]) == addresses(run)[pf]
        assert data["capacity"][resource] == run.nic["vfs"][rail]
    assert data["ready"]["status"] == 200
    # Much less than the 30 s between two scans without a hint: the uevent triggered the scan.
    assert data["healthy_s"] < 15


def test_scan_agrees_with_lspci(run: Run) -> None:
    data = run.step("agree")
    seen = {function["pciAddress"]: function for function in data["scan"]["functions"]}
    slots = [dict(re.findall(r"(\w+):\t(.*)", block)) for block in data["lspci"].split("\n\n") if block]
    nics = {slot["Slot"]: slot for slot in slots if slot["Class"] in ("0200", "0207", "0280")}
    assert seen.keys() == nics.keys()
    for address, slot in nics.items():
        function = seen[address]
        assert (function["vendor"], function["device"]) == (slot["Vendor"], slot["Device"])
        assert function["driver"] == slot.get("Driver")
        numa = slot.get("NUMANode")
        assert function["numaNode"] == (None if numa is None else int(numa))


def test_scan_agrees_with_ip_link(run: Run) -> None:
    data = run.step("agree")
    links = {link["netdev"]: link for link in data["scan"]["links"]}
    functions = {function["pciAddress"]: function for function in data["scan"]["functions"]}
    links_of_ip = {link["ifname"]: link for link in data["ip"] if link.get("parentbus") == "pci"}
    assert {name: link["parentdev"] for name, link in links_of_ip.items()} == {
        function["netdev"]: address
        for address, function in functions.items()
        if function["driver"] != "virtio-pci"
    }
    for name, link in links_of_ip.items():
        if functions[link["parentdev"]]["parent"] is not None:
            continue
        seen = links[name]
        assert (seen["mac"], seen["mtu"]) == (link["address"], link["mtu"])
        assert seen["adminUp"] == ("UP" in link["flags"])
        assert seen["carrier"] == ("LOWER_UP" in link["flags"])
        assert seen["operstate"] == link["operstate"].lower()


def test_scan_agrees_with_sysfs(run: Run) -> None:
    data = run.step("agree")
    seen = {function["pciAddress"]: function for function in data["scan"]["functions"]}
    assert seen.keys() == data["sysfs"].keys()
    for address, sysfs in data["sysfs"].items():
        function = seen[address]
        assert function["parent"] == sysfs["physfn"]
        assert function["driver"] == sysfs["driver"]
        assert function["numaNode"] == (None if sysfs["numa_node"] < 0 else sysfs["numa_node"])
        assert "/".join(("/sys/devices", *function["pciPath"])) == sysfs["real"]
        if function["driver"] != "virtio-pci":
            assert [function["netdev"]] == sysfs["net"]
    for pf, vfs in addresses(run).items():
        assert [seen[vf]["vfIndex"] for vf in vfs] == list(range(len(vfs)))
        assert seen[pf]["numVfs"] == len(vfs)


def test_the_device_list_holds_the_numa_node_of_every_vf(run: Run) -> None:
    devices, sysfs = run.step("late")["after"], run.step("agree")["sysfs"]
    for rail, node in enumerate(run.nic["numa_nodes"]):
        for vf, device in devices[run.resource(rail)].items():
            assert device["numa"] == [node] == [sysfs[vf]["numa_node"]]
    assert len(set(run.nic["numa_nodes"])) == 2


# --- netdevs in pods --------------------------------------------------------------------------------------


def test_vfs_go_into_pods_with_name_address_and_their_mac_and_reach_each_other(run: Run) -> None:
    data = run.step("attached")
    first, second = data["vfs"]
    assert data["begun"]["pod"] == {
        "rail0": in_pod(data, first, "10.100.16.7/16"),
        "rail1": in_pod(data, second, "10.101.16.7/16"),
    }
    assert data["begun"]["other"] == {"rail0": in_pod(data, data["neighbor"], "10.100.32.7/16")}
    assert set(data["begun"]["host"].values()) == {None}
    assert data["begun"]["spec"] == sorted([first, second, data["neighbor"]])
    assert data["datagram"] == "10.100.16.7"


def in_pod(data: dict, vf: str, address: str) -> dict:
    return {"pci": vf, "mac": data["macs"][vf], "mtu": 1500, "up": True, "addresses": [address]}


def test_another_process_finds_the_vfs_in_their_pods(run: Run) -> None:
    data = run.step("attached")
    assert data["synchronized"]["pod"] == data["begun"]["pod"]
    assert data["synchronized"]["spec"] == data["begun"]["spec"]


def test_a_vf_whose_driver_is_loaded_again_returns_into_its_pod(run: Run) -> None:
    data = run.step("attached")
    vf = data["vfs"][0]
    assert data["rebound"][vf] is not None  # the kernel makes the new netdev on the host
    assert {name: link["pci"] for name, link in data["settled"]["pod"].items()} == {
        "rail0": vf,
        "rail1": data["vfs"][1],
    }
    assert data["settled"]["pod"]["rail0"]["addresses"] == ["10.100.16.7/16"]


def test_vfs_of_ended_pods_are_on_the_host_under_their_names(run: Run) -> None:
    data = run.step("attached")
    left = {vf: data["before"][vf] for vf in data["vfs"]} | {data["neighbor"]: None}
    assert data["ended"] == {"pod": {}, "host": left, "spec": [data["neighbor"]]}
    assert data["all_ended"] == {"host": data["before"], "spec": []}


def test_vfs_of_a_namespace_that_died_unseen_get_their_names_back(run: Run) -> None:
    data = run.step("attached")
    first, second, neighbor = *data["vfs"], data["neighbor"]
    assert data["returned"] == {first: "rail0", second: "rail1", neighbor: "rail0b"}  # by the kernel
    assert data["named"] == {"host": data["before"], "spec": []}


# --- use --------------------------------------------------------------------------------------------------


def test_a_pod_gets_its_vfs_as_cni_plugins_expect_and_keeps_them(run: Run) -> None:
    data = run.step("pod")
    assert data["phase"] == "Running", data["message"]
    assert data["env"]["PCIDEVICE_NODEAGENT_IO_NIC3"].split(",") == data["held"]
    for vf in data["held"]:
        info = json.loads(data["info"][f"nodeagent.io-nic3-{vf}-device.json"])
        assert info["pci"] == {"pci-address": vf, "pf-pci-address": run.pfs[3]}
    refused = pf_of(data["fewer"], run.pfs[3])
    assert (data["fewer"]["code"], refused["state"]) == (1, "refused")
    assert any("pod default/trainer" in reason for reason in refused["reasons"])
    assert data["numvfs"] == run.nic["vfs"][3]


def test_a_vf_bound_to_vfio_pci_is_offered_with_its_iommu_group(run: Run) -> None:
    data = run.step("vfio")
    assert (data["function"]["driver"], data["function"]["vfioGroup"]) == ("vfio-pci", data["group"])
    assert data["function"]["netdev"] is None
    assert data["function"]["health"]["allocatable"]
    assert data["phase"] == "Running", data["message"]
    assert data["device_nodes"] == ["/dev/vfio/vfio", f"/dev/vfio/{data['group']}"]
    info = json.loads(data["env"]["PCIDEVICE_NODEAGENT_IO_NIC0_INFO"])
    assert [vf for vf, details in info.items() if "vfio" in details] == [data["vf"]]
    assert data["after"]["driver"] == run.nic["vf_driver"]


def test_the_vfs_of_a_pf_are_not_removed_while_a_program_has_a_vfio_group_open(run: Run) -> None:
    data = run.step("vfio")
    refused = pf_of(data["open"], run.pfs[0])
    assert (data["open"]["code"], refused["state"]) == (1, "refused")
    assert any(f"/dev/vfio/{data['group']}" in reason for reason in refused["reasons"])
    assert data["numvfs"] == run.nic["vfs"][0]


def test_a_vf_in_a_network_namespace_stays_healthy_and_its_pf_is_unchanged(run: Run) -> None:
    data = run.step("namespace")
    assert data["netdev"] in data["inside"]
    assert data["away"]["netdev"] is None
    assert data["away"]["health"]["state"] == "healthy"
    assert data["updates"] == []
    assert data["back"]["netdev"] is not None
    refused = pf_of(data["fewer"], run.pfs[1])
    assert (data["fewer"]["code"], refused["state"]) == (1, "refused")
    assert data["numvfs"] == run.nic["vfs"][1]


# --- faults -----------------------------------------------------------------------------------------------


def test_vfs_apply_leaves_vfs_that_pods_hold_as_the_cni_plugin_set_them(run: Run) -> None:
    data = run.step("held")
    infos = {
        when: next(link for link in data[when] if link.get("parentdev") == data["pf"])["vfinfo_list"]
        for when in ("before", "after")
    }
    index = data["index"]
    assert data["answer"]["code"] == 0
    for held in (index["away"], index["taken"]):
        assert infos["after"][held] == infos["before"][held]
        assert (infos["after"][held]["trust"], infos["after"][held]["spoofchk"]) == (False, False)
    assert infos["after"][index["free"]]["trust"] is True
    pf = pf_of(data["answer"], data["pf"])
    assert pf["state"] == "changed"
    assert sum(line.startswith("trust is off, configured is on: ") for line in pf["left"]) == 2
    assert "is held by pod default/cni" in str(pf["left"])
    assert "has its netdev in another network namespace" in str(pf["left"])
    again = pf_of(data["again"], data["pf"])
    assert (data["again"]["code"], again["left"]) == (0, [])


def test_a_pulled_cable_makes_exactly_the_vfs_of_that_pf_unhealthy_and_later_healthy_again(run: Run) -> None:
    for one in run.step("cable"):
        rail = one["rail"]
        only(run, one["down"], rail)
        messages = [(update["resource"], update["healthy"]) for update in one["updates"]]
        # One message for down, one for up: no repetition, and no message for another resource.
        assert messages == [(run.resource(rail), 0), (run.resource(rail), run.nic["vfs"][rail])], one[
            "updates"
        ]
        assert one["down_s"] < 5
        assert one["up_s"] < 10


def test_changes_by_an_administrator_are_no_flaps(run: Run) -> None:
    data = run.step("administered")
    assert [entry for entry in data["done"] if entry["code"]] == []
    penalties = {
        line.partition('device="')[2].partition('"')[0]: line.rpartition(" ")[2] for line in data["penalties"]
    }
    assert float(penalties[data["netdev"]]) == 0
    noticed = {line.partition('change="')[2].partition('"')[0] for line in data["changes"]}
    assert noticed >= {"mtu", "rings", "admin"}
    assert data["health"]["state"] == "healthy"


def test_a_pf_that_is_pulled_and_plugged_in_again_loses_only_its_own_vfs_and_recovers_them(run: Run) -> None:
    data = run.step("unplugged")
    only(run, data["gone"], 3)
    reasons = {view["device"]: [reason["key"] for reason in view["reasons"]] for view in data["seen"]}
    assert reasons[run.pfs[3]] == ["device_missing"]
    assert data["applied"]["code"] == 0
    assert data["back"] == data["before"]


def test_removed_vfs_become_unhealthy_stay_listed_and_recover(run: Run) -> None:
    data = run.step("removed")
    only(run, data["gone"], 1)
    held = data["health"]["main"][run.resource(1)]
    assert set(held.values()) == {"Unhealthy"}
    assert data["back"] == data["before"]
    assert data["panics"] == []
    # `scan` shows the agent's own list; the agent gives the name of this PF to no other PF.
    offered = {entry["resource"]: entry["devices"] for entry in data["scan"]["resources"]}
    assert {device["health"]["state"] for device in offered[run.resource(1)]} == {"down"}
    assert {device["parent"] for device in offered[run.resource(1)]} == {run.pfs[1]}
    assert {device["parent"] for device in offered[run.resource(2)]} == {run.pfs[2]}


def test_a_pf_without_its_driver_loses_only_its_own_vfs_and_recovers_them(run: Run) -> None:
    data = run.step("unbound")
    only(run, data["gone"], 2)
    assert [reason["key"] for reason in data["health"]["reasons"]] == ["driver_unbound"]
    assert (data["bound"]["driver"], data["bound"]["numVfs"]) == (run.nic["pf_driver"], 0)
    only(run, data["rebound"], 2)
    assert data["applied"]["code"] == 0
    again = pf_of(data["applied"], run.pfs[2])
    assert again["state"] == "changed"
    assert any(change.startswith("trust off → on") for change in again["changes"])
    assert data["back"] == data["before"]


def test_a_restarted_agent_reports_the_same_and_pods_keep_their_vfs(run: Run) -> None:
    data = run.step("restart")
    assert data["code"] == 0
    assert data["still"] == data["held"]
    assert data["devices"] == run.step("late")["after"]
    assert data["errors"] == [None] * len(run.pfs)


def test_an_agent_that_starts_without_vfs_lists_the_vf_that_a_pod_holds(run: Run) -> None:
    data = run.step("bereft")
    resource = run.resource(1)
    assert sorted(data["gone"][resource]) == data["held"]
    assert healths(data["gone"], resource) == {"Unhealthy"}
    others = {name: devices for name, devices in ids(data["before"]).items() if name != resource}
    assert {name: devices for name, devices in ids(data["gone"]).items() if name != resource} == others
    assert data["back"] == data["before"]
    assert data["panics"] == []


# --- the rest ---------------------------------------------------------------------------------------------


def test_the_agent_receives_frames_of_a_real_lldpd_on_the_cable_of_a_pf(run: Run) -> None:
    data = run.step("lldp")
    assert data["neighbors"]["code"] == 0
    links = {link["link"]: link for link in data["neighbors"]["answer"]["links"]}
    assert {name for name, link in links.items() if link["neighbors"]} == {data["pf"]}
    (neighbor,) = links[data["pf"]]["neighbors"]
    assert neighbor["systemName"] == "leaf01"
    assert neighbor["portDescription"] == "swp1"
    assert [entry["link"] for entry in data["scan"]["answer"]["neighbors"]] == [data["pf"]]


def test_metrics_count_the_devices_that_the_kubelet_received(run: Run) -> None:
    data = run.step("metrics")
    assert (data["metrics"]["status"], data["ready"]["status"]) == (200, 200)
    shown = page(run)
    for rail in range(len(run.pfs)):
        resource = run.resource(rail)
        healthy = shown["nodeagent_resource_devices", (("health", "healthy"), ("resource", resource))]
        assert healthy == len(data["devices"][resource])


def page(run: Run) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(run.step("metrics")["metrics"]["body"])
        for sample in family.samples
    }


def test_metrics_of_a_real_driver_equal_ethtool_ip_and_sysfs(run: Run) -> None:
    data, shown = run.step("metrics"), page(run)
    for before, after in zip(data["before"], data["after"], strict=True):
        device = (("device", before["netdev"]),)
        driver = dict(re.findall(r"^([\w-]+): ?(.*)$", before["driver"], re.MULTILINE))
        (info,) = [
            dict(labels) for name, labels in shown if name == "nodeagent_link_info" and device[0] in labels
        ]
        assert (info["driver"], info["firmware_version"], info["pci_address"]) == (
            driver["driver"], driver["firmware-version"], before["pf"],
        )  # fmt: skip
        assert info["mac"] == before["link"]["address"]
        assert shown["nodeagent_link_carrier", device] == ("LOWER_UP" in before["link"]["flags"])
        assert shown["nodeagent_link_mtu_bytes", device] == before["link"]["mtu"]
        (mbps,) = re.findall(r"Speed: (\d+)Mb/s", before["settings"])
        assert shown["nodeagent_link_speed_bytes", device] == int(mbps) * 125_000
        for direction, word in (("rx", "receive"), ("tx", "transmit")):
            for what in ("bytes", "packets", "errors", "dropped"):
                value = shown[f"nodeagent_link_{word}_{what}_total", device]
                first, last = (each["link"]["stats64"][direction][what] for each in (before, after))
                # The agent samples every five seconds: its values may be five seconds older than the page.
                assert value <= last, (what, value, last)
                assert value >= 0.5 * first or first < 100, (what, value, first)
        changes = (
            shown["nodeagent_link_carrier_up_total", device]
            + shown["nodeagent_link_carrier_down_total", device]
        )
        assert changes == before["carrier_changes"]


def test_pcie_link_and_aer_of_a_real_port_equal_sysfs(run: Run) -> None:
    data, shown = run.step("metrics"), page(run)
    for before in data["before"]:
        address = (("pci_address", before["pf"]),)
        assert shown["nodeagent_pcie_link_width_lanes", address] == int(before["width"])
        (gts,) = re.findall(r"([\d.]+) GT/s", before["speed"])
        assert shown["nodeagent_pcie_link_speed_transfers_per_second", address] == float(gts) * 1e9
        assert before["aer"], "this kernel has AER"
        counted = {
            (severity.removeprefix("aer_dev_"), name): int(count)
            for severity, text in before["aer"].items()
            for name, count in re.findall(r"^(\w+) (\d+)$", text, re.MULTILINE)
            if int(count) and not name.startswith("TOTAL")
        }
        assert counted == {
            (dict(labels)["severity"], dict(labels)["error"]): value
            for (name, labels), value in shown.items()
            if name == "nodeagent_pcie_aer_errors_total" and address[0] in labels
        }


def test_every_vf_of_a_real_pf_has_its_metrics(run: Run) -> None:
    data, shown = run.step("metrics"), page(run)
    there = {dict(labels)["pci_address"] for name, labels in shown if name == "nodeagent_vf_info"}
    assert there == {vf for before in data["before"] for vf in before["vfs"]}


def test_the_doctor_finds_nothing_to_fix_on_a_working_machine(run: Run) -> None:
    data = run.step("doctor")
    findings = data["answer"]["findings"]
    assert [one for one in findings if one["level"] == "fix"] == []
    assert data["code"] == 0
    assert {"kernel", "sriov"} <= {one["key"].split("_")[0] for one in findings}, sorted(
        one["key"] for one in findings
    )


STARVED = "Unanswered: "
"""The guest has a part of one core. While the host does not run it, its reads of sysfs exceed their limits, and the
part of the agent that made them is started again. The other tests see that these parts do their work afterwards."""


def test_the_agent_logs_no_error_from_start_to_end(run: Run) -> None:
    assert run.step("stop")["code"] == 0
    errors = [line for line in run.log.splitlines() if " ERROR " in line or "Traceback" in line]
    assert [line for line in errors if STARVED not in line] == []


# --- probes over rails ------------------------------------------------------------------------------------


def test_probes_that_are_late_out_of_order_or_doubled_are_no_loss(run: Run) -> None:
    for case in ("still", "delay", "jitter", "reorder", "duplicate"):
        found = run.step("rail_netem")[case]
        assert (found["checked"], found["levels"], found["lost"]) == ("yes", [], 0), case
        assert found["sent"] > 60, case
        # Each answer counts once; large ones have no round trip.
        assert 0.8 * found["sent"] < found["round_trips"] < found["sent"], case


def test_the_round_trip_of_a_probe_has_the_delay_of_the_network(run: Run) -> None:
    data = run.step("rail_netem")
    assert data["delay"]["rtt_us"][0] > 20_000
    assert data["late"]["rtt_us"][0] > 300_000
    assert data["late"]["lost"] == 0, "they are later than 2 s of the step's clock, and none than 10 s"


def test_loss_one_way_is_found(run: Run) -> None:
    found = run.step("rail_netem")["loss"]
    assert found["checked"] == "yes"
    assert found["lost"] > 0
    assert found["levels"] in ([10], [50])


def test_probes_and_soft_roce_leave_each_other_alone(run: Run) -> None:
    data = run.step("rail_rxe")
    assert (data["checked"], data["levels"], data["lost"]) == ("yes", [], 0)
    assert data["sent"] > 30
    assert data["before"] == data["after"], "no packet of the probes came to the RDMA device"
    assert data["before"]["state"] == "4: ACTIVE"
    assert data["taken"], "port 4791 is the kernel's"
    assert data["ports"], "the packets were seen"
    assert 4791 not in data["ports"]


def test_a_rail_in_a_vrf_is_probed(run: Run) -> None:
    data = run.step("rail_vrf")
    assert (data["fault"], data["checked"], data["levels"], data["lost"]) == ("", "yes", [], 0)
    assert data["round_trips"] > 25


def test_a_pf_that_is_a_port_of_a_bond_says_so_and_sends_no_probe(run: Run) -> None:
    data = run.step("rail_bond")
    assert (data["before"], data["port"], data["checked"]) == ("", "bond", "bond")
    assert data["packets"] == 0


# --- NICs as a whole ----------------------------------------------------------------------------------------


def test_pfs_without_vfs_and_functions_of_the_host_are_offered_as_a_whole(run: Run) -> None:
    data = run.step("whole")
    assert data["config"]["code"] == 0
    assert data["given"], "this machine is a virtual one: its host gave it a NIC without a PF"
    assert {ids[0] for ids in map(list, (data["offered"][f"nodeagent.io/whole{n}"] for n in range(4)))} == {
        *run.pfs
    }
    assert sorted(data["offered"]["nodeagent.io/guest"]) == sorted(data["given"])
    assert data["stopped"]["code"] == 0


def test_a_pod_gets_a_nic_as_a_whole_as_it_gets_a_vf(run: Run) -> None:
    data, pf = run.step("whole"), run.pfs[0]
    assert data["held"] == [pf]
    assert data["env"]["PCIDEVICE_NODEAGENT_IO_WHOLE0"] == pf
    (info,) = map(json.loads, data["info"].values())
    assert info["pci"] == {"pci-address": pf}


def test_a_nic_in_a_pod_stays_healthy_and_comes_back(run: Run) -> None:
    data, pf = run.step("whole"), run.pfs[0]
    assert data["away"]["netdev"] is None
    assert data["away"]["health"]["state"] == "unknown"
    assert data["away_healths"] == {pf: "Healthy"}
    assert not any(update["unhealthy"] for update in data["away_updates"]), "not for a moment"
    assert data["back"]["health"]["allocatable"] is True


def test_a_nic_is_whole_or_divided_whoever_comes_first(run: Run) -> None:
    data = run.step("whole")
    assert set(data["vfs_of_held"].values()) == {"Unhealthy"}
    assert data["thief"] == "Failed"
    assert list(data["stays"]) == [run.pfs[0]], "what a pod holds stays on the list"
    assert data["divided"]["nodeagent.io/whole2"] == {run.pfs[2]: "Unhealthy"}
    assert set(data["divided"]["nodeagent.io/nic2"].values()) == {"Healthy"}


def test_a_nic_whose_cable_is_lost_is_withdrawn_as_a_whole(run: Run) -> None:
    lost = run.step("whole")["lost"]
    assert [list(lost[f"nodeagent.io/whole{n}"].values()) for n in range(4)] == [
        ["Healthy"], ["Unhealthy"], ["Healthy"], ["Healthy"],
    ]  # fmt: skip


def test_whole_nics_go_into_pods_with_their_own_address_or_that_of_the_plan(run: Run) -> None:
    data = run.step("whole_pods")
    first, second = data["nics"]
    shown = {
        name: {rail: (link["pci"], link["mtu"], link["up"], link["addresses"]) for rail, link in pod.items()}
        for name, pod in data["begun"].items()
        if name in ("pod", "other")
    }
    assert shown == {
        "pod": {"rail2": (first, 1400, True, ["10.102.0.7/16"])},
        "other": {"rail2": (second, 1500, True, ["10.102.0.9/16"])},
    }
    assert data["begun"]["host"] == {}
    assert data["begun"]["spec"] == data["synchronized"] == sorted([first, second])


def test_whole_nics_of_two_pods_exchange_tcp_and_pings(run: Run) -> None:
    data = run.step("whole_pods")
    assert data["tcp"] == "100000 from 10.102.0.7"
    assert data["pings"] >= 9


def test_whole_nics_of_ended_pods_have_their_name_address_and_mtu_on_the_host_and_are_up(run: Run) -> None:
    data = run.step("whole_pods")
    first, second = data["nics"]
    assert data["before"][first]["addresses"] == ["10.102.0.7/16"]
    assert (data["before"][first]["mtu"], data["before"][first]["up"]) == (1400, True)
    assert data["ended"] == {"pod": {}, "host": {first: data["before"][first]}, "spec": [second]}
    assert data["all_ended"] == {"host": data["before"], "spec": []}


def test_whole_nics_of_a_namespace_that_died_unseen_are_on_the_host_as_before(run: Run) -> None:
    data = run.step("whole_pods")
    first, second = data["nics"]
    assert set(data["third"]["pod"]) == {"rail2", "rail2b"}
    returned = {nic: (data["returned"][nic]["name"], data["returned"][nic]["up"]) for nic in data["nics"]}
    assert returned == {first: ("rail2", False), second: ("rail2b", False)}  # by the kernel
    assert data["returned"][first]["addresses"] == []
    assert data["restored"] == {"host": data["before"], "spec": []}


def test_the_kernel_is_that_of_the_package_and_has_two_numa_nodes(run: Run) -> None:
    assert run.step("facts")["kernel"] == run.manifest["kernel"]
    assert run.step("facts")["nodes"] == "0-1"
