"""Facts about a machine, what pods hold of it, and CDI specs, as immutable values; ``inventory`` has the latest."""
