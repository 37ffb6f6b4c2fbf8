"""Several agents, each a process that stands for a node: what is lost, who leads, and where ranks start again."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from deeppart.agent import STOPPED, TOO_FEW_NODES
from deeppart.agent.links import _greeting
from deeppart.agent.messages import Lines
from tests.ports import free_port, free_ports
from tests.processes import is_running

AGENT = """
import json, sys
from deeppart.agent import Agent, Command, Credentials, JobOptions
given = json.loads(sys.argv[1])
def tell(event, **values):
    print(json.dumps([event, values]), flush=True)
command, options, node = Command.of(given["command"]), JobOptions(**given["options"]), given["node"]
sys.exit(Agent(command, options, tell, node, f"n{node}", Credentials(given["job"], None)).run())
"""
#: Each rank notes where it is, and trains until the test says that it is enough.
SCRIPT = """
import json, os, signal, sys, time
from deeppart.progress import is_asked_to_leave, reporting
rank, epoch, group, node = (int(os.environ[name]) for name in ("RANK", "DEEPPART_EPOCH", "GROUP_RANK", "NODE"))
known = dict(group=group, node=node, ranks=int(os.environ["WORLD_SIZE"]), pid=os.getpid(), zygote=os.getppid(),
             meet=os.environ["MASTER_ADDR"] + ":" + os.environ["MASTER_PORT"])
def stop(*_):
    with open(f"stopped-{rank}", "a") as file:
        file.write("x")
    time.sleep(0.5)
    sys.exit(143)
signal.signal(signal.SIGTERM, stop)
with open(f".{epoch}-{rank}", "w") as file:
    json.dump(known, file)
os.rename(f".{epoch}-{rank}", f"{epoch}-{rank}")
left = 10**9
while not os.path.exists("enough"):
    if is_asked_to_leave():
        sys.exit(143)
    if os.path.exists(f"fail-{epoch}-{rank}") or os.path.exists(f"fail-on-{node}"):
        sys.exit(5)
    if os.path.exists(f"hang-{epoch}"):  # rank 3 at once, the others three seconds later
        left = 0 if rank == 3 else min(left, 150)
    if left:
        left -= 1
        reporting.called(1)
    time.sleep(0.02)
"""
#: A module that is not imported while there is a file.
SLOW = """
import os, time
while os.path.exists("slow"):
    time.sleep(0.02)
open(f"ready-{os.getpid()}", "w").close()
"""
WAIT_S = 120.0


def until(condition: Callable[[], Any], what: Callable[[], object]) -> Any:
    """The first true value of a condition."""
    end_s = time.monotonic() + WAIT_S
    while not (found := condition()):
        assert time.monotonic() < end_s, what()
        time.sleep(0.02)
    return found


class Nodes:
    """A job on several nodes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.agents: list[subprocess.Popen[bytes]] = []
        self.lists: dict[int, list[str]] = {}

    def start(self, count: int, ranks: int = 1, lists: dict[int, list[str]] | None = None, **options: Any) -> None:
        self.hosts = [f"127.0.0.1:{port}" for port in free_ports(count)]
        self.lists = lists or {}
        (self.directory / "train.py").write_text(SCRIPT)
        self.options = {"ranks": ranks, "preload": [], "gather_s": 30.0, "silence_s": 6.0, **options}
        for node in range(count):
            self.begin(node)

    def begin(self, node: int, job: str = "a job") -> None:
        """Start the agent of a node."""
        command = [sys.executable, "train.py"]
        options = {**self.options, "nodes": self.lists.get(node, self.hosts)}
        given = {"command": command, "options": options, "node": node, "job": job}
        with open(self.directory / f"events-{node}", "ab") as events:
            agent = subprocess.Popen(
                [sys.executable, "-c", AGENT, json.dumps(given)],
                cwd=self.directory, env=os.environ | {"NODE": str(node)}, stdout=events,
            )  # fmt: skip
        self.agents[node : node + 1] = [agent]

    def epoch(self, number: int, ranks: int) -> list[dict[str, Any]]:
        """What the ranks of an epoch have noted, once all have."""

        def noted() -> list[dict[str, Any]]:
            files = [self.directory / f"{number}-{rank}" for rank in range(ranks)]
            return [json.loads(file.read_text()) for file in files] if all(map(Path.exists, files)) else []

        found: list[dict[str, Any]] = until(noted, lambda: f"epoch {number}: {self.events()}")
        assert [each["ranks"] for each in found] == [ranks] * ranks
        assert len({each["meet"] for each in found}) == 1
        return found

    def where(self, number: int, ranks: int) -> list[int]:
        """The nodes of the ranks of an epoch."""
        return [each["node"] for each in self.epoch(number, ranks)]

    def events(self, name: str | None = None) -> list[Any]:
        """All events that agents have reported; of one event the values."""
        lines = [line for file in sorted(self.directory.glob("events-*")) for line in file.read_text().splitlines()]
        found = [json.loads(line) for line in lines]
        return found if name is None else [values for event, values in found if event == name]

    def signal(self, node: int, number: signal.Signals) -> None:
        self.agents[node].send_signal(number)

    def finish(self, *nodes: int) -> list[int]:
        """Let the ranks be done; the exit codes of agents."""
        (self.directory / "enough").touch()
        return self.codes(*nodes)

    def codes(self, *nodes: int) -> list[int]:
        return [self.agents[node].wait(WAIT_S) for node in nodes or range(len(self.agents))]


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(tmp_path)
    yield made
    for agent in made.agents:
        agent.kill()
        agent.wait()


