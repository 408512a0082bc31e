# Photos to batches: JPEG bytes to a random resized crop of 224 x 224, uint8 [B, 224, 224, 3] (or [B, 3, 224, 224] if
# that is the peer's own layout), and int64 [B] labels. Areas and ratios are drawn alike: 8-100 %, 3/4-4/3.

from __future__ import annotations

import collections
import concurrent.futures
import io
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

from contender import Batches, Epoch, Job, contender, shuffled
from data import TAR_SHARDS
from recsys import WINDOWS, real_rows

SIZE = 224
AREA, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
ALL = "all rows"


def crop_box(width: int, height: int, rng: random.Random) -> tuple[int, int, int, int]:
    """x, y, w, h of a random crop: ten draws of area and ratio, else the largest centred one of an allowed ratio."""
    low, high = math.log(RATIO[0]), math.log(RATIO[1])
    for _ in range(10):
        area = width * height * rng.uniform(*AREA)
        ratio = math.exp(rng.uniform(low, high))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return rng.randint(0, width - w), rng.randint(0, height - h), w, h
    w, h = min(width, round(height * RATIO[1])), min(height, round(width / RATIO[0]))
    return (width - w) // 2, (height - h) // 2, w, h


def bowstring(job: Job, layout: str) -> Epoch:
    import bowstring
    import bowstring.torch

    loader = bowstring.torch.DataLoader(
        str(job.data / "photos.parquet"),
        batch_size=job.batch,
        images={"image": bowstring.Image(SIZE, crop="random_resized", scale=AREA, ratio=RATIO, layout=layout)},
        shuffle=True,
        tail="pad",
        threads=job.threads,
        rank=0,
        world_size=1,
    )

    def epoch(number: int) -> Batches:
        loader.set_epoch(number)
        for batch in loader:
            yield real_rows(batch, batch["image"], batch["label"])

    return epoch


@contender(
    "photos",
    "bowstring",
    "bowstring.torch torch",
    shuffle=WINDOWS,
    note="yields [B, 3, 224, 224]",
)
def bowstring_chw(job: Job) -> Epoch:
    return bowstring(job, "chw")


@contender("photos", "bowstring, hwc", "bowstring.torch torch", shuffle=WINDOWS)
def bowstring_hwc(job: Job) -> Epoch:
    return bowstring(job, "hwc")


# ---- decoders in a thread pool -------------------------------------------------------------------------------------

# One photo: its bytes and a random source to the row of the batch (a numpy view [224, 224, 3]).
Decode = Callable[[bytes, random.Random, Any], None]


def threaded(job: Job, decode: Decode) -> Epoch:
    """Reads the Parquet file, decodes on `threads` threads into the batch, two batches ahead."""
    import numpy as np
    import pyarrow.parquet as pq
    import torch

    def epoch(number: int) -> Batches:
        table = pq.read_table(job.data / "photos.parquet")
        images, labels = table["image"].combine_chunks(), table["label"].to_numpy()
        order = np.asarray(shuffled(range(len(labels)), number))
        waiting: collections.deque[Any] = collections.deque()

        def one(row: int, out: Any) -> None:
            decode(images[row].as_py(), random.Random(number * len(labels) + row), out)

        def finish() -> tuple[Any, Any]:
            rows, out, futures = waiting.popleft()
            for future in futures:
                future.result()
            return torch.from_numpy(out), torch.from_numpy(labels[rows])

        with concurrent.futures.ThreadPoolExecutor(job.threads) as pool:
            for at in range(0, len(order), job.batch):
                rows = order[at : at + job.batch]
                out = np.empty((len(rows), SIZE, SIZE, 3), np.uint8)
                futures = [pool.submit(one, row, out[i]) for i, row in enumerate(rows.tolist())]
                waiting.append((rows, out, futures))
                if len(waiting) > 2:
                    yield finish()
            while waiting:
                yield finish()

    return epoch


@contender("photos", "libjpeg-turbo, crop", "turbo cv2 torch numpy pyarrow.parquet", shuffle=ALL, note="the bare chain")
def turbo_crop(job: Job) -> Epoch:
    """Decodes only the crop, scaled, and resizes with OpenCV: area averaging down (antialiased), bilinear up."""
    import cv2
    import turbo

    cv2.setNumThreads(1)
    decoder = turbo.Decoder()

    def decode(image: bytes, rng: random.Random, out: Any) -> None:
        box = crop_box(*decoder.header(image), rng)
        resize(decoder.region(image, box, SIZE), out)

    return threaded(job, decode)


