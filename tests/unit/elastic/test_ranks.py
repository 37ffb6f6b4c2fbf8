"""Who trains, without a launcher and with torch.distributed; under MPI: tests/mpi/elastic/test_accumulator.py."""

from __future__ import annotations

import torch.distributed as dist

from deeppart.elastic.ranks import OfJob, OfTorch, ranks_of_job


def test_one_process() -> None:
    ranks = ranks_of_job()
    assert isinstance(ranks, OfJob) and (ranks.rank, ranks.size) == (0, 1)
    assert ranks.gather({"a": 1}, "adding") == [{"a": 1}]


def test_torch_distributed_where_it_is_initialized() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        ranks = ranks_of_job()
        assert isinstance(ranks, OfTorch) and (ranks.rank, ranks.size) == (0, 1)
        assert ranks.gather({"a": [1.5, None]}, "adding") == [{"a": [1.5, None]}]
    finally:
        dist.destroy_process_group()
