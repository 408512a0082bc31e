"""`bowstring.lightning` under the real Trainer: each epoch has each row once, resumes at the batch, and is never sharded again."""

from __future__ import annotations

import pathlib
import warnings
from collections.abc import Callable
from typing import Any

import bowstring
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("lightning")
    import lightning.pytorch as pl
    from bowstring.lightning import DataModule
    from bowstring.torch import DataLoader
    from lightning.pytorch.callbacks import ModelCheckpoint, OnExceptionCheckpoint
    from lightning.pytorch.utilities import CombinedLoader

pytestmark = pytest.mark.filterwarnings("ignore")


class Model(pl.LightningModule):
    """Records the batches of training and validation."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen: list[list[int]] = []
        self.validated: list[list[int]] = []

    def training_step(self, batch: Any, index: int) -> Any:
        self.seen.append(batch["id"].tolist())
        return self.layer(batch["x"][:, None]).mean()

    def validation_step(self, batch: Any, index: int) -> None:
        self.validated.append(batch["id"].tolist())

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 1e-4)


def trainer(path: pathlib.Path, **options: Any) -> Any:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    return pl.Trainer(default_root_dir=path, **{"max_epochs": 3, **quiet, **options})


def module(path: pathlib.Path, val: bool = False) -> DataModule:
    return DataModule(path, path if val else None, batch_size=8, columns=["id", "x"])


def expected(path: pathlib.Path, epochs: int = 3) -> list[list[int]]:
    with bowstring.Loader(path, batch_size=8, columns=["id"]) as loader:
        return [batch["id"].tolist() for _ in range(epochs) for batch in loader]


def test_resumes_at_the_batch(kinds: pathlib.Path, tmp_path: pathlib.Path) -> None:
    want = expected(kinds)
    # Steps within epochs, and the last one of the first.
    places = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=1, save_top_k=-1)
    model = Model()
    trainer(tmp_path, callbacks=[places]).fit(model, module(kinds, val=True))
    assert model.seen == want
    whole = [list(range(step, min(step + 8, 100))) for step in range(0, 100, 8)]
    assert model.validated == [*whole[:2], *whole * 3], "after the sanity check, all of it"
    for step in (5, 13, 20):
        again = Model()
        trainer(tmp_path).fit(again, module(kinds, val=True), ckpt_path=tmp_path / f"step={step}.ckpt")
        assert again.seen == want[step:], step


def test_short_epochs_and_other_loops(kinds: pathlib.Path, tmp_path: pathlib.Path) -> None:
    want = expected(kinds)
    model = Model()
    data = module(kinds, val=True)
    trainer(tmp_path, limit_train_batches=4, limit_val_batches=0).fit(model, data)
    assert model.seen == [*want[:4], *want[13:17], *want[26:30]], "a new epoch begins at its start"
    trainer(tmp_path).validate(model, data)
    assert sorted(row for step in model.validated for row in step) == list(range(100))
    assert DataModule(kinds, batch_size=8).val_dataloader() == []
    with pytest.raises(bowstring.ConfigError, match="test: this DataModule"):
        data.test_dataloader()
    own = DataModule(None, {"url": kinds, "batch_size": 5, "shuffle": True}, batch_size=8, shuffle=True, columns=["id"])
    assert (len(own.val_dataloader()), own.val_dataloader().state_dict()["spec"]["shuffle"]) == (20, "windows")
    own.teardown()


def test_plain_loaders(kinds: pathlib.Path, tmp_path: pathlib.Path) -> None:
    want = expected(kinds)
    whole = [list(range(step, min(step + 8, 100))) for step in range(0, 100, 8)]

    def loaders() -> tuple[DataLoader, DataLoader]:
        options: dict[str, Any] = {"batch_size": 8, "columns": ["id", "x"]}
        return DataLoader(kinds, **options), DataLoader(kinds, **options, shuffle=False)

    # Within epochs, at their last batch, and at their end, before Lightning asks the iterator for more.
    steps = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=1, save_top_k=-1)
    ends = ModelCheckpoint(tmp_path, "end-{epoch}", save_top_k=-1, save_on_train_epoch_end=True)
    model = Model()
    trainer(tmp_path, callbacks=[steps, ends]).fit(model, *loaders())
    assert model.seen == want
    assert model.validated == [*whole[:2], *whole * 3], "after the sanity check, all of it"
    for name, step in (("step=5", 5), ("step=13", 13), ("step=20", 20), ("end-epoch=0", 13), ("end-epoch=1", 26)):
        again = Model()
        trainer(tmp_path).fit(again, *loaders(), ckpt_path=tmp_path / f"{name}.ckpt")
        assert again.seen == want[step:], name
    # One loader for everything: each loop gets all of it.
    one, model = loaders()[1], Model()
    trainer(tmp_path, max_epochs=1).fit(model, one, loaders()[1])
    trainer(tmp_path).validate(Model(), one)
    trainer(tmp_path, max_epochs=1, limit_train_batches=4).fit(model, one, loaders()[1])
    assert model.seen == [*whole, *whole[:4]]


class Several(pl.LightningModule):
    """Records what each training and validation loader gave, and fails before it has trained on one: in the step, or in a hook."""

    def __init__(self, fails: int | None = None, hook: str = "training_step") -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen: list[Any] = []
        self.validated: dict[int, list[int]] = {}
        self.fails = fails
        self.hook = hook

    def reach(self, hook: str) -> None:
        if hook == self.hook and len(self.seen) == self.fails:
            raise KeyError("the step")

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        self.reach("on_after_batch_transfer")
        return batch

    def training_step(self, batch: Any, index: int) -> Any:
        self.reach("training_step")
        parts = batch.values() if "id" not in batch else [batch]
        # A loader that is over gives nothing in the mode max_size.
        self.seen.append([None if part is None else part["id"].tolist() for part in parts])
        return self.layer(torch.ones(1, 1)).mean()

    def validation_step(self, batch: Any, index: int, dataloader_idx: int = 0) -> None:
        self.validated.setdefault(dataloader_idx, []).extend(batch["id"].tolist())

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 1e-4)


@pytest.mark.parametrize("kind", ["module", "plain", "max_size_cycle", "min_size", "max_size"])
def test_a_checkpoint_on_an_exception_resumes_with_the_batch_of_that_step(
    kind: str, kinds: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    def data() -> dict[str, Any]:
        if kind == "module":
            return {"datamodule": module(kinds)}
        loader = DataLoader(kinds, batch_size=8, columns=["id"])
        if kind == "plain":
            return {"train_dataloaders": loader}
        shorter = DataLoader(kinds, batch_size=14, columns=["id"], seed=4)
        return {"train_dataloaders": CombinedLoader({"one": loader, "other": shorter}, kind)}

    whole = Several()
    trainer(tmp_path).fit(whole, **data())
    # At the first step, within an epoch, at its last step (8 of the shorter loader, 13 of the other), and at the first of the next.
    for fails in (0, 5, 7, 8, 12, 13, 20):
        saved = OnExceptionCheckpoint(tmp_path, f"{fails}")
        first, rest = Several(fails), Several()
        with pytest.raises(KeyError, match="the step"):
            trainer(tmp_path, callbacks=[saved]).fit(first, **data())
        trainer(tmp_path).fit(rest, **data(), ckpt_path=saved.ckpt_path)
        assert first.seen == whole.seen[:fails]
        assert rest.seen == whole.seen[fails:], fails


@pytest.mark.parametrize("fails", [0, 5, 12, 13])
def test_a_batch_whose_transfer_fails_is_the_next_one(fails: int, kinds: pathlib.Path, tmp_path: pathlib.Path) -> None:
    want = [[step] for step in expected(kinds, epochs=2)]
    saved = OnExceptionCheckpoint(tmp_path, f"{fails}")
    first, rest = Several(fails, "on_after_batch_transfer"), Several()
    with pytest.raises(KeyError, match="the step"):
        trainer(tmp_path, max_epochs=2, callbacks=[saved]).fit(first, module(kinds))
    trainer(tmp_path, max_epochs=2).fit(rest, module(kinds), ckpt_path=saved.ckpt_path)
    assert (first.seen, rest.seen) == (want[:fails], want[fails:])


def test_an_exception_in_the_last_step_under_even(tmp_path: pathlib.Path) -> None:
    # 13 rows for 4 ranks: 3 steps, the last one of 5 rows; a world of one rank has 4.
    pq.write_table(pa.table({"id": range(13)}), tmp_path / "13.parquet")

    def loader() -> DataLoader:
        return DataLoader(tmp_path / "13.parquet", batch_size=1, shuffle=False, tail="even", rank=0, world_size=4)

    saved = OnExceptionCheckpoint(tmp_path, "last")
    first, rest = Several(2), Several()
    with pytest.raises(KeyError, match="the step"):
        trainer(tmp_path, max_epochs=1, callbacks=[saved]).fit(first, loader())
    trainer(tmp_path, max_epochs=1).fit(rest, loader(), ckpt_path=saved.ckpt_path)
    assert first.seen + rest.seen == [[[0]], [[4]], [[8, 9]]]


@pytest.mark.parametrize("mode", ["max_size_cycle", "min_size", "max_size"])
def test_each_of_several_loaders_has_a_state_of_its_own(mode: str, kinds: pathlib.Path, tmp_path: pathlib.Path) -> None:
    def data() -> dict[str, Any]:
        one, other = (DataLoader(kinds, batch_size=size, columns=["id"], seed=size) for size in (8, 14))
        vals = [DataLoader(kinds, batch_size=size, columns=["id"], shuffle=False) for size in (7, 9)]
        return {"train_dataloaders": CombinedLoader({"one": one, "other": other}, mode), "val_dataloaders": vals}

    options = {"max_epochs": 2, "num_sanity_val_steps": 0}
    places = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=1, save_top_k=-1)
    whole = Several()
    trainer(tmp_path, callbacks=[places], **options).fit(whole, **data())
    for step in (3, 7, 9, 11):
        rest = Several()
        trainer(tmp_path, **options).fit(rest, **data(), ckpt_path=tmp_path / f"step={step}.ckpt")
        assert rest.seen == whole.seen[step:], step
        epochs = len(rest.validated[0]) // 100
        assert rest.validated == {number: list(range(100)) * epochs for number in (0, 1)}


RANKS = """
import json, pathlib, sys, warnings
warnings.simplefilter("ignore")
sys.path.insert(0, sys.argv[2])
import logging
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
from test_lightning import Model, ModelCheckpoint, module, trainer

