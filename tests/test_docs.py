"""The documentation is right: commands, snippets, links, figures, choices of settings."""

import re
import shlex
import shutil
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import MAINS, SMALL_MODEL, Run, SmallRun
from hydra import compose, initialize_config_dir
from PIL import Image
from scipy import stats
from small_sets import small_cifar, small_stl10
from torchvision.datasets import CIFAR10, CIFAR100

from docs.update_tables import updated
from vit_train.base.reading import read_json
from vit_train.commands.command import choices
from vit_train.data.config import ShapesConfig
from vit_train.engine import config as engine_settings
from vit_train.engine.config import LoopConfig
from vit_train.model import pos_embed
from vit_train.runs.config import CONF_DIR, GROUPS, TrainConfig, register_schemas, typed
from vit_train.runs.settings import (
    EvalConfig,
    ExplainConfig,
    ExportConfig,
    InspectConfig,
    PredictConfig,
    SheetConfig,
)
from vit_train.training import train as training

ROOT = Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/results/*.md")]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


each_page = pytest.mark.parametrize("page", PAGES, ids=name_of)
CONFIGS = {
    "vit-train": ("train", TrainConfig),
    "vit-eval": ("vit_eval", EvalConfig),
    "vit-predict": ("vit_predict", PredictConfig),
    "vit-explain": ("vit_explain", ExplainConfig),
    "vit-augment": ("vit_augment", SheetConfig),
    "vit-inspect": ("vit_inspect", InspectConfig),
    "vit-export": ("vit_export", ExportConfig),
}
# Recipes, other people's clusters and whole sweeps: what they ask for is composed, not run.
EXPENSIVE = (
    *("experiment=", "hydra/launcher=", "hydra.searchpath=", "--config-dir", "resume="),
    # These have tests of their own.
    *("extend=", "data.cv_folds=", "task.class_weights=", "data.sampler="),
)
TINY = [*SMALL_MODEL, "train.epochs=1", "train.batch_size=8", "train.eval_batch_size=8"]


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text_of(page), re.DOTALL | re.MULTILINE)


def commands(page: Path) -> Iterator[list[str]]:
    """Each command of the page's shell blocks and code spans, as a shell splits it."""
    spans = re.findall(r"`((?:vit-|make|pip|torchrun|pytest|uv )[^`\n]* [^`\n]*)`", text_of(page))
    for line in "\n".join([*blocks(page, "sh"), *spans]).splitlines():
        words = shlex.split(line, comments=True)
        while words and "=" in words[0] and not words[0].startswith("-"):  # NAME=value command
            words.pop(0)
        while "&&" in words:
            yield words[: words.index("&&")]
            words = words[words.index("&&") + 1 :]
        if words:
            yield words


def our_commands(page: Path) -> list[list[str]]:
    found = [words for words in commands(page) if words[0] in MAINS or words[0] == "torchrun"]
    return [words if words[0] in MAINS else ["vit-train", *words[4:]] for words in found]


def overrides(words: list[str]) -> list[str]:
    """The settings of a command; of a sweep, those of its first run."""
    settings = [word for word in words[1:] if "=" in word]
    if "-m" in words:
        settings = [setting.split(",")[0] for setting in settings]
    return settings


@each_page
def test_no_shell_takes_brackets_for_a_pattern(page: Path) -> None:
    """As zsh would: they are quoted wherever a command can be copied from."""
    spans = re.findall(r"`(vit-[^`\n]+)`", text_of(page))
    for line in "\n".join([*blocks(page, "sh"), *spans]).splitlines():
        assert not re.search(r"(?<!['\w.])[\w.]+=\[", line), line


@cache
def check_settings(command: str, settings: tuple[str, ...]) -> None:
    """Compose the settings; a page repeats what others say, and this takes a third of a second."""
    name, kind = CONFIGS[command]
    with initialize_config_dir(str(CONF_DIR), version_base="1.3"):
        typed(compose(name, list(settings)), kind)


@each_page
def test_every_command_exists_and_its_settings_are_valid(page: Path) -> None:
    scripts = tomllib.loads(text_of(ROOT / "pyproject.toml"))["project"]["scripts"]
    others = {
        "make",
        "pip",
        "python",
        "python3",
        "uv",
        "torchrun",
        ".",
        ".venv/bin/python",
        "pytest",
    }
    others.add("vit-bench")  # of earlier commits, whose measurements are kept
    for words in commands(page):
        assert words[0] in {*scripts, *others}, words
    register_schemas()
    for words in our_commands(page):
        settings = overrides(words)
        if words[0] in CONFIGS and settings and "data=pets" not in settings:
            check_settings(words[0], tuple(each for each in settings if "hydra/" not in each))


def test_make_has_the_targets_that_are_named() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    for page in PAGES:
        for _, *words in (words for words in commands(page) if words[0] == "make"):
            assert {word for word in words if "=" not in word} <= targets, page


@pytest.fixture
def workplace(
    run: Run, small_run: SmallRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Run:
    """A folder with small copies of all that the documentation mentions, and a finished run."""
    small_cifar(monkeypatch, Path("data"), CIFAR10)
    small_cifar(monkeypatch, Path("data"), CIFAR100, "fine_labels")
    small_stl10(monkeypatch, Path("data"))
    small_run("finished", "outputs/cifar10-tiny"), small_run("averaged", "outputs/cifar10-small")
    for name in ("cat", "dog"):
        Path("my_images", name).mkdir(parents=True)
        for number in range(20):
            Image.new("RGB", (70, 70), (12 * number, 0, 0)).save(f"my_images/{name}/{number}.png")
    Path("my_photos/disc").mkdir(parents=True)
    Path("my_photos/disc/broken.png").write_bytes(b"not an image")
    for path in ("photo.png", "photo.jpg", "my_photos/disc/red.png"):
        Image.new("RGB", (40, 60), (255, 0, 0)).save(path)
    Path("mine/data").mkdir(parents=True)
    (pets,) = blocks(ROOT / "docs/data.md", "yaml")
    Path("mine/data/pets.yaml").write_text(pets, encoding="utf-8")
    shutil.copytree(ROOT / "docs/results", "docs/results")
    (tmp_path / "docs/results.md").write_text(text_of(ROOT / "docs/results.md"), encoding="utf-8")
    monkeypatch.setattr(training, "with_defaults", shrunk)
    return run


def shrunk(config: TrainConfig) -> TrainConfig:
    """The defaults of vit_train.train, but with little data and one epoch."""
    config = WITH_DEFAULTS(config)
    config.data = ShapesConfig(train_images=60, test_images=20)
    config.train = LoopConfig(epochs=1, batch_size=16)
    return config


WITH_DEFAULTS = training.with_defaults
RUN = [ROOT / name for name in ("README.md", "docs/data.md", "docs/training.md", "docs/using.md")]


def test_the_commands_of_the_pages_run(workplace: Run) -> None:
    """Each once, though several pages have it."""
    done = []
    for page in RUN:
        lines = [shlex.split(line, comments=True) for line in shell_lines(page)]
        for words in our_commands(page):
            expensive = any(word.startswith(EXPENSIVE) for word in words)
            if expensive or words in done or words not in lines:
                continue
            workplace.succeeds(*words, *(TINY if words[0] == "vit-train" else []))
            done.append(words)


def shell_lines(page: Path) -> list[str]:
    return "\n".join(blocks(page, "sh")).splitlines()


def test_a_choice_of_ones_own(workplace: Run) -> None:
    flags = ["--config-dir", "mine"], ["hydra.searchpath=[file://mine]"]
    for flag, more in zip(flags, (TINY, ["--cfg", "job"]), strict=True):
        assert ["vit-train", *flag, "data=pets"] in our_commands(ROOT / "docs/data.md")
        outcome = workplace("vit-train", *flag, "data=pets", *more)
        assert outcome.status == 0, outcome.err
    assert "name: folder" in outcome.out and "image_size: 96" in outcome.out


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=name_of)
def test_the_python_of_a_page_runs(
    page: Path, workplace: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pos_embed, "POSITIONS", dict(pos_embed.POSITIONS))
    monkeypatch.setattr(engine_settings, "OPTIM_CONFIGS", dict(engine_settings.OPTIM_CONFIGS))
    for snippet in blocks(page, "python"):
        torch.manual_seed(0)
        exec(compile(snippet, str(page), "exec"), {})


def anchor_of(heading: str) -> str:
    """The name by which GitHub links to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def anchors(page: Path) -> set[str]:
    prose = re.sub(r"```.*?```", "", text_of(page), flags=re.S)
    return set(map(anchor_of, re.findall(r"^#+ (.+)$", prose, re.M)))


@each_page
def test_every_link_anchor_and_picture_exists(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", text_of(page)):
        if target.startswith("https://"):
            continue
        file, _, anchor = target.partition("#")
        path = page.parent / file if file else page
        assert path.exists(), target
        assert not anchor or anchor in anchors(path), target


@each_page
def test_every_file_that_is_named_exists(page: Path) -> None:
    for name in re.findall(r"`((?:tests|vit_train|conf|docs)/[^`*\s]+)`", text_of(page)):
        assert (ROOT / name).exists(), name


def test_the_map_names_every_module() -> None:
    text = text_of(ROOT / "docs/architecture.md")
    for room in [path.parent.name for path in (ROOT / "vit_train").glob("*/__init__.py")]:
        for path in (ROOT / "vit_train" / room).rglob("*.py"):
            assert path.name in {"__init__.py", "config.py"} or path.name in text, path
    for path in (ROOT / "vit_train").iterdir():
        assert path.name[:2] == "__" or path.name == "py.typed" or path.name in text, path


