"""Parts of every kind, registered from outside the package, as CONTRIBUTING.md says."""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from conftest import (
    MAINS,
    SMALL,
    SMALL_MODEL,
    Run,
    SmallRun,
    csv_rows,
    forget_own_modules,
    write_images,
)
from matplotlib.figure import Figure
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from test_docs import ROOT, blocks
from torch import Tensor, nn

import vit_train
from vit_train.base.reading import read_json
from vit_train.base.rng import bernoulli
from vit_train.commands.command import console_command
from vit_train.config.data import DATA_CONFIGS, DataConfig, ShapesConfig
from vit_train.config.fields import Size, setting
from vit_train.config.model import MODEL_CONFIGS, ModelConfig, ViTConfig
from vit_train.config.run import CHOSEN_BY_NAME, TrainConfig
from vit_train.config.tasks import TASK_CONFIGS, LabelsConfig
from vit_train.config.training import OPTIM_CONFIGS, AdamWConfig, LoopConfig, OptimConfig
from vit_train.data.dataset import Dataset, ImageSet, load_dataset
from vit_train.figures.measures import FIGURES, NUMBERS
from vit_train.loop import workers
from vit_train.loop.metrics import Predictions
from vit_train.loop.optimizers import Optimizer, Optimizers, make_adamw
from vit_train.model.positions import POSITIONS, Sinusoidal, Table
from vit_train.model.vit import VisionTransformer
from vit_train.tasks.classify import Classify
from vit_train.trained.checkpoint import Checkpoint


