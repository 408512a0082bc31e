"""Batches as torch tensors, over the batch's own memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.cuda import current_stream
from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.dlpack import from_dlpack

from bowstring import _native
from bowstring.base import BaseLoader
from bowstring.errors import ConfigError

__all__ = ["DataLoader", "Dataset"]


class DataLoader(BaseLoader[Any]):
    """Yields ``dict[str, torch.Tensor]``, on ``device``; strings and binary are ``pyarrow.Array``.

    It takes the place of ``torch.utils.data.DataLoader``: batches are made by threads in Rust, so there are no worker processes.
    """

    def _array(self, tensor: _native.Tensor) -> Any:
        if tensor.device != "cpu":
            # torch says which stream it works on.
            return from_dlpack(tensor)
        # The capsule itself: torch asks an object three more questions, which for small tensors take as long as the answer.
        return from_dlpack(tensor.__dlpack__())

    def _stream(self) -> Any:
        device = self.device
        # In torch's numbers the legacy default stream is 0.
        return None if device == "cpu" else current_stream(device).cuda_stream or 1


class Dataset(DataLoader, IterableDataset[dict[str, Any]]):
    """The same, for code that wants a ``torch.utils.data.DataLoader``::

    torch.utils.data.DataLoader(bowstring.torch.Dataset(url, batch_size=256), batch_size=None)

    It yields whole batches, hence ``batch_size=None``, and no worker processes: with ``num_workers`` above 0 it raises.
    """

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if get_worker_info() is not None:
            raise ConfigError(
                "option num_workers: bowstring makes batches in threads of its own and shards by rank; "
                "use torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=0)",
                option="num_workers",
            )
        return super().__iter__()


for _class in (DataLoader, Dataset):
    _class.__doc__ = f"{_class.__doc__}\n{BaseLoader.__doc__}"
