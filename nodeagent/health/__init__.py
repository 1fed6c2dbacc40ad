"""Rules that turn what sources hear into a verdict with reasons; pure, handed the time, never reading it."""
