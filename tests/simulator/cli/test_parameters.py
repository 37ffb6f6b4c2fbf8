"""Every option of every command changes something or is refused: what is offered and ignored misleads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import pytest
from deeppart_simulator.cli import main

from tests.simulator.commands import sim

# --- the options, and two ways to give each ---------------------------------------------------------------------------

Way = tuple[str, ...]
#: Without the option, and with it.
FLAG, FILE = "flag", "file"
OUTPUTS: dict[str, Any] = {"--json": FLAG, "--csv": FILE, "--report": FILE, "--png": FILE}
JOB: dict[str, Any] = OUTPUTS | {
    "--state": ("bert-base", "gpt2"),
    "--from": ((), ("--from", "model.py")),
    "--machine": ("summit", "llama3"),
    "--ranks-per-node": ("4", "8"),
    "--compression": ("none", "tensor"),
    "--capture": ("eager", "lazy"),
    "--partner": (("--partner",), ("--no-partner",)),
    "--parity": ("2/1", "4/2"),
    "--local": (("--local",), ("--no-local",)),
    "--flush-bandwidth": ("1 GB/s", "2 MB/s"),
    "--flush-share": ("0.5", "1e-6"),
}
#: Of commands without a chart.
TABLES = {name: way for name, way in OUTPUTS.items() if name != "--png"}
MEASURING: dict[str, Any] = {"--local-dir": ("one", "two"), "--persistent-dir": ("one", "two")}
WAYS: dict[str, dict[str, Any]] = {
    "scale": JOB
    | {
        "--ranks": ("8", "32"),
        "--strategy": ("whole", "flat"),
        "--goodput": FLAG,
        "--every": (("--goodput", "--every", "10min"), ("--goodput", "--every", "20min,1h")),
        "--blocked": (("--goodput", "--blocked", "1s"), ("--goodput", "--blocked", "1s,2s")),
        "--days": (("--goodput", "--days", "10"), ("--goodput", "--days", "20")),
    },
    "campaign": JOB
    | {
        # Without copies, which take longer than the flush and so hide it.
        "--flush-share": (("--flush-share", "0.5", "--no-partner"), ("--flush-share", "1e-6", "--no-partner")),
        "--ranks": ("8", "32"),
        "--days": ("0.1", "0.2"),
        "--seeds": ("1", "2"),
        "--every": ("10min", "20min"),
        "--levels": ("local=1,persistent=1", "local=1,persistent=2"),
        "--spares": (("--spares", "0", "--trace", "trace.csv"), ("--spares", "9", "--trace", "trace.csv")),
        "--elastic": (
            ("--spares", "0", "--trace", "trace.csv"),
            ("--spares", "0", "--trace", "trace.csv", "--elastic"),
        ),
        "--trace": ((), ("--trace", "trace.csv")),
        "--seed": ("1", "2"),
        "--time-limit": ("1h", "2h"),
        "--preemption": ("1h", "2h"),
        "--notice": (("--time-limit", "1h"), ("--time-limit", "1h", "--notice", "10min")),
        "--queue": (("--time-limit", "1h"), ("--time-limit", "1h", "--queue", "10min")),
        "--advised": FLAG,
        "--restart-mode": (
            ("--restart-mode", "job", "--trace", "trace.csv"),
            ("--restart-mode", "in-process", "--trace", "trace.csv"),
        ),
    },
    "advise": JOB
    | {
        "--ranks": ("8", "32"),
        "--step-time": ("1s", "7s"),
        "--mtbf-factor": ("1", "0.1"),
        "--preemption": ("1h", "2h"),
        "--notice": (("--preemption", "1h"), ("--preemption", "1h", "--notice", "10min")),
        "--config": FILE,
        "--restart-mode": ("job", "in-process"),
        "--strategy": ("deeppart", "whole"),
        "--with": ("--machine summit", "--machine llama3"),
    },
    "restart": JOB | {"--ranks": ("8", "32")},
    "cluster": TABLES
    | {
        "--trace": ("adaptdl", "nowhere"),
        "--workload": ("workloads/workload-6", "workloads/workload-1"),
        "--policy": ("fifo", "optimus"),
        "--nodes": ("8", "16"),
        "--gpus": ("2", "4"),
        "--interval": ("60s", "90s"),
        "--restart": ("30s", "60s"),
        "--machine": ((), ("--machine", "frontier")),
        "--restart-mode": (
            ("--machine", "frontier", "--restart-mode", "job"),
            ("--machine", "frontier", "--restart-mode", "in-process"),
        ),
        "--jobs": ("4", "8"),
    },
    "calibrate": MEASURING
    | {
        "--json": FLAG,
        "--out": ("a.toml", "b.toml"),
        "--name": ("a", "b"),
        "--ranks-per-node": ("1", "2"),
        "--run-log": ((), ("--run-log", "run.log")),
        "--quick": FLAG,
    },
    "validate": MEASURING
    | TABLES
    | {
        "--machine": ((), ("--machine", "frontier")),
        "--ranks": ("1", "2"),
        "--passes": ("1", "2"),
        "--quick": FLAG,
        "--only": ("plain", "lazy"),
    },
    "published": TABLES,
}
SHORT = ("--state", "tensors-64x4MB", "--ranks", "32")
BASE: dict[str, Way] = {
    "scale": (*SHORT, "--strategy", "deeppart,rank0"),
    "campaign": (*SHORT, "--days", "0.2", "--seeds", "1"),
    "advise": SHORT,
    "restart": SHORT,
    "cluster": ("--policy", "fifo", "--jobs", "8"),
    "calibrate": ("--out", "machine.toml", "--ranks-per-node", "1"),
    "validate": ("--ranks", "2"),
    "published": (),
}
CASES = [(command, option) for command, options in WAYS.items() for option in options]


def _options(command: str) -> set[str]:
    found = main.get_command(click.Context(main), command)
    assert found is not None
    return {each.opts[0] if isinstance(each, click.Option) else str(each.name) for each in found.params}


def test_no_option_is_missing_here() -> None:
    """A new option needs a line above, which says what it changes."""
    assert {command: set(options) for command, options in WAYS.items()} == {name: _options(name) for name in main.names}


# --- both ways, compared ----------------------------------------------------------------------------------------------


class _Measured:
    """Stands for the ranks that would be measured: some seconds each; what was asked of them is kept."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(
        self, ranks: int, saves: Sequence[Any], directories: Any, dtypes: Sequence[str] = (), *, sessions: int
    ) -> Any:
        self.asked.append(f"{ranks} {saves} {directories} {sessions}")
        found = []
        for save in saves:
            capture = save.nbytes / ranks / 5e9 + 4e-6 * save.tensors / ranks
            blocked = capture + 1e-3 + 2e-6 * save.tensors
            done = dict.fromkeys(save.levels, blocked + save.nbytes / 2000000000.0 + 0.001)
            done["persistent"] = blocked + save.nbytes / 1e9 + 1e-2
            one = {"capture": capture, "blocked": blocked, "restore": save.nbytes / 4e9, "alone": 0.5, "trained": 0.6}
            one |= done | {"work": save.nbytes / ranks / 2e9}
            found.append({name: [seconds] * save.rounds * sessions for name, seconds in one.items()})
        network = {"bandwidth": 5e9, "latency": 1e-6} if ranks > 1 else None
        serialize = {"stream": 1e9, "tensor": 2e-5} if ranks == 1 else None
        rates: dict[str, Any] = {"codec": {}, "hash": 9e9}
        return {"saves": found, "pieces": rates | {"serialize": serialize, "network": network}}


