"""Many jobs on a cluster that they share: who gets how many GPUs, by which policy, and when each is done."""
