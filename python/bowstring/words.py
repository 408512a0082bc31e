"""Words of other libraries for what an option does here, and the error that says so."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import NoReturn

from bowstring.errors import UnknownOptionError
from bowstring.options import NAMES

__all__ = ["refuse"]

_ROWS = "rank= and world_size= say which rows, shuffle= and seed= their order, filter= and selector= choose among them"
_THREADS = "there are no worker processes; threads= says how many threads decode"
_MADE = "batches are made whole in Rust: nulls=, lists=, pack=, cast= and images= say what becomes of columns"

_WORDS = {
    # torch.utils.data.DataLoader
    "num_workers": _THREADS,
    "persistent_workers": "threads live as long as the loader",
    "worker_init_fn": _THREADS,
    "multiprocessing_context": _THREADS,
    "prefetch_factor": "prefetch= says how many batches are made ahead",
    "pin_memory": "device='pinned' delivers in page-locked host memory, device='cuda' on the GPU",
    "pin_memory_device": "device='cuda:N' delivers on a GPU",
    "sampler": _ROWS,
    "batch_sampler": f"batch_size= says how many rows; {_ROWS}",
    "collate_fn": _MADE,
    "generator": "seed= says the order",
    "in_order": "batches always come in order",
    # Petastorm
    "num_epochs": "each loop over the loader is an epoch",
    "schema_fields": "columns= chooses columns",
    "shuffle_row_groups": "shuffle= shuffles rows",
    "cur_shard": "rank= is this rank",
    "shard_count": "world_size= is the number of ranks",
    "shard_seed": "seed= says the order",
    "workers_count": _THREADS,
    "reader_pool_type": _THREADS,
    "results_queue_size": "prefetch= says how many batches are made ahead",
    "predicate": "filter= selects rows",
    "rowgroup_selector": "selector= chooses row groups",
    "transform_spec": _MADE,
    # Mosaic's StreamingDataset, Hugging Face's datasets
    "local": "url is the address of the dataset",
    "remote": "url is the address of the dataset",
    "shuffle_seed": "seed= says the order",
    "shuffle_block_size": "window_rows= says among how many rows is shuffled",
    "num_canonical_nodes": "lanes= cuts the order into parts",
    "predownload": "prefetch= says how many batches are made ahead",
    "cache_limit": "memory_budget= bounds everything in flight",
    "num_shards": "world_size= is the number of ranks",
    "shard_id": "rank= is this rank",
    "num_proc": _THREADS,
    "transform": _MADE,
}


def refuse(unknown: Iterable[str]) -> None:
    """Raises for the first of the ``unknown`` keywords, and says what does its job.

    :raises UnknownOptionError: if there is one.
    """
    for name in unknown:
        raise_for(name)


def raise_for(name: str) -> NoReturn:
    """The error for the keyword ``name``."""
    if name in _WORDS:
        problem = _WORDS[name]
    else:
        near = difflib.get_close_matches(name, NAMES, 1)
        problem = f"did you mean {near[0]}=?" if near else f"there are {', '.join(NAMES)}"
    raise UnknownOptionError(f"{name} is no option of bowstring's loaders; {problem}", option=name)
