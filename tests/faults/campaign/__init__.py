"""A fault campaign: jobs under real MPI, faults of many kinds, and every restored byte compared.

    python -m tests.faults.campaign --seed 7 --runs 20

A *scenario* is a few *lives* of one job on the same directories. Before, during and between lives things go wrong;
every life begins with a restore, which is judged by what is known of every file on storage.

| module | its concern |
|--------|-------------|
| ``plan`` | from a seed a list of scenarios; pure; ``records`` what they are made of |
| ``special`` | scenarios about one thing each: stopped ranks, late storage, clocks, signals |
| ``cutting`` | those about power loss, by ``tests.faults.power`` |
| ``sweep`` | the same for every storage operation of a small job: ``--every`` |
| ``stages`` | names inside the library at which processes are killed; the only place that knows them |
| ``contents`` | the one true state of every step |
| ``life`` | what a rank does in one life, under mpirun; ``training``: its checkpoints |
| ``incidents`` | what happens to a rank's process: kills, stops, signals |
| ``repeating`` | makes names and encodings depend on the seed |
| ``order`` | what the runner tells the ranks |
| ``files`` | what lies on storage, read without the library; ``faults`` what is done to it |
| ``oracle`` | what has to come back, and what may not be lost |
| ``jobs`` | starts jobs, and waits for them with a limit |
| ``runner`` | hands scenarios to them; ``judge`` what came of it |
| ``report`` | counts, and the table |
"""
