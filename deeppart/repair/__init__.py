"""Repair of damaged or lost files while a job runs."""
