"""Checkpoints without a job: load, inspect, verify, repair, export; no MPI."""