def test_the_tables_of_results_are_those_of_the_summaries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    text = text_of(ROOT / "docs/results.md")
    assert text.count("<!-- vit-results ") == text.count("<!-- end -->") > 5
    assert updated(text) == text, "python docs/update_tables.py docs/results.md"


def test_the_difference_between_precisions_is_that_of_the_summaries() -> None:
    """Of runs that differ in their precision alone, seed by seed, in points."""
    folders = [ROOT / "docs/results" / name for name in ("cifar10_5k", "cifar10_5k_bf16")]
    fp32, bf16 = (
        {file.stem: read_json(file) for file in sorted(folder.glob("*.json"))} for folder in folders
    )
    test, val = (
        [100 * (accuracy(bf16[seed]) - accuracy(fp32[seed])) for seed in fp32]
        for accuracy in (
            lambda run: run["test"]["final"]["acc"],
            lambda run: run["best_val"]["acc"],
        )
    )
    page = " ".join(text_of(ROOT / "docs/results.md").split())
    each = f"{', '.join(f'{one:+.2f}' for one in test)} points: "
    for said in (each + mean_and_interval(test), mean_and_interval(val)):
        assert said.replace("-", "−") in page, said


def mean_and_interval(found: list[float]) -> str:
    low, high = stats.t.interval(0.95, len(found) - 1, np.mean(found), stats.sem(found))
    return f"mean {np.mean(found):+.2f}, 95 % interval {low:+.2f} to {high:+.2f}"


def test_the_figures_of_the_readme_are_in_the_results() -> None:
    """Each in the section that its row links to."""
    (rows,) = re.findall(r"\| data \|.+?(?=\n\n)", text_of(ROOT / "README.md"), re.DOTALL)
    sections = re.split(r"^#+ ", text_of(ROOT / "docs/results.md"), flags=re.M)[1:]
    by_anchor = {anchor_of(section.splitlines()[0]): section for section in sections}
    for row in rows.splitlines()[2:]:
        data, _, *figures, _ = (cell.strip() for cell in row.strip("|").split("|"))
        lines = by_anchor[data.partition("#")[2].partition(")")[0]].splitlines()
        assert any(all(f"| {each} |" in line for each in figures) for line in lines), row


def test_the_table_of_groups_names_every_choice() -> None:
    settings = text_of(ROOT / "docs/settings.md")
    rows = dict(re.findall(r"^\| `(\w+)=` \| (.+?) \|", settings, re.MULTILINE))
    for group in set(GROUPS):
        assert set(re.findall(r"`(\w+)`", rows[group])) == set(choices(group, [CONF_DIR])), group