def gone(ranks: list[dict[str, Any]]) -> bool:
    """Whether no process of these runs any more."""
    return not any(is_running(each["pid"]) for each in ranks)


def test_ranks_are_numbered_over_the_nodes_and_all_start_again(nodes: Nodes) -> None:
    nodes.start(3, ranks=2)
    first = nodes.epoch(1, 6)
    assert [each["node"] for each in first] == [each["group"] for each in first] == [0, 0, 1, 1, 2, 2]
    (nodes.directory / "fail-1-3").touch()
    second = nodes.epoch(2, 6)
    assert [each["node"] for each in second] == [0, 0, 1, 1, 2, 2]
    assert gone(first) and second[0]["meet"] != first[0]["meet"]
    assert nodes.finish() == [0, 0, 0]
    (failed,) = nodes.events("failed")
    assert failed["rank"] == 3 and failed["exit_code"] == 5 and gone(second)


@pytest.mark.parametrize(("leads", "how"), [(False, signal.SIGKILL), (True, signal.SIGSTOP)])
def test_a_spare_takes_the_place_of_a_node(nodes: Nodes, leads: bool, how: signal.Signals) -> None:
    """Also of the one that leads, for which the others do not wait. One that comes back is a spare, without ranks."""
    nodes.start(4, spares=1, least=3, gather_s=100.0)
    first = nodes.epoch(1, 3)
    before = [each["node"] for each in first]
    lost = 0 if leads else next(node for node in before if node != 0)
    (spare,) = {0, 1, 2, 3} - {*before}
    began_s = time.monotonic()
    nodes.signal(lost, how)
    after = nodes.where(2, 3)
    took_s = time.monotonic() - began_s
    assert sorted(after) == sorted({0, 1, 2, 3} - {lost}) and took_s < 60
    if not leads:  # another one that leads does not know who ran which ranks
        assert after == [spare if node == lost else node for node in before]
    if how == signal.SIGSTOP:
        nodes.signal(lost, signal.SIGCONT)
        until(lambda: gone([each for each in first if each["node"] == lost]), nodes.events)
        nodes.signal(after[-1], signal.SIGKILL)
        assert lost in nodes.where(3, 3)
        lost = after[-1]
    assert nodes.finish(*({0, 1, 2, 3} - {lost})) == [0, 0, 0]


