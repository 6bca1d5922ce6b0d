"""N processes train the same model as one: here 1 and 3, on this machine, over gloo."""

import multiprocessing
import os
import socket
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from conftest import write_images
from torch import nn

from vit_train.config.augment import AugmentConfig
from vit_train.config.data import FolderConfig
from vit_train.config.model import ViTConfig
from vit_train.config.run import TrainConfig
from vit_train.config.tasks import ClassifyConfig
from vit_train.config.training import AdamWConfig, DistributedConfig, LoopConfig
from vit_train.data import decode
from vit_train.data.batches import EvalBatches, Normalize, TrainBatches
from vit_train.data.dataset import ImageSet, Statistics, load_dataset
from vit_train.loop import distributed
from vit_train.loop.device import Precision
from vit_train.loop.distributed import ALONE, Processes, join_processes, leave_processes
from vit_train.loop.trainer import Trainer
from vit_train.run.train import train_epochs
from vit_train.tasks.classify import Classify

CPU = torch.device("cpu")
READ_IMAGE = decode.read_image
AUGMENT = AugmentConfig(crop_padding=2, mixup_alpha=0.4, erase_prob=0.3)


class Doubles(TrainBatches):
    """Batches in float64."""

    def batch(self, *draws):
        images, targets = super().batch(*draws)
        return images.double(), targets.double() if targets.ndim > 1 else targets


