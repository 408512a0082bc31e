"""Two or more training processes get their batches from one server: DistributedDataParallel over gloo, on the CPU.

    bowstring serve photos=fixtures/imagenet40.parquet &
    torchrun --nproc-per-node 2 examples/serve_torch.py grpc://127.0.0.1:8815

The ranks are a gang: they start together, make the same number of steps, and see each row once. Without an address, the script
starts a server and the ranks itself.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import subprocess
import sys

import torch
import torch.distributed as dist
from bowstring import Image
from bowstring.flight import Gang
from bowstring.torch import DataLoader

ROOT = pathlib.Path(__file__).resolve().parent.parent
PHOTOS = ROOT / "fixtures" / "imagenet40.parquet"


def train(server: str) -> None:
    """Trains one rank."""
    dist.init_process_group("gloo")
    torch.manual_seed(7)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, stride=2),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(4),
        torch.nn.Flatten(),
        torch.nn.Linear(128, 1000),
    )
    model = torch.nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with Gang(server, "serve_torch", device="cpu", timeout=60) as gang:
        image = Image(64, crop="random_resized", flip=True, dtype="float32", normalize="imagenet")
        loader = DataLoader(
            f"{server}/photos", batch_size=6, tail="even", images={"image": image}, row_id=True, gang=gang, timeout=60
        )
        rows: list[int] = []
        for batch in loader:
            loss = torch.nn.functional.cross_entropy(model(batch["image"]), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rows += batch["_row_id"].tolist()
            # A real run saves this token in its checkpoints, and joins with that of the one that it loads.
            gang.ack(loader.epoch, loader.step - 1)
        everybody = gang.all_gather(",".join(map(str, rows)).encode())
        union = sorted(int(row) for message in everybody for row in message.decode().split(",") if row)
        assert union == list(range(loader.rows)), "every row once, whoever got it"
        weights = torch.cat([parameter.detach().flatten() for parameter in net.parameters()])
        same = [torch.empty_like(weights) for _ in range(gang.world_size)]
        dist.all_gather(same, weights)
        assert all(torch.equal(other, weights) for other in same), "all ranks have the same weights"
        if gang.rank == 0:
            print(
                f"{gang.world_size} ranks, {len(loader)} steps each, {len(union)} rows, each once; last loss {loss.item():.3f}"
            )
    dist.destroy_process_group()


def start() -> None:
    """Starts a server and two ranks."""
    native = (ROOT / "python" / "bowstring" / "_native.abi3.so").resolve()
    command = [native.parent / "bowstring", "serve", f"photos={PHOTOS}", "--listen", "127.0.0.1:0", "--print-address"]
    server = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0"]
        torchrun += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", __file__, address]
        subprocess.run(torchrun, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    finally:
        server.terminate()
        server.wait(40)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("server", nargs="?", help="grpc://host:port; without, one is started")
    arguments = parser.parse_args()
    if arguments.server:
        train(arguments.server)
    else:
        start()
