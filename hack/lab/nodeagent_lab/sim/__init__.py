"""Real things made small: what surrounds the agent, for the tests and the demo, and plainly labelled so."""
