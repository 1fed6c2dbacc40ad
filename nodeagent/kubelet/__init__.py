"""The device plugin: registration, gRPC service, device lists, allocation files and the holdings of pods."""
