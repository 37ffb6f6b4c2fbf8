"""A training with the Trainer of transformers, for test_transformers.py; evaluation, and gradients accumulated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

from deeppart.interop.transformers import DeeppartCallback
from tests.unit.interop.trainer_runs import EVERY, STEPS, Data, Run, Weights, main, network, refused


class Model(nn.Module):
    """As the Trainer wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.network = network()

    def forward(self, x: Any, labels: Any) -> dict[str, Any]:
        found = self.network(x)
        return {"loss": ((found - labels) ** 2).mean(), "logits": found}


class Named(Data):
    """Samples as dicts."""

    def __getitem__(self, place: int) -> Any:
        x, labels = super().__getitem__(place)
        return {"x": x, "labels": labels}


class Log(TrainerCallback):
    """Notes what is logged, but for times."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        kept = {name: float(value).hex() for name, value in logs.items() if name in _LOGGED}
        if kept:
            self.run.note([state.global_step, kept])

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.run.stepped(state.global_step)


_LOGGED = ("loss", "grad_norm", "learning_rate", "eval_loss")


def trainer(folder: Path, ranks: int, callbacks: list[Any], **others: Any) -> Any:
    args = TrainingArguments(
        str(folder / "out"),
        max_steps=STEPS,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        logging_steps=3,
        eval_strategy="steps",
        eval_steps=4,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        ddp_backend="gloo" if ranks > 1 else None,
        learning_rate=0.05,
        lr_scheduler_type="cosine",
        warmup_steps=3,
        dataloader_pin_memory=False,
    )
    data = {"train_dataset": Named(), "eval_dataset": Named()}
    return Trainer(others.pop("model", None), args, **data, callbacks=callbacks, **others)


def train(run: Run) -> Weights:
    training = trainer(run.folder, run.ranks, [Log(run)], model=Model())
    torch.manual_seed(100 + run.rank)
    saving = DeeppartCallback(run.config, every=EVERY)
    training.add_callback(saving)
    alive = list[bool]()
    saving._saving.is_alive = lambda: alive.append(True)  # type: ignore[method-assign]
    training.train(resume_from_checkpoint=saving.resume(training))
    assert alive, "evaluations"
    weights: Weights = training.model.state_dict()
    return weights


def refusals(top: Path) -> list[str]:
    """What it says to a Trainer that makes its model later, that it is no part of, and that was not resumed; and to one
    rank that asks what becomes of the generators of two.
    """
    one, two, three = (DeeppartCallback() for _ in range(3))
    four = DeeppartCallback(Run(top / "SIGTERM-2", 0, 1, None, 0).config)
    alone = trainer(top, 1, [four], model=Model())
    assert four.resume(alone, per_rank="drop") is not None, "the Trainer's progress is not dropped"
    return refused(
        lambda: one.resume(trainer(top, 1, [one], model_init=Model)),
        lambda: two.resume(trainer(top, 1, [], model=Model())),
        lambda: trainer(top, 1, [three], model=Model()).train(),
        lambda: four.resume(alone, per_rank={"rng/*": "strict"}),
    )


if __name__ == "__main__":
    main(train, refusals, grows=True)
