"""Pieces of real logs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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

#: LANL's file: its columns, and lines of it.
LANL = """\
System,machine type,nodes,procstot,procsinnode,nodenum,nodenumz,node install,node prod,node decom,fru type,mem,cputype,\
memtype,num intercon,purpose,Prob Started,Prob Fixed,Down Time,Facilities,Hardware,Human Error,Network,Undetermined,\
Software,Same Event
2,cluster,49,6152,80,0,0,5-Apr,5-Jun,current,part,80,1,1,0,graphics.fe,6/21/2005 10:54,6/21/2005 11:00,6,,Graphics \
Accel Hdwr,,,,,No
2,cluster,49,6152,80,0,0,5-Apr,5-Jun,current,part,80,1,1,0,graphics.fe,9/6/2005 9:13,9/6/2005 9:19,6,,,,,,\
Other Software,No
2,cluster,49,6152,128,1,1,Nov-96,Jan-97,5-Nov,part,32,1,1,12,compute,2/23/1997 13:00,2/23/1997 14:00,60,,,,,,DST,No
2,cluster,49,6152,128,1,1,Nov-96,Jan-97,5-Nov,part,32,1,1,12,compute,3/3/1997 10:00,3/3/1997 10:25,25,,Maintenance,\
,,,,No
"""
#: The example of Philly's README, which ran twice.
PHILLY: list[dict[str, Any]] = [
    {
        "status": "Pass",
        "vc": "ee9e8c",
        "jobid": "application_1506638472019_14199",
        "attempts": [
            {
                "start_time": "2017-10-07 01:12:09",
                "end_time": "2017-10-07 01:13:23",
                "detail": [{"ip": "m47", "gpus": ["gpu0", "gpu1", "gpu2", "gpu3", "gpu4", "gpu5", "gpu6", "gpu7"]}],
            },
            {
                "start_time": "2017-10-07 01:13:30",
                "end_time": "2017-10-09 06:53:12",
                "detail": [{"ip": "m412", "gpus": ["gpu0", "gpu1", "gpu2", "gpu3", "gpu4", "gpu5", "gpu6", "gpu7"]}],
            },
        ],
        "submitted_time": "2017-10-07 01:11:39",
        "user": "ce2f4c",
    }
]


def written(folder: Path, text: str | list[Any], name: str = "trace") -> Path:
    file = folder / name
    file.write_text(text if isinstance(text, str) else json.dumps(text))
    return file
