"""Simulated runs of weeks with failures: what survives, what is lost, and how much of the time is useful."""
