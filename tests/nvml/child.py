"""A process with the stand-in on its loader path: reads calls as JSON lines and writes their results."""

import json
import logging
import sys

import msgspec

from nodeagent.host.gpu_driver import DriverError
from nodeagent.host.nvml import Nvml

logging.basicConfig(level=logging.INFO)
nvml = Nvml(processes=True, profiling=True)
for line in sys.stdin:
    call, arguments = json.loads(line)
    answer = {}
    try:
        value = getattr(nvml, call)(*arguments)
        value = tuple(value) if call == "vitals" else value
        answer["value"] = msgspec.to_builtins(value)
    except DriverError as error:
        answer = {"error": str(error), "absent": error.absent}
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
