"""The library's writer and reader under DCP, on four ranks: sharded states, other meshes, failures, lost files."""

from __future__ import annotations

import functools
import inspect
import os
import shutil
import signal
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.distributed.tensor
from torch.distributed.checkpoint import CheckpointException, DefaultLoadPlanner, DefaultSavePlanner

from deeppart.errors import BackgroundFailureWarning, DeeppartError, DeeppartWarning
from deeppart.interop.dcp import StorageReader, StorageWriter
from tests.mpi.torchrun_job import tell
from tests.sharded.layouts import build, clear, fill, group_of, mesh_of, wrong
from tests.sharded.ranks import run_job

pytestmark = [
    pytest.mark.timeout(220),
    pytest.mark.xdist_group("torchrun"),
    pytest.mark.skipif(not hasattr(torch.distributed.tensor, "Shard"), reason="DTensor is public since torch 2.5"),
]

RANKS = 4
TIMEOUT_S = 60.0


@functools.cache
def group_for_checkpoints() -> Any:
    return dist.new_group(backend="gloo")


def async_save(state: Any, **how: Any) -> Any:
    """It takes numbers for steps, too, which its annotations do not have."""
    if not how.get("no_dist"):
        how.setdefault("process_group", group_for_checkpoints())
    return dcp.async_save(state, **how)


def open_writer(directory: Path, **settings: Any) -> StorageWriter:
    local = directory / "local" / "{rank}"
    given = {"node_size": 1, "timeout": TIMEOUT_S, "every": {"partner": 1}, **settings}
    return StorageWriter(directory / "ckpt", local, process_group=dist.group.WORLD, **given)


def reason(call: Callable[[], Any]) -> list[str]:
    """The kinds of the errors that a call ends in, of all ranks that DCP tells of, and their texts."""
    try:
        made = call()
        if hasattr(made, "result"):
            made.result(TIMEOUT_S)
    except CheckpointException as error:
        return [f"{rank}: {type(each).__name__}: {each}" for rank, (each, _) in sorted(error.failures.items())]
    except DeeppartError as error:
        return [f"{type(error).__name__}: {error}"]
    return []


class LeavesOut(DefaultSavePlanner):
    """Leaves the optimizer out."""

    def set_up_planner(self, state_dict: Any, storage_meta: Any = None, is_coordinator: bool = False) -> None:
        kept = {key: each for key, each in state_dict.items() if key != "optimizer"}
        super().set_up_planner(kept, storage_meta, is_coordinator)


