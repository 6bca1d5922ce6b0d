"""Parts of every kind, registered from outside the package, as CONTRIBUTING.md says."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from conftest import MAINS, SMALL, SMALL_MODEL, Run, csv_rows
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor, nn

import vit_train
from vit_train.base.reading import read_json
from vit_train.base.rng import bernoulli
from vit_train.base.setting import setting
from vit_train.commands.command import make_command
from vit_train.data.config import DATA_CONFIGS, DataConfig, ShapesConfig
from vit_train.data.dataset import Dataset, ImageSet
from vit_train.data.sources import LOADERS, load_dataset
from vit_train.engine import workers
from vit_train.engine.config import OPTIM_CONFIGS, AdamWConfig, LoopConfig, OptimConfig
from vit_train.engine.metrics import Predictions
from vit_train.engine.optim import Optimizer, Optimizers, make_adamw
from vit_train.engine.optimizers import OPTIMIZERS
from vit_train.figures.measures import FIGURES, NUMBERS
from vit_train.model.attention import Attention
from vit_train.model.build import BUILDERS
from vit_train.model.config import MODEL_CONFIGS, ModelConfig, ViTConfig
from vit_train.model.pos_embed import POSITIONS, Rotary2D
from vit_train.runs.checkpoint import Checkpoint
from vit_train.runs.config import CHOSEN_BY_NAME, TrainConfig
from vit_train.tasks.classify import Classify
from vit_train.tasks.config import TASK_CONFIGS, LabelsConfig
from vit_train.tasks.make import TASKS


def test_rotary_positions(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """They train, resume, are evaluated at another size, and are refused where they do not fit."""
    monkeypatch.setitem(POSITIONS, "rotary", Rotary2D)
    chosen = [*SMALL, "model.positions=rotary"]
    run.succeeds("vit-train", *chosen, "hydra.run.dir=run", "train.max_minutes=1e-9")
    assert run("vit-train", "resume=run", "train.max_minutes=null").status == 0
    assert run("vit-eval", "ckpt=run", "data.image_size=40").status == 0
    refused = {
        "model.embed_dim=8": "a multiple of 4",
        "model.positions_at=layers": "use positions_at=stem",
        "task=reconstruct": "needs absolute positions",
    }
    for change, message in refused.items():
        run.fails(message, "vit-train", *chosen, change)
    monkeypatch.delitem(POSITIONS, "rotary")
    run.fails("model.positions=rotary must be one of: none", "vit-eval", "ckpt=run")


@pytest.mark.parametrize("kernels", ["scratch", "fused"])
def test_the_hook_of_attention_turns_queries_and_keys(kernels: str) -> None:
    """With equal contents everywhere, a logit depends on the distance of two patches alone."""
    torch.manual_seed(0)
    attention = Attention(
        ViTConfig(embed_dim=16, num_heads=2, kernels=kernels), Rotary2D(3, 8, has_class=True)
    ).double()
    x = torch.randn(1, 1, 16, dtype=torch.float64).expand(1, 10, 16)
    _, weights = attention(x, need_weights=True)
    logits = weights.log()[0, 0, 1:, 1:].unflatten(0, (3, 3)).unflatten(2, (3, 3))
    difference = logits[0, 0, 1, 1] - logits[0, 0, 0, 0]
    torch.testing.assert_close(logits[1, 1, 2, 2] - logits[1, 1, 1, 1], difference)
    few, _ = attention(x, num_queries=1)
    torch.testing.assert_close(few, attention(x)[0][:, :1])


class SGD(torch.optim.SGD, Optimizer):
    moments = frozenset({"momentum_buffer"})


@dataclass
class SgdConfig(OptimConfig):
    """SGD for the head, at ten times the learning rate, and for all else."""

    name: str = "sgd"
    momentum: float = 0.9


def make_sgd(model: nn.Module, config: SgdConfig) -> list[Optimizer]:
    head = [p for name, p in model.named_parameters() if name.startswith("head")]
    body = [p for name, p in model.named_parameters() if not name.startswith("head")]
    scaled = [{"params": head, "lr_scale": 10.0}]
    return [SGD(each, config.lr, config.momentum) for each in (scaled, body)]


def test_optimizers_side_by_side(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of them, with a learning rate of their own, stop and resume as if they had not."""
    monkeypatch.setitem(OPTIM_CONFIGS, "sgd", SgdConfig)
    monkeypatch.setitem(OPTIMIZERS, SgdConfig, make_sgd)
    chosen = [*SMALL, "optim=sgd", "optim.momentum=0.5", "optim.lr=0.01"]
    assert run("vit-train", *chosen, "hydra.run.dir=whole").status == 0
    assert run("vit-train", *chosen, "hydra.run.dir=run", "train.max_minutes=1e-9").status == 0
    assert run("vit-train", "resume=run", "train.max_minutes=null").status == 0
    whole, resumed = (
        Checkpoint.load(Path(each) / "checkpoints/last.safetensors") for each in ("whole", "run")
    )
    for key, value in whole.model.items():
        assert torch.equal(value, resumed.model[key])
    assert len(whole.optimizers) == 2
    monkeypatch.delitem(OPTIM_CONFIGS, "sgd")
    run.fails("the config's optim must be one of: adamw, muon;", "vit-train", "resume=run")


