"""A checkpoint with some bytes changed."""

import random

from torture.forgery import last_checkpoint, open_it
from torture.place import Place


def make(rng: random.Random, place: Place) -> None:
    data = bytearray(last_checkpoint(place).read_bytes())
    header = int.from_bytes(data[:8], "little")
    # Mostly in the header, which is read first.
    places = [range(8), range(8 + header), range(len(data))]
    for _ in range(rng.randrange(1, 6)):
        damage(data, rng.choice(rng.choice(places)) % len(data), rng)
    open_it(bytes(data), rng, place)


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
