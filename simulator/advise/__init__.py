"""The levels, cadence and redundancy that waste least."""
