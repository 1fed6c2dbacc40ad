"""A machine made from a small YAML model: its files under a root, and a life in the field's words."""

from nodeagent.sim.machine.blueprint import ModelError
from nodeagent.sim.machine.kernel import MachineError
from nodeagent.sim.machine.live import Machine

__all__ = ["Machine", "MachineError", "ModelError"]
