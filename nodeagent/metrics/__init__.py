"""Metrics of the agent and of the controller: the table of families and their rendering."""
