"""Generate the tables of the pages in ``docs/reference/`` from the declarations in ``nodeagent/``.

Tests compare the pages with these tables; ``make golden`` writes them.
"""
