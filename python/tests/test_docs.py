"""The Python of docs/: every example runs, here behind a few lines that make what its reader has, or in the test that is named."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import PHOTOS, ROOT

# Processes that import a framework.
pytestmark = pytest.mark.timeout(300)

BLOCKS = {
    f"{page.stem} {number}": code
    for page in sorted((ROOT / "docs").glob("*.md"))
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL), 1)
}

TORCH = "import torch, bowstring, bowstring.torch; from bowstring.torch import DataLoader; url = 'clicks'"
MODEL = "model = torch.nn.Linear(2, 1)"

# By framework: an example, what its reader has before it, and what comes after it to see that it did something.
HERE: dict[str, dict[str, tuple[str, str]]] = {
    "torch": {
        "certificates 1": (
            f"{TORCH}; {MODEL}; import pathlib; pathlib.Path('certificates').mkdir()\n"
            "loader = DataLoader(url, batch_size=8)",
            "next(iter(loader)); checkpoint(model, loader); assert list(pathlib.Path('certificates').iterdir())",
        ),
        "filter 1": ("", "import bowstring; bowstring.Loader('clicks', batch_size=8, filter=[('label', '>=', 3)])"),
        "frameworks 3": (
            f"{TORCH}; seen = []\nclass Model:\n  def fit(self, data, epochs):\n    seen.extend(x['x'].shape for x, y in data)\n"
            "model = Model()",
            "assert seen",
        ),
        "frameworks 6": (
            f"from accelerate import Accelerator; {TORCH}; {MODEL}; optimizer = torch.optim.SGD(model.parameters(), 0.1)",
            "assert len(list(loader)) == len(loader)",
        ),
        "frameworks 8": (
            f"import torch.distributed.checkpoint as dcp; {TORCH}; {MODEL}; path = 'saved'; loader = DataLoader(url, batch_size=8)",
            "assert (loader.epoch, loader.step) == (0, 0)",
        ),
        "from-petastorm 2": ("train = lambda image, label: None", "assert loader.epoch == 9"),
        "gpu 1": ("step = lambda image, label: image.float().mean() + label.sum()", "assert loss.numel() == 1"),
        "gpu 2": (
            "import os, json\nclass TaskContext:\n  get = classmethod(lambda kind: kind)\n"
            "  resources = classmethod(lambda kind: {})",
            "assert os.environ['BOWSTRING_RESOURCES'] == '{}'",
        ),
        "gpu 3": (
            f"{TORCH}; image = bowstring.Image(224, dtype='bfloat16')\n"
            "loader = DataLoader('photos', batch_size=256, images={'image': image}, tail='pad', columns=['image', 'label'])\n"
            "class graph:\n  replay = staticmethod(lambda: None)",
            "assert static['label'].any()",
        ),
        "opening 1": (TORCH, "assert loader.rows == 100"),
        "delta 1": ("", "assert loader.rows > 0"),
    },
    "lightning": {
        "frameworks 5": (
            "model = None\nclass trainer:\n  def fit(model, data, ckpt_path):\n    data.setup('fit')\n    global seen\n"
            "    seen = [len(data.train_dataloader()), len(data.val_dataloader())]\n",
            "assert seen == [1, 1]",
        ),
    },
    "tensorflow": {
        "frameworks 2": (
            "import tensorflow as tf, bowstring.tensorflow; url = 'clicks'; seen = []\n"
            "def train_step(batch): seen.append(batch)",
            "assert len(seen) == 4",
        ),
        "frameworks 1": (
            "from bowstring import Image\nclass model:\n  def fit(data, epochs, callbacks):\n    global seen\n"
            "    seen = [y.shape for x, y in data]",
            "assert len(seen) == 1",
        ),
    },
    "jax": {
        "frameworks 4": (
            "import jax; from jax.sharding import NamedSharding, PartitionSpec; state = 0\n"
            "train_step = lambda state, batch: state + 1",
            "assert state == len(loader)",
        ),
    },
}
ELSEWHERE = {
    "frameworks 7": "frameworks/test_transformers.py, word for word",
    "frameworks 9": "frameworks/test_ray.py, word for word",
    "from-petastorm 1": "petastorm/test_petastorm_torch.py: both imports need packages that are not there together",
    "from-petastorm 3": "petastorm/ and test_writer.py: an index of Petastorm's, windows, stored images",
    "from-petastorm 4": "petastorm/test_petastorm_spark.py",
    "gpu 4": "test_gpu_session.py: it needs a GPU that decodes JPEG",
    "protocol 1": "test_flight.py, word for word",
    "spark 1": "test_spark_serve.py",
    "spark 2": "test_spark_serve.py",
    "spark 3": "test_spark_source.py",
    "spark 4": "test_spark_inference.py: a gang of Spark's tasks",
    "spark 5": "test_inference.py",
}
# Places and devices of which the reader has others.
OTHERS = [
    ("s3://bucket/table", "table"),
    ("version=17", "version=0"),
    ("2026-01-31 12:30:00", "2100-01-31 12:30:00"),
    ("/data/photos", "photos"),
    ("cuda:0", "cpu"),
    ('"cuda"', '"cpu"'),
]


def test_every_example_is_accounted_for() -> None:
    told = [*ELSEWHERE, *(name for names in HERE.values() for name in names)]
    assert sorted(told) == sorted(BLOCKS)
    for name, where in ELSEWHERE.items():
        file = re.split(r"[,: ]", where)[0]
        assert (ROOT / "python" / "tests" / file).exists(), name
        compile(BLOCKS[name], name, "exec")


@pytest.fixture
def home(tmp_path: pathlib.Path) -> pathlib.Path:
    """A directory with the datasets that the examples name."""
    for name in ("photos", "train", "val", "clicks"):
        (tmp_path / name).mkdir()
    shutil.copy(PHOTOS, tmp_path / "photos" / "part-0.parquet")
    columns = {"label": [row % 5 for row in range(100)], "x": [[row / 100, 1.0] for row in range(100)]}
    table = pa.table({**columns, "user_id": list(range(100))})
    for name in ("train", "val", "clicks"):
        pq.write_table(table, tmp_path / name / "part-0.parquet", row_group_size=30)
    shutil.copytree(ROOT / "fixtures" / "delta" / "dv-with-columnmapping" / "delta", tmp_path / "table")
    return tmp_path


PROGRAM = """
import json, sys, traceback, warnings
warnings.simplefilter("ignore")
failed = {}
for name, parts in json.load(sys.stdin).items():
    names = {"__name__": "example"}
    try:
        for part in parts:
            exec(compile(part, name, "exec"), names)
    except Exception:
        failed[name] = traceback.format_exc()
print(json.dumps(failed))
"""


@pytest.mark.parametrize("framework", HERE)
def test_the_examples_run(framework: str, home: pathlib.Path) -> None:
    pytest.importorskip({"torch": "accelerate"}.get(framework, framework))
    examples = {}
    for name, (before, after) in HERE[framework].items():
        code = BLOCKS[name]
        for place, other in OTHERS:
            code = code.replace(place, other)
        examples[name] = [before, code, after]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps(examples),
        cwd=home,
        env={**os.environ, "PYTHONPATH": str(ROOT / "python"), "TF_CPP_MIN_LOG_LEVEL": "3", "ACCELERATE_USE_CPU": "1"},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    failed = json.loads(done.stdout.splitlines()[-1])
    assert not failed, "\n".join(failed.values())
