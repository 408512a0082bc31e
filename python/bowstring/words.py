"""Keywords of other libraries, the corresponding options, and the error that names them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn

from bowstring.errors import UnknownOptionError
from bowstring.options import NAMES

__all__ = ["refuse"]

_ROWS = "rank= and world_size= say which rows, shuffle= and seed= their order, filter= and selector= choose among them"
_THREADS = "there are no worker processes; threads= says how many threads decode"
_CACHE = "cache= is a directory in which what is read of stores elsewhere is kept, cache_bytes= what it may take"
_STORE = "storage_options= are the options of the store"
_MADE = "batches are made whole in Rust: nulls=, lists=, pack=, cast= and images= say what becomes of columns"

_WORDS = {
    # torch.utils.data.DataLoader, and torchdata's StatefulDataLoader
    "dataset": "url is the address of the dataset, the first argument",
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
    "snapshot_every_n_steps": "state_dict() is exact after every batch",
    # Petastorm
    "dataset_url": "url is the address of the dataset, the first argument",
    "dataset_url_or_urls": "url is the address of the dataset, or a list of them, the first argument",
    "num_epochs": "each loop over the loader is an epoch",
    "schema_fields": "columns= chooses columns",
    "shuffle_row_groups": "shuffle= shuffles rows",
    "shuffle_rows": "shuffle= shuffles rows",
    "shuffle_row_drop_partitions": "window_rows= says among how many rows is shuffled",
    "shuffling_queue_capacity": "window_rows= says among how many rows is shuffled",
    "min_after_retrieve": "window_rows= says among how many rows is shuffled",
    "cur_shard": "rank= is this rank",
    "shard_count": "world_size= is the number of ranks",
    "shard_seed": "seed= says the order",
    "workers_count": _THREADS,
    "reader_pool_type": _THREADS,
    "results_queue_size": "prefetch= says how many batches are made ahead",
    "pyarrow_serialize": _THREADS,
    "zmq_copy_buffers": _THREADS,
    "predicate": "filter= selects rows",
    "filters": "filter= selects rows",
    "rowgroup_selector": "selector= chooses row groups",
    "transform_spec": _MADE,
    "cache_type": _CACHE,
    "cache_location": _CACHE,
    "cache_size_limit": _CACHE,
    "cache_row_size_estimate": _CACHE,
    "cache_extra_settings": _CACHE,
    "inmemory_cache_all": _CACHE,
    "hdfs_driver": _STORE,
    "convert_early_to_numpy": _MADE,
    "batched_output": "batches always come whole",
    # Mosaic's StreamingDataset
    "local": "url is the address of the dataset",
    "remote": "url is the address of the dataset",
    "streams": "a list of addresses with weights= mixes datasets",
    "proportion": "weights= mixes datasets in proportions",
    "repeat": "weights= mixes datasets in proportions",
    "choose": "filter= selects rows",
    "epoch_size": "an epoch is all rows; leave the loop where you want it to end",
    "shuffle_seed": "seed= says the order",
    "shuffle_algo": "there is one shuffle; window_rows= and lanes= say how far it goes",
    "shuffle_block_size": "window_rows= says among how many rows is shuffled",
    "sampling_method": "an epoch has each row once; weights= and stop= mix datasets",
    "sampling_granularity": "weights= and stop= mix datasets",
    "partition_algo": "lanes= cuts the order into parts",
    "num_canonical_nodes": "lanes= cuts the order into parts",
    "batching_method": "a list of addresses with weights= mixes datasets row by row",
    "device_per_stream": "weights= mixes datasets",
    "predownload": "prefetch= says how many batches are made ahead",
    "cache_limit": _CACHE,
    "download_retry": _STORE,
    "download_timeout": "timeout= says how long a batch is waited for",
    "validate_hash": "files are pinned to the versions that were opened",
    "keep_zip": _CACHE,
    "replication": "ranks that get the same rows are given the same rank=",
    "allow_unsafe_types": "data never runs code; pickles are not read",
    # Hugging Face's datasets
    "path": "url is the address of the dataset, the first argument",
    "data_dir": "url is the address of the dataset, the first argument",
    "data_files": "url takes a list of files, or a glob",
    "split": "url is the address of one split, and filter='split(id, 0, 0.8)' makes one",
    "streaming": "datasets are always read as they are needed",
    "features": "cast= says the element types, images= and lists= what becomes of columns",
    "token": "storage_options={'token': ...} is what a store or a server is told",
    "use_auth_token": "storage_options={'token': ...} is what a store or a server is told",
    "cache_dir": _CACHE,
    "keep_in_memory": _CACHE,
    "trust_remote_code": "data never runs code",
    "num_shards": "world_size= is the number of ranks",
    "shard_id": "rank= is this rank",
    "num_proc": _THREADS,
    "buffer_size": "window_rows= says among how many rows is shuffled",
    "remove_columns": "exclude= leaves columns out",
    "drop_last_batch": "tail='drop' leaves the incomplete last step out",
    "transform": _MADE,
    "formatting_func": _MADE,
    # tf.data
    "num_parallel_calls": _THREADS,
    "cycle_length": "lanes= says from how many places rows come at once",
    "deterministic": "the order is always the same for one seed=",
    "drop_remainder": "tail='drop' leaves the incomplete last step out",
    "reshuffle_each_iteration": "each epoch has an order of its own; set_epoch() goes back to one",
}


def refuse(unknown: Iterable[str]) -> None:
    """Raises for the first of the ``unknown`` keywords, and names the corresponding option.

    :raises UnknownOptionError: if there is one.
    """
    for name in unknown:
        raise_for(name)


def raise_for(name: str) -> NoReturn:
    """The error for the keyword ``name``."""
    if name in _WORDS:
        problem = _WORDS[name]
    else:
        import difflib  # not for those who make no mistakes

        near = difflib.get_close_matches(name, NAMES, 1)
        problem = f"did you mean {near[0]}=?" if near else f"there are {', '.join(NAMES)}"
    raise UnknownOptionError(f"{name} is not an option of bowstring's loaders; {problem}", option=name)
