"""Faults from a seeded schedule against real processes, and a check that nothing was lost or repeated."""
