"""A simulated machine from a YAML model: its files under a root, and methods for events and faults."""

from nodeagent_lab.sim.machine.blueprint import ModelError
from nodeagent_lab.sim.machine.kernel import MachineError
from nodeagent_lab.sim.machine.simulated_machine import Machine

__all__ = ["Machine", "MachineError", "ModelError"]
