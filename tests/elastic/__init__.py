"""Elastic training: the same training on numbers of ranks that change, each run started by torchrun."""
