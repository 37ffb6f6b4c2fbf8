"""Sessions over sockets: without MPI, or where MPI is not for background threads.

Reading order: ``address`` (how a rank is reached), ``rank_sockets`` (its sockets, and who may connect), ``transport``
(messages between ranks), ``trees`` (collectives made of them), ``channel`` (the communicator), ``rendezvous`` (how
ranks find each other without MPI).
"""
