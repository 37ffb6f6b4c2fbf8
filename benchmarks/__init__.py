"""What checkpoints cost, beside peers and limits: see docs/benchmarks.md."""
