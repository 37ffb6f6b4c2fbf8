"""A real Slurm of four nodes on this host: munged, slurmctld and four slurmd, all in one directory and on free ports.

    with Rig() as rig:
        job = rig.sbatch("job.sbatch", "--nodes=2", env={"STEPS": "10"})
        rig.wait_for_state(job, "COMPLETED")

The nodes are virtual: each slurmd has a name, a port and a spool directory of its own, and with ``srun --mpi=pmi2`` MPI
takes ranks on different ones for ranks on different hosts; but memory, file systems and processors are shared. Nothing
of the system's own Slurm configuration is read or written, and everything ends with the ``with`` block, by the daemons'
pid files.

Needs root and Debian's packages slurmctld, slurmd, slurm-client and munge; ``unavailable()`` says what is missing.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.mpi.launch import sweep_shared_memory
from tests.processes import is_running

NODES = 4
CPUS_PER_NODE = 4

#: A client that is hung up on is started again.
_TRIES = 5
_DAEMONS = ("munged", "slurmctld", "slurmd")
_CLIENTS = ("srun", "sbatch", "scancel", "scontrol", "squeue", "sinfo")

_SLURM_CONF = """\
ClusterName=rig
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={dir}/munge.sock
CryptoType=crypto/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0
ReturnToService=1
SlurmdParameters=config_overrides
SlurmctldTimeout=30
SlurmdTimeout=10
KillWait=2
MinJobAge=60
JobRequeue=1
MessageTimeout=5
TreeWidth=16
PropagateResourceLimits=NONE
StateSaveLocation={dir}/state
SlurmdSpoolDir={dir}/spool/%n
TmpFS={dir}/tmp/%n
SlurmctldPidFile={dir}/slurmctld.pid
SlurmdPidFile={dir}/slurmd.%n.pid
SlurmctldLogFile={dir}/slurmctld.log
SlurmdLogFile={dir}/slurmd.%n.log
NodeName=node[1-{nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first_port}-{last_port}] \
CPUs={cpus} RealMemory=4000 State=UNKNOWN
PartitionName=lab Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""

_CGROUP_CONF = "CgroupAutomount=no\nConstrainCores=no\nConstrainRAMSpace=no\n"


def unavailable() -> str | None:
    """Why no Slurm can be started here, or None."""
    if missing := [name for name in (*_DAEMONS, *_CLIENTS) if shutil.which(name, path=_PATH) is None]:
        return f"no {', '.join(missing)}: apt-get install --no-install-recommends slurmctld slurmd slurm-client munge"
    if os.geteuid() != 0:
        return "slurmd starts as root only"
    return None


