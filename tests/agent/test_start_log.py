"""The log of an agent that starts on a healthy machine is short: it has no line for each of many equal devices."""

from __future__ import annotations

import logging
import re

import pytest

from nodeagent.agent_config import load
from tests.support.running_agent import HEAD, node


async def test_a_start_on_eight_gpus_and_eight_rails_has_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="nodeagent")
    one_for_each = 'resources: [{kind: vf}, {kind: gpu-mem, name: "gpu-mem{gpu}"}]\n'
    async with node("dgx-h100") as started:
        await started.kubelet.start()
        await started.start_agent(load(HEAD + one_for_each, name="test"))
        await started.registered()
        await started.until(lambda: sum(accepted(caplog)) == 16)
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("nodeagent.")]
    assert len(lines) <= 10, "\n".join(lines)
    assert not [line for line in lines if "A GPU is healthy" in line]


def accepted(caplog: pytest.LogCaptureFixture) -> list[int]:
    """The numbers of resources in the lines about their registration."""
    return [int(found) for found in re.findall(r"has accepted resources\. resources=(\d+)", caplog.text)]
