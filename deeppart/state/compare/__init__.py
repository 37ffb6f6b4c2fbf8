"""The comparison of leaves between ranks: digests, turns, and when each leaf was compared."""