class Rig:
    """A running Slurm; ``sbatch``, ``srun`` and the others talk to it."""

    def __init__(self) -> None:
        # Short: the paths of sockets end at 107 characters.
        self.directory = Path(tempfile.mkdtemp(prefix="slurm-"))
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH", "PMI_", "DEEPPART_"))}
        self.env |= {"SLURM_CONF": str(self.directory / "slurm.conf"), "PATH": _PATH}
        self.nodes = [f"node{number}" for number in range(1, NODES + 1)]

    def __enter__(self) -> Rig:
        try:
            self._write_files()
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def _write_files(self) -> None:
        for name in ("state", *(f"{kind}/{node}" for kind in ("spool", "tmp") for node in self.nodes)):
            (self.directory / name).mkdir(parents=True)
        key = self.directory / "munge.key"
        key.touch(mode=0o400)
        key.write_bytes(secrets.token_bytes(1024))
        port = _free_range(1 + NODES)
        conf = _SLURM_CONF.format(
            dir=self.directory,
            host=socket.gethostname().partition(".")[0],
            controller_port=port,
            nodes=NODES,
            cpus=CPUS_PER_NODE,
            first_port=port + 1,
            last_port=port + NODES,
        )
        (self.directory / "slurm.conf").write_text(conf)
        (self.directory / "cgroup.conf").write_text(_CGROUP_CONF)

    def _start(self) -> None:
        d = self.directory
        files = {"key": "munge.key", "socket": "munge.sock", "pid": "munged.pid", "log": "munged.log"}
        files |= {"seed": "munge.seed"}
        named = [f"--{kind}-file={d / name}" for kind, name in files.items() if kind != "socket"]
        self.run("munged", "--force", "--num-threads=2", f"--socket={d / files['socket']}", *named)
        self.run("slurmctld", "-c", "-f", str(d / "slurm.conf"))
        for node in self.nodes:
            self.run("slurmd", "-N", node, "-f", str(d / "slurm.conf"))
        self.wait_for(lambda: self._node_states() == ["idle"] * NODES, "the nodes to be idle", 20.0)

    def _node_states(self) -> list[str]:
        return self.run("sinfo", "--noheader", "--Node", "--format=%T", check=False).split()

    def stop(self) -> None:
        """End all daemons, with what runs under them, and remove the directory."""
        if (self.directory / "slurmctld.pid").exists():
            with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
                self.end_jobs()
        names = [*(f"slurmd.{node}" for node in self.nodes), "slurmctld", "munged"]
        pids = [pid for name in names if (pid := self._pid(name)) is not None]
        for signum, patience in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signum)
            deadline = time.monotonic() + patience
            while (pids := [pid for pid in pids if is_running(pid)]) and time.monotonic() < deadline:
                time.sleep(0.01)
        for pid in self.left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        sweep_shared_memory()
        shutil.rmtree(self.directory, ignore_errors=True)

    def end_jobs(self, patience: float = 8.0) -> None:
        """End all jobs that are left, as by a test that has failed: they would take the processors from later ones."""
        if not self.run("squeue", "--noheader"):
            return
        self.run("scancel", "--signal=KILL", "--user=root", check=False)
        self.run("scancel", "--user=root", check=False)
        self.wait_for(lambda: not self.run("squeue", "--noheader"), "the jobs to end", patience)

    def left(self) -> list[int]:
        """Processes of this rig's jobs, by their environment: whatever has become of slurmd."""
        mark = f"SLURM_CONF={self.directory / 'slurm.conf'}".encode()
        found = []
        for environment in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                settings = environment.read_bytes().split(b"\0")
                if mark in settings and any(each.startswith(b"SLURM_JOB_ID=") for each in settings):
                    found.append(int(environment.parent.name))
        return found

    def _pid(self, daemon: str) -> int | None:
        """The process of a daemon that this rig started, by its pid file."""
        with contextlib.suppress(OSError, ValueError):
            pid = int((self.directory / f"{daemon}.pid").read_text())
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            if str(self.directory).encode() in command:
                return pid
        return None

    def run(
        self,
        *command: str,
        check: bool = True,
        timeout: float = 60.0,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> str:
        """Run a command with this Slurm's configuration; its standard output.

        Raises:
            AssertionError: the exit code is not 0, unless ``check`` is false; with what it printed.
        """
        for _ in range(_TRIES):
            done = subprocess.run(
                command,
                env=self.env | (dict(env) if env else {}),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
                cwd=cwd,
            )
            if done.returncode != -signal.SIGPIPE or command[0] != "scontrol":
                break
            time.sleep(1.0)  # a slurmctld that is too busy has hung up
        if check and done.returncode != 0:
            raise AssertionError(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def srun(self, *command: str, timeout: float = 300.0, env: Mapping[str, str] | None = None) -> str:
        """``srun`` with these arguments; its standard output."""
        return self.run("srun", *command, timeout=timeout, env=env)

    def sbatch(
        self,
        script: Path | str,
        *options: str,
        arguments: tuple[str, ...] = (),
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> int:
        """Submit a batch script with its arguments; the id of the job."""
        printed = self.run("sbatch", "--parsable", *options, str(script), *arguments, env=env, cwd=cwd)
        return int(printed.strip().partition(";")[0])

    def state(self, job: int) -> str:
        """State of a job as Slurm writes it: PENDING, RUNNING, COMPLETED, CANCELLED, FAILED, ..."""
        for field in self.run("scontrol", "--oneliner", "show", "job", str(job)).split():
            if field.startswith("JobState="):
                return field.partition("=")[2]
        raise AssertionError(f"job {job} has no state")

    def wait_for_state(self, job: int, *states: str, timeout: float = 60.0) -> str:
        """Wait until a job is in one of the states; fail at once when it has ended in another."""
        final = {"COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"}

        def reached() -> bool:
            state = self.state(job)
            if state in final - set(states):
                raise AssertionError(f"job {job} ended {state}, not {' or '.join(states)}")
            return state in states

        self.wait_for(reached, f"job {job} to be {' or '.join(states)}", timeout)
        return self.state(job)

    def wait_for(self, condition: Callable[[], Any], what: str, timeout: float = 60.0) -> None:
        """Wait until a function returns something true."""
        deadline = time.monotonic() + timeout
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"waited {timeout:g} s for {what}\n{self.logs()}")
            time.sleep(0.05)

    def logs(self, lines: int = 15) -> str:
        """The end of every daemon's log."""
        texts = []
        for file in sorted(self.directory.glob("*.log")):
            texts += [f"--- {file.name}", *file.read_text(errors="replace").splitlines()[-lines:]]
        return "\n".join(texts)


#: Daemons live in sbin, which is not on every user's PATH.
_PATH = os.pathsep.join([os.environ.get("PATH", "/usr/bin:/bin"), "/usr/sbin", "/sbin"])


def _free_range(length: int) -> int:
    """First of ``length`` consecutive ports, free a moment ago and below those that the kernel hands out by itself."""
    for _ in range(200):
        first = 17_000 + secrets.randbelow(14_000)
        with contextlib.ExitStack() as stack:
            try:
                for port in range(first, first + length):
                    stack.enter_context(socket.socket()).bind(("", port))
            except OSError:
                continue
            return first
    raise RuntimeError(f"no {length} free ports between 17000 and 31000")