path, folder = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[3])
ddp = {"strategy": "ddp", "devices": 2, "max_epochs": 2}
model = Model()
trainer(folder, callbacks=[ModelCheckpoint(folder, "{step}", every_n_train_steps=4, save_top_k=-1)], **ddp).fit(model, module(path))
again = Model()
trainer(folder, **ddp).fit(again, module(path), ckpt_path=folder / "step=4.ckpt")
print()
print(json.dumps({"seen": model.seen, "again": again.seen}))
"""


@pytest.mark.timeout(150)
def test_two_ranks(kinds: pathlib.Path, tmp_path: pathlib.Path, ranks: Callable[..., list[Any]]) -> None:
    found = ranks(RANKS, kinds, pathlib.Path(__file__).parent, tmp_path)
    with bowstring.Loader(kinds, batch_size=16, columns=["id"]) as loader:
        want = [batch["id"].tolist() for _ in range(2) for batch in loader]
    assert [a + b for a, b in zip(found[0]["seen"], found[1]["seen"], strict=True)] == want
    for one in found:
        assert one["again"] == one["seen"][4:]


PARTS = """
import json, pathlib, sys, warnings
warnings.simplefilter("ignore")
sys.path.insert(0, sys.argv[2])
import logging
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
from lightning.pytorch.strategies import ModelParallelStrategy
from test_lightning import Model, module, trainer


class Whole(Model):
    def configure_model(self):
        pass


model = Whole()
parts = ModelParallelStrategy(data_parallel_size=1, tensor_parallel_size=2, process_group_backend="gloo")
two = {"strategy": parts, "devices": 2, "max_epochs": 1, "enable_checkpointing": False}
trainer(pathlib.Path(sys.argv[3]), **two).fit(model, module(sys.argv[1]))
print()
print(json.dumps(model.seen))
"""


@pytest.mark.timeout(150)
def test_processes_that_share_a_model_have_the_same_rows(
    kinds: pathlib.Path, tmp_path: pathlib.Path, ranks: Callable[..., list[Any]]
) -> None:
    found = ranks(PARTS, kinds, pathlib.Path(__file__).parent, tmp_path)
    assert found == [expected(kinds, epochs=1)] * 2


def test_a_stage_takes_an_iterator_of_addresses(kinds: pathlib.Path) -> None:
    data = DataModule(iter([kinds]), {"url": iter([kinds]), "batch_size": 4}, batch_size=8, columns=["id"])  # type: ignore[arg-type]
    assert [data.train_dataloader().rows for _ in range(2)] == [100, 100]
    assert [data.val_dataloader().batch_size for _ in range(2)] == [4, 4]
    data.teardown()
