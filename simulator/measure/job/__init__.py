"""What the ranks of a measurement run, in processes of their own: only here the library is used as a job uses it.

    mpirun -n 4 python -m deeppart_simulator.measure.job TASKS.json

``saves`` runs real checkpoints, ``pieces`` times single operations.
"""
