"""Sessions over sockets: without MPI, or if MPI does not support background threads.

Reading order: ``address`` (the address of a rank), ``rank_sockets`` (its sockets, and who may connect), ``transport``
(messages between ranks), ``rendezvous`` (how ranks find each other without MPI).
"""
