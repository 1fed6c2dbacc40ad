"""The planner that computes every plan from the levels alone."""

from __future__ import annotations
