"""Common loops over TensorFlow's dataset and its eager loader: the same results as with torch's own loader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from habits import BATCH, FEW, HABITS, ROWS, numbers, reference, reference_ids, write

tf = pytest.importorskip("tensorflow")
from bowstring.tensorflow import Loader, dataset  # noqa: E402


@pytest.mark.parametrize("kind", [dataset, Loader], ids=["dataset", "loader"])
@pytest.mark.parametrize("habit", HABITS, ids=lambda habit: habit.__name__)
def test_habit(habit: Callable[..., Any], kind: Any, tmp_path: Any) -> None:
    path = write(tmp_path)
    found = habit(lambda rows=ROWS: kind(path(rows), batch_size=BATCH, shuffle=False), numbers)
    assert found == habit(reference, reference_ids)


def test_stages_after_a_dataset(tmp_path: Any) -> None:
    """`take`, `skip`, `repeat` and `zip` make their own iterators, as over a dataset of TensorFlow's."""
    path = write(tmp_path)

    def found(open: Callable[[int], Any], ids: Callable[[Any], list[int]]) -> list[list[list[int]]]:
        many, few = open(ROWS), open(FEW)
        stages = [many.take(3), many, many.skip(10), many.repeat(2), many.prefetch(2).take(1), many]
        pairs = [ids(a) + ids(b) for a, b in tf.data.Dataset.zip((many, few))]
        return [*([ids(batch) for batch in stage] for stage in stages), pairs, [ids(batch) for batch in many]]

    def plain(rows: int) -> Any:
        return tf.data.Dataset.range(rows).batch(BATCH)

    ours = found(lambda rows: dataset(path(rows), batch_size=BATCH, shuffle=False), numbers)
    assert ours == found(plain, lambda batch: [int(number) for number in batch])
