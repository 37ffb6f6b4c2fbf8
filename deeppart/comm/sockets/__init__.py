"""Ranks without MPI: started by torchrun, by srun with ``env://``, or by anything that lets them meet at a store.

Reading order: ``card`` (how a rank is reached), ``doors`` (its sockets, and who may connect), ``transport`` (messages
between ranks), ``trees`` (collectives made of them), ``channel`` (the communicator), ``meeting`` (how ranks find each
other).
"""
