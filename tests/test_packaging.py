"""The package works wherever it is installed: wheel, source distribution, or a bare checkout."""

import ast
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import yaml
from conftest import SMALL
from test_architecture import imports

ROOT = Path(__file__).parent.parent
MODULES = list((ROOT / "vit_train").rglob("*.py"))
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = SETTINGS["project"]
PACKAGES = [path for path in MODULES if path.name == "__init__.py"]
SOURCES = ("vit_train", "conf", "pyproject.toml", "README.md", "LICENSE")
OTHER_PLACE = {**os.environ, "PYTHONPATH": ""}


def call(*command: object, cwd: Path) -> str:
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, env=OTHER_PLACE
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources alone, as a clone has them."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, copy)
    return copy


def test_every_package_is_named() -> None:
    settings = SETTINGS["tool"]["setuptools"]
    inside = {".".join(file.parent.relative_to(ROOT).parts) for file in PACKAGES}
    assert set(settings["packages"]) == inside | {"vit_train.conf"}
    package = ROOT / "vit_train"
    named = {file for each in settings["package-data"]["vit_train"] for file in package.glob(each)}
    others = {file for file in package.rglob("*") if file.suffix not in (".py", ".pyc")}
    assert named == {file for file in others if file.is_file()}


def test_every_imported_package_is_declared() -> None:
    declared = {re.split(r"[^\w-]", line)[0].lower() for line in PROJECT["dependencies"]}
    modules = {name.split(".")[0] for path in MODULES for name in imports(path)}
    others = modules - set(sys.stdlib_module_names) - {"vit_train"}
    providers = packages_distributions()
    through_torch = {"tensorboard"}  # torch.utils.tensorboard imports it
    assert {providers[name][0].lower() for name in others} | through_torch == declared


def test_every_text_file_has_an_explicit_encoding() -> None:
    """The default is another one on Windows. Ruff's PLW1514 finds open() and misses some paths."""
    texts = ("read_text", "write_text")
    for path in [*MODULES, *(ROOT / "tests").rglob("*.py")]:
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and getattr(call.func, "attr", "") in texts:
                named = {keyword.arg for keyword in call.keywords}
                assert "encoding" in named, f"{path}:{call.lineno}"


def test_the_citation_has_the_version_and_the_authors() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    for key in ("version", "license", "authors"):
        assert citation[key] == PROJECT[key]


def content(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {
            name: archive.read(name) for name in archive.namelist() if not name.endswith("RECORD")
        }


@pytest.mark.slow
def test_wheel_and_source_distribution(checkout: Path, tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--no-isolation"]
    call(*build, "--wheel", "--outdir", tmp_path / "direct", checkout, cwd=tmp_path)
    # Without --wheel or --sdist: the source distribution, then the wheel from it.
    call(*build, "--outdir", tmp_path / "dist", checkout, cwd=tmp_path)
    (direct,) = (tmp_path / "direct").glob("*.whl")
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    assert content(wheel) == content(direct)
    packed = {Path(name) for name in content(wheel)}
    for preset in (ROOT / "conf").rglob("*.yaml"):
        assert "vit_train" / preset.relative_to(ROOT) in packed
    for module in (ROOT / "vit_train").rglob("*.py"):
        assert module.relative_to(ROOT) in packed

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    call(sys.executable, "-m", "venv", "--without-pip", tmp_path / "env", cwd=tmp_path)
    scripts = tmp_path / "env" / ("Scripts" if os.name == "nt" else "bin")
    python = scripts / "python"
    find = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(call(python, "-c", find, cwd=elsewhere).strip())
    # The dependencies come from this environment; its editable install does not.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index"]
    call(*pip, wheel, cwd=elsewhere)
    where = call(python, "-c", "import vit_train; print(vit_train.__file__)", cwd=elsewhere)
    assert Path(where.strip()).is_relative_to(site)

    call(scripts / "vit-train", *SMALL, "hydra.run.dir=run", "data=shapes", cwd=elsewhere)
    assert "triangle" in call(scripts / "vit-eval", "ckpt=run", cwd=elsewhere)
    assert {path.name for path in elsewhere.iterdir()} == {"run"}


@pytest.mark.slow
def test_a_checkout_runs_without_being_installed(checkout: Path) -> None:
    module = [sys.executable, "-m", "vit_train.commands.train"]
    call(*module, *SMALL, "hydra.run.dir=run", cwd=checkout)
    assert (checkout / "run" / "checkpoints" / "last.safetensors").exists()