def resize(pixels: Any, out: Any) -> None:
    """OpenCV's SIMD resize into the row."""
    import cv2

    smaller = pixels.shape[0] >= SIZE and pixels.shape[1] >= SIZE
    cv2.resize(pixels, (SIZE, SIZE), dst=out, interpolation=cv2.INTER_AREA if smaller else cv2.INTER_LINEAR)


@contender("photos", "libjpeg-turbo, full", "turbojpeg turbo cv2 torch numpy pyarrow.parquet", shuffle=ALL)
def turbo_full(job: Job) -> Epoch:
    """PyTurboJPEG's whole decode, then crop and resize with OpenCV."""
    import cv2
    import turbo
    import turbojpeg

    cv2.setNumThreads(1)
    codec = turbojpeg.TurboJPEG(str(turbo.library()))

    def decode(image: bytes, rng: random.Random, out: Any) -> None:
        pixels = codec.decode(image, pixel_format=turbojpeg.TJPF_RGB)
        x, y, w, h = crop_box(pixels.shape[1], pixels.shape[0], rng)
        resize(pixels[y : y + h, x : x + w], out)

    return threaded(job, decode)


@contender("photos", "opencv", "cv2 torch numpy pyarrow.parquet", shuffle=ALL)
def opencv(job: Job) -> Epoch:
    import cv2
    import numpy as np

    cv2.setNumThreads(1)

    def decode(image: bytes, rng: random.Random, out: Any) -> None:
        pixels = cv2.imdecode(np.frombuffer(image, np.uint8), cv2.IMREAD_COLOR_RGB)
        x, y, w, h = crop_box(pixels.shape[1], pixels.shape[0], rng)
        resize(pixels[y : y + h, x : x + w], out)

    return threaded(job, decode)


@contender("photos", "pillow", "PIL.Image torch numpy pyarrow.parquet", shuffle=ALL)
def pillow(job: Job) -> Epoch:
    import numpy as np
    import PIL.Image

    def decode(image: bytes, rng: random.Random, out: Any) -> None:
        with PIL.Image.open(io.BytesIO(image)) as photo:
            rgb = photo.convert("RGB")
        x, y, w, h = crop_box(rgb.width, rgb.height, rng)
        out[:] = np.asarray(rgb.resize((SIZE, SIZE), PIL.Image.Resampling.BILINEAR, box=(x, y, x + w, y + h)))

    return threaded(job, decode)


@contender(
    "photos",
    "torchvision",
    "torchvision.io torchvision.transforms.v2.functional torch numpy pyarrow.parquet",
    shuffle=ALL,
)
def torchvision(job: Job) -> Epoch:
    """`decode_jpeg` and `resized_crop` on uint8 tensors; the copy into the batch is what `default_collate` would do."""
    import numpy as np
    import torch
    from torchvision.io import ImageReadMode, decode_jpeg
    from torchvision.transforms.v2.functional import resized_crop

    torch.set_num_threads(1)

    def decode(image: bytes, rng: random.Random, out: Any) -> None:
        pixels = decode_jpeg(torch.from_numpy(np.frombuffer(image, np.uint8).copy()), ImageReadMode.RGB)
        x, y, w, h = crop_box(pixels.shape[2], pixels.shape[1], rng)
        cropped = resized_crop(pixels, y, x, h, w, [SIZE, SIZE], antialias=True)
        torch.from_numpy(out).copy_(cropped.permute(1, 2, 0))

    return threaded(job, decode)


@contender(
    "photos",
    "torchcodec",
    "torchcodec.decoders torchvision.transforms.v2.functional torch numpy pyarrow.parquet",
    shuffle=ALL,
    note="the successor of torchvision.io",
)
def torchcodec(job: Job) -> Epoch:
    """As torchvision's, with the decoder that replaces it."""
    import torch
    from torchcodec.decoders import decode_jpeg
    from torchvision.transforms.v2.functional import resized_crop

    torch.set_num_threads(1)

    def decode(image: bytes, rng: random.Random, out: Any) -> None:
        pixels = decode_jpeg(image)
        x, y, w, h = crop_box(pixels.shape[2], pixels.shape[1], rng)
        cropped = resized_crop(pixels, y, x, h, w, [SIZE, SIZE], antialias=True)
        torch.from_numpy(out).copy_(cropped.permute(1, 2, 0))

    return threaded(job, decode)


# ---- loaders with formats of their own -----------------------------------------------------------------------------


