"""A script as AdaptDL's tutorials are, with its import lines changed: python adaptdl_job.py FOLDER [STEP].

At that step of the first epoch rank 1 is told to end. What is at the end is written to FOLDER.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from torch.optim.lr_scheduler import StepLR

import deeppart.elastic.adaptdl.torch as adl
from deeppart.elastic import adaptdl


def main(folder: Path, told_at: int | None) -> None:
    random = torch.Generator().manual_seed(1)
    inputs = torch.randn(240, 8, generator=random, dtype=torch.float64)
    dataset = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
    loader = adl.AdaptiveDataLoader(dataset, batch_size=24, shuffle=True, drop_last=True)
    valid_loader = adl.AdaptiveDataLoader(dataset, batch_size=48)
    torch.manual_seed(0)
    net: Any = torch.nn.Sequential(
        torch.nn.Linear(8, 8, dtype=torch.float64), torch.nn.Tanh(), torch.nn.Linear(8, 1, dtype=torch.float64)
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
    adl.init_process_group("gloo")
    # The estimate of noise is another one on another number of replicas; a fixed rule keeps the results comparable.
    rule = adaptdl.torch.scaling_rules.LinearScale()
    net = adl.AdaptiveDataParallel(net, optimizer, scheduler, scaling_rule=rule)
    losses = []
    for epoch in adl.remaining_epochs_until(3):
        stats = adl.Accumulator()
        for number, (batch, targets) in enumerate(loader):
            if (epoch, number) == (0, told_at) and adaptdl.env.replica_rank() == 1:
                os.kill(os.getpid(), signal.SIGTERM)
            optimizer.zero_grad()
            loss = (net(batch) - targets).square().mean()
            loss.backward()
            optimizer.step()
            stats["train"] += loss.item() * len(targets)
        with torch.no_grad():
            for batch, targets in valid_loader:
                stats["valid"] += (net(batch) - targets).square().sum().item()
        with stats.synchronized():
            losses.append([epoch, stats["train"] / 240, stats["valid"] / 240])
        scheduler.step()
    if adaptdl.env.replica_rank() == 0:
        found = {"losses": losses, "replicas": adaptdl.env.num_replicas(), "lr": scheduler.get_last_lr()}
        (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None)
