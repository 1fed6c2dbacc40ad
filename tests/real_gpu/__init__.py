"""On a machine with an NVIDIA GPU and its driver (`make test-gpu`)."""
