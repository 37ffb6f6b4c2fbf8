"""Submit a training to Slurm by submitit. It goes on after failures, and is queued again before its time is up.

    python examples/submitit_training.py --nodes 2 --ranks 8 -- python train.py

It prints the number of the job. Settings are DEEPPART_* variables, as for `deeppart run`.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time

import submitit


class Training:
    """One start of a training on all nodes of the job; submitit runs it once on each of them."""

    def __init__(self, words: list[str]) -> None:
        self.words = words

    def __call__(self) -> None:
        self.run = subprocess.Popen(["deeppart", "run", "--until", "off", *self.words])
        while self.run.poll() is None:  # checkpoint() is called in between, by submitit's signal handler
            time.sleep(0.5)
        if self.run.returncode not in (0, 143):
            raise subprocess.CalledProcessError(self.run.returncode, self.words)

    def checkpoint(self) -> submitit.helpers.DelayedSubmission:
        """The time is nearly up, or the job is preempted: submitit queues what this returns."""
        self.run.send_signal(signal.SIGUSR1)  # a last checkpoint
        self.run.wait()
        return submitit.helpers.DelayedSubmission(Training(self.words))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--ranks", default="1", help="on each node")
    parser.add_argument("--folder", default="submitit", help="for submitit's files and logs")
    parser.add_argument("command", nargs="+", metavar="-- COMMAND")
    options = parser.parse_args()
    executor = submitit.AutoExecutor(folder=options.folder, cluster="slurm", slurm_max_num_timeout=1000)
    executor.update_parameters(nodes=options.nodes, tasks_per_node=1, timeout_min=24 * 60, slurm_signal_delay_s=300)
    job = executor.submit(Training(["--ranks", options.ranks, "--", *options.command]))
    sys.stdout.write(f"{job.job_id}\n")
