"""Readers of counters and sensors, and the sampler that runs them. A sample holds the values of one device."""
