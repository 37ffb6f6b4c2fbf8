"""Power loss: what a job has done to its files is recorded, and cut off at every point, with the weakest promises.

    python -m tests.faults.power --seed 3                # one job, every cut, a few ways in which each may end
    python -m tests.faults.power --without all           # takes out each fsync in turn, to see that it is missed

| module | its concern |
|--------|-------------|
| ``recording`` | every change to files below a directory, in order, by a wrapper around ``os`` |
| ``disk`` | what a storage may hold when the power goes: only what was synced is certain |
| ``trial`` | the job that is recorded, and the restore that judges what is left of it |

What is promised: bytes of a file that were there at its last ``fsync``; entries of a directory that were there at its
last ``fsync``. Everything else may be there, or not, or in part: bytes lost, zeros in their place, or torn between two
pages; entries one by one. A rename within a directory is one change, as on every file system in use.
"""
