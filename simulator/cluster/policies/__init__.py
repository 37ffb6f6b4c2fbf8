"""How the GPUs of a cluster are shared out among its jobs: one module for each policy."""