def _ways(option: str, two: Any) -> tuple[Way, Way]:
    if two == FLAG:
        return (), (option,)
    if two == FILE:
        return (), (option, "out.png" if option == "--png" else "out")
    first, second = two
    return (first, second) if isinstance(first, tuple) else ((option, first), (option, second))


def _outcome(capsys: pytest.CaptureFixture[str], folder: Path, command: str, way: Way, as_json: bool) -> Any:
    """The exit code and everything that was said, written and measured."""
    for name in ("one", "two"):
        folder.joinpath(name).mkdir(parents=True)
    folder.joinpath("model.py").write_text("import torch\n\n\ndef build():\n    return {'a': torch.empty(1 << 20)}\n")
    trace = "# seconds = 99999\n# nodes = 8\nat_s,kind,nodes\n2000,node,1\n9000,node,0\n"
    folder.joinpath("trace.csv").write_text(trace)
    seconds = {"kill_s": 1, "start_s": 2, "step_s": 3}
    starts = [json.dumps({"event": "training", "epoch": epoch, **seconds}) for epoch in (1, 2)]
    folder.joinpath("run.log").write_text("\n".join([*starts, ""]))
    replaced = {name for name in way if name.startswith("--")} | ({"--state"} if "--from" in way else set())
    kept: list[str] = []
    base = list(BASE[command])
    while base:
        option, value = base[:2]
        kept += [] if option in replaced else [option, value]
        base = base[2:]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("deeppart_simulator.report.sections._WALL_S", 0.2 * 86400)
        measured = _Measured()
        patch.setattr("deeppart_simulator.measure.calibrate.measure", measured)
        patch.setattr("deeppart_simulator.measure.validate.measure", measured)
        patch.setattr("deeppart_simulator.measure.calibrate._MOST_STEPS", 1)
        code, out, err = sim(capsys, command, *kept, *way, *(("--json",) if as_json else ()))
    written = {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    return code, out, err, written, measured.asked


@pytest.mark.sweep(8, kinds=("command",))
@pytest.mark.parametrize(("command", "option"), CASES)
def test_every_option_changes_something_or_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str, option: str
) -> None:
    first, second = (
        _outcome(capsys, tmp_path / str(number), command, way, option != "--json")
        for number, way in enumerate(_ways(option, WAYS[command][option]))
    )
    refused = [code == 2 and option in out + err for code, out, err, *_ in (first, second)]
    named = (code != 2 or said for (code, *_), said in zip((first, second), refused, strict=True))
    assert all(named), (first[2], second[2])
    assert first != second or all(refused), (command, option)


