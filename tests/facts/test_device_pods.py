"""The pods of each NIC and GPU: by the IDs of devices, whatever gave them."""

from __future__ import annotations

from msgspec.structs import replace

from nodeagent.facts.device_pods import pods_by_device
from nodeagent.facts.model import Holding, MigDevice
from tests.support.cluster_node import gpu, holding, snapshot


def test_slices_vfs_mig_devices_and_claims_are_those_of_their_parent_and_other_plugins_of_none():
    mig = replace(gpu(1), mig=True, mig_devices=(MigDevice("MIG-7", "1g.10gb", 9856, 1, 0),))
    made = snapshot(
        links=(None, None),
        gpus=(None,),
        holdings=(
            holding("b", "x/mem", "GPU-0::0", "GPU-0::1"),
            holding("a", "x/mem", "GPU-0::7"),
            holding("a", "x/nic", "0000:11:00.1"),
            holding("m", "x/mig", "MIG-7"),
            Holding("default", "claims", "", "gpu", ("GPU-0",), claim="one"),
            Holding("", "", "", "gpu", ("GPU-0",), claim="reserved by nobody"),
            holding("other", "y/z", "1", "GPU-9", "0000:99:00.1"),
        ),
    )
    made = replace(made, gpus=(*made.gpus, mig))
    assert pods_by_device(made) == {
        "GPU-0": ("default/a", "default/b", "default/claims"),
        "GPU-1": ("default/m",),
        "0000:11:00.0": ("default/a",),
    }
    assert pods_by_device(replace(made, holdings=None)) == {}
