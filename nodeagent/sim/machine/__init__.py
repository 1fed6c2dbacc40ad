"""A machine made from a small YAML model: its files under a root, and a life in the field's words."""

from nodeagent.sim.machine.kernel import MachineError
from nodeagent.sim.machine.live import Machine
from nodeagent.sim.machine.model import ModelError

__all__ = ["Machine", "MachineError", "ModelError"]
