"""Lightning's loops over plain loaders and over torch's own: the same number of batches and, in file order, the same rows."""

from __future__ import annotations

import pathlib
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from habits import BATCH, FEW, ROWS, numbers, reference, reference_ids, write

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("lightning")
    import lightning.pytorch as pl
    from bowstring.torch import DataLoader

pytestmark = pytest.mark.filterwarnings("ignore")


class Model(pl.LightningModule):
    """Records the batches of training and validation."""

    def __init__(self, ids: Callable[[Any], list[int]]) -> None:
        super().__init__()
        self.layer, self.ids = torch.nn.Linear(1, 1), ids
        self.seen: list[tuple[str, list[int]]] = []

    def training_step(self, batch: Any, index: int) -> Any:
        self.seen.append(("train", self.ids(batch)))
        return self.layer(torch.ones(1, 1)).mean()

    def validation_step(self, batch: Any, index: int) -> None:
        self.seen.append(("valid", self.ids(batch)))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_sanity_val_steps": 0},
        {"num_sanity_val_steps": -1},
        {"limit_train_batches": 3, "limit_val_batches": 2},
        {"val_check_interval": 5},
        {"check_val_every_n_epoch": 2},
        {"max_epochs": -1, "max_steps": 20},
    ],
    ids=str,
)
def test_fit(options: dict[str, Any], tmp_path: pathlib.Path) -> None:
    path = write(tmp_path)

    def fitted(train: Any, valid: Any, ids: Callable[[Any], list[int]]) -> list[tuple[str, list[int]]]:
        model = Model(ids)
        quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
        more = {"max_epochs": 3, "enable_checkpointing": False, "default_root_dir": tmp_path, **quiet, **options}
        trainer: Any = pl.Trainer(**more)
        trainer.fit(model, train, valid)
        trainer.validate(model, valid, verbose=False)
        return model.seen

    ours = [DataLoader(path(rows), batch_size=BATCH, shuffle=False) for rows in (ROWS, FEW)]
    assert fitted(*ours, numbers) == fitted(reference(ROWS), reference(FEW), reference_ids)
