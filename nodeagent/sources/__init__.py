"""Each source watches one part of the machine and publishes all its facts."""
