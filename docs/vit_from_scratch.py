"""A Vision Transformer in one file: images, model, training and evaluation.

    python docs/vit_from_scratch.py

Needs only PyTorch and torchvision, which downloads CIFAR-10 into data/. In the shapes, B is the
number of images in a batch; all other numbers are those of the default model (1,205,898 weights).
"""

import math

import torch
import torch.nn.functional as F
from torch import nn
from torchvision.datasets import CIFAR10


def load(train):
    """Return CIFAR-10's images as one tensor, uint8 (N,3,32,32), and their classes (N,), 0 to 9."""
    data = CIFAR10("data", train, download=True)
    return torch.tensor(data.data).permute(0, 3, 1, 2), torch.tensor(data.targets)


def augment(images):
    """Shift each image at random by up to 4 pixels, and mirror half of them: uint8 (B,3,32,32)."""
    padded = F.pad(images, (4, 4, 4, 4))  # a black frame: (B,3,40,40)
    windows = padded.unfold(2, 32, 1).unfold(3, 32, 1)  # all 9·9 crops of each: (B,3,9,9,32,32)
    top, left = torch.randint(9, (2, len(images)))
    crops = windows[torch.arange(len(images)), :, top, left]  # one crop of each: (B,3,32,32)
    return torch.where(torch.rand(len(images), 1, 1, 1) < 0.5, crops.flip(3), crops)


def normalize(images):
    """Scale uint8 images by each color's mean and standard deviation: float32 (B,3,32,32)."""
    mean = torch.tensor([0.4914, 0.4822, 0.4465])  # over all pixels of the training images
    std = torch.tensor([0.2470, 0.2435, 0.2616])
    return (images / 255 - mean.view(3, 1, 1)) / std.view(3, 1, 1)


def patchify(images, size):
    """Cut images (B,3,32,32) into patches of size·size pixels, row by row: (B,64,48).

    The 48 numbers of a patch are its 16 red values, then 16 green, then 16 blue. The values of a
    color come in reading order: the patch's top row from left to right, then the row below, …
    """
    cut = images.unflatten(3, (-1, size)).unflatten(2, (-1, size))  # (B,3,8,4,8,4)
    return cut.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)  # (B,8,8,3,4,4) → (B,64,48)


class Attention(nn.Module):
    """Gives each token a weighted mean of what all tokens offer: (B,65,128) → (B,65,128)."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)  # three maps in one
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        qkv = self.qkv(x).unflatten(2, (3, self.heads, -1))  # (B,65,3,4,32)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # queries, keys and values: (B,4,65,32) each
        scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[3])  # each query · each key
        weights = scores.softmax(dim=3)  # (B,4,65,65); each row sums to 1
        return self.proj((weights @ v).transpose(1, 2).flatten(2))  # (B,4,65,32) → (B,65,128)


class Block(nn.Module):
    """Attention between the tokens, then an MLP in each of them: (B,65,128) → (B,65,128)."""

    def __init__(self, dim, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attn = Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        x = x + self.attn(self.norm1(x))  # a residual connection: add to x, don't replace it
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    """The Vision Transformer (Dosovitskiy et al. 2021): (B,3,32,32) → logits (B,10)."""

    def __init__(self, patch=4, dim=128, depth=6, heads=4):
        super().__init__()
        self.patch = patch
        self.patch_embed = nn.Linear(3 * patch**2, dim)
        self.cls_token = nn.Parameter(0.02 * torch.randn(1, 1, dim))
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, 1 + (32 // patch) ** 2, dim))
        self.blocks = nn.Sequential(*(Block(dim, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, 10)
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)
        nn.init.zeros_(self.head.weight)  # at first, every class has a probability of 1/10

    def forward(self, images):
        patches = self.patch_embed(patchify(images, self.patch))  # (B,64,48) → (B,64,128)
        x = torch.cat((self.cls_token.expand(len(images), -1, -1), patches), dim=1)  # (B,65,128)
        x = self.norm(self.blocks(x + self.pos_embed))
        return self.head(x[:, 0])  # reads only the class token: (B,128) → (B,10)


def learning_rate(step, warmup, steps, peak=1e-3):
    """Rise along a line to the peak, then fall to 0 along a cosine; `step` counts from 0."""
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup))) / 2


def train(model, images, labels, epochs, batch_size=64):
    """Train on uint8 images (N,3,32,32), all of them once in each epoch, in random order."""
    matrices = [p for p in model.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if p.ndim != 2]  # biases, LayerNorms, token, positions
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.999))
    per_epoch = len(images) // batch_size  # an incomplete last batch is left out
    steps = epochs * per_epoch
    warmup = min(per_epoch, steps // 2)
    for step in range(steps):
        if step % per_epoch == 0:
            batches = torch.randperm(len(images)).split(batch_size)
        index = batches[step % per_epoch]
        logits = model(normalize(augment(images[index])))  # (B,10)
        loss = F.cross_entropy(logits, labels[index], label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, warmup, steps)
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step:,} of {steps:,}: loss {loss.item():.3f}", flush=True)


@torch.no_grad()
def accuracy(model, images, labels):
    """Return the share of images (N,3,32,32) whose largest logit is that of their class."""
    predicted = torch.cat([model(normalize(batch)).argmax(1) for batch in images.split(250)])
    return (predicted == labels).float().mean().item()


if __name__ == "__main__":
    torch.set_default_device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    model = ViT()
    train(model, *load(train=True), epochs=20)
    print(f"{accuracy(model, *load(train=False)):.2%} of the test images are right")
