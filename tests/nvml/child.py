"""A process with the stand-in on its loader's path: does what it is told, a JSON line at a time."""

import dataclasses
import json
import logging
import sys

from nodeagent.host.gpu_driver import DriverError
from nodeagent.host.nvml import Nvml

logging.basicConfig(level=logging.INFO)
nvml = Nvml(processes=True)
for line in sys.stdin:
    call, arguments = json.loads(line)
    answer = {}
    try:
        value = getattr(nvml, call)(*arguments)
        value = tuple(value) if call == "vitals" else value
        answer["value"] = [dataclasses.asdict(one) for one in value] if isinstance(value, tuple) else value
    except DriverError as error:
        answer = {"error": str(error), "absent": error.absent}
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
