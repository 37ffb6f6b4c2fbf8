"""A fault of torchrun, without deeppart: ranks that it starts again do not meet (torch 2.13.0).

    torchrun --standalone --nproc-per-node 4 --max-restarts 1 torchrun_restart.py

Rank 1 is killed, and torchrun starts all ranks again. Then init_process_group("gloo") fails with "Gloo connectFullMesh
failed ... Connection refused", or hangs: the agent's store is that of the first start, with the addresses of dead ranks
(torch/distributed/elastic/rendezvous/dynamic_rendezvous.py shares one store between rounds, while _create_c10d_store in
torch/distributed/rendezvous.py takes it to be new in each). With TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 all ranks meet.
"""

import os
import signal

import torch.distributed as dist

restart, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(os.environ["RANK"])
dist.init_process_group("gloo")
dist.barrier()
if rank == 0:
    print(f"restart {restart}: all ranks have met", flush=True)
if restart == 0 and rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
dist.barrier()
dist.destroy_process_group()