def result(processes: Processes) -> dict:
    """The weights after 20 steps, and an evaluation of 43 images, which no number here divides."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (47, 3, 8, 8), generator=generator, dtype=torch.uint8)
    photos = ImageSet(pixels, torch.randint(10, (47,), generator=generator))
    normalize = Normalize(Statistics((0.5,) * 3, (0.25,) * 3), CPU)
    place = processes.rank, processes.count
    train = Doubles(photos, 10, normalize, AUGMENT, 10, 0, CPU, *place, "balanced")
    train = train.weighted(torch.rand(47, generator=generator))
    some = photos.subset(torch.arange(43))
    val = EvalBatches(some, normalize, 5, CPU, *place)

    vit = ViTConfig(embed_dim=16, depth=2, patch_size=4, dropout=0.1, drop_path=0.2)
    task = Classify(ClassifyConfig(class_weights=[0.5, 1, 2, 3, 4] * 2), vit, (3, 8, 8), 10)
    task = task.for_training(photos.labels, True, "acc")
    torch.manual_seed(processes.rank)
    model = task.build_model().double()
    processes.copy_from_main(model)
    loop = LoopConfig(epochs=5, batch_size=10, micro_batch=3)  # 4 steps each
    run = TrainConfig(optim=AdamWConfig(), train=loop)
    fp32 = Precision("fp32", CPU)
    trainer = Trainer(model, task, train, run, fp32, processes=processes)
    with trainer.workers:
        train_epochs(trainer, None)
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    evaluated = trainer.evaluate(model.float(), val)
    return {"steps": trainer.step, "seen": trainer.images_seen, "weights": weights,
            "count": evaluated.count, "acc": evaluated.acc, "loss": evaluated.loss,
            "labels": evaluated.per_class_count}  # fmt: skip


def read_folders(root: Path) -> dict:
    """Load a folder of images into the cache, and one with a broken file: what happens, and where.

    Note the names of the files that this process decodes.
    """
    decoded: list[str] = []

    def read_image(path: Path, reading: decode.Reading) -> tuple[np.ndarray, int]:
        decoded.append(path.name)
        return READ_IMAGE(path, reading)

    decode.read_image = read_image
    config = FolderConfig(root=str(root / "photos"), image_size=8, cache=True, val="none")
    fingerprint = load_dataset(config).fingerprint
    files = list(decoded)
    with pytest.raises(ValueError, match="1 of 6 image files cannot be decoded") as error:
        load_dataset(replace(config, root=str(root / "broken")))
    return {"decoded": files, "fingerprint": fingerprint, "error": str(error.value)}


def work(rank: int, count: int, port: int, folder: str) -> None:
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count}
    os.environ |= {name: str(value) for name, value in place.items()}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    processes = join_processes(CPU, DistributedConfig())
    assert processes.any(rank == count - 1) and not processes.any(False)
    assert processes.broadcast({"rank": rank}) == {"rank": 0}
    torch.save(result(processes) | read_folders(Path(folder)), Path(folder, f"{rank}.pt"))
    leave_processes()


def test_the_number_of_processes_changes_nothing_but_rounding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And with data.cache, one of them decodes each file."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    files = [f"{number}.png" for number in range(6)]
    for root in ("photos", "broken"):
        write_images(f"{tmp_path}/{root}", [f"train/a/{name}" for name in files])
    Path(tmp_path, "broken/train/a/2.png").write_bytes(b"no image")
    threads = torch.get_num_threads()
    alone = result(ALONE)
    torch.set_num_threads(threads)
    # Forked from a server that has imported this file once: all but as fresh as spawned ones.
    multiprocessing.set_forkserver_preload([__name__, "torch._dynamo"])  # which optimizers import
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    mp.start_processes(work, (3, port, str(tmp_path)), nprocs=3, start_method="forkserver")
    every = [torch.load(tmp_path / f"{rank}.pt") for rank in range(3)]
    assert sorted(chain(*(each["decoded"] for each in every))) == files
    whole = load_dataset(FolderConfig(root=f"{tmp_path}/photos", image_size=8, val="none"))
    assert {each["fingerprint"] for each in every} == {whole.fingerprint}
    assert len({each["error"] for each in every}) == 1
    for other in every:
        assert other["steps"] == alone["steps"] == 20 and other["seen"] == alone["seen"] == 200
        torch.testing.assert_close(other["weights"], alone["weights"], rtol=0, atol=1e-9)
        assert other["count"] == 43 and other["labels"] == alone["labels"]
        assert other["acc"] == alone["acc"] and abs(other["loss"] - alone["loss"]) < 1e-6


@pytest.mark.parametrize("words", ["Connection reset by peer", "NCCL error: remote process exited"])
def test_a_failed_exchange_reports_a_lost_process(
    words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*what: object, **more: object) -> None:
        raise RuntimeError(words)

    for name in ("all_reduce", "all_gather_object", "broadcast", "broadcast_object_list"):
        monkeypatch.setattr(dist, name, broken)
    two = Processes(rank=0, count=2)
    exchanges: list[Callable[[], object]] = [
        lambda: two.all_reduce([torch.ones(2)]),
        lambda: two.any(True),
        lambda: two.gather(torch.ones(2, 3)),
        lambda: two.broadcast("x"),
        lambda: two.copy_from_main(nn.Linear(1, 1)),
    ]
    for exchange in exchanges:
        with pytest.raises(ValueError, match="another training process has ended"):
            exchange()


def test_more_processes_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(ValueError, match=r"process 2 on this machine has no GPU .* at most 2"):
        join_processes(torch.device("cuda"), DistributedConfig())
    with pytest.raises(ValueError, match="device=cuda:1 is one GPU for 3 processes"):
        join_processes(torch.device("cuda:1"), DistributedConfig())


def test_a_launcher_may_show_each_process_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    joined: dict[str, Any] = {}
    place = {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": "1"}
    for name, value in (place | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", lambda number: joined.update(number=number))
    monkeypatch.setattr(distributed, "rendezvous", lambda *_, **__: iter([(None, 1, 2)]))
    monkeypatch.setattr(distributed, "PrefixStore", lambda *_: None)
    monkeypatch.setattr(dist, "init_process_group", lambda *_, **more: joined.update(more))
    assert join_processes(torch.device("cuda"), DistributedConfig()).rank == 1
    assert joined["number"] == 0 and joined["device_id"] == torch.device("cuda", 0)