class Job:
    """What the ranks go through, one thing after the other."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.rank = directory, dist.get_rank()
        self.told: dict[str, Any] = {}
        self.step = 0

    def run(self) -> None:
        with open_writer(self.directory) as self.writer:
            self.told["fsdp"] = self.around("fsdp", dcp.save, async_save, async_save)
            self.told["hsdp"] = self.around("hsdp", async_save)
            self.told["tp-dp"] = self.around("tp-dp", dcp.save)
            self.told["onto"] = self.onto_others()
            self.told["metadata"] = self.metadata()
            self.told["beside"] = self.beside_training()
            self.told["parts"] = self.parts_and_differences()
            self.told["planner"] = self.planners()
            self.told["failures"] = self.failures()
            self.told["refused"] = self.refused()
        self.told["alone"] = self.alone()
        self.told["lost"] = self.lost()

    def next_step(self) -> int:
        self.step += 1
        return self.step

    def around(self, layout: str, *saves: Any) -> list[Any]:
        """Saved with kept plans, changed in the meantime, and loaded in place."""
        state = build(layout, mesh_of(layout, RANKS))
        found: list[Any] = []
        caching = {"enable_plan_caching": True} if "enable_plan_caching" in _parameters(DefaultSavePlanner) else {}
        for save in saves:
            step = self.next_step()
            fill(state, step)
            saving: Any = save(
                state, checkpoint_id=f"step_{step}", storage_writer=self.writer, planner=DefaultSavePlanner(**caching)
            )
            clear(state)
            if save is async_save:
                saving.result(TIMEOUT_S)
            dcp.load(state, storage_reader=StorageReader(self.writer))
            found += wrong(state, step)
        # The model alone; all else stays.
        clear(state)
        dcp.load(model := {"model": state["model"]}, storage_reader=StorageReader(self.writer))
        stays = {key for key in wrong(state | model, self.step) if not key.startswith("/model")}
        found += (
            [] if {"/plain", "step"} < stays and not wrong(model | {"step": self.step}, self.step) else ["some of it"]
        )
        return found

    def onto_others(self) -> dict[str, Any]:
        """What was saved last, onto other meshes, on as many ranks and on fewer; by the session, and by directory."""
        found: dict[str, Any] = {}
        for layout in ("fsdp", "hsdp"):
            state = build(layout, mesh_of(layout, RANKS))
            clear(state)
            dcp.load(state, storage_reader=StorageReader(self.writer))
            found[layout] = wrong(state, self.step)
        for layout, ranks in (("fsdp", 2), ("replicated", 1)):
            group, mesh = group_of(ranks), mesh_of(layout, ranks)
            if self.rank < ranks:
                state = build(layout, mesh)
                clear(state)
                source = StorageReader(self.directory / "ckpt")
                dcp.load(state, checkpoint_id=self.step, storage_reader=source, process_group=group)
                found[f"{layout} on {ranks}"] = wrong(state, self.step)
        dist.barrier()
        if self.rank == 3 and "no_dist" in _parameters(dcp.load):
            state = build("replicated", None)
            clear(state)
            dcp.load(state, storage_reader=StorageReader(self.directory / "ckpt"), no_dist=True)
            found["no_dist"] = wrong(state, self.step)
        dist.barrier()
        return found

    def beside_training(self) -> list[float]:
        """While DCP saves in its thread, training uses the default group."""
        state, sums = {"w": torch.zeros(100_000)}, torch.ones(1000)
        for _ in range(5):
            state["w"] += 1
            saving: Any = async_save(state, checkpoint_id=self.next_step(), storage_writer=self.writer)
            done = torch.tensor(0)
            while not done:
                dist.all_reduce(sums, op=dist.ReduceOp.MAX)
                done = torch.tensor(int(saving.done()))
                dist.all_reduce(done, op=dist.ReduceOp.MIN)
            saving.result(TIMEOUT_S)
        dcp.load(state, storage_reader=StorageReader(self.writer))
        return [*state["w"].unique().tolist(), *sums.unique().tolist()]

    def metadata(self) -> list[str]:
        """What async_save returns says what DCP's own says, of names, types and shapes, on every rank."""
        state = build("fsdp", mesh_of("fsdp", RANKS)) | {f"of {self.rank}": {"n": 1, "w": torch.ones(3)}}
        saving: Any = async_save(state, checkpoint_id=self.next_step(), storage_writer=self.writer)
        mine = saving.result(TIMEOUT_S).state_dict_metadata
        theirs = dcp.save(state, checkpoint_id=self.directory / "dcp").state_dict_metadata
        kinds = [
            {name: (getattr(each, "size", None), getattr(each, "properties", None)) for name, each in found.items()}
            for found in (mine, theirs)
        ]
        plain = [{name: (size, getattr(kind, "dtype", 0)) for name, (size, kind) in each.items()} for each in kinds]
        return sorted(name for name in plain[0].keys() | plain[1].keys() if plain[0].get(name) != plain[1].get(name))

    def parts_and_differences(self) -> dict[str, Any]:
        """Keys that some ranks have, and a plain tensor and a value that all have otherwise."""
        mine = {
            "of": {f"rank {self.rank}": torch.full((3,), self.rank), f"n {self.rank}": self.rank},
            "rng": torch.full((100,), self.rank),
            "seed": self.rank,
            "some": [(torch.full((2,), self.rank), self.rank)],
        }
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            dcp.save(mine, checkpoint_id=self.next_step(), storage_writer=self.writer)
        told = [str(each.message) for each in caught if issubclass(each.category, DeeppartWarning)]
        live: dict[str, Any] = {
            "rng": torch.zeros(100, dtype=torch.int64),
            "seed": -1,
            "of": {"n 2": -1},
            "some": [None],
        }
        live["of"]["rank 2"] = torch.zeros(3, dtype=torch.int64)
        dcp.load(live, storage_reader=StorageReader(self.writer))
        group = group_of(1)
        alone: dict[str, Any] = {"rng": torch.ones(100, dtype=torch.int64), "seed": -1, "of": {"n 3": -1}}
        if self.rank == 0:
            dcp.load(alone, storage_reader=StorageReader(self.directory / "ckpt", rank=1), process_group=group)
        dist.barrier()
        return {
            "told": told,
            "mine": [live["rng"].unique().tolist(), live["seed"], live["some"][0][0].tolist(), live["some"][0][1]],
            "of": [live["of"]["n 2"], live["of"]["rank 2"].tolist()],
            "alone": [alone["rng"].unique().tolist(), alone["seed"], alone["of"]["n 3"]],
        }

    def planners(self) -> list[Any]:
        """A planner that might save something else is refused, for both ways; one that loads a part is not."""
        found: list[Any] = []
        state = build("fsdp", mesh_of("fsdp", RANKS))
        for save in (dcp.save, async_save):
            how: Any = {"checkpoint_id": self.step + 1, "storage_writer": self.writer, "planner": LeavesOut()}
            refused = reason(partial(save, state, **how))
            found += [] if "does not execute plans" in str(refused) and "LeavesOut" in str(refused) else [refused]
        step = self.next_step()
        fill(state, step)
        optimizer = state.pop("optimizer")
        dcp.save(state, checkpoint_id=step, storage_writer=self.writer)
        lacking = reason(partial(dcp.load, {"optimizer": optimizer}, storage_reader=StorageReader(self.writer)))
        found += [] if "Missing key" in str(lacking) else [lacking]
        lenient = DefaultLoadPlanner(allow_partial_load=True)
        dcp.load({"optimizer": optimizer}, storage_reader=StorageReader(self.writer), planner=lenient)
        return found

    def failures(self) -> dict[str, Any]:
        """One rank cannot: all are told, nothing of that step is there, and the next save succeeds."""
        found: dict[str, Any] = {}
        for name, save in (("save", dcp.save), ("async_save", async_save)):
            bad: dict[str, Any] = {"w": torch.ones(10), "of": {"x": 1}}
            if self.rank == 1:
                bad["of"]["x"] = lambda: 0
            step = self.next_step()
            found[name] = reason(partial(save, bad, checkpoint_id=step, storage_writer=self.writer))

        # Staged, and then DCP's own save fails on a rank.
        planner = DefaultSavePlanner()
        if self.rank == 2:
            planner.create_local_plan = None  # type: ignore[method-assign, assignment]
        staged_step = self.next_step()
        found["staged"] = reason(
            lambda: async_save(
                {"w": torch.ones(10)}, checkpoint_id=staged_step, storage_writer=self.writer, planner=planner
            )
        )
        dist.barrier()
        step = self.next_step()
        found["next"] = reason(
            lambda: async_save({"w": torch.full((10,), step)}, checkpoint_id=step, storage_writer=self.writer)
        )
        # A planner that does not say on one rank where to put something.
        wrong_one = DefaultLoadPlanner()
        if self.rank == 3:
            wrong_one.resolve_tensor = lambda _: torch.zeros(3)  # type: ignore[method-assign, assignment]
        live = {"w": torch.zeros(10, dtype=torch.int64)}
        found["load"] = reason(lambda: dcp.load(live, storage_reader=StorageReader(self.writer), planner=wrong_one))
        found["untouched"] = live["w"].unique().tolist()
        dcp.load(live, storage_reader=StorageReader(self.writer))
        found["loaded"] = live["w"].unique().tolist() == [step]
        return found

    def refused(self) -> dict[str, Any]:
        """What the writer cannot do is said on all ranks, at once."""
        found: dict[str, Any] = {}
        state, names = {"w": torch.ones(10)}, _parameters(dcp.async_save)
        how: dict[str, Any] = {"checkpoint_id": self.step + 1, "storage_writer": self.writer}
        if "async_checkpointer_type" in names:
            process = dcp.state_dict_saver.AsyncCheckpointerType.PROCESS
            found["process"] = reason(lambda: async_save(state, **how, async_checkpointer_type=process))
        if "use_collectives" in names:
            for name, save in (("save", dcp.save), ("async_save", async_save)):
                found[f"collectives {name}"] = reason(partial(save, state, **how, use_collectives=False))
        if "no_dist" in _parameters(dcp.save):
            found["no_dist save"] = reason(lambda: dcp.save(state, **how, no_dist=True))
            found["no_dist load"] = reason(
                lambda: dcp.load(state, storage_reader=StorageReader(self.writer), no_dist=True)
            )
        found["training's group"] = reason(lambda: async_save(state, **how, process_group=None))
        group = group_of(2)
        for name, save in (("save", dcp.save), ("async_save", async_save)) if self.rank < 2 else ():
            found[f"group {name}"] = reason(partial(save, state, **how, process_group=group))
        dist.barrier()
        return found

    def alone(self) -> Any:
        """Each process for itself."""
        if "no_dist" not in _parameters(dcp.async_save):
            return None
        where = self.directory / f"alone-{self.rank}"
        with StorageWriter(where, no_dist=True) as writer:
            saving: Any = async_save(
                {"w": torch.full((5,), self.rank)}, checkpoint_id=1, storage_writer=writer, no_dist=True
            )
            saving.result(TIMEOUT_S)
        live = {"w": torch.zeros(5, dtype=torch.int64)}
        dcp.load(live, storage_reader=StorageReader(where), no_dist=True)
        return live["w"].unique().tolist()

    def lost(self) -> dict[str, Any]:
        """A node's directory is gone: from its partner; and with all of them gone, from the persistent level."""
        state = build("fsdp", mesh_of("fsdp", RANKS))
        found: dict[str, Any] = {}
        for name in ("partner", "persistent"):
            with open_writer(self.directory) as writer:
                step = writer.checkpointer.next_step()
                fill(state, step)
                dcp.save(state, storage_writer=writer)
            dist.barrier()
            if self.rank == 0:
                for gone in [self.directory / "local" / "2"] if name == "partner" else [self.directory / "local"]:
                    shutil.rmtree(gone)
            dist.barrier()
            clear(state)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeeppartWarning)
                with open_writer(self.directory) as writer:
                    dcp.load(state, storage_reader=StorageReader(writer))
                    read = " ".join(writer.checkpointer.explanation)
            found[name] = [wrong(state, step), name in read]
        return found


