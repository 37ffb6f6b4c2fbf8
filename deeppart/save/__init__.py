"""Saving a checkpoint: capture, encode, write, protect, flush, commit, retire."""
