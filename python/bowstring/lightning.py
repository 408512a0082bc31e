"""A ``LightningDataModule`` over bowstring's loaders.

>>> data = DataModule("train/", "val/", batch_size=256, columns=["user_*", "label"])  # doctest: +SKIP
>>> Trainer(max_epochs=3).fit(model, data)  # doctest: +SKIP

Batches are sharded by rank here, and Lightning does not change that: its ``use_distributed_sampler`` concerns torch's own
``DataLoader``. Lightning puts the training loader's position into every checkpoint, in the middle of an epoch too, and
``fit(..., ckpt_path=...)`` continues with the next batch. All this holds for a plain :class:`bowstring.torch.DataLoader` too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from lightning.pytorch import LightningDataModule

from bowstring.errors import ConfigError
from bowstring.options import Url, urls_of
from bowstring.torch import DataLoader

__all__ = ["DataModule"]

Stage: TypeAlias = "Url | Sequence[Url] | Mapping[str, Any]"


def _own(stage: Stage) -> dict[str, Any]:
    """The options of a stage, whose loader may be opened several times."""
    own = dict(stage) if isinstance(stage, Mapping) else {"url": stage}
    return {name: urls_of(value) if name == "url" else value for name, value in own.items()}


class DataModule(LightningDataModule):
    """Training, validation, test and prediction data by URL.

    Each may instead be a mapping of options that hold for it alone, ``url`` among them. Evaluation is in file order unless its
    own options say otherwise. Rank and world size are the trainer's; under ``ModelParallelStrategy``, those of its
    data-parallel group.

    :param train: URL, list of URLs, or options.
    :param val: the same for validation.
    :param test: the same for tests.
    :param predict: the same for predictions.
    :param options: options of :class:`bowstring.torch.DataLoader` for all of them.
    """

    def __init__(
        self,
        train: Stage | None = None,
        val: Stage | None = None,
        test: Stage | None = None,
        predict: Stage | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        stages = {"train": train, "val": val, "test": test, "predict": predict}
        self._stages = {name: None if stage is None else _own(stage) for name, stage in stages.items()}
        self._options = options
        self._loaders: dict[str, DataLoader] = {}

    def train_dataloader(self) -> DataLoader:
        """This rank's training batches."""
        return self._opened("train")

    def val_dataloader(self) -> Any:
        """This rank's validation batches; nothing to validate on without ``val``."""
        return self._opened("val") if self._stages["val"] is not None else []

    def test_dataloader(self) -> DataLoader:
        """This rank's test batches."""
        return self._opened("test")

    def predict_dataloader(self) -> DataLoader:
        """This rank's batches to predict."""
        return self._opened("predict")

    def teardown(self, stage: str | None = None) -> None:
        """Closes the loaders of a stage that is over."""
        stages: Mapping[str | None, Sequence[str]] = {"fit": ("train", "val"), "validate": ("val",)}
        for name in stages.get(stage, tuple(self._stages) if stage is None else (stage,)):
            loader = self._loaders.pop(name, None)
            if loader is not None:
                loader.close()

    def on_exception(self, exception: BaseException) -> None:
        """Closes everything."""
        self.teardown()

    def _opened(self, name: str) -> DataLoader:
        stage = self._stages[name]
        if stage is None:
            raise ConfigError(f"option {name}: this DataModule was made without it", option=name)
        in_order = {} if name == "train" else {"shuffle": False}
        options = {**self._options, **in_order, **stage}
        trainer = self.trainer
        if trainer is not None and all(options.get(n) is None for n in ("rank", "world_size", "gang")):
            # As Lightning's own sampler: processes that hold parts of one model get the same rows.
            own = trainer.distributed_sampler_kwargs or {}
            options |= {
                "rank": own.get("rank", trainer.global_rank),
                "world_size": own.get("num_replicas", trainer.world_size),
            }
        url = options.pop("url")
        former = self._loaders.pop(name, None)
        if former is not None:
            former.close()
        loader = DataLoader(url, **options)
        self._loaders[name] = loader
        return loader