@dataclass
class Renamed(AdamWConfig):
    """An optimizer that would be read back as plain AdamW."""


def test_every_parameter_has_one_optimizer() -> None:
    model = nn.Linear(2, 2)
    adamw = make_adamw(model, AdamWConfig())
    for optimizers in ([adamw, adamw], [SGD([model.weight])], []):
        with pytest.raises(ValueError, match="exactly one optimizer"):
            Optimizers(optimizers, model.parameters())


@dataclass
class StripesConfig(DataConfig):
    """Stripes across or down, of random colors."""

    name: str = "stripes"
    count: int = setting(100, "Training images to draw.", at_least=2)


def load_stripes(config: StripesConfig) -> Dataset:
    generator = torch.Generator().manual_seed(0)

    def drawn(count: int) -> ImageSet:
        labels = torch.arange(count) % 2
        lines = torch.randint(0, 256, (count, 3, 8, 1), generator=generator, dtype=torch.uint8)
        across = lines.expand(-1, -1, -1, 8)
        down = across.transpose(2, 3)
        return ImageSet(across.where(labels.view(-1, 1, 1, 1) == 0, down), labels)

    return Dataset(drawn(config.count), drawn(40), ("across", "down"))


def test_a_data_source(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is chosen by its name, split, trained on, evaluated, drawn and listed in the help."""
    monkeypatch.setitem(DATA_CONFIGS, "stripes", StripesConfig)
    monkeypatch.setitem(LOADERS, StripesConfig, load_stripes)
    chosen = ["data=stripes", "data.count=60"]
    assert run("vit-train", *chosen, *SMALL_MODEL, "hydra.run.dir=run").status == 0
    outcome = run("vit-eval", "ckpt=run")
    assert outcome.status == 0 and "across" in outcome.err + outcome.out
    assert run("vit-augment", *chosen).status == 0
    assert "data: cifar10, cifar100, folder, shapes, stl10, stripes" in run("vit-train", "-h").out
    monkeypatch.delitem(DATA_CONFIGS, "stripes")
    run.fails("the config's data must be one of: cifar10", "vit-train", "resume=run")


def test_predictions_need_no_optimizer_and_no_data_source(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run with its own can be used and tabulated without them; images can be named."""
    monkeypatch.setitem(OPTIM_CONFIGS, "sgd", SgdConfig)
    monkeypatch.setitem(OPTIMIZERS, SgdConfig, make_sgd)
    monkeypatch.setitem(DATA_CONFIGS, "stripes", StripesConfig)
    monkeypatch.setitem(LOADERS, StripesConfig, load_stripes)
    chosen = ["data=stripes", "data.image_size=8", "optim=sgd", *SMALL_MODEL]
    assert run("vit-train", *chosen, "hydra.run.dir=runs/own").status == 0
    monkeypatch.delitem(OPTIM_CONFIGS, "sgd")
    monkeypatch.delitem(DATA_CONFIGS, "stripes")
    assert run("vit-train", *SMALL, "hydra.run.dir=runs/other").status == 0
    for name in ("across", "down"):
        Path("photos", name).mkdir(parents=True)
        for number in range(3):
            Image.new("RGB", (8, 8), (number, 0, 0)).save(f"photos/{name}/{number}.png")
    photos = ["data.name=folder", "data.root=photos"]
    for command in (
        ["vit-predict", "ckpt=runs/own", "images=photos/down"],
        ["vit-explain", "ckpt=runs/own", "images=photos/down"],
        ["vit-export", "ckpt=runs/own", "format=timm"],
        ["vit-eval", "ckpt=runs/own", *photos],
        ["vit-eval", "ckpt=[runs/own,runs/own/checkpoints/last.safetensors]", *photos],
        ["vit-train", *SMALL, "model.patch_size=4", "init_from=runs/own", "hydra.run.dir=next"],
    ):
        run.succeeds(*command)
    run.fails("only the program that registers data=stripes", "vit-eval", "ckpt=runs/own")
    assert run.succeeds("vit-results", "runs").out.count("| sgd |") == 1


@pytest.mark.parametrize(
    "group, part",
    [("optim", SgdConfig()), ("data", StripesConfig()), ("optim", Renamed())],
    ids=["optimizer", "source", "name of another"],
)
def test_what_could_not_be_read_back_is_not_trained(
    group: str, part: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A config from Python needs its parts registered, under a name of their own."""
    loop = LoopConfig(epochs=1, batch_size=20)
    model = ViTConfig(embed_dim=8, depth=1, num_heads=1, patch_size=4)
    data = ShapesConfig(train_images=40, test_images=10, image_size=16)
    config = replace(TrainConfig(model=model, data=data, train=loop), **{group: part})
    kind = type(part).__name__
    with pytest.raises(ValueError, match=rf"register it first, {group.upper()}_CONFIGS.* = {kind}"):
        vit_train.train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    monkeypatch.setitem(CHOSEN_BY_NAME[group], part.name, type(part))
    monkeypatch.setitem(OPTIMIZERS, SgdConfig, make_sgd)
    monkeypatch.setitem(LOADERS, StripesConfig, load_stripes)
    vit_train.train(config, tmp_path / "run")
    assert getattr(vit_train.load(tmp_path / "run").meta.config, group) == part


class NoisyMlp(nn.Module):
    """A hidden layer of which training hides a part that each image draws for itself."""

    def __init__(
        self, config: "MlpConfig", image_size: int, in_channels: int, num_classes: int
    ) -> None:
        super().__init__()
        self.hidden = nn.Linear(in_channels * image_size**2, config.width)
        self.head, self.noise = nn.Linear(config.width, num_classes), config.noise

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.hidden(images.flatten(1)).relu()
        if self.training and self.noise == "own":
            hidden = hidden * bernoulli(hidden, 0.8)
        if self.training and self.noise == "shared":
            hidden = hidden * (torch.rand_like(hidden) < 0.8)
        return self.head(hidden)


@dataclass
class MlpConfig(ModelConfig):
    """A multilayer perceptron."""

    name: str = "mlp"
    # The number of hidden units, and which generator hides them.
    width: int = 8
    noise: str = "own"

    @property
    def layers(self) -> int:
        return 2

    @property
    def size_settings(self) -> str:
        return f"model.width={self.width}"


@dataclass
class FocalConfig(LabelsConfig):
    """Classification that looks less at what is already easy (Lin et al. 2017)."""

    name: str = "focal"
    gamma: float = 2.0


class Focal(Classify):
    config: FocalConfig

    def loss_sum(self, logits: Tensor, targets: Tensor, images: Tensor) -> Tensor:
        each = nn.functional.cross_entropy(logits, targets, reduction="none")
        return ((1 - (-each).exp()) ** self.config.gamma * each).sum()


SMALL_MLP = [
    *("data.train_images=200", "data.test_images=60", "model=mlp", "model.width=16"),
    *("train.epochs=2", "train.batch_size=32", "train.micro_batch=8"),
]


def test_a_model_and_a_task(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are chosen by their names, counted, trained, resumed, used, exported and listed."""
    monkeypatch.setitem(MODEL_CONFIGS, "mlp", MlpConfig)
    monkeypatch.setitem(BUILDERS, MlpConfig, NoisyMlp)
    monkeypatch.setitem(TASK_CONFIGS, "focal", FocalConfig)
    monkeypatch.setitem(TASKS, FocalConfig, Focal)
    chosen = [*SMALL_MLP, "task=focal", "task.gamma=1"]
    assert run("vit-train", *chosen, "hydra.run.dir=run", "train.max_minutes=1e-9").status == 0
    for command in (
        ["vit-inspect", "model=mlp"],
        ["vit-train", "resume=run", "train.max_minutes=null"],
        ["vit-eval", "ckpt=run"],
        ["vit-export", "ckpt=run", "format=torch"],
        ["vit-results", "run"],
    ):
        run.succeeds(*command)
    words = "there is no setting model.depth here: model=vit has it"
    run.fails(words, "vit-train", "model=mlp", "model.depth=3")
    assert "model: base, cnn, mlp, resnet, small" in run("vit-train", "--help").out
    monkeypatch.delitem(MODEL_CONFIGS, "mlp")
    run.fails("the config's model must be one of: vit, cnn", "vit-eval", "ckpt=run")


def test_equal_runs_of_an_own_model_that_draws_are_equal_or_refused(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With several threads, PyTorch's generator would be drawn from in whatever order they take."""
    monkeypatch.setattr(workers, "CORES", 2)
    monkeypatch.setitem(MODEL_CONFIGS, "mlp", MlpConfig)
    monkeypatch.setitem(BUILDERS, MlpConfig, NoisyMlp)
    for folder in ("a", "b"):
        assert run("vit-train", *SMALL_MLP, f"hydra.run.dir={folder}").status == 0
    one, other = (
        Checkpoint.load(Path(each) / "checkpoints/last.safetensors").model for each in "ab"
    )
    assert all(torch.equal(one[key], other[key]) for key in one)
    run.fails("draw by vit_train.base.rng.bernoulli", "vit-train", *SMALL_MLP, "model.noise=shared")
    monkeypatch.setattr(workers, "CORES", 1)
    assert run("vit-train", *SMALL_MLP, "model.noise=shared").status == 0


def overconfidence(answers: Predictions) -> float:
    """Return how much surer the model is, on average, than it is right."""
    return float((answers.confidence - answers.correct).mean())


def draw_confidence(answers: Predictions, classes: Sequence[str]) -> Figure:
    figure = Figure()
    figure.subplots().hist(answers.confidence)
    return figure


def test_a_metric(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its numbers are in every report of a run and of an evaluation, its figure beside them."""
    monkeypatch.setitem(NUMBERS, "overconfidence", overconfidence)
    monkeypatch.setitem(FIGURES, "confidence", draw_confidence)
    assert run("vit-train", *SMALL, "hydra.run.dir=run").status == 0
    assert run("vit-eval", "ckpt=run/checkpoints/last.safetensors").status == 0
    summary = read_json(Path("run/summary.json"))
    evaluated = read_json(Path("run/eval-test-last/results.json"))
    value = evaluated["result"]["overconfidence"]
    assert value == pytest.approx(summary["test"]["final"]["overconfidence"]) and value != 0
    rows = csv_rows("run/metrics.csv")
    assert all(abs(float(row["val_overconfidence"])) <= 1 for row in rows)
    for name in ("confidence", "confusion"):
        assert Path(f"run/eval-test-last/{name}.png").stat().st_size > 500


@dataclass
class CountConfig:
    data: DataConfig = field(default_factory=DataConfig)
    times: int = 1


def test_a_command(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has typed settings and groups, a help, and short messages for what is wrong."""

    def count(config: CountConfig) -> None:
        print(config.times * len(load_dataset(config.data).train))

    main = make_command("vit-count", CountConfig, "vit-count: count.", count, {"data": "shapes"})
    monkeypatch.setitem(MAINS, "vit-count", main)
    assert run("vit-count", "data.train_images=70", "data.test_images=9", "times=2").out == "140\n"
    shown = run("vit-count", "--help").out
    assert (
        shown.startswith("vit-count: count.") and "times: 1" in shown and "data: cifar10" in shown
    )
    for wrong, message in {
        "times=x": "times=x must be a whole number",
        "time=1": "there is no setting time: did you mean times?",
        "data=shape": "there is no data=shape: did you mean data=shapes?",
        "data.train_images=0": "cannot draw 0 images",
    }.items():
        run.fails(message, "vit-count", wrong)
