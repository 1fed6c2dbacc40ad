"""The devices of a DRA driver, made from a configuration and the facts of a machine."""

from __future__ import annotations

import doctest
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from nodeagent.agent_config import Config, load
from nodeagent.config.faults import ConfigError
from nodeagent.dra import devices
from nodeagent.dra.devices import gpu_name
from nodeagent.dra.gpu_device import GpuDevice
from nodeagent.dra.offered import without_plugin_holders
from nodeagent.dra.pf_device import PfDevice, pf_name
from nodeagent.facts.model import Holding, Snapshot
from nodeagent.offering.offer import Offer
from tests.support.kind_machines import SICK, WITH_DRIVER, gpu_of, pf_of, vf_of

HEAD = "apiVersion: nodeagent.io/v1alpha1\nkind: NodeAgentConfig\nresourcePrefix: example.com\n"
BOTH = "resources:\n- {kind: vf, mode: dra}\n- {kind: gpu-mem, mode: dra}\n"


def configured(text: str) -> Config:
    return load(HEAD + text, name="test.yaml")


def machine(rails: int = 2, gpus: int = 2, vfs: int = 4, **facts: object) -> Snapshot:
    pfs = [pf_of(rail, vfs) for rail in range(rails)]
    functions = [function for pf in pfs for function in (pf, *(vf_of(pf, i) for i in range(vfs)))]
    return Snapshot(
        functions=tuple(sorted(functions, key=lambda function: function.pci_address)),
        gpus=tuple(gpu_of(index) for index in range(gpus)),
        **{"paths": WITH_DRIVER, **facts},
    )


def test_the_doctests_pass() -> None:
    assert doctest.testmod(devices).failed == 0


def test_a_gpu_is_one_device_with_its_memory_in_whole_slices() -> None:
    gpus = [it for it in Offer(configured(BOTH)).dra_devices(machine()) if isinstance(it, GpuDevice)]
    assert [gpu.name for gpu in gpus] == [gpu_name(gpu.gpu.uuid) for gpu in gpus]
    capacity = gpus[0].capacity
    assert (capacity.quantity(capacity.total), capacity.quantity(capacity.step)) == ("80896Mi", "1024Mi")
    assert capacity.default == capacity.total, "a claim that names no amount gets the whole GPU"


def test_a_pf_is_one_device_whose_vfs_are_its_capacity() -> None:
    pfs = [it for it in Offer(configured(BOTH)).dra_devices(machine()) if isinstance(it, PfDevice)]
    assert [(pf.name, pf.rail, len(pf.vfs)) for pf in pfs] == [
        ("nic-0000-40-00-0", 0, 4),
        ("nic-0000-41-00-0", 1, 4),
    ]
    assert (pfs[0].capacity.default, pfs[0].capacity.step) == (1, 1)
    assert pfs[0].kind.resource == "example.com/nic0", "programs find the VF under the name of the resource"


def test_health_changes_no_capacity() -> None:
    facts = machine()
    sick = replace(
        facts,
        gpus=tuple(replace(gpu, health=SICK) for gpu in facts.gpus),
        functions=tuple(replace(function, health=SICK) for function in facts.functions),
    )
    offer = Offer(configured(BOTH))
    before, after = offer.dra_devices(facts), offer.dra_devices(sick)
    assert [(it.name, it.capacity) for it in before] == [(it.name, it.capacity) for it in after]
    assert {it.health for it in after} == {SICK}


def test_a_kind_with_mode_dra_is_never_offered_by_a_device_plugin() -> None:
    facts = machine()
    for text, resources, names in (
        ("", {"nic0", "nic1", "gpu-mem"}, 0),
        ("resources:\n- {kind: vf, mode: dra}\n- {kind: gpu-mem}\n", {"gpu-mem"}, 2),
        ("resources:\n- {kind: vf}\n- {kind: gpu-mem, mode: dra}\n", {"nic0", "nic1"}, 2),
        (BOTH, set(), 4),
    ):
        offer = Offer(configured(text))
        assert {kind.resource.partition("/")[2] for kind in offer.kinds(facts)} == resources
        assert len(offer.dra_devices(facts)) == names
        assert not offer.troubles(facts)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "resources:\n- {kind: vf, name: a, mode: dra, select: {netdevs: [a]}}\n"
            "- {kind: vf, name: b, select: {netdevs: [b]}}\n",
            "all entries of one kind have one mode",
        ),
        (
            "resources:\n- {kind: vf, name: a, mode: dra, select: {vfIndexes: ['0-3']}}\n"
            "- {kind: vf, name: b, mode: dra, select: {vfIndexes: ['4-7']}}\n",
            "a PF is one device",
        ),
        ("resources:\n- {kind: gpu-mem, mode: dra, deviceListStrategy: envvar}\n", "by CDI alone"),
        (
            "resources:\n- {kind: gpu-mem, mode: dra}\n- {kind: gpu, select: {indexes: ['0']}}\n",
            "offered twice",
        ),
        (BOTH + "cluster: {access: none}\n", "dra needs an API server"),
        (BOTH + "kubelet: {podResources: false}\n", "dra needs kubelet.podResources"),
    ],
)
def test_a_configuration_that_offers_hardware_twice_is_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        configured(text)
    assert words in " ".join(fault.message for fault in refused.value.faults)


def test_one_pf_in_two_entries_is_found_on_the_machine() -> None:
    text = (
        "resources:\n- {kind: vf, name: 'a{rail}', mode: dra, select: {netdevs: ['ibp0'], vfIndexes: ['0-1']}}\n"
        "- {kind: vf, name: 'b{rail}', mode: dra, select: {drivers: [mlx5_core], vfIndexes: ['2-3']}}\n"
    )
    messages = [trouble.message for trouble in Offer(configured(text)).troubles(machine()) if trouble.fatal]
    assert messages == ["nic-0000-40-00-0 is in 2 entries of resources; with mode dra each PF is in one"]


def test_a_device_that_a_plugin_has_given_to_a_pod_is_left_out_until_the_pod_ends() -> None:
    facts = machine()
    every = Offer(configured(BOTH)).dra_devices(facts)
    gpu, pf = every[0], every[-1]
    assert isinstance(gpu, GpuDevice)
    assert isinstance(pf, PfDevice)
    holdings = (
        Holding("ns", "old", "main", "example.com/gpu-mem", (f"{gpu.gpu.uuid}::3",)),
        Holding("ns", "old", "main", "example.com/nic1", (pf.vfs[2],)),
        Holding("ns", "new", "", "example.com/nic0", (every[2].kind.devices(facts)[0].ids[0],), claim="c"),
    )
    free, left_out = without_plugin_holders(every, replace(facts, holdings=holdings))
    assert {device.name for device in left_out} == {gpu.name, pf.name}
    assert len(free) == len(every) - 2, "what a claim gave is no obstacle"


@given(st.sets(st.text(max_size=80), max_size=8))
def test_names_are_dns_labels_and_differ_as_the_hardware_does(texts: set[str]) -> None:
    lower = {text.lower().removeprefix("gpu-") for text in texts}
    for name in (gpu_name, pf_name):
        names = {name(text) for text in lower}
        assert all(re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", it) for it in names)
    assert len({gpu_name(text) for text in lower}) == len(lower)
