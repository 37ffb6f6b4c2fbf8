"""Containers and tensors: flattening, comparing, capturing and restoring a state. No files."""
