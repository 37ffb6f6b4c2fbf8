"""The inspecting room: what checkpoints on storage are, told in frozen records. The commands only print these.

One process, no MPI; nothing here takes part in a running job, and only :mod:`~deeppart.offline.inspect.pruning` changes
anything on storage. ``listing``, ``ownership`` and ``pruning`` work without torch, which takes seconds to import.
"""
