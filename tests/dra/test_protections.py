"""Each protection of the device-plugin path has a line for claims, and the reverse, or a reason why it has none.

The rows are the invariants of ``kubelet/``, ``dra/`` and ``kinds/`` in docs/invariants.md, and protections that have
no invariant there (``UNSTATED``). A line is a test, ``file::name``; a text without ``::`` is the reason why the path
needs none.
"""

from __future__ import annotations

import ast
import re
from typing import NamedTuple

import pytest

from tests.support.manifests import ROOT

REGISTRATION, RIVAL = "kubelet/test_registration.py", "kubelet/test_rival_plugin.py"
DRIVER, CLAIMS, PREPARATION = "dra/test_driver.py", "dra/test_claims.py", "dra/test_claim_preparation.py"
FOLDERS, CLAIM_FOLDERS = "attacks/test_unwritable_folders.py", "attacks/test_unwritable_claims.py"
PUBLISHER, POOLS = "cluster/test_slice_publisher.py", "dra/test_published_pools.py"


class Protection(NamedTuple):
    invariant: str
    """The beginning of its sentence in docs/invariants.md."""
    plugin: str
    claims: str


UNSTATED = (
    Protection(
        "GPUs without the library of their driver are not offered",
        "offering/test_decision.py::test_gpus_wait_for_the_library_of_their_driver",
        "offering/test_decision.py::test_claims_of_gpus_wait_for_the_library_of_their_driver",
    ),
    Protection(
        "A slice that a pod holds keeps its size",
        "kubelet/test_slice_sizes.py::test_slices_that_a_pod_holds_keep_their_size_over_a_restart_with_another",
        "a claim has an amount of memory, and no slices that the kubelet counts",
    ),
    Protection(
        "A kubelet that starts again gets everything again",
        f"{REGISTRATION}::test_a_kubelet_that_was_killed_and_restarted_gets_every_resource_again",
        f"{DRIVER}::test_a_driver_without_a_kubelet_is_not_registered",
    ),
    Protection(
        "The folder of the kubelet's sockets may be removed and made again",
        f"{REGISTRATION}::test_the_kubelets_folder_may_be_removed_and_created_again",
        f"{DRIVER}::test_the_kubelets_folders_may_be_removed_and_created_again",
    ),
    Protection(
        "A pod that holds a failed device is told",
        "cluster/test_affected_devices.py::test_links_and_gpus_are_reported_and_pods_that_hold_a_failed_one_are_affected",
        "cluster/test_affected_devices.py::test_a_pod_that_holds_a_failed_device_by_a_claim_is_affected_too",
    ),
    Protection(
        "Pods leave a device that has failed for good, where the administrator asks for it",
        "cluster/test_evictions.py::test_a_pod_with_a_failed_device_is_evicted_within_its_budget",
        "cluster/test_agent_tasks.py::test_changed_settings_of_no_execute_and_of_its_guard_count_for_claims_at_once",
    ),
    Protection(
        "With enforcement evict a pod that uses more than its share is evicted",
        "sharing/test_gpu_accounting.py::test_with_enforcement_evict_the_pod_is_evicted_through_the_api",
        "sharing/test_gpu_accounting.py::test_with_enforcement_evict_a_pod_with_a_claim_is_evicted_too",
    ),
    Protection(
        "A CDI spec that is removed is written again",
        "agent/test_agent.py::test_an_allocation_whose_cdi_spec_is_gone_and_cannot_be_written_names_the_file",
        "dra/test_claim_renewal.py::test_files_that_were_wiped_under_a_running_agent_are_there_again",
    ),
    Protection(
        "A cordoned device takes no new pod",
        "health/test_cordons.py::test_a_cordoned_device_gets_no_new_pod_and_its_pods_stay",
        f"{POOLS}::test_a_cordon_is_a_taint_beside_that_of_a_fault",
    ),
    Protection(
        "A sick device takes no new container",
        "kinds/test_gpu_memory.py::test_an_unhealthy_gpu_is_skipped_and_its_slices_are_refused_with_the_reason",
        f"{PREPARATION}::test_an_unhealthy_device_is_refused_unless_the_request_tolerates_its_taint",
    ),
)

