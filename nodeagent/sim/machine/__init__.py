"""A simulated machine from a YAML model: its files under a root, and methods for events and faults."""

from nodeagent.sim.machine.blueprint import ModelError
from nodeagent.sim.machine.kernel import MachineError
from nodeagent.sim.machine.simulated_machine import Machine

__all__ = ["Machine", "MachineError", "ModelError"]
