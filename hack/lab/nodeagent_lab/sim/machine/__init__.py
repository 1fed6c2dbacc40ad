"""A stand-in for a machine, from a YAML model: its files under a root, and methods for events and faults.

Compared with a kernel 6.1 that has NICs of igb with VFs (``tests/vm``): the same agent finds the same there. The files
of mlx5 and of NVIDIA's driver follow their source and recordings alone.
"""

from nodeagent_lab.sim.machine.blueprint import ModelError
from nodeagent_lab.sim.machine.kernel import MachineError
from nodeagent_lab.sim.machine.simulated_machine import Machine

__all__ = ["Machine", "MachineError", "ModelError"]
