"""Batches as torch tensors, over the batch's own memory."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from types import FrameType
from typing import Any, NoReturn

import torch
from torch import distributed
from torch.utils.data import ChainDataset, IterableDataset, get_worker_info
from torch.utils.data._utils.fetch import _BaseDatasetFetcher
from torch.utils.dlpack import from_dlpack

from bowstring import _native
from bowstring.arrays import torch_stream
from bowstring.base import BaseLoader
from bowstring.batch import Layout
from bowstring.errors import ConfigError, RemoteError, UnsupportedError
from bowstring.index import index
from bowstring.midstep import trained_on
from bowstring.options import Url
from bowstring.stacked import Stacked
from bowstring.steps import Batches, Steps, no_random_split, no_rows_by_number, only, shared_again
from bowstring.underway import Underway, watched

__all__ = ["DataLoader", "Dataset", "shared_index"]

_LOG = logging.getLogger("bowstring")
# Most frames from a dataset's pass to the fetcher of torch's loader that takes from it.
_DEPTH = 16


class DataLoader(BaseLoader[Any]):
    """Yields ``dict[str, torch.Tensor]``, on ``device``; text is ``list[str]``, binary ``list[bytes]``, lists of them too.

    It replaces ``torch.utils.data.DataLoader``: batches are made by threads in Rust, so there are no worker processes.
    """

    # Attributes that Accelerate checks: a loader that is already sharded, whose ``state_dict`` belongs in its checkpoints.
    _is_accelerate_prepared = True
    use_stateful_dataloader = True
    collate_fn = staticmethod(only)
    # There are no workers; a loader rebuilt from this one must not get 2.
    prefetch_factor: int | None = None

    # The pass in use, if Accelerate was notified.
    _underway: Underway | None = None
    # Whether a pass has said that the ranks' batches differ.
    _said = False
    # The pass in use, if torch stacks rows of it, and whether Accelerate reads it a batch ahead of the loop.
    _stacked: Stacked | None = None
    _read_ahead = False

    def _pass(self, convert: Callable[[Any], Any], *into: Any) -> Iterator[Any]:
        self._stacked, self._read_ahead = None, False
        self._say_if_uneven()
        if not watched():
            return super()._pass(convert, *into)
        self._still_its_rank()
        underway = Underway(self)

        def begun(columns: Any) -> Any:
            underway.begin()
            return convert(columns)

        return self._native.begin(begun, *into, ended=underway.end)

    def _say_if_uneven(self) -> None:
        """Warns once of ranks whose batches differ by a row in every step: a gather of them hangs or ends the process."""
        if self._said:
            return
        self._said = True
        spec, ranks = self._native.state()["spec"], self.world_size
        rows = int(spec["global_batch"])
        if rows % ranks and spec["tail"] != "even":
            _LOG.warning(
                "option global_batch_size: %d rows are not the same number for each of %d ranks, so the batches of a step differ "
                "by one row; collectives that need equal shapes (all_gather, Accelerate's gather_for_metrics) fail: give a "
                "multiple of %d for them",
                rows,
                ranks,
                ranks,
            )

    def __getitem__(self, index: Any) -> NoReturn:
        # For a `torch.utils.data.DataLoader` around this one.
        if isinstance(next(_callers(sys._getframe(1))), _BaseDatasetFetcher):
            raise UnsupportedError(
                "a bowstring.torch.DataLoader is no dataset of a torch.utils.data.DataLoader: loop over it instead; for code that "
                "requires the latter use torch.utils.data.DataLoader(bowstring.torch.Dataset(url, batch_size=256), batch_size=None)"
            )
        no_rows_by_number("bowstring.torch.DataLoader")

    def __len__(self) -> int:
        """Steps of one epoch: exact, and the same on every rank."""
        no_random_split(f"{type(self).__module__}.{type(self).__qualname__}")
        return super().__len__()

    def state_dict(self) -> dict[str, Any]:
        # A subclass with a state of its own keeps the rest of its batch there.
        if self._stacked is not None and type(self).state_dict is DataLoader.state_dict:
            self._stacked.at_an_end()
        if self._read_ahead and self.step > 0 and not _is_within(sys._getframe(1), "DataLoaderAdapter"):
            raise UnsupportedError(
                "Accelerate's loader around this bowstring.torch.Dataset reads a batch ahead, so that a state of the Dataset would "
                "lose it: hand a bowstring.torch.DataLoader to Accelerator.prepare or Accelerator.prepare_data_loader, or save "
                "with DataLoaderConfiguration(use_stateful_dataloader=True) and Accelerator.save_state"
            )
        at = trained_on(self._native)
        # Always with ``left``: torch's distributed checkpoints load only states of the keys that the loader's own has.
        return {"left": [], **(super().state_dict() if at is None else self._native.state_at(*at))}

    state_dict.__doc__ = BaseLoader.state_dict.__doc__

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._stacked, self._read_ahead = None, False

    load_state_dict.__doc__ = BaseLoader.load_state_dict.__doc__

    @property
    def dataset(self) -> Batches:
        """For frameworks that ask for the number of rows: ``len(loader.dataset)`` is :attr:`rows`."""
        return Batches(self)

    @property
    def batch_sampler(self) -> Steps:
        """The steps of a pass, for libraries that skip some by building a loader from :attr:`dataset`, this and ``collate_fn``."""
        return Steps(self)

    @property
    def end_of_dataloader(self) -> bool:
        """True if the last batch of the epoch was yielded, by Accelerate's name."""
        return self.step == self._native.steps

    @property
    def remainder(self) -> int:
        """Rows to keep, from the start, of those that ``gather_for_metrics`` gathers of the last step, by Accelerate's name.

        0 if nothing is to be cut: no row fills this step. -1 if a cut would remove the wrong rows, since each of several ranks
        fills up its own batch: under ``pad`` and ``repeat``, and under ``short`` in several lanes, as of a shuffled order.
        """
        spec = self._native.state()["spec"]
        rest = self.rows % int(spec["global_batch"])
        if rest == 0 or spec["tail"] == "even":
            return 0
        in_turn = spec["tail"] == "short" and (spec["lanes"] == 1 or rest % self.world_size == 0)
        return rest if in_turn or self.world_size == 1 else -1

    def _array(self, tensor: _native.Tensor) -> Any:
        return self._batch({"tensor": tensor})["tensor"]

    def _batch(self, columns: dict[str, _native.Tensor | _native.ArrowArray]) -> dict[str, Any]:
        return _native.by_dlpack(columns, from_dlpack, self._stream(), self._other)

    def _text(self, name: str, array: _native.ArrowArray) -> Any:
        return array.to_pylist()

    def _stream(self) -> Any:
        return torch_stream(self.device)


