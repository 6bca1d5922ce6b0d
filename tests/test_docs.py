"""The documentation is right: commands, snippets, links, figures, choices of settings."""

import copy
import re
import shlex
import shutil
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import compress
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import MAINS, SMALL_MODEL, Run, SmallRun, write_images
from hydra import compose, initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig
from small_sets import small_cifar, small_mnist, small_stl10

from docs.update_tables import updated
from vit_train.commands.command import choices
from vit_train.commands.sweep import AUTO
from vit_train.config.data import ShapesConfig
from vit_train.config.run import (
    CONF_DIR,
    GROUPS,
    TrainConfig,
    register_schemas,
    to_config,
    with_defaults,
)
from vit_train.config.training import LoopConfig
from vit_train.run import train as training

ROOT = Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/results/*.md")]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


each_page = pytest.mark.parametrize("page", PAGES, ids=name_of)
# Recipes, other people's clusters and whole sweeps: what they ask for is composed, not run.
EXPENSIVE = (
    *("experiment=", "hydra/launcher=", "resume="),
    # These have tests of their own.
    *("extend=", "config=docs/", "data.cv_folds=", "task.class_weights=", "data.sampler="),
    "runs=",  # a cross-validation, which has a test of its own
    "init_from=builtin:",  # of another shape than the small model
    "import=",  # a module of the reader's own
    "format=deploy",  # needs onnxruntime: tests/interop/test_deployed.py
)
TINY = [*SMALL_MODEL, "train.epochs=1", "train.batch_size=8", "train.eval_batch_size=8"]


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text_of(page), re.DOTALL | re.MULTILINE)


def commands(page: Path) -> Iterator[list[str]]:
    """Each command of the page's shell blocks and code spans, as a shell splits it."""
    spans = re.findall(r"`((?:vit-|make|pip|torchrun|pytest|uv )[^`\n]* [^`\n]*)`", text_of(page))
    for line in "\n".join([*blocks(page, "sh"), *spans]).replace("&&", "\n").splitlines():
        words = shlex.split(line, comments=True)
        while words and "=" in words[0] and not words[0].startswith("-"):  # NAME=value command
            words.pop(0)
        if words:
            yield words


def our_commands(page: Path) -> list[list[str]]:
    found = [words for words in commands(page) if words[0] in MAINS or words[0] == "torchrun"]
    return [words if words[0] in MAINS else ["vit-train", *words[4:]] for words in found]


@cache
def composed(command: str, chosen: tuple[str, ...]) -> DictConfig:
    """The config of these choices, which many commands share, and which takes longest."""
    with initialize_config_dir(str(CONF_DIR), version_base="1.3"):
        return compose(command.replace("vit-train", "train"), list(chosen))


def check_settings(command: str, settings: Sequence[str]) -> None:
    choosing = ("experiment=", "hydra.", *(f"{group}=" for group in GROUPS))
    is_choice = [each.startswith(choosing) for each in settings]
    config = copy.deepcopy(composed(command, tuple(compress(settings, is_choice))))
    single = [each for each, chosen in zip(settings, is_choice, strict=True) if not chosen]
    ConfigLoaderImpl._apply_overrides_to_config(
        OverridesParser.create().parse_overrides(single), config
    )
    to_config(config, object)


# The last one is of earlier commits, whose measurements are kept.
OTHERS = [
    "git",
    "cd",
    "make",
    "pip",
    "python",
    "python3",
    "uv",
    "torchrun",
    ".",
    ".venv/bin/python",
    "pytest",
    "vit-bench",
]
SCRIPTS = tomllib.loads(text_of(ROOT / "pyproject.toml"))["project"]["scripts"]


@each_page
def test_every_command_exists_and_its_settings_are_valid(page: Path) -> None:
    """And no shell takes brackets for a pattern, as zsh would."""
    spans = re.findall(r"`(vit-[^`\n]+)`", text_of(page))
    for line in "\n".join([*blocks(page, "sh"), *spans]).splitlines():
        assert not re.search(r"(?<!['\w.])[\w.]+=\[", line), line
    assert {words[0] for words in commands(page)} <= {*SCRIPTS, *OTHERS}
    register_schemas()
    for command, *words in our_commands(page):
        # Of a sweep, those of its first run.
        settings = [word.split(",")[0] if "-m" in words else word for word in words if "=" in word]
        if (
            command != "vit-results"
            and settings
            and not {"data=pets", "import=my_parts"} & {*settings}
        ):
            check_settings(
                command, [each for each in settings if "hydra/" not in each and each != AUTO]
            )


def test_make_has_the_targets_that_are_named() -> None:
    targets = set(re.findall(r"^([\w-]+):", text_of(ROOT / "Makefile"), re.M))
    named = {
        word for page in PAGES for words in commands(page) if words[0] == "make" for word in words
    }
    assert {word for word in named if "=" not in word} <= {"make", *targets}


@pytest.fixture
def workplace(run: Run, small_run: SmallRun, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A folder with small copies of what the Python of the documentation mentions."""
    small_cifar(monkeypatch, Path("data"))
    small_run("finished", "outputs/cifar10-tiny")
    write_images(".", ["photo.png", "photo.jpg"])
    Path("docs").mkdir()
    for picture in ("photo.png", "cifar10_test_images.png"):
        shutil.copy(ROOT / "docs" / picture, "docs")
    monkeypatch.setattr(training, "with_defaults", shrunk)
    return run


@pytest.fixture
def whole_workplace(workplace: Run, small_run: SmallRun, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The same with all that the commands mention."""
    small_cifar(monkeypatch, Path("data"), "cifar100")
    small_stl10(monkeypatch, Path("data"))
    small_run("averaged", "outputs/cifar10-small")
    small_run("finished", "outputs/quickstart")
    images = [f"{name}/{number}.png" for name in ("cat", "dog") for number in range(20)]
    write_images("my_images", images, size=(70, 70))
    photos = ["data=folder", "data.root=my_images", "data.image_size=32"]
    workplace.succeeds("vit-train", *photos, *TINY, "hydra.run.dir=outputs/my_images-tiny")
    tags = [f"my_images/{name},{name[:3]}|{name[-5:-4]}" for name in images]
    Path("labels.csv").write_text("\n".join(["path,tags", *tags]), encoding="utf-8")
    write_images(".", ["new_photos/a.jpg", "my_photos/disc/red.png"])
    Path("my_photos/disc/broken.png").write_bytes(b"not an image")
    small_mnist(Path("data"), "FashionMNIST")
    shutil.copytree(ROOT / "docs/results", "docs/results")
    Path("mine/data").mkdir(parents=True)
    (pets,) = blocks(ROOT / "docs/data.md", "yaml")
    Path("mine/data/pets.yaml").write_text(pets, encoding="utf-8")
    return workplace


def shrunk(config: TrainConfig) -> TrainConfig:
    """The defaults of vit_train.train, but with little data and one epoch."""
    data = ShapesConfig(train_images=60, test_images=20)
    return replace(with_defaults(config), data=data, train=LoopConfig(epochs=1, batch_size=16))


RUN = [
    ROOT / "README.md",
    *(
        ROOT / f"docs/{name}.md"
        for name in ("data", "training", "using", "your_photos", "research")
    ),
]


def test_the_commands_of_the_pages_run(whole_workplace: Run) -> None:
    """Each once, though several pages have it; of the README, also those outside its blocks."""
    done = []
    for page in RUN:
        shell = "\n".join(blocks(page, "sh")).splitlines()
        lines = [shlex.split(line, comments=True) for line in shell]
        for words in our_commands(page):
            skipped = words in done or any(word.startswith(EXPENSIVE) for word in words)
            if not skipped and (words in lines or page == ROOT / "README.md"):
                whole_workplace.succeeds(*words, *(TINY if words[0] == "vit-train" else []))
                done.append(words)
    assert len(done) >= 28


# tests/test_room_to_grow.py runs those of docs/extending.md.
WITH_PYTHON = [
    page for page in PAGES if blocks(page, "python") and page != ROOT / "docs/extending.md"
]


@pytest.mark.parametrize("page", WITH_PYTHON, ids=name_of)
def test_the_python_of_a_page_runs(page: Path, workplace: Run, registries: None) -> None:
    names: dict[str, Any] = {}  # a reader runs them in one session
    for snippet in blocks(page, "python"):
        torch.manual_seed(0)
        exec(compile(snippet, str(page), "exec"), names)


def anchor_of(heading: str) -> str:
    """The name by which GitHub links to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def anchors(page: Path) -> set[str]:
    prose = re.sub(r"```.*?```", "", text_of(page), flags=re.S)
    return set(map(anchor_of, re.findall(r"^#+ (.+)$", prose, re.M)))


@each_page
def test_every_link_anchor_picture_and_file_exists(page: Path) -> None:
    for name in re.findall(r"`((?:tests|vit_train|conf|docs)/[^`*\s]+)`", text_of(page)):
        assert (ROOT / name).exists(), name
    for target in re.findall(r"\]\((?!https://)([^)]+)\)", text_of(page)):
        file, _, anchor = target.partition("#")
        path = page.parent / file if file else page
        assert path.exists() and (not anchor or anchor in anchors(path)), target


def test_the_map_names_every_module() -> None:
    text = text_of(ROOT / "docs/architecture.md")
    paths = [path.name for path in (ROOT / "vit_train").rglob("*.py")]
    for name, count in Counter(paths).items() - {("__init__.py", paths.count("__init__.py"))}:
        assert len(re.findall(rf"(?<!\w){re.escape(name)}", text)) >= count, name


def test_the_tables_of_results_are_those_of_the_summaries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    text = "".join(map(text_of, sorted(ROOT.glob("docs/results/*.md"))))
    assert text.count("<!-- vit-results ") == text.count("<!-- end -->") > 5
    assert updated(text, Path("docs/results")) == text, (
        "python docs/update_tables.py docs/results/*.md"
    )


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "docs/results.md"], ids=name_of)
def test_the_figures_of_a_page_are_in_the_results(page: Path) -> None:
    """All of a row in one row of the section that it links to, perhaps with an interval there."""
    rows = re.findall(r"^\| \[[^\]]+\]\(([^)#]*/\w+\.md)#([\w-]+)\)(.+)", text_of(page), re.M)
    assert rows
    for file, anchor, rest in rows:
        sections = re.split(r"^#+ ", text_of(page.parent / file), flags=re.M)[1:]
        (section,) = (each for each in sections if anchor_of(each.splitlines()[0]) == anchor)
        tables = map(cells_of, re.findall(r"(?:^\|.+\n)+", section, re.M))
        found = [{cell.partition(" (")[0] for cell in row} for table in tables for row in table]
        (cells,) = cells_of(rest)
        figures = {cell for cell in cells if re.match(r"\d[\d.,]*( ±| to |$)", cell)}
        assert figures and any(figures <= row for row in found), rest


