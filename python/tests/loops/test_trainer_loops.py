"""Loops of Hugging Face's Trainer over our loader and torch's own: equal counts of samples, steps and epochs, equal predictions."""

from __future__ import annotations

import pathlib
import warnings
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from bowstring.torch import DataLoader
from habits import BATCH, ROWS

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("transformers")
    import transformers

# The remainder of three rows does not divide evenly between two ranks.
EVALUATED = 3 * BATCH + 3

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(150)]


def table(rows: int) -> pa.Table:
    numbers = [row % 17 / 8 for row in range(rows)]
    labels = pa.array([2 * number - 1 for number in numbers], pa.float32())
    return pa.table({"x": pa.array(numbers, pa.float32()), "labels": labels, "id": pa.array(range(rows), pa.int64())})


def write(directory: pathlib.Path) -> None:
    for rows in (ROWS, EVALUATED):
        pq.write_table(table(rows), directory / f"{rows}.parquet", row_group_size=30)


class Own(torch.utils.data.Dataset[Any]):
    """The rows for torch's own loader."""

    def __init__(self, rows: int) -> None:
        self.columns = {
            name: torch.from_numpy(column.to_numpy().copy())
            for name, column in zip(("x", "labels", "id"), table(rows).columns, strict=True)
        }
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {name: column[row] for name, column in self.columns.items()}


class Model(torch.nn.Module):
    """Records the batches of training; a prediction is twice the row's number."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layer = torch.nn.Linear(1, 1)
        self.trained: list[list[int]] = []

    def forward(self, x: Any, labels: Any, id: Any) -> dict[str, Any]:
        if self.training:
            self.trained.append(id.tolist())
        loss = (self.layer(x[:, None])[:, 0] - labels).square().mean()
        return {"loss": loss, "logits": 2.0 * id}


class Trainer(transformers.Trainer):  # type: ignore[misc]  # its types are not checked
    """As the documentation of Transformers recommends for a custom loader."""

    def __init__(self, open: Callable[[int], Any], **options: Any) -> None:
        super().__init__(**options)
        self.open = open

    def get_train_dataloader(self) -> Any:
        return self.accelerator.prepare(self.open(ROWS))

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        return self.accelerator.prepare(self.open(EVALUATED))

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        return self.accelerator.prepare(self.open(EVALUATED))


def run(open: Callable[[int], Any], directory: pathlib.Path, **options: Any) -> dict[str, Any]:
    """Runs training with evaluations; returns its reports, steps and predictions."""
    arguments = transformers.TrainingArguments(
        output_dir=str(directory),
        per_device_train_batch_size=BATCH,
        per_device_eval_batch_size=BATCH,
        save_strategy="no",
        logging_steps=5,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        remove_unused_columns=False,
        **options,
    )
    model = Model()
    trainer = Trainer(open, model=model, args=arguments, eval_dataset=Own(EVALUATED))
    trained = trainer.train()
    times = ("runtime", "per_second", "flos")
    logs = [{key: value for key, value in log.items() if not key.endswith(times)} for log in trainer.state.log_history]
    predicted = trainer.predict(Own(EVALUATED))
    return {
        "steps": [trained.global_step, trainer.state.max_steps, trainer.state.epoch, trainer.state.num_train_epochs],
        "samples": [
            trainer.num_examples(trainer.get_train_dataloader()),
            trainer.num_examples(trainer.get_eval_dataloader()),
        ],
        "trained": model.trained,
        "logs": logs,
        "evaluated": trainer.evaluate()["eval_loss"],
        "predicted": predicted.predictions.tolist(),
        "labels": predicted.label_ids.tolist(),
        "metrics": predicted.metrics["test_loss"],
    }


@pytest.mark.parametrize(
    "options",
    [
        {"num_train_epochs": 2, "eval_strategy": "epoch"},
        {"num_train_epochs": 3, "gradient_accumulation_steps": 3},
        {"max_steps": 20, "eval_strategy": "steps", "eval_steps": 6},
        {"num_train_epochs": 1, "eval_strategy": "steps", "eval_steps": 5, "eval_accumulation_steps": 2},
    ],
    ids=str,
)
def test_training_and_evaluation(options: dict[str, Any], tmp_path: pathlib.Path) -> None:
    write(tmp_path)
    ours = run(
        lambda rows: DataLoader(tmp_path / f"{rows}.parquet", batch_size=BATCH, shuffle=False), tmp_path, **options
    )
    theirs = run(lambda rows: torch.utils.data.DataLoader(Own(rows), batch_size=BATCH), tmp_path, **options)
    assert ours == theirs
    assert ours["samples"] == [ROWS, EVALUATED]
    assert ours["predicted"] == [2 * row for row in range(EVALUATED)]


RANKS = """
import json, pathlib, sys, warnings
warnings.simplefilter("ignore")
sys.path.insert(0, sys.argv[2])
import torch
from bowstring.torch import DataLoader
from test_trainer_loops import BATCH, Own, run

path = pathlib.Path(sys.argv[1])
options = {"num_train_epochs": 2, "eval_strategy": "epoch", "ddp_backend": "gloo"}
ours = run(lambda rows: DataLoader(path / f"{rows}.parquet", batch_size=BATCH, shuffle=False), path / "ours", **options)
theirs = run(lambda rows: torch.utils.data.DataLoader(Own(rows), batch_size=BATCH), path / "theirs", **options)
print()
print(json.dumps({"ours": ours, "theirs": theirs}))
"""


def test_two_ranks(tmp_path: pathlib.Path, ranks: Callable[..., list[Any]]) -> None:
    """With 101 and 27 rows, the last steps have a remainder that does not divide evenly between two ranks."""
    write(tmp_path)
    found = ranks(RANKS, tmp_path, pathlib.Path(__file__).parent)
    same = ("steps", "samples", "predicted", "labels")
    for one in found:
        assert {name: one["ours"][name] for name in same} == {name: one["theirs"][name] for name in same}
        assert one["ours"]["predicted"] == [2 * row for row in range(EVALUATED)]
    rows = [row for one in found for step in one["ours"]["trained"] for row in step]
    assert set(rows) == set(range(ROWS))
    assert len(rows) == 2 * (ROWS + 1), "one row of an epoch comes twice"
    steps = [list(map(len, one["ours"]["trained"])) for one in found]
    assert steps[0] == steps[1]