class Dataset(DataLoader, IterableDataset[dict[str, Any]]):
    """The same, for code that requires a ``torch.utils.data.DataLoader``::

    torch.utils.data.DataLoader(bowstring.torch.Dataset(url, batch_size=256), batch_size=None)

    It yields whole batches, hence ``batch_size=None``, and no worker processes: with ``num_workers`` above 0 it raises.

    Hugging Face's Trainer and Accelerate need no such loader: give them a :class:`DataLoader`. Torch's has no ``set_epoch``, so a
    Trainer that resumes in a later epoch would take the rows of epoch 0 from it.
    """

    def __getitem__(self, index: Any) -> NoReturn:
        no_rows_by_number("bowstring.torch.Dataset")

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if get_worker_info() is not None:
            raise ConfigError(
                "option num_workers: bowstring makes batches in threads of its own and shards by rank; "
                "use torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=0)",
                option="num_workers",
            )
        frame = sys._getframe(1)
        if self.world_size > 1 and _is_within(frame, "DataLoaderDispatcher", "IterableDatasetShard"):
            shared_again()
        read_ahead = _is_within(frame, "DataLoaderDispatcher", "DataLoaderShard")
        callers = list(islice(_callers(frame), _DEPTH))
        fetcher = next((one for one in callers if isinstance(one, _BaseDatasetFetcher)), None)
        if fetcher is None or not fetcher.auto_collation:
            batches = super().__iter__()
            self._read_ahead = read_ahead
            return batches
        # As of `first + second`.
        if next(one for one in callers if not isinstance(one, ChainDataset)) is fetcher:
            # For any collate_fn.
            raise ConfigError(
                "option batch_size: a bowstring.torch.Dataset yields whole batches, which torch would stack into batches "
                "of batches; use torch.utils.data.DataLoader(dataset, batch_size=None), and give batch_size to "
                "bowstring.torch.Dataset",
                option="batch_size",
            )
        # A subclass yields rows, for torch to stack.
        stacked = Stacked(self._native, Layout(self._native, self._column_options, self._kept_arrow))
        batches = self._pass(stacked.counting(self._batch, fetcher))
        stacked.began()
        self._stacked, self._read_ahead = stacked, read_ahead
        return batches