@pytest.fixture
def own(registries: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Register a part of every kind."""
    for table, name, part in (
        (NUMBERS, "overconfidence", overconfidence),
        (FIGURES, "confidence", draw_confidence),
        (OPTIM_CONFIGS, "plain_sgd", SgdConfig),
        (DATA_CONFIGS, "stripes", StripesConfig),
        (MODEL_CONFIGS, "mlp", MlpConfig),
        (TASK_CONFIGS, "focal", FocalConfig),
    ):
        monkeypatch.setitem(table, name, part)


STRIPES = [
    "data=stripes",
    "data.count=60",
    "optim=plain_sgd",
    "optim.momentum=0.5",
    "optim.lr=0.01",
]
LOOP = ["train.epochs=2", "train.batch_size=32", "train.micro_batch=8"]


@pytest.mark.usefixtures("own", "every_figure_is_drawn")
def test_own_parts_are_chosen_by_name_trained_resumed_and_used(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two optimizers, with a learning rate of their own, stop and resume as if they had not."""
    monkeypatch.setattr(workers, "CORES", 2)
    train = ["vit-train", *STRIPES, *LOOP, "model=mlp", "model.width=16", "task=focal"]
    run.succeeds(*train, "task.gamma=1", "hydra.run.dir=whole")
    run.succeeds(*train, "task.gamma=1", "hydra.run.dir=run", "train.max_minutes=1e-9")
    run.succeeds("vit-train", "resume=run", "train.max_minutes=null")
    whole, resumed = (
        Checkpoint.load(Path(each) / "checkpoints/last.safetensors") for each in ("whole", "run")
    )
    torch.testing.assert_close(whole.model, resumed.model, rtol=0, atol=0)
    assert len(whole.optimizers) == 2
    for words, command in {
        "parameters": "vit-inspect model=mlp",
        "across": "vit-eval ckpt=run/checkpoints/last.safetensors",
        "model.pt2": "vit-export ckpt=run format=torch",
        "settings (final weights)": "vit-results run",
        "written to": "vit-augment data=stripes data.count=60",
        "model: base, cnn, fast_cnn, mlp, resnet, small": "vit-train --help",
        "data: cifar10, cifar100, folder, shapes, stl10, stripes": "vit-train --help",
    }.items():
        run.says(words, *command.split())
    # A metric's numbers are in every report, its figure beside them.
    final = read_json(Path("run/summary.json"))["test"]["final"]
    evaluated = read_json(Path("run/eval-test-last/results.json"))["result"]
    assert evaluated["overconfidence"] == pytest.approx(final["overconfidence"]) != 0
    rows = csv_rows("run/metrics.csv")
    assert all(abs(float(row["val_overconfidence"])) <= 1 for row in rows)
    assert Path("run/eval-test-last/confidence.png").stat().st_size > 500
    words = "the setting model.depth exists only with model=vit"
    run.fails(words, "vit-train", "model=mlp", "model.depth=3")
    monkeypatch.delitem(MODEL_CONFIGS, "mlp")
    run.fails("the config's model must be one of: vit, cnn", "vit-eval", "ckpt=run")


class SGD(torch.optim.SGD, Optimizer):
    moments = frozenset({"momentum_buffer"})


def make_sgd(model: nn.Module, config: "SgdConfig") -> list[Optimizer]:
    groups: dict[bool, list[nn.Parameter]] = {True: [], False: []}
    for name, parameter in model.named_parameters():
        groups[name.startswith("head")].append(parameter)
    scaled = [{"params": groups[True], "lr_scale": 10.0}]
    return [SGD(each, config.lr, config.momentum) for each in (scaled, groups[False])]


@dataclass
class SgdConfig(OptimConfig):
    """SGD for the head, at ten times the learning rate, and for all else."""

    builds = make_sgd
    name: str = "plain_sgd"
    momentum: float = 0.9


@dataclass
class Renamed(AdamWConfig):
    """An optimizer that would be read back as plain AdamW."""


def test_every_parameter_has_one_optimizer() -> None:
    model = nn.Linear(2, 2)
    (adamw,) = make_adamw(model, AdamWConfig())
    for optimizers in ([adamw, adamw], [SGD([model.weight])], []):
        with pytest.raises(ValueError, match="exactly one optimizer"):
            Optimizers(optimizers, model.parameters(), {})


def load_stripes(config: "StripesConfig") -> Dataset:
    generator, parts = torch.Generator().manual_seed(0), []
    for count in (config.count, 40):
        labels = torch.arange(count) % 2
        lines = torch.randint(0, 256, (count, 3, 8, 1), generator=generator, dtype=torch.uint8)
        across = lines.expand(-1, -1, -1, 8)
        is_across = labels.view(-1, 1, 1, 1) == 0
        parts.append(ImageSet(across.where(is_across, across.transpose(2, 3)), labels))
    return Dataset(*parts, ("across", "down"))


@dataclass
class StripesConfig(DataConfig):
    """Stripes across or down, of random colors."""

    builds = load_stripes
    name: str = "stripes"
    count: int = setting(100, "Training images to draw.", at_least=2)


@pytest.mark.usefixtures("own")
def test_predictions_need_no_optimizer_and_no_data_source(
    run: Run, small_run: SmallRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run with its own can be used and tabulated without them; images can be named."""
    monkeypatch.delitem(NUMBERS, "overconfidence")
    chosen = [*STRIPES, "data.image_size=8", *SMALL_MODEL, "hydra.run.dir=runs/own"]
    run.succeeds("vit-train", *chosen)
    monkeypatch.delitem(OPTIM_CONFIGS, "plain_sgd")
    run.fails(
        "the config's optim must be one of: adamw, muon, sgd;", "vit-train", "resume=runs/own"
    )
    monkeypatch.delitem(DATA_CONFIGS, "stripes")
    run.fails("the config's data must be one of: shapes", "vit-train", "resume=runs/own")
    small_run("finished", "runs/other")
    write_images("photos", ["across/0.png", "across/1.png", "down/0.png", "down/1.png"])
    photos = ["data.name=folder", "data.root=photos"]
    for command in (
        ["vit-predict", "ckpt=runs/own", "images=photos/down"],
        ["vit-explain", "ckpt=runs/own", "images=photos/down"],
        ["vit-export", "ckpt=runs/own", "format=timm"],
        ["vit-eval", "ckpt=[runs/own,runs/own/checkpoints/last.safetensors]", *photos],
        ["vit-train", *SMALL, "model.patch_size=4", "init_from=runs/own", "hydra.run.dir=next"],
    ):
        run.succeeds(*command)
    run.fails(
        "if your own module registers stripes, add import=MODULE", "vit-eval", "ckpt=runs/own"
    )
    run.succeeds("vit-results", "runs")
    assert Path("runs/results.md").read_text(encoding="utf-8").count("| plain_sgd |") == 1


@pytest.mark.parametrize(
    "group, part",
    [("optim", SgdConfig()), ("data", StripesConfig()), ("optim", Renamed())],
    ids=["optimizer", "source", "name of another"],
)
def test_unregistered_parts_are_refused(
    group: str, part: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A config from Python needs its parts registered, under a name of their own."""
    model = ViTConfig(embed_dim=8, depth=1, num_heads=1, patch_size=4)
    data = ShapesConfig(train_images=40, test_images=10, image_size=16)
    config = TrainConfig(model=model, data=data, train=LoopConfig(epochs=1, batch_size=20))
    config = replace(config, **{group: part})
    words = rf"{group} must be one of: .* unique name \({group.upper()}_CONFIGS"
    with pytest.raises(ValueError, match=words):
        vit_train.train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    monkeypatch.setitem(CHOSEN_BY_NAME[group], part.name, type(part))
    vit_train.train(config, tmp_path / "run")
    used = getattr(vit_train.load(tmp_path / "run").meta.config, group)
    assert used == part.settled()
    if not isinstance(part, Renamed):  # the files of classes from Python are copied, too
        here = Path(__file__)
        assert (tmp_path / "run/code" / here.name).read_bytes() == here.read_bytes()


class NoisyMlp(nn.Module):
    """A hidden layer of which training hides a part that each image draws for itself."""

    def __init__(self, config: "MlpConfig", size: Size, channels: int, classes: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(channels * math.prod(size), config.width)
        self.head, self.noise = nn.Linear(config.width, classes), config.noise

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.hidden(images.flatten(1)).relu()
        if self.training and self.noise == "shared":
            return self.head(hidden * (torch.rand_like(hidden) < 0.8))
        return self.head(hidden * bernoulli(hidden, 0.8) if self.training else hidden)


@dataclass
class MlpConfig(ModelConfig):
    """A multilayer perceptron."""

    builds = NoisyMlp
    name: str = "mlp"
    # The number of hidden units, and which generator hides them.
    width: int = 8
    noise: str = "own"

    @property
    def size_settings(self) -> str:
        return f"model.width={self.width}"


class Focal(Classify):
    config: "FocalConfig"

    def loss_sum(self, logits: Tensor, targets: Tensor, images: Tensor) -> Tensor:
        each = nn.functional.cross_entropy(logits, targets, reduction="none")
        return ((1 - (-each).exp()) ** self.config.gamma * each).sum()


@dataclass
class FocalConfig(LabelsConfig):
    """Classification that looks less at what is already easy (Lin et al. 2017)."""

    builds = Focal
    name: str = "focal"
    gamma: float = 2.0


@pytest.mark.usefixtures("own")
def test_an_own_model_must_not_share_a_generator(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """With several threads, PyTorch's generator would be drawn from in whatever order they take."""
    monkeypatch.setattr(workers, "CORES", 2)
    shared = ["vit-train", *STRIPES, *LOOP, "model=mlp", "model.noise=shared"]
    run.fails("use vit_train.base.rng.bernoulli", *shared)
    monkeypatch.setattr(workers, "CORES", 1)
    run.succeeds(*shared)


def overconfidence(answers: Predictions) -> float:
    """Return the mean confidence minus the accuracy."""
    return float((answers.confidence - answers.correct).mean())


def draw_confidence(answers: Predictions, classes: Sequence[str]) -> Figure:
    figure = Figure()
    figure.subplots().hist(answers.confidence)
    return figure


NOTES = """
from vit_train.loop.trainer import CALLBACKS, Callback

class Notes(Callback):
    def on_log(self, trainer, log):
        log.values["half"] = log.values["loss"] / 2

    def on_epoch(self, trainer, log, val):
        self.on_log(trainer, log)
        print("noted epoch", trainer.epoch)

CALLBACKS.append(Notes)

from vit_train.figures.measures import NUMBERS
from vit_train.config.model import MODEL_CONFIGS, ModelConfig

NUMBERS["sureness"] = lambda predictions: float(predictions.confidence.mean())

from torch import nn

class Flat(nn.Sequential):
    def __init__(self, config, image_size, channels, classes):
        super().__init__(nn.Flatten(), nn.Linear(channels * image_size[0] * image_size[1], classes))

@dataclass
class FlatConfig(ModelConfig):
    builds = Flat
    name: str = "flat"

MODEL_CONFIGS["flat"] = FlatConfig
"""


FEW = ["data.train_images=20", "data.test_images=9", "model.embed_dim=16", "model.depth=1"]
FAULTY = """
from vit_train.loop.trainer import CALLBACKS, Callback

class Faulty(Callback):
    def on_epoch(self, trainer, log, val):
        {}

CALLBACKS.append(Faulty)
"""


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("raise RuntimeError('\x1b[31m')", r"vit-train: RuntimeError: \x1b[31m ("),
        ("\nimport no_parts", "vit-train: ModuleNotFoundError: No module named 'no_parts' ("),
        (FAULTY.format("first, second = 1, 2, 3"), "ValueError: too many values to unpack"),
        (FAULTY.format("torch.zeros(2).numpy().reshape(3)"), "ValueError: cannot reshape array"),
        (FAULTY.format("self.on_epoch(trainer, log, val)"), "maximum recursion depth exceeded"),
        (
            FAULTY.format("open('none.json')"),
            "FileNotFoundError: none.json: No such file",
        ),
    ],
)
def test_an_error_in_ones_own_module_shows_its_line(
    run: Run, registries: None, monkeypatch: pytest.MonkeyPatch, code: str, words: str
) -> None:
    """And its code; the run's summary tells why it failed."""
    monkeypatch.setattr(sys, "path", sys.path[:])
    Path("my_parts.py").write_text(f"import torch; {code}", encoding="utf-8")
    line = 6 if "Faulty" in code else code.count("\n") + 1
    outcome = run("vit-train", "import=my_parts", *FEW, "hydra.run.dir=run")
    place = Path("my_parts.py").absolute()
    assert outcome.status == 1 and words in outcome.err
    shown = f'  File "{place}", line {line}, in '
    assert outcome.err.startswith(shown) and "vit_train/" not in outcome.err
    code = place.read_text(encoding="utf-8").splitlines()[line - 1].strip()
    assert "    {}\n".format(code.replace("\x1b", r"\x1b")) in outcome.err
    assert f"{place}:{line})" in outcome.err.splitlines()[-1]
    if "Faulty" in code:
        summary = read_json(Path("run/summary.json"))
        assert summary["status"] == "failed" and words.rpartition(": ")[2] in summary["reason"]


@pytest.mark.parametrize("more", [[], ["-m"]])
def test_an_error_in_ones_own_module_does_nothing_to_the_terminal(
    run: Run, registries: None, monkeypatch: pytest.MonkeyPatch, more: list[str]
) -> None:
    """Nor does it in a sweep, which shows the line as well."""
    monkeypatch.setattr(sys, "path", sys.path[:])
    Path("my_parts.py").write_text(FAULTY.format(r"raise RuntimeError('\x1b')"), encoding="utf-8")
    outcome = run("vit-train", "import=my_parts", *FEW, *more)
    assert outcome.status == 1 and r"RuntimeError: \x1b" in outcome.err
    assert 'my_parts.py", line 6, in on_epoch' in outcome.err and "\x1b" not in outcome.err


OWN = """
from vit_train.loop.schedule import SCHEDULES

def falling(done):
    import my_helper  # late, so that only the first run of a process begins without it
    return (1 - done) ** my_helper.POWER

SCHEDULES["mine"] = falling
"""


@pytest.mark.slow
def test_a_changed_own_module_makes_another_run(
    run: Run, registries: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In sweeps and tables; resume= shows the change, fork= and predictions go on."""
    monkeypatch.setattr(sys, "path", sys.path[:])
    Path("my_parts.py").write_text(OWN, encoding="utf-8")
    helper = Path("my_helper.py")

    def new_process(power: int) -> None:
        forget_own_modules()
        helper.write_text(f"POWER = {power}{' ' * power}\n", encoding="utf-8")  # another length

    own = ["vit-train", "import=my_parts", *FEW, "train.epochs=2", "optim.schedule=mine"]
    sweep = [*own, "-m", "hydra.sweep.dir=all", "seed=0"]
    for power, jobs in ((2, 1), (2, 1), (9, 2), (9, 2)):
        new_process(power)
        run.succeeds(*sweep)
        assert len(list(Path("all").glob("*/summary.json"))) == jobs
    copies = sorted(Path("all").glob("*/code/my_helper.py"))
    assert [file.read_text(encoding="utf-8")[8] for file in copies] == ["2", "9"]
    outcome = run("vit-results", "all", "--out=my_parts.py")  # no folder can be made there
    assert outcome.status == 1 and outcome.out.count("  code=") == 2
    assert outcome.err == "vit-results: my_parts.py: File exists\n"

    run.succeeds(*own, "hydra.run.dir=run", "train.max_minutes=1e-9")
    summary = read_json(Path("run/summary.json"))
    assert set(summary["code"]) == {"my_parts.py", "my_helper.py"}
    new_process(2)
    run.fails("it needs import=MODULE (my_helper.py, my_parts.py)", "vit-train", "resume=run")
    go_on = ["import=my_parts", "train.max_minutes=null"]
    change = "-POWER = 9         \n+POWER = 2  \nrestore it from run/code/my_helper.py, or"
    run.fails(change, "vit-train", "resume=run", *go_on)
    changed = "my_helper.py has changed since run was trained; the copy is in run/code"
    run.says(changed, "vit-eval", "import=my_parts", "ckpt=run")
    run.says("my_helper.py has changed", "vit-train", "fork=run", *go_on)
    new_process(9)
    run.succeeds("vit-train", "resume=run", *go_on)


CHOSEN = [
    *("model.positions=ramp", "model.activation=relu2", "model.attention=sigmoid"),
    *("optim=adagrad", "optim.schedule=quadratic"),
]


def test_parts_of_a_module_work_with_every_command(
    run: Run, small_run: SmallRun, registries: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of docs/extending.md, a callback, a metric and a model, in a module of this folder."""
    code = "\n".join([*blocks(ROOT / "docs/extending.md", "python"), NOTES])
    Path("my_parts.py").write_text(code, encoding="utf-8")
    before = sys.path[:]
    monkeypatch.setattr(sys, "path", before[:])
    own, folder = "import=my_parts", "hydra.run.dir=run"
    for missing in ("positions=ramp", "schedule=quadratic", "activation=relu2"):
        (setting,) = (each for each in CHOSEN if missing in each)
        words = f"; if your own module registers {setting.partition('=')[2]}, add import="
        run.fails(words, "vit-train", *SMALL, setting)
    assert sys.path == before  # the folder may be somebody else's
    Path("code.py").touch()
    for name, words in {
        "no_parts": "import=no_parts: No module named 'no_parts'\n",
        "code": "import=code is a module of Python or of a library: rename your code\n",
        "..": "import=.. must name a module, not a file",
        "my_parts.py": "import=my_parts.py must name a module, not a file",
    }.items():
        run.fails(words, "vit-train", f"import={name}")
    run.succeeds("vit-train", own, *SMALL, *CHOSEN, folder, "train.max_minutes=1e-9")
    run.says("noted epoch 2", "vit-train", own, "resume=run", "train.max_minutes=null")
    last = csv_rows("run/metrics.csv")[1]
    assert float(last["train_half"]) > 1 and 0.1 < float(last["val_sureness"]) < 1
    few = [each for each in SMALL if not each.startswith("model.")]
    run.succeeds("vit-train", own, *few, "model=flat", "hydra.run.dir=flat")
    monkeypatch.setattr(workers, "CORES", 2)  # threads may share no generator
    for settings in (["hydra.run.dir=dropped"], ["hydra.run.dir=again", "train.micro_batch=3"]):
        run.succeeds("vit-train", own, *SMALL, "model.positions=dropkey", *settings)
    losses = [
        float(csv_rows(f"{each}/metrics.csv")[1]["train_loss"]) for each in ("dropped", "again")
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert len(EventAccumulator("run").Reload().Scalars("half/train")) > 1
    small_run("finished", "other")
    write_images("photos", ["a.png"], size=(32, 32))
    monkeypatch.setenv("VIT_TRAIN_IMPORT", "my_parts")
    for command in (
        "vit-eval ckpt=run",
        "vit-eval ckpt=[run,other,flat]",
        "vit-train config=run seed=1 train.max_minutes=1e-9",
        "vit-predict ckpt=flat images=photos",
        "vit-predict ckpt=run images=photos",
        "vit-explain ckpt=run images=photos",
        "vit-export ckpt=run format=torch",
        "vit-inspect model.positions=ramp",
        "vit-results .",
    ):
        run.succeeds(*command.split())


@pytest.mark.parametrize("base", [Table, Sinusoidal])
def test_positions_that_a_constructor_sets_are_never_overwritten(
    base: type[Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ramp(base):  # type: ignore[valid-type, misc]
        def __init__(self, grid: Size, dim: int, has_class: bool) -> None:
            super().__init__(grid, dim, has_class)
            tokens = math.prod(grid) + has_class
            ramp = torch.linspace(-1, 1, tokens * dim).view(1, tokens, dim)
            self.weight = nn.Parameter(ramp)
            self.layer = nn.Linear(1, 1)
            nn.init.constant_(self.layer.weight, 5)

    monkeypatch.setitem(POSITIONS, "ramp", Ramp)
    model = VisionTransformer(ViTConfig(embed_dim=16, depth=2, positions="ramp"))
    (ramp,) = (each for each in model.modules() if isinstance(each, Ramp))
    weight = ramp.weight.flatten()
    torch.testing.assert_close(weight, torch.linspace(-1, 1, len(weight)))
    assert ramp.layer.weight == 5


@dataclass
class Factor:
    times: int = 1
    label: str = "images"


@dataclass
class CountConfig:
    data: DataConfig = field(default_factory=DataConfig)
    factor: Factor = field(default_factory=Factor)


def count(config: CountConfig) -> None:
    print(config.factor.times * len(load_dataset(config.data).train), config.factor.label)


vit_count = console_command(
    "vit-count: count.", count, CountConfig, "data.root", {"data": "shapes"}
)


def test_a_command_has_types_help_and_short_messages(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has typed settings and groups, a help, and short messages for what is wrong."""
    monkeypatch.setitem(MAINS, "vit-count", vit_count)
    few = ["data.train_images=70", "data.test_images=9", "factor.times=2", "factor.label=12"]
    assert run("vit-count", *few).out == "140 12\n"
    for words in ("vit-count: count.", "times: 1", "data: cifar10"):
        run.says(words, "vit-count", "--help")
    for wrong, message in {
        "factor.times=x": "factor.times: Value 'x' of type 'str' could not be converted",
        "factor.time=1": "there is no setting factor.time: did you mean factor.times?",
        "data=shape": "there is no data=shape: choose from cifar10",
        "data.train_images=0": "data.train_images=0 must be at least 1",
    }.items():
        run.fails(message, "vit-count", wrong)
