"""People who come from another program write its keys, or give its file: the answer names ours."""

from __future__ import annotations

import pytest

from nodeagent.agent_config import load
from nodeagent.config.file_errors import ConfigError

HEAD = "apiVersion: nodeagent.io/v1alpha1\nkind: NodeAgentConfig\n"
PAGE = "docs/migration.md#"


def refused(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(text, name="c.yaml")
    return str(caught.value)


@pytest.mark.parametrize(
    ("entry", "line"),
    [
        (
            "select: {rootDevices: [x]}",
            "resources[0].select.rootDevices: unknown key; here it is pciAddresses, of the PFs",
        ),
        (
            "select: {pfNames: [x]}",
            "resources[0].select.pfNames: unknown key; here it is netdevs, and ens1f0#0-3 is netdevs: [ens1f0] with "
            'vfIndexes: ["0-3"]',
        ),
        (
            "resourceName: x",
            "resources[0].resourceName: unknown key; here it is name; the part before the slash is resourcePrefix, "
            "beside resources",
        ),
        ("selectors: {}", "resources[0].selectors: unknown key; here it is select"),
        ("vfIndexes: ['0-3'], select: {}", "resources[0].vfIndexes: unknown key; it is a list of select"),
        ("needVhostNet: true", "resources[0].needVhostNet: unknown key; here it is vhostNet"),
        (
            "select: {needVhostNet: true}",
            "resources[0].select.needVhostNet: unknown key; here it is vhostNet, beside select",
        ),
        (
            "select: {netdevs: ['ens1f0#0-3,7']}",
            'resources[0].select.netdevs[0]: "ens1f0#0-3,7" names VFs: write ens1f0, and vfIndexes: ["0-3", "7"]',
        ),
    ],
)
def test_a_key_of_sriov_network_device_plugin_gets_the_name_of_ours(entry: str, line: str) -> None:
    assert refused(f"{HEAD}resources: [{{kind: vf, {entry}}}]\n").partition(": ")[2] == line


def test_a_netdev_with_a_number_sign_is_a_name_like_others() -> None:
    config = load(f"{HEAD}resources: [{{kind: vf, select: {{netdevs: ['rail#a', '#1*']}}}}]\n", name="c.yaml")
    assert config.resources[0].select.netdevs == ("rail#a", "#1*")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            '{"resourceList": [{"resourceName": "a"}]}',
            f"sriov-network-device-plugin: `nodeagent config from sriovdp FILE` converts it ({PAGE}sriov-network-",
        ),
        (
            "version: v1\nsharing: {timeSlicing: {}}\n",
            f"NVIDIA's device plugin: `nodeagent config from nvidia FILE` converts it ({PAGE}nvidia-device-plugin-",
        ),
        (
            "version: v1\nflags: {migStrategy: none}\n",
            f"NVIDIA's device plugin: `nodeagent config from nvidia FILE` converts it ({PAGE}nvidia-device-plugin-",
        ),
        (
            "configList: []\n",
            "k8s-rdma-shared-dev-plugin: `nodeagent config from rdma-shared FILE` converts it",
        ),
        (
            "kind: NicClusterPolicy\nspec: {}\n",
            "`nodeagent config from rdma-shared FILE` its rdmaSharedDevicePlugin",
        ),
        (
            "kind: SriovNetworkNodePolicy\nspec: {}\n",
            f"the SR-IOV network operator: `nodeagent config from sriov-operator FILE` converts it ({PAGE}sriov-",
        ),
        ("kind: ConfigMap\ndata: {}\n", "a ConfigMap: give the text of its key alone"),
    ],
)
def test_the_file_of_another_program_is_known_and_is_the_only_message(text: str, words: str) -> None:
    message = refused(text)
    assert message.startswith("c.yaml:1:1: this is ")
    assert words in message
    assert "\n" not in message
