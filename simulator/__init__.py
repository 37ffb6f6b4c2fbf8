"""Answers what-if questions with the same partitioner and restart planner as the library."""
