"""Each source watches one part of the world and states whole facts; it knows no listener."""
