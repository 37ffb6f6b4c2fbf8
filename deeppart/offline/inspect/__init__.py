"""Inspection of checkpoints on storage. The results are frozen records, which the commands print.

One process, no MPI. Nothing here takes part in a running job, and only :mod:`~deeppart.offline.inspect.pruning`, and
``verifying`` with ``repair``, change anything on storage. ``listing`` and ``pruning`` do not import torch, which takes
seconds.
"""
