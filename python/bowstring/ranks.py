"""The rank of this process: from its process group, else from its launcher's environment."""

from __future__ import annotations

import os
import sys

from bowstring import _native
from bowstring.errors import ConfigError

__all__ = ["group", "not_in_workers", "of_jax", "options", "rank", "told", "unchanged"]

_OWN = ("BOWSTRING_RANK", "BOWSTRING_WORLD_SIZE")


def not_in_workers(given_rank: object) -> None:
    """Refuses one of several workers of torch's ``DataLoader``, each of which would read all rows, unless a rank is given."""
    data = sys.modules.get("torch.utils.data")
    found = data.get_worker_info() if data is not None and given_rank is None else None
    if found is not None and found.num_workers > 1:
        raise ConfigError(
            f"option num_workers: each of {found.num_workers} worker processes would read all rows; bowstring makes "
            "batches in threads of its own, so use num_workers=0, or give each worker a rank and world_size (0 and 1 to read "
            "all rows in each)",
            option="num_workers",
        )
    if found is not None and _of_a_spawned_rank():
        raise ConfigError(
            "option num_workers: this worker process belongs to a process that multiprocessing started (mp.spawn), and has "
            "neither its process group nor a launcher's variables, so it would read all rows, as would the workers of "
            "other ranks; use num_workers=0, or give rank and world_size (0 and 1 to read all rows)",
            option="num_workers",
        )


def _of_a_spawned_rank() -> bool:
    """True for a worker of a process that may be one of several ranks, which nothing here tells."""
    # Imported in a worker, and not by whoever needs none.
    import multiprocessing

    worker, trainer = multiprocessing.current_process(), multiprocessing.parent_process()
    if (getattr(worker, "_start_method", None) or multiprocessing.get_start_method()) == "fork":
        # It has the process group that its trainer has.
        return False
    # The process that the user started is the main one; the workers of its ``DataLoader`` belong to no other rank.
    if trainer is None or trainer.name == "MainProcess" or any(map(os.environ.get, _OWN)):
        return False
    return group() is None and _native.rank()[1] == 1


def group() -> tuple[int, int] | None:
    """Rank and world size of this process as its framework knows them, if it does: the process group of ``torch.distributed``, then
    ``jax.distributed``, then Ray Train.

    :raises ConfigError: if a launcher's environment contradicts a process group.
    """
    found = _joined()
    return None if found is None else found[:2]


def _joined(*, agreed: bool = True) -> tuple[int, int, str] | None:
    for joined, name in ((_torch, "torch.distributed's process group"), (of_jax, "jax.distributed")):
        if (found := joined()) is not None:
            if agreed:
                _agreed(found, name)
            parts = _parts_of_a_model()
            return found[0] // parts, found[1] // parts, name
    # Its workers inherit the environment of whatever started Ray on their host.
    found = _ray()
    return None if found is None else (*found, "Ray Train")


# A process that takes part in one of these has imported it.


def _torch() -> tuple[int, int] | None:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()


def _parts_of_a_model() -> int:
    """The processes that hold one model between them, and so need the same rows: Accelerate's tensor and context parallel ones."""
    kept = getattr(getattr(sys.modules.get("accelerate.state"), "AcceleratorState", None), "_shared_state", {})
    config = kept.get("parallelism_config")
    # As `accelerate.data_loader.prepare_data_loader` divides torch's own loaders: these processes have neighbouring ranks.
    return (getattr(config, "tp_size", 1) or 1) * (getattr(config, "cp_size", 1) or 1)


def of_jax() -> tuple[int, int] | None:
    """Index and number of JAX's processes, if this program called ``jax.distributed.initialize``."""
    jax = sys.modules.get("jax")
    joined = getattr(getattr(jax, "distributed", None), "is_initialized", None)
    if jax is None or joined is None or not joined():
        return None
    return jax.process_index(), jax.process_count()


def _ray() -> tuple[int, int] | None:
    train = sys.modules.get("ray.train")
    if train is None:
        return None
    try:
        context = train.get_context()
        found = context.get_world_rank(), context.get_world_size()
    except Exception:  # as it says that this is no worker; the kind differs between versions
        return None
    if not all(isinstance(number, int) for number in found):
        return None
    # Where a version answers outside of a worker too, it is 0 of 1.
    return found if found[1] > 1 or _trains() else None


def _trains() -> bool:
    """True if this process is a worker of Ray Train, of either version; false if that cannot be told."""
    for module, name in (("_internal.session", "get_session"), ("v2._internal.execution.context", "get_train_context")):
        session = getattr(sys.modules.get(f"ray.train.{module}"), name, None)
        try:
            if session is not None and session() is not None:
                return True
        except RuntimeError:  # as the second says that there is none
            pass
    return False


def _agreed(found: tuple[int, int], name: str) -> None:
    try:
        launched = _native.launched()
    except ConfigError:
        # An incomplete or invalid environment does not contradict a process group.
        return
    if launched is not None and launched[:2] != found:
        problem = (
            f"{name} has this process as rank {found[0]} of {found[1]}, "
            f"and its environment as rank {launched[0]} of {launched[1]}: {launched[2]}"
        )
        raise ConfigError(f"option rank: {problem}; give rank and world_size, or unset these variables", option="rank")


def rank() -> tuple[int, int, str]:
    """Rank, world size, and the origin of both."""
    return _joined() or _native.rank()


def told(given_rank: object, given_world_size: object) -> bool:
    """True if options or ``BOWSTRING_...`` give the rank, whatever this process is to others."""
    return given_rank is not None or given_world_size is not None or any(map(os.environ.get, _OWN))


def options(given_rank: object, given_world_size: object) -> dict[str, int]:
    """``rank`` and ``world_size`` of the process group, unless options or ``BOWSTRING_...`` give them."""
    found = None if told(given_rank, given_world_size) else group()
    return {} if found is None else {"rank": found[0], "world_size": found[1]}


def unchanged(opened: tuple[int, int]) -> None:
    """Refuses a process that is another rank by now than the one, of so many, that a loader was opened as.

    A process that has left its group is no other rank: a loop may end after it.

    :raises ConfigError: naming both ranks.
    """
    found = _joined(agreed=False)
    if found is None or found[:2] == opened:
        return
    own = "all rows" if opened[1] == 1 else f"the rows of rank {opened[0]} of {opened[1]}"
    problem = f"this loader was opened before the process became rank {found[0]} of {found[1]}, and reads {own}"
    hint = "open it again and load its state, or give rank and world_size (0 and 1 to read all rows in each process)"
    raise ConfigError(f"option rank: {problem}; {hint}", option="rank")