TABLE = (
    Protection(
        "A missing device stays on the list as Unhealthy",
        "kubelet/test_device_list.py::test_a_device_that_goes_is_unhealthy_and_healthy_when_it_is_back",
        f"{POOLS}::test_a_lost_gpu_and_a_missing_nic_are_tainted_and_stay_published",
    ),
    Protection(
        "Serve before Register",
        f"{REGISTRATION}::test_every_resource_is_registered_and_listed",
        f"{DRIVER}::test_a_removed_socket_comes_back",
    ),
    Protection(
        "End the old server and its streams before a new registration",
        f"{REGISTRATION}::test_a_removed_socket_is_bound_and_registered_again_without_the_race",
        "the kubelet keys drivers by their endpoint (dra_plugin_manager.go): the end of one disconnects no other",
    ),
    Protection(
        "A name that another plugin has registered",
        f"{RIVAL}::test_our_stream_stays_open_and_silent_while_another_plugin_has_the_name",
        f"{DRIVER}::test_another_driver_of_our_name_is_told_until_it_goes_and_then_ours_is_registered_again",
    ),
    Protection(
        "Hold the lock before binding a socket",
        f"{REGISTRATION}::test_a_second_agent_waits_for_the_first_one_to_end",
        f"{DRIVER}::test_of_two_agents_one_serves_and_the_other_takes_over_with_the_records_of_then",
    ),
    Protection(
        "Equal device lists are equal bytes",
        "kubelet/test_device_list.py::test_an_equal_list_is_not_sent_again",
        f"{PUBLISHER}::test_the_steady_state_writes_nothing_and_neither_does_a_restart",
    ),
    Protection(
        "gRPC handlers answer from memory, within 2 s",
        f"{REGISTRATION}::test_a_write_that_hangs_is_refused_at_the_deadline",
        f"{CLAIMS}::test_an_api_server_that_is_away_for_a_moment_costs_only_time",
    ),
    Protection(
        "Device-info files are on disk before Allocate returns",
        f"{REGISTRATION}::test_a_full_disk_refuses_the_allocation_and_names_the_file",
        f"{CLAIMS}::test_a_prepared_claim_has_its_files_before_the_answer_and_none_after_its_end",
    ),
    Protection(
        "A resource is offered only while the files that its containers need can be written",
        f"{FOLDERS}::test_a_full_device_info_folder_withholds_the_vfs_and_nothing_else",
        f"{CLAIM_FOLDERS}::test_a_full_folder_keeps_new_claims_away_until_it_has_room",
    ),
    Protection(
        "Every device is tainted while the files of claims cannot be written",
        f"{FOLDERS}::test_a_device_info_folder_that_becomes_read_only_is_noticed_before_a_pod_fails",
        f"{CLAIM_FOLDERS}::test_a_folder_that_becomes_read_only_is_noticed_before_a_claim_fails",
    ),
    Protection(
        "A VF, or a GPU with a resource of its own, that was offered under another name",
        "kubelet/test_rail_memory.py::test_a_vf_with_another_name_waits_for_the_holdings",
        "a claim names the device itself, and its record holds the VF whatever the rail's number is",
    ),
    Protection(
        "An empty podresources answer counts only after it is stable",
        "kubelet/test_holdings.py::test_an_empty_list_without_the_own_pod_does_not_count_yet",
        f"{POOLS}::test_a_pool_is_unknown_before_its_facts",
    ),
    Protection(
        "Hardware is offered by a device plugin or by claims, never by both",
        "dra/test_agent.py::test_the_agent_prepares_a_claim_and_after_a_change_of_the_mode_its_hardware_waits_for_the_end",
        "dra/test_devices.py::test_a_device_that_a_plugin_has_given_to_a_pod_is_left_out_until_the_pod_ends",
    ),
    Protection(
        "Prepare checks the sums itself",
        "the kubelet alone counts the devices of a plugin, and gives none twice",
        f"{PREPARATION}::test_the_sum_of_all_claims_never_exceeds_a_gpu_or_a_pf",
    ),
    Protection(
        "The record of a claim names devices, and its device nodes are those of the present facts",
        "each Allocate reads the present facts, and the agent's specs of GPUs and VFs follow them",
        "dra/test_claim_renewal.py::test_a_claim_that_is_prepared_again_gets_the_nodes_that_its_vf_has_now",
    ),
    Protection(
        "A MIG device is made once its record is on the disk",
        "a device plugin makes no MIG device",
        "dra/test_mig_claims.py::test_a_record_that_stayed_on_the_disk_does_not_end_the_claim_that_has_its_place_now",
    ),
    Protection(
        "A record of a claim is compared with the API server",
        "podresources lists what pods hold, and the agent keeps no record",
        f"{CLAIMS}::test_a_claim_that_the_kubelet_never_ends_blocks_nothing_without_end",
    ),
    Protection(
        "Each claim of a request has an entry in the answer",
        "Allocate is about one container and one resource",
        f"{DRIVER}::test_one_refused_claim_of_a_request_leaves_the_others_their_answer",
    ),
    Protection(
        "A change of several ResourceSlices of a pool raises the generation",
        "a list is one message",
        "dra/test_slice_layout.py::test_a_change_within_one_slice_keeps_the_generation_and_a_change_of_two_raises_it_everywhere",
    ),
    Protection(
        "A slice has at most 64 devices",
        "offering/test_offer.py::test_a_list_too_long_for_the_kubelet_is_fatal_and_names_the_slice_size_that_fits",
        "dra/test_slice_layout.py::test_the_scheduler_sees_exactly_the_wanted_devices_after_the_writes_and_then_nothing_is_written",
    ),
    Protection(
        "No DeviceClass has the name of GPU memory",
        "a device plugin has no DeviceClass",
        "daemonset/test_dra_manifests.py::test_no_class_has_a_name_whose_amount_is_no_number_of_devices",
    ),
    Protection(
        "Required devices of a request are never left out",
        "kinds/test_gpu_memory.py::test_required_slices_fix_the_gpu_even_if_another_fits_better",
        "a claim has one allocation for all containers of its pod: none is handed on from an init container",
    ),
    Protection(
        "The slices of a container are on one GPU",
        "kinds/test_gpu_memory.py::test_every_allocation_is_on_one_gpu_or_on_whole_gpus",
        f"{PREPARATION}::test_a_claim_gets_a_share_of_one_gpu_and_a_vf_of_one_pf",
    ),
    Protection(
        "Volcano's choice of a GPU is honored or refused",
        "features/volcano_deviceshare/test_volcano_deviceshare.py::test_forged_and_stale_annotations_are_refused_with_the_reason",
        "the scheduler itself writes the allocation of a claim, which authors of pods cannot",
    ),
    Protection(
        "A device list fits into 3 MiB",
        "kinds/test_device_list_size.py::test_the_smallest_slice_fits_and_one_less_does_not",
        "dra/test_vf_devices.py::test_a_vf_is_not_shared_and_many_are_in_several_slices",
    ),
    Protection(
        "A held device whose ID no kind of ours makes is another plugin's",
        "cluster/test_affected_devices.py::test_a_device_of_another_plugin_under_our_name_is_none_of_ours",
        "the record of a claim names devices of this driver alone",
    ),
    Protection(
        "A rail keeps its number",
        "kinds/test_rail_numbers.py::test_a_known_card_never_changes_its_rail",
        "dra/test_vf_devices.py::test_a_rail_keeps_its_number_over_a_restart_without_the_nic_before_it",
    ),
    Protection(
        "A level of enforcement that the node lacks is refused with the missing part",
        "kinds/test_gpu_memory.py::test_a_level_is_in_force_or_refused_with_the_part_that_is_missing",
        f"{PREPARATION}::test_a_gpu_without_its_mps_daemon_has_a_taint_and_is_refused_until_the_daemon_is_ready",
    ),
    Protection(
        "Two resources never set the same environment variable",
        "kinds/test_gpu_memory.py::test_the_variables_of_a_resource_of_one_gpu_end_with_its_number",
        f"{PREPARATION}::test_several_vfs_of_one_request_are_in_the_variables_of_each_of_its_devices",
    ),
    *UNSTATED,
)