def test_a_spare_does_not_wait_for_a_process_that_imports_anew(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node whose process that forks was killed is a spare once it has imported."""
    package = nodes.directory / "site-packages"  # as if it was installed
    package.mkdir()
    (package / "slow.py").write_text(SLOW)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(package), os.environ.get("PYTHONPATH", "")]))

    def all_ready(count: int) -> None:
        until(lambda: len(list(nodes.directory.glob("ready-*"))) == count, nodes.events)
        time.sleep(2.0)  # the one that leads is told

    nodes.start(3, spares=1, least=2, preload=["slow"])
    first = nodes.epoch(1, 2)
    all_ready(3)
    (nodes.directory / "slow").touch()
    os.kill(first[1]["zygote"], signal.SIGKILL)
    (spare,) = {0, 1, 2} - {each["node"] for each in first}
    assert nodes.where(2, 2) == [first[0]["node"], spare] and gone(first[1:])
    (nodes.directory / "slow").unlink()
    all_ready(4)
    assert len(nodes.events("started")) == 2
    (nodes.directory / "fail-2-1").touch()
    assert nodes.where(3, 2) == [first[0]["node"], spare]
    assert nodes.finish() == [0, 0, 0]


def test_a_node_that_comes_and_goes_does_not_start_the_others_again_each_time(nodes: Nodes) -> None:
    nodes.start(3, least=1, steady_s=60.0)
    nodes.epoch(1, 3)
    for losses in range(1, 4):
        nodes.signal(1, signal.SIGKILL)
        nodes.codes(1)
        until(lambda losses=losses: len(nodes.events("node lost")) == losses, nodes.events)  # type: ignore[misc]
        nodes.begin(1)
        until(lambda: _handles(nodes.agents[1].pid, signal.SIGTERM), nodes.events)
        time.sleep(1.0)  # it joins
    assert nodes.where(2, 2) == [0, 2] and len(nodes.events("started")) == 2
    told = "its agent has ended; trusted again 240 s after it has come back"
    assert nodes.events("node lost")[-1] == {"node": "n1", "text": told}
    assert nodes.finish() == [0, 0, 0]


def test_without_spares_there_are_fewer_ranks(nodes: Nodes) -> None:
    nodes.start(3, ranks=2, least=1)
    nodes.epoch(1, 6)
    nodes.signal(1, signal.SIGKILL)
    assert nodes.where(2, 4) == [0, 0, 2, 2]
    nodes.signal(0, signal.SIGKILL)
    assert nodes.where(3, 2) == [2, 2]
    assert nodes.finish(2) == [0]


def test_with_too_few_nodes_the_job_ends_and_may_be_started_again(nodes: Nodes) -> None:
    nodes.start(2, least=2, gather_s=8.0)
    first = nodes.epoch(1, 2)
    nodes.signal(1, signal.SIGKILL)
    assert nodes.codes(0) == [TOO_FEW_NODES]
    (given_up,) = nodes.events("given up")
    assert [each["text"].partition(": ")[2] for each in nodes.events("note")] == [given_up["text"]], "waiting"
    assert gone(first) and given_up["text"] == f"there is room for 1 ranks, of at least 2; not there: {nodes.hosts[1]}"


def test_a_node_that_comes_in_time_is_taken(nodes: Nodes) -> None:
    nodes.start(2, least=2, gather_s=60.0)
    nodes.epoch(1, 2)
    nodes.signal(1, signal.SIGKILL)
    nodes.codes(1)
    until(lambda: nodes.events("node lost"), nodes.events)
    nodes.begin(1)
    assert nodes.where(2, 2) == [0, 1]
    assert nodes.finish() == [0, 0]


def test_the_first_node_does_not_lead_if_the_job_does_not_accept_it(nodes: Nodes) -> None:
    """Of two nodes it could go on by itself. It comes back with another command, or of another version."""
    nodes.start(2, least=1, gather_s=10.0, silence_s=2.0)
    nodes.epoch(1, 2)
    nodes.signal(0, signal.SIGKILL)
    nodes.codes(0)
    assert nodes.where(2, 1) == [1]
    nodes.begin(0, job="another job")
    assert nodes.codes(0) == [1]
    assert nodes.finish(1) == [0] and len(nodes.events("started")) == 2


def test_a_node_that_fails_again_and_again_is_set_aside(nodes: Nodes) -> None:
    nodes.start(3, spares=1, least=2, failures=2)
    before = nodes.where(1, 2)
    (nodes.directory / f"fail-on-{before[1]}").touch()
    (spare,) = {0, 1, 2} - {*before}
    assert nodes.where(4, 2) == [before[0], spare]
    assert nodes.finish() == [0, 0, 0]
    assert [each["node"] for each in nodes.events("set aside")] == [f"n{before[1]}"]


@pytest.mark.parametrize("asked", [(1,), (0, 1, 2)])
def test_a_signal_to_any_agent_stops_the_job(nodes: Nodes, asked: tuple[int, ...]) -> None:
    """Ranks get it once, also if each node's agent gets it, as by scancel."""
    nodes.start(3)
    ranks = nodes.epoch(1, 3)
    for node in asked:
        nodes.signal(node, signal.SIGTERM)
    assert nodes.codes() == [STOPPED] * 3
    assert [(nodes.directory / f"stopped-{rank}").read_text() for rank in range(3)] == ["x"] * 3 and gone(ranks)


def test_a_signal_before_the_others_are_there(nodes: Nodes) -> None:
    nodes.hosts = [f"127.0.0.1:{port}" for port in free_ports(3)]
    nodes.options = {"ranks": 1, "preload": [], "gather_s": 60.0}
    for node in (0, 1):
        nodes.begin(node)
    for node in (0, 1):
        until(lambda node=node: _handles(nodes.agents[node].pid, signal.SIGTERM), nodes.events)  # type: ignore[misc]
        nodes.signal(node, signal.SIGTERM)
    assert nodes.codes(0, 1) == [STOPPED, STOPPED]


def _handles(pid: int, number: signal.Signals) -> bool:
    (line,) = (each for each in Path(f"/proc/{pid}/status").read_text().splitlines() if each.startswith("SigCgt"))
    return bool(int(line.split()[1], 16) >> (number - 1) & 1)


class Cable:
    """Connects a port to another; what comes through it can be held up, as by a network that is cut."""

    def __init__(self, port: int) -> None:
        self._to, self.is_cut = port, threading.Event()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            here, _ = self._server.accept()
            with suppress(OSError):
                there = socket.create_connection(("127.0.0.1", self._to))
                for one, other in ((here, there), (there, here)):
                    threading.Thread(target=self._forward, args=(one, other), daemon=True).start()
                continue
            here.close()

    def _forward(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(1 << 16):
                while self.is_cut.is_set():
                    time.sleep(0.05)
                other.sendall(data)
        while self.is_cut.is_set():
            time.sleep(0.05)
        with suppress(OSError):
            other.shutdown(socket.SHUT_RDWR)
        one.close()


def test_of_two_parts_of_a_cluster_only_the_larger_one_goes_on(nodes: Nodes) -> None:
    """The smaller one, in which the job was led, ends its ranks, and gives up."""
    ports = free_ports(3)
    cables = [Cable(ports[0]) for _ in range(2)]
    lists = {node: [f"127.0.0.1:{cables[node - 1].port}", *(f"127.0.0.1:{port}" for port in ports[1:])]
             for node in (1, 2)}  # fmt: skip
    lists[0] = [f"127.0.0.1:{ports[0]}", *(f"127.0.0.1:{cables[0].port}" for _ in range(2))]
    nodes.start(3, lists=lists, least=1, gather_s=10.0)
    first = nodes.epoch(1, 3)
    for cable in cables:
        cable.is_cut.set()
    assert nodes.where(2, 2) == [1, 2]
    assert nodes.codes(0) == [TOO_FEW_NODES] and gone(first)
    assert nodes.finish(1, 2) == [0, 0]
    for cable in cables:
        cable.is_cut.clear()  # its threads end


def test_a_node_that_was_stopped_does_not_go_on_by_itself(nodes: Nodes) -> None:
    """It was dropped, and cannot reach the node that goes on."""
    nodes.start(2, least=1, gather_s=8.0)
    nodes.epoch(1, 2)
    nodes.signal(1, signal.SIGSTOP)
    assert nodes.where(2, 1) == [0]
    nodes.signal(0, signal.SIGSTOP)
    nodes.signal(1, signal.SIGCONT)
    assert nodes.codes(1) == [TOO_FEW_NODES]
    nodes.signal(0, signal.SIGCONT)
    assert nodes.finish(0) == [0]
    assert len(nodes.events("started")) == 2


def test_a_signal_that_the_one_that_leads_did_not_hear(nodes: Nodes) -> None:
    nodes.start(3, least=1)
    nodes.epoch(1, 3)
    nodes.signal(0, signal.SIGSTOP)
    nodes.signal(2, signal.SIGTERM)
    time.sleep(0.3)
    nodes.signal(0, signal.SIGKILL)
    assert nodes.codes(1, 2) == [STOPPED, STOPPED]


def test_strangers_end_no_agent(nodes: Nodes) -> None:
    nodes.start(2)
    nodes.epoch(1, 2)
    said_by_each = [b"[" * 60_000 + b"\n", b"1\n", b'{"joined": 3}\n', b"\0\xff\n" * 100, b"x" * 200_000, b""]
    for said in said_by_each * 20:
        with socket.create_connection(("127.0.0.1", int(nodes.hosts[0].partition(":")[2]))) as stranger:
            with suppress(OSError):
                stranger.sendall(said)
    assert nodes.finish() == [0, 0]
    assert len(nodes.events("started")) == 1


@pytest.mark.parametrize("says", ["1\n", "drips"])
def test_another_server_at_the_port_of_a_node(nodes: Nodes, says: str) -> None:
    """Neither ends nor holds up an agent, which gives up in its time, or on a signal."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.5)
        done = threading.Event()
        nodes.lists = {1: [f"127.0.0.1:{server.getsockname()[1]}", f"127.0.0.1:{free_port()}"]}
        thread = threading.Thread(target=_serve, args=(server, says, done), daemon=True)
        thread.start()
        nodes.hosts, nodes.options = [], {"ranks": 1, "preload": [], "gather_s": 30.0}
        nodes.begin(1)
        agent = nodes.agents[-1]
        until(lambda: _handles(agent.pid, signal.SIGTERM), nodes.events)
        time.sleep(1.0)
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(WAIT_S) == STOPPED
        done.set()
        thread.join()


def _serve(server: socket.socket, says: str, done: threading.Event) -> None:
    while not done.is_set():
        with suppress(TimeoutError):
            end, _ = server.accept()
            with suppress(OSError), end:
                while True:
                    end.sendall(b"x" if says == "drips" else says.encode())
                    time.sleep(0.2)


def test_ranks_on_several_nodes_hang(nodes: Nodes, capfd: pytest.CaptureFixture[str]) -> None:
    nodes.start(2, ranks=2, hang_s=4.0)
    first = nodes.epoch(1, 4)
    time.sleep(6.0)
    assert nodes.events("hang") == []
    (nodes.directory / "hang-1").touch()
    nodes.epoch(2, 4)
    assert gone(first) and nodes.finish() == [0, 0]
    assert nodes.events("hang")[0]["text"].endswith("behind: rank 3")
    (failed,) = nodes.events("failed")
    assert failed["rank"] == 3 and failed["exit_code"] == -9
    assert {f"deeppart run: rank {rank}:" for rank in range(4)} <= set(capfd.readouterr().err.splitlines())


class Cli:
    """Agents that are started as users do."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.listed = ",".join(f"127.0.0.1:{port}" for port in free_ports(2))
        self.agents: list[subprocess.Popen[str]] = []

    def start(self, *options: str, secret: str | None = None, command: str = "true") -> subprocess.Popen[str]:
        variables = {}
        if secret is not None:
            path = self.directory / secret
            path.touch(0o600)
            path.write_text(secret * 20)
            variables = {"DEEPPART_SECRET_FILE": str(path)}
        words = [sys.executable, "-m", "deeppart", "run", "--ranks", "1", "--preload", "none"]
        agent = subprocess.Popen(
            [*words, *(("--nodes", self.listed) if "--nodes" not in options else ()), *options, "--", command],
            env=os.environ | variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self.agents.append(agent)
        return agent


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    made = Cli(tmp_path)
    yield made
    for agent in made.agents:
        agent.kill()
        agent.communicate()


def test_agents_with_the_secret_of_the_job_find_each_other(cli: Cli) -> None:
    agents = [cli.start("--node", str(node), secret="one") for node in range(2)]
    for agent in agents:
        assert agent.wait(WAIT_S) == 0


def test_agents_that_do_not_belong_to_the_job_are_refused(cli: Cli) -> None:
    leads = cli.start("--node", "0", secret="one")
    others = {
        cli.start("--node", "1", secret="other"): "they have different secrets",
        cli.start("--node", "1"): "they have different secrets",
        cli.start("--node", "1", "--nodes", f"{cli.listed},127.0.0.1:9", secret="one"): "it is of job",
        cli.start("--node", "1", secret="one", command="false"): "start the same command",
    }
    for stranger, said in others.items():
        assert stranger.wait(WAIT_S) == 2
        assert stranger.stdout is not None and said in stranger.stdout.read()
    assert leads.poll() is None


def test_a_node_that_is_there_twice_is_refused(cli: Cli) -> None:
    cli.listed += ",127.0.0.1:9"
    first = [cli.start("--node", str(node)) for node in (0, 1)]
    second = cli.start("--node", "1")
    until(lambda: any(each.poll() is not None for each in (first[1], second)), lambda: "both")
    (refused,) = (each for each in (first[1], second) if each.poll() is not None)
    assert refused.returncode == 2
    assert refused.stdout is not None and "is there already" in refused.stdout.read()


def test_a_port_that_is_in_use(cli: Cli) -> None:
    port = int(cli.listed.partition(",")[0].partition(":")[2])
    with socket.create_server(("127.0.0.1", port)):
        agent = cli.start("--node", "0")
        assert agent.wait(WAIT_S) == 2
    assert agent.stdout is not None and "a port is in use" in agent.stdout.read()


def test_what_follows_a_greeting_is_not_lost() -> None:
    """The first start may come with the welcome."""
    here, there = socket.socketpair()
    with here, there:
        there.sendall(b'{"welcome": 1}\n{"kind": "View", "nodes": [0]}\n')
        lines = Lines(here)
        assert _greeting(lines, time.monotonic() + 10) == {"welcome": 1}
        assert lines.receive() == [{"kind": "View", "nodes": [0]}]
