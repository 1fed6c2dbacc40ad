"""Readers of counters and sensors, and the scheduler that runs them. Each sample holds the values of one device."""