# --- kinds of values --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (("scale", "--no-local", "--partner"), "--partner"),
        (("scale", "--ranks", "4", "--partner"), "--partner"),
        (("scale", "--flush-bandwidth", "1 GB/s", "--flush-share", "0.2"), "--flush-share"),
        (("scale", "--machine", "plain.toml", "--compression", "tensor"), "--compression"),
        (("campaign", "--trace", "trace.csv", "--seeds", "3"), "--seeds"),
        (("campaign", "--every", "9min", "--levels", "local=1", "--flush-share", "0.2"), "--flush-share"),
        (("scale", "--days", "3"), "--days"),
        (("advise", "--with", "--ranks 8", "--config", "x.toml"), "--config"),
        (("campaign", "--notice", "1min"), "--notice"),
        (("campaign", "--time-limit", "1h", "--notice", "1h"), "--notice"),
        (("campaign", "--partner", "--levels", "local=1,persistent=2"), "--partner"),
        (("advise", "--with", "--no-local --parity 2/1"), "--parity"),
        (("advise", "--state", "llama3-8b:fp16", "--compression", "tensor"), "--compression"),
        (("advise", "--with", "--seed 2"), "--seed"),
        (("calibrate", "--seed", "2"), "--seed"),
        (("validate", "--from", "model.py"), "--from"),
        (("validate", "--only", "parity", "--ranks", "2"), "--only"),
    ],
)
def test_what_another_option_leaves_no_use_for_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: Way, option: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("trace.csv").write_text("at_s,kind,nodes\n2000,node,1\n")
    _, least, _ = sim(capsys, "scale", "--machine", "list:summit")
    Path("plain.toml").write_text(least[: least.index("[codec.")])
    code, _, err = sim(
        capsys, *arguments, *(() if "--ranks" in arguments or arguments[0] != "scale" else ("--ranks", "64"))
    )
    assert code == 2 and option in err
