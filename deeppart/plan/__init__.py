"""Pure plans: checkpoint intervals, redundancy, sources of a restore, shards. No files, clock or communication."""
