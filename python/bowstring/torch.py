"""Batches as torch tensors, over the batch's own memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import torch
from torch import distributed
from torch.cuda import current_stream
from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map
from torch.utils.dlpack import from_dlpack

from bowstring import _native
from bowstring.base import BaseLoader
from bowstring.errors import ConfigError, RemoteError, UnsupportedError
from bowstring.index import index
from bowstring.options import Url

__all__ = ["DataLoader", "Dataset", "shared_index"]


class DataLoader(BaseLoader[Any]):
    """Yields ``dict[str, torch.Tensor]``, on ``device``; text is ``list[str]``, binary ``list[bytes]``, lists of them too.

    It takes the place of ``torch.utils.data.DataLoader``: batches are made by threads in Rust, so there are no worker processes.
    """

    def _array(self, tensor: _native.Tensor) -> Any:
        if tensor.device != "cpu":
            # torch says which stream it works on.
            return from_dlpack(tensor)
        # The capsule itself: torch asks an object three more questions, which for small tensors take as long as the answer.
        return from_dlpack(tensor.__dlpack__())

    def _text(self, name: str, array: _native.ArrowArray) -> Any:
        return array.to_pylist()

    def _stream(self) -> Any:
        device = self.device
        # In torch's numbers the legacy default stream is 0.
        return None if device == "cpu" else current_stream(device).cuda_stream or 1


class _Whole(dict[str, Any]):
    """A batch that must not be stacked with others."""


def _refuse_stacking(*_: Any, **__: Any) -> NoReturn:
    raise ConfigError(
        "option batch_size: a bowstring.torch.Dataset yields whole batches, which torch would stack into batches of batches; use "
        "torch.utils.data.DataLoader(dataset, batch_size=None), and give batch_size to bowstring.torch.Dataset",
        option="batch_size",
    )


# Where torch looks up how to make a batch of what a dataset yields, by type.
default_collate_fn_map[_Whole] = _refuse_stacking


class Dataset(DataLoader, IterableDataset[dict[str, Any]]):
    """The same, for code that wants a ``torch.utils.data.DataLoader``::

    torch.utils.data.DataLoader(bowstring.torch.Dataset(url, batch_size=256), batch_size=None)

    It yields whole batches, hence ``batch_size=None``, and no worker processes: with ``num_workers`` above 0 it raises.
    """

    def _batch(self, columns: dict[str, _native.Tensor | _native.ArrowArray]) -> dict[str, Any]:
        return _Whole(super()._batch(columns))

    def __getitem__(self, index: Any) -> NoReturn:
        raise UnsupportedError(
            "a bowstring.torch.Dataset yields whole batches in order and has no rows by number, so random_split, Subset and "
            "samplers cannot work on it; split by a filter instead: filter='split(id, 0, 0.8)' and filter='split(id, 0.8, 1)'",
            option="filter",
        )

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if get_worker_info() is not None:
            raise ConfigError(
                "option num_workers: bowstring makes batches in threads of its own and shards by rank; "
                "use torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=0)",
                option="num_workers",
            )
        return super().__iter__()


def shared_index(url: Url | Sequence[Url], group: Any = None, **options: Any) -> bytes:
    """The index of the dataset at ``url``, which the first rank of ``group`` makes and the others get, for their loaders::

        index = bowstring.torch.shared_index(url)
        loader = bowstring.torch.DataLoader(url, batch_size=256, index=index)

    All ranks of the group must call it, as with any collective; without ``torch.distributed`` it is :func:`bowstring.index`, whose
    ``options`` it takes. What fails on the first rank is an error on all of them.
    """
    if not (distributed.is_available() and distributed.is_initialized()):
        return index(url, **options)
    # Through tensors, for objects would be unpickled.
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
