"""Pieces of real logs."""

from __future__ import annotations

from pathlib import Path

#: sacct of Slurm 22.05.8, four nodes: a good job, a failed one; one that lost its node, was requeued, preempted,
#: requeued by hand and runs; a cancelled one, one without requeue that lost its node, the one that preempted, one that
#: had had its time.
SACCT = """\
JobID|State|Submit|Start|End|NNodes|NCPUS|NodeList
1|COMPLETED|2026-11-27T15:54:10|2026-11-27T15:54:11|2026-11-27T15:54:13|2|2|node[1-2]
2|FAILED|2026-11-27T15:54:10|2026-11-27T15:54:11|2026-11-27T15:54:12|1|1|node1
3|NODE_FAIL|2026-11-27T15:54:15|2026-11-27T15:54:15|2026-11-27T15:54:26|2|8|node[1-2]
3|PREEMPTED|2026-11-27T15:54:26|2026-11-27T15:54:30|2026-11-27T15:54:46|2|8|node[3-4]
4|CANCELLED by 0|2026-11-27T15:54:35|2026-11-27T15:54:35|2026-11-27T15:54:38|1|1|node1
5|NODE_FAIL|2026-11-27T15:54:38|2026-11-27T15:54:38|2026-11-27T15:54:41|1|4|node1
3|REQUEUED|2026-11-27T15:54:46|2026-11-27T15:54:58|2026-11-27T15:56:09|2|8|node[1-2]
6|COMPLETED|2026-11-27T15:54:46|2026-11-27T15:54:46|2026-11-27T15:54:52|4|16|node[1-4]
7|TIMEOUT|2026-11-27T15:55:01|2026-11-27T15:55:01|2026-11-27T15:56:09|1|1|node3
3|RUNNING|2026-11-27T15:56:09|2026-11-27T15:56:13|Unknown|2|8|node[1-2]
"""


def written(folder: Path, text: str, name: str = "trace") -> Path:
    file = folder / name
    file.write_text(text)
    return file