def cells_of(table: str) -> list[list[str]]:
    rows = [re.split(r" *\| *", line)[1:-1] for line in table.splitlines()]
    return [row for row in rows if row[0] != "---"]


def test_the_table_of_groups_names_every_choice() -> None:
    settings = text_of(ROOT / "docs/settings.md")
    rows = dict(re.findall(r"^\| `(\w+)=` \| (.+?) \|", settings, re.MULTILINE))
    rows["experiment"] = settings.partition("## Recipes")[2].partition("## Single settings")[0]
    for group in set(GROUPS):
        assert set(re.findall(r"`(\w+)`", rows[group])) == set(choices(group)), group


PAGE = Path(__file__).parents[1] / "docs" / "tour.ipynb"


def printed(notebook: Any) -> list[str]:
    """What each cell of code printed."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return ["".join(output.get("text", "") for output in cell.outputs) for cell in code]


def test_the_notebook_is_complete_and_names_no_paths() -> None:
    import nbformat  # slow, and other files of tests import this one

    code = [cell for cell in nbformat.read(PAGE, 4).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    shown = [output for cell in code for output in cell.outputs]
    assert not any(output.output_type == "error" for output in shown)
    figures = [output.data for output in shown if "data" in output]
    assert len(figures) == 3 and all("image/png" in figure for figure in figures)
    for text in printed(nbformat.read(PAGE, 4)):
        assert not re.search(r"/(work|tmp|home|root)/|Warning", text), text


@pytest.mark.tour
@pytest.mark.filterwarnings("default")
def test_the_notebook_is_reproducible() -> None:
    """What the model in the box says is the same on every machine; what is trained may differ."""
    import nbformat
    from nbclient import NotebookClient

    notebook, texts = nbformat.read(PAGE, 4), []
    place = {"metadata": {"path": str(PAGE.parent)}}
    for client in (None, NotebookClient(notebook, timeout=900, resources=place)):
        client.execute() if client else None
        texts.append([re.sub(r"[\d.]+ ?%.*", "", text) for text in printed(notebook)])
    assert texts[0] == texts[1]
    answers = printed(notebook)[1].splitlines()
    assert len(answers) == 12 and sum(line.startswith("✗") for line in answers) <= 2
