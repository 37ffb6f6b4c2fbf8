"""Advice: the levels, cadence and redundancy that waste the least time."""
