"""A rank's environment: variables of options there must not change what the rank gets of a hand-off."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from bowstring.errors import ConfigError
from bowstring.options import NAMES

__all__ = ["check_variables"]

# Options that say how a rank works, not what it gets: those of ranks may differ.
_EACH = (
    *("rank", "world_size", "threads", "memory_budget", "prefetch", "timeout", "storage_options"),
    *("device", "device_slots", "device_fence", "device_overflow"),
    # Of a server's dataset these variables count for nothing.
    *("cache", "cache_bytes", "cache_peers", "cache_peer_options", "mounts", "index", "limits", "partitioning"),
)


def check_variables(given: Mapping[str, Any]) -> None:
    """Checks that no variable of this process gives it other rows than the other ranks expect of it.

    :param given: the options of the hand-off, which go before variables.
    :raises ConfigError: for a variable of an option that is the same for all ranks.
    """
    for name in NAMES:
        variable = f"BOWSTRING_{name.upper()}"
        # A hand-off has a batch size, beside which the variable of the other one counts for nothing.
        if name in given or name in _EACH or name == "global_batch_size" or variable not in os.environ:
            continue
        problem = f"{variable} is set here, but it is the same for all ranks: unset it, and give {name} to serve()"
        raise ConfigError(f"option {name}: {problem}", option=name)
