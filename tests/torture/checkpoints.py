"""Checkpoints that were damaged."""

import random
from pathlib import Path

from torture.place import Place


def damaged(rng: random.Random, place: Place) -> None:
    """A checkpoint with some bytes changed, for one of the commands that read one."""
    data = bytearray((place.templates / "finished/checkpoints/last.safetensors").read_bytes())
    header = int.from_bytes(data[:8], "little")
    for _ in range(rng.randrange(1, 6)):
        # Mostly in the header, which is read first.
        at = rng.randrange(rng.choice([8, 8 + header, len(data)])) % len(data)
        data[at : at + rng.choice([0, 1, 9])] = rng.randbytes(rng.choice([0, 1, 1, 9]))
    command = rng.choice(list(COMMANDS))
    path, writes = COMMANDS[command]
    if writes == "run":
        place.copy("interrupted")
    if rng.random() < 0.5:
        Path("run/config.yaml").unlink(missing_ok=True)
    Path(path).parent.mkdir(exist_ok=True)
    Path(path).write_bytes(data)
    place.run(*command.split(), writes=[writes])


SMALL = "data.train_images=60 data.test_images=20 train.epochs=1 hydra.run.dir=new"
VIT = "model.patch_size=8 model.embed_dim=8 model.num_heads=2 model.depth=1"
# Where each command expects the checkpoint, and the folder that it may write.
COMMANDS = {
    "vit-eval ckpt=forged/x.safetensors": ("forged/x.safetensors", "forged"),
    "vit-train resume=run train.max_minutes=null": ("run/checkpoints/last.safetensors", "run"),
    "vit-train resume=run/checkpoints/x.safetensors train.max_minutes=null": (
        *("run/checkpoints/x.safetensors", "run"),
    ),
    f"vit-train init_from=x.safetensors {SMALL} {VIT}": ("x.safetensors", "new"),
}
