"""The time of one checkpoint and one restore, stage by stage."""
