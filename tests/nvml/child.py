"""A process with the stand-in on its loader path: reads calls as JSON lines and writes their results."""

import json
import logging
import sys

import msgspec

from nodeagent.facts.model import MigSlot
from nodeagent.host.gpu_driver import DriverError, MigRefused
from nodeagent.host.nvml import Nvml, opened_gpu
from nodeagent.host.nvml_mig import make_mig_device, remove_mig_device


def mig(call, uuid, profile, start, size, fresh=False):
    slot = MigSlot(uuid, profile, start, size)
    with opened_gpu(uuid) as (lib, gpu):
        if call == "make":
            return make_mig_device(lib, gpu, slot, fresh=fresh)
        return remove_mig_device(lib, gpu, slot)


logging.basicConfig(level=logging.INFO)
nvml = Nvml(processes=True, profiling=True)
for line in sys.stdin:
    call, arguments = json.loads(line)
    answer = {}
    try:
        value = mig(call, *arguments) if call in ("make", "remove") else getattr(nvml, call)(*arguments)
        value = tuple(value) if call == "vitals" else value
        answer["value"] = msgspec.to_builtins(value)
    except DriverError as error:
        answer = {"error": str(error), "absent": error.absent}
    except MigRefused as refusal:
        answer["value"] = {"refused": str(refusal), "remains": refusal.remains, "in_use": refusal.in_use}
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
