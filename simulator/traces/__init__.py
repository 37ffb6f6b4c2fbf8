"""Failure traces: logs of schedulers and jobs, read into one form."""
