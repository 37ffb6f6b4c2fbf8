"""Measures this machine by running the library on it: what ``deeppart-sim calibrate`` and ``validate`` start under MPI.

    mpirun -n 4 python -m deeppart.cli.calibrate TASKS.json

``tasks`` says what can be asked for, ``saves`` runs real checkpoints, ``pieces`` times single operations.
"""
