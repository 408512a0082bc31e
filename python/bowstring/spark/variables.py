"""A rank's environment: variables of options there must not change what the rank gets of a hand-off."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from bowstring.errors import ConfigError
from bowstring.options import TABLE

__all__ = ["check_variables"]


def check_variables(given: Mapping[str, Any]) -> None:
    """Checks that no variable of this process gives it other rows than the other ranks expect of it.

    :param given: the options of the hand-off, which go before variables.
    :raises ConfigError: for a variable of an option that is the same for all ranks.
    """
    for entry in TABLE:
        name, variable = entry["name"], entry["variable"]
        if name in given or variable is None or variable not in os.environ:  # an address has no variable
            continue
        if entry["of_each_process"] or entry["left_to_a_server"]:
            continue
        if name == "global_batch_size":  # of a hand-off, which has batch_size, it counts for nothing
            continue
        problem = f"{variable} is set here, but it is the same for all ranks: unset it, and give {name} to serve()"
        raise ConfigError(f"option {name}: {problem}", option=name)
