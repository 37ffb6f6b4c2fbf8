"""Many jobs on a shared cluster: how a policy allocates GPUs, and when each job is done."""