def invariants(section: str) -> list[str]:
    """The bold sentences of a section of the invariants."""
    text = (
        (ROOT / "docs/invariants.md").read_text().partition(f"\n## `{section}/`\n")[2].partition("\n## ")[0]
    )
    return [" ".join(found.split()) for found in re.findall(r"^\* \*\*(.*?)\*\*", text, re.M | re.S)]


def test_each_invariant_of_both_paths_is_a_row() -> None:
    stated = [*invariants("kubelet"), *invariants("dra"), *invariants("kinds")]
    assert len(stated) > 25
    missing = [
        sentence for sentence in stated if not any(sentence.startswith(row.invariant) for row in TABLE)
    ]
    assert not missing, f"add a row: does the other path have this protection? {missing}"
    rows = {row.invariant for row in TABLE}.difference(row.invariant for row in UNSTATED)
    assert not [row for row in rows if not any(sentence.startswith(row) for sentence in stated)]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.invariant)
def test_each_path_of_a_protection_has_a_test_or_a_reason(row: Protection) -> None:
    lines = (row.plugin, row.claims)
    assert any("::" in line for line in lines), "one path has the protection"
    for line in lines:
        file, _, name = line.partition("::")
        if name:
            tree = ast.parse((ROOT / "tests" / file).read_text())
            defined = {
                it.name for it in ast.walk(tree) if isinstance(it, ast.FunctionDef | ast.AsyncFunctionDef)
            }
            assert name in defined, f"{file} has no test {name}"
        else:
            assert " " in line, "a reason is a sentence"
