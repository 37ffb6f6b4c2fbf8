"""Runs of weeks with failures: what survives, what is lost, what remains useful."""
