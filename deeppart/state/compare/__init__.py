"""Which leaves are the same on every rank: digests, turns, what was compared when."""