@contender(
    "photos",
    "tf.data",
    "tensorflow",
    shuffle="a buffer of 1,000 rows",
    note="reads a TFRecord copy; resizes bilinearly without antialiasing (its default); yields TensorFlow tensors",
)
def tf_data(job: Job) -> Epoch:
    """`sample_distorted_bounding_box` and `decode_and_crop_jpeg`: decodes only the crop."""
    import tensorflow as tf

    spec = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}
    whole = tf.constant([[[0.0, 0.0, 1.0, 1.0]]])

    def parse(record: Any) -> Any:
        row = tf.io.parse_single_example(record, spec)
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            tf.image.extract_jpeg_shape(row["image"]),
            whole,
            min_object_covered=0.0,
            aspect_ratio_range=RATIO,
            area_range=AREA,
            max_attempts=10,
            use_image_if_no_bounding_boxes=True,
        )
        window = tf.stack([begin[0], begin[1], size[0], size[1]])
        pixels = tf.image.decode_and_crop_jpeg(row["image"], window, channels=3)
        return tf.cast(tf.round(tf.image.resize(pixels, [SIZE, SIZE])), tf.uint8), row["label"]

    dataset = tf.data.TFRecordDataset(str(job.data / "photos.tfrecord"))
    dataset = dataset.shuffle(1_000, seed=1, reshuffle_each_iteration=True)
    dataset = dataset.map(parse, num_parallel_calls=tf.data.AUTOTUNE).batch(job.batch).prefetch(tf.data.AUTOTUNE)
    return lambda number: iter(dataset)


@contender(
    "photos",
    "webdataset",
    "webdataset PIL.Image torch numpy",
    shuffle="shards, and a buffer of 1,000 rows per worker",
    note="reads tar shards; decodes with Pillow in worker processes",
)
def webdataset_tar(job: Job) -> Epoch:
    import webdataset

    shards = [str(job.data / f"photos-{i}.tar") for i in range(TAR_SHARDS)]

    def epoch(number: int) -> Batches:
        dataset = webdataset.WebDataset(shards, shardshuffle=TAR_SHARDS, seed=number, empty_check=False)
        dataset = dataset.shuffle(1_000, seed=number).map(Sample(number)).batched(job.batch)
        yield from tensors(webdataset.WebLoader(dataset, batch_size=None, num_workers=job.threads))

    return epoch


class Sample:
    """Decodes one sample of a tar shard; a class, so that worker processes can receive it."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def __call__(self, sample: dict[str, bytes]) -> tuple[Any, int]:
        import numpy as np
        import PIL.Image

        with PIL.Image.open(io.BytesIO(sample["jpg"])) as photo:
            rgb = photo.convert("RGB")
        x, y, w, h = crop_box(rgb.width, rgb.height, self.rng)
        small = rgb.resize((SIZE, SIZE), PIL.Image.Resampling.BILINEAR, box=(x, y, x + w, y + h))
        return np.asarray(small), int(sample["cls"])


def tensors(batches: Any) -> Iterator[tuple[Any, Any]]:
    """The batch of any collation as torch tensors."""
    import torch

    for images, labels in batches:
        yield torch.as_tensor(images), torch.as_tensor(labels)


@contender(
    "photos",
    "dali",
    "nvidia.dali torch",
    shuffle="none: with its shuffle an epoch does not hold each row once",
    note="on the CPU; reads tar shards; starts an epoch with up to 3 batches ready, which flatters it a little",
)
def dali(job: Job) -> Epoch:
    """`image_random_crop` and `resize` on the CPU. Labels are text in the tar, so they are padded with blanks."""
    import torch
    from nvidia.dali import fn, pipeline_def, types
    from nvidia.dali.plugin.base_iterator import LastBatchPolicy
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    shards = [str(job.data / f"photos-{i}.tar") for i in range(TAR_SHARDS)]

    @pipeline_def(batch_size=job.batch, num_threads=job.threads, device_id=None, seed=1)
    def pipeline() -> Any:
        images, labels = fn.readers.webdataset(
            name="reader",
            paths=shards,
            ext=["jpg", "cls"],
            dtypes=[types.UINT8, types.UINT8],
            missing_component_behavior="error",
        )
        pixels = fn.decoders.image_random_crop(
            images, device="cpu", output_type=types.RGB, random_area=list(AREA), random_aspect_ratio=list(RATIO)
        )
        return fn.resize(pixels, size=[SIZE, SIZE]), fn.pad(labels, axes=(0,), shape=[8], fill_value=ord(" "))

    loader = DALIGenericIterator(
        pipeline(), ["image", "label"], reader_name="reader", last_batch_policy=LastBatchPolicy.PARTIAL, auto_reset=True
    )

    def epoch(number: int) -> Batches:
        for batch in loader:
            yield batch[0]["image"], torch.tensor([int(bytes(text)) for text in batch[0]["label"].numpy()])

    return epoch
