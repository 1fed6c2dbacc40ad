"""The file of the agent's plan: the agent writes it, `nodeagent attach` and the doctor read it. Every call blocks."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec
from msgspec.structs import replace

from nodeagent.attach.attach_files import ATTACH_FOLDER
from nodeagent.attach.pod_plan import AttachPlan
from nodeagent.base.file_writing import replace_changed_file
from nodeagent.base.regular_file import read_regular

log = logging.getLogger(__name__)

PLAN_FILE = f"{ATTACH_FOLDER}/plan.json"


def read_attach_plan(folder: Path) -> AttachPlan | None:
    """The plan that the agent wrote last; ``None`` if there is none. ``folder`` is the state directory."""
    try:
        return msgspec.json.decode(read_regular(folder / PLAN_FILE), type=AttachPlan)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        log.warning("The agent's plan cannot be read. file=%s reason=%r", folder / PLAN_FILE, str(error))
        return None


def write_attach_plan(folder: Path, plan: AttachPlan) -> bool:
    """Write the plan, if it differs from the file; return whether it did. Raises ``OSError``."""
    return replace_changed_file(folder / PLAN_FILE, msgspec.json.encode(plan, order="sorted") + b"\n")


def switch_off(folder: Path) -> None:
    """Let pods that have netdevs keep them until their end, and no pod get any: the settings no longer ask for it.
    Raises ``OSError``."""
    if (plan := read_attach_plan(folder)) is not None and plan.on:
        write_attach_plan(folder, replace(plan, on=False))
