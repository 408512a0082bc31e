"""The recipe for Hugging Face's Trainer in docs/frameworks.md: batches are passed on unchanged, and a run resumes at the batch."""

from __future__ import annotations

import pathlib
import re
import shutil
import warnings
from collections.abc import Callable
from typing import Any

import bowstring
import pytest
import torch
from bowstring.torch import DataLoader

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("transformers")
    import transformers

pytestmark = pytest.mark.filterwarnings("ignore")
DOCS = pathlib.Path(__file__).resolve().parents[3] / "docs" / "frameworks.md"


class Model(torch.nn.Module):
    """Records the batches of training."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen: list[list[int]] = []

    def forward(self, id: Any, x: Any) -> dict[str, Any]:
        self.seen.append(id.tolist())
        return {"loss": self.layer(x[:, None]).mean()}


class Plain(transformers.Trainer):  # type: ignore[misc,name-defined]
    """Trains on a loader, and resumes as the Trainer does by itself: by skipping batches."""

    def __init__(self, loader: DataLoader, **options: Any) -> None:
        super().__init__(**options)
        self.loader = loader

    def get_train_dataloader(self) -> Any:
        return self.loader


def recipe() -> dict[str, Any]:
    """Runs the recipe; returns its names."""
    (text,) = re.findall(r"```python\n(from transformers.*?)```", DOCS.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(text, "recipe", "exec"), names)
    return names


def saving(home: pathlib.Path, **more: Any) -> Any:
    """Arguments of a run on the CPU that saves checkpoints below ``home / "out"``."""
    return transformers.TrainingArguments(
        output_dir=str(home / "out"),
        save_strategy="steps",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        remove_unused_columns=False,
        **more,
    )


@pytest.mark.parametrize("skips", [False, True], ids=["the recipe", "a Trainer that skips"])
def test_a_run_resumes_at_the_batch(kinds: pathlib.Path, tmp_path: pathlib.Path, skips: bool) -> None:
    trainer = Plain if skips else recipe()["BatchTrainer"]

    def train(resume: str | bool | None = None) -> list[list[int]]:
        loader = DataLoader(kinds, batch_size=8, columns=["id", "x"])
        arguments = saving(tmp_path, num_train_epochs=3, save_steps=5, ignore_data_skip=not skips)
        model = Model()
        trainer(loader, model=model, args=arguments).train(resume_from_checkpoint=resume)
        loader.close()
        return model.seen

    whole = train()
    with bowstring.Loader(kinds, batch_size=8, columns=["id"]) as loader:
        assert whole == [batch["id"].tolist() for _ in range(3) for batch in loader]
    for step in (5, 15, 30):
        assert train(str(tmp_path / "out" / f"checkpoint-{step}")) == whole[step:], step
    for later in (tmp_path / "out").glob("checkpoint-*"):
        if later.name not in ("checkpoint-5", "checkpoint-15"):
            shutil.rmtree(later)
    assert train(True) == whole[15:], "the last checkpoint"


@pytest.mark.parametrize(("skips", "batch_size"), [(False, 10), (True, 8)], ids=["the recipe", "a Trainer that skips"])
def test_batches_are_accumulated(kinds: pathlib.Path, tmp_path: pathlib.Path, skips: bool, batch_size: int) -> None:
    """The recipe, as its text says, needs epochs of whole groups: here ten batches, and not thirteen."""

    def train(resume: str | None = None) -> tuple[list[list[int]], int, float]:
        loader = DataLoader(kinds, batch_size=batch_size, columns=["id", "x"])
        groups = {"num_train_epochs": 2, "save_steps": 2, "gradient_accumulation_steps": 2}
        arguments = saving(tmp_path, ignore_data_skip=not skips, **groups)
        model = Model()
        torch.nn.init.ones_(model.layer.weight)
        trainer = (Plain if skips else recipe()["BatchTrainer"])(loader, model=model, args=arguments)
        trainer.train(resume_from_checkpoint=resume)
        return model.seen, trainer.state.global_step, model.layer.weight.item()

    seen, steps, weight = train()
    resumed = train(str(tmp_path / "out" / "checkpoint-4"))
    assert resumed == (seen[8:], steps, pytest.approx(weight, abs=1e-7))


RANKS = """
import json, pathlib, re, sys, warnings
warnings.simplefilter("ignore")
sys.path.insert(0, sys.argv[2])
import transformers
from bowstring.torch import DataLoader
from test_transformers import DOCS, Model

names = {}
exec(re.findall(r"```python\\n(from transformers.*?)```", DOCS.read_text(), re.DOTALL)[0], names)
loader = DataLoader(sys.argv[1], batch_size=8, columns=["id", "x"])
arguments = transformers.TrainingArguments(
    output_dir=sys.argv[3],
    num_train_epochs=2,
    save_strategy="no",
    report_to=[],
    use_cpu=True,
    disable_tqdm=True,
    remove_unused_columns=False,
    ddp_backend="gloo",
)
model = Model()
names["BatchTrainer"](loader, model=model, args=arguments).train()
print()
print(json.dumps(model.seen))
"""


@pytest.mark.timeout(150)
def test_two_ranks(kinds: pathlib.Path, tmp_path: pathlib.Path, ranks: Callable[..., list[Any]]) -> None:
    found = ranks(RANKS, kinds, pathlib.Path(__file__).parent, tmp_path / "out")
    with bowstring.Loader(kinds, batch_size=16, columns=["id"]) as loader:
        want = [batch["id"].tolist() for _ in range(2) for batch in loader]
    assert [a + b for a, b in zip(found[0], found[1], strict=True)] == want
