"""Sharded states: saved in one layout, restored in another; every rank is started by torchrun."""
