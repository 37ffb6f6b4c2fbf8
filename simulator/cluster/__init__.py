"""Many jobs on a cluster that they share: who gets how many GPUs, by which policy, and when each is done.

``applications`` says how fast a training goes, from measurements; ``jobs`` is one of them under way; ``policies`` share
out the GPUs; ``engine`` runs the rounds; ``result`` is what comes of it.
"""