def _callers(frame: FrameType | None) -> Iterator[Any]:
    """The object whose method ``frame`` is, the one whose method called it, and so on; None for a function."""
    while frame is not None:
        # Only where there is one: to look at the variables of a frame keeps them all alive.
        code = frame.f_code
        yield frame.f_locals.get("self") if "self" in code.co_varnames + code.co_freevars else None
        frame = frame.f_back


def _is_within(frame: FrameType, *names: str) -> bool:
    """True if a loader of Accelerate's, of one of these classes, is among the callers."""
    module = sys.modules.get("accelerate.data_loader")
    kinds = tuple(kind for name in names if (kind := getattr(module, name, None)) is not None)
    return bool(kinds) and any(isinstance(one, kinds) for one in _callers(frame))


def shared_index(url: Url | Sequence[Url], group: Any = None, **options: Any) -> bytes:
    """The index of the dataset at ``url``, made by the first rank of ``group`` and sent to the others, for their loaders::

        index = bowstring.torch.shared_index(url)
        loader = bowstring.torch.DataLoader(url, batch_size=256, index=index)

    All ranks of the group must call it, as with any collective; without ``torch.distributed`` it is :func:`bowstring.index`, whose
    ``options`` it takes. A failure on the first rank is an error on all of them.
    """
    if not (distributed.is_available() and distributed.is_initialized()):
        return index(url, **options)
    # As tensors, because objects would be unpickled.
    device = "cuda" if distributed.get_backend(group) == "nccl" else "cpu"
    source = distributed.get_process_group_ranks(group)[0] if group is not None else 0
    failed: Exception | None = None
    made, whole = b"", 1
    if distributed.get_rank() == source:
        try:
            made = index(url, **options)
        except Exception as error:
            failed, made, whole = error, str(error).encode(), 0
    head = torch.tensor([whole, len(made)], dtype=torch.int64, device=device)
    distributed.broadcast(head, source, group=group)
    whole, length = (int(number) for number in head.tolist())
    if distributed.get_rank() == source:
        content = torch.frombuffer(bytearray(made or b"\0"), dtype=torch.uint8).to(device)
    else:
        content = torch.empty(max(length, 1), dtype=torch.uint8, device=device)
    distributed.broadcast(content, source, group=group)
    if failed is not None:
        raise failed
    got = bytes(content.cpu().numpy().tobytes()[:length])
    if not whole:
        raise RemoteError(f"rank {source} could not index the dataset: {got.decode(errors='replace')}")
    return got


for _class in (DataLoader, Dataset):
    _class.__doc__ = f"{_class.__doc__}\n{BaseLoader.__doc__}"
