"""A checkpoint with some bytes changed: damaged, or sealed again by who made the damage."""

import random

from torture.forgery import open_it, seal
from torture.place import Place
from vit_train.engine.checkpoint import SEAL_LENGTH


def make(rng: random.Random, place: Place) -> None:
    whole = (place.templates / "finished" / "checkpoints" / "last.pt").read_bytes()
    data = bytearray(whole[:-SEAL_LENGTH])
    # Mostly where the pickle is read, which comes first, or in the directory, which comes last.
    pickled = data.index(b"PK\x03\x04", 4)
    places = [range(pickled), range(len(data) - 2000, len(data)), range(len(data))]
    for _ in range(rng.randrange(1, 6)):
        damage(data, rng.choice(rng.choice(places)) % len(data), rng)
    sealed = rng.random() < 0.8
    place.note("sealed again" if sealed else "damaged")
    open_it(seal(bytes(data)) if sealed else bytes(data) + whole[-SEAL_LENGTH:], rng, place)


def damage(data: bytearray, at: int, rng: random.Random) -> None:
    way = rng.choice(["flip", "set", "delete", "insert"])
    if way == "flip":
        data[at] ^= 1 << rng.randrange(8)
    elif way == "set":
        data[at] = rng.randrange(256)
    elif way == "delete":
        del data[at : at + rng.randrange(1, 10)]
    else:
        data[at:at] = rng.randbytes(1)
