"""Common loops over JAX's loader: the same results as with torch's own loader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from habits import BATCH, HABITS, ROWS, numbers, reference, reference_ids, write

pytest.importorskip("jax")
from bowstring.jax import Loader


@pytest.mark.parametrize("habit", HABITS, ids=lambda habit: habit.__name__)
def test_habit(habit: Callable[..., Any], tmp_path: Any) -> None:
    path = write(tmp_path)
    found = habit(lambda rows=ROWS: Loader(path(rows), batch_size=BATCH, shuffle=False, tail="short"), numbers)
    assert found == habit(reference, reference_ids)