def goes_through_all(directory: Path) -> dict[str, Any]:
    job = Job(directory)
    job.run()
    return job.told


def killed(directory: Path) -> dict[str, Any]:
    """Rank 1 is killed between an async_save and the next; the others are told."""
    state = build("fsdp", mesh_of("fsdp", RANKS))
    with open_writer(directory, timeout=30.0) as writer:
        fill(state, 1)
        saving: Any = async_save(state, checkpoint_id=1, storage_writer=writer)
        saving.result(TIMEOUT_S)
        dist.barrier()
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        fill(state, 2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", BackgroundFailureWarning)
            found = reason(lambda: async_save(state, checkpoint_id=2, storage_writer=writer))
        tell(directory, found=found)
        os._exit(0)


def _parameters(call: Any) -> Any:
    return inspect.signature(call).parameters


@pytest.mark.now_and_then(2)
def test_sharded_states_of_four_ranks(tmp_path: Path) -> None:
    ranks = run_job(4, goes_through_all, tmp_path)
    for rank, found in enumerate(ranks):
        assert found["fsdp"] == found["hsdp"] == found["tp-dp"] == [], found
        assert all(each == [] for each in found["onto"].values()), found["onto"]
        assert found["metadata"] == [] and found["planner"] == [], found
        assert found["beside"] == [5.0, 1.0], found
        parts = found["parts"]
        assert parts["mine"] == [[rank], rank, [rank, rank], rank] and parts["of"] == [2, [2, 2, 2]], parts
        assert rank or parts["alone"] == [[1], 1, 3], parts
        assert found["lost"] == {"partner": [[], True], "persistent": [[], True]}, found["lost"]
        failures = found["failures"]
        for name, kind, failed in (("save", "UnsupportedLeafError", 1), ("load", "LeafMismatchError", 3)):
            kinds = [text.split(":")[1].strip() for text in failures[name]]
            assert kinds == [kind if each == failed else "RemoteRankError" for each in range(4)], failures
        assert ("UnsupportedLeafError" if rank == 1 else "RemoteRankError") in failures["async_save"][0], failures
        assert "NoneType" in str(failures["staged"]) and "2: " in failures["staged"][0], failures
        assert failures["next"] == [] and failures["untouched"] == [0] and failures["loaded"], failures
        for name, texts in found["refused"].items():
            assert texts and "ConfigError" in texts[0], (name, texts)
            assert name in ("no_dist load", "training's group") or "deeppart's writer" in texts[0], (name, texts)
        assert "process_group=group" in found["refused"]["training's group"][0], found["refused"]
        assert found["alone"] in (None, [rank])
    assert {"fsdp on 2", "replicated on 1"} < ranks[0]["onto"].keys()
    # DCP keeps one of them and says nothing.
    assert any("rng" in text for text in ranks[0]["parts"]["told"]), ranks[0]["parts"]["told"]


@pytest.mark.filterwarnings("ignore:torch.distributed is:UserWarning")
def test_a_rank_is_killed_between_two_saves(tmp_path: Path) -> None:
    run_job(4, killed, tmp_path, expect_rc=None)
    state = build("replicated", None)
    clear(state)
    dcp.load(state, storage_reader=StorageReader(tmp_path / "ckpt"))
    assert state["step"] in (1, 2) and wrong(state, state["step"]) == []
