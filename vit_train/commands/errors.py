"""Report errors as a short message on stderr and a non-zero exit status."""

import contextlib
import difflib
import logging
import os
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from vit_train.base.machine import is_out_of_memory
from vit_train.base.reading import flatten
from vit_train.base.text import printable, reason, replace_unencodable_characters
from vit_train.commands.start import ended_by_interrupt
from vit_train.config.fields import Reported, UsageError
from vit_train.config.run import CHOSEN_BY_NAME, TrainConfig, declared
from vit_train.trained.own_code import PACKAGE, is_own, own_modules

GRAMMAR = "key=value; quote a value with special characters: key=\"'a, b'\""
# Hydra, its plugins, and the libraries that they use.
HYDRA = ("hydra", "hydra_plugins", "omegaconf", "submitit", "optuna", "sqlalchemy", "yaml")
EXPECTED = (
    ValueError,
    OSError,
    ArithmeticError,
    RecursionError,
    HydraException,
    OmegaConfBaseException,
)
# Other libraries' names of settings, in any group, that resemble no name or a wrong name here.
ALIASES = {
    "augment.policy": "auto_augment autoaugment randaugment",
    "data": "dataset",
    "data.image_size": "img_size resolution",
    "data.root": "data_dir data_path dir path",
    "data.test_subset": "test_images",
    "data.train_subset": "train_images",
    "init_from": "ckpt pretrained",
    "model.depth": "layers num_layers",
    "model.drop_path": "drop_path_rate",
    "model.dropout": "drop_rate",
    "model.embed_dim": "dim hidden_dim hidden_size width",
    "model.patch_size": "patch",
    "optim": "opt optimizer",
    "optim.clip_norm": "clip_grad grad_clip max_grad_norm",
    "optim.lr": "learning_rate",
    "optim.warmup_epochs": "warmup_steps",
    "optim.weight_decay": "wd",
    "precision": "amp bf16 fp16",
    "trackers": "wandb",
    "train.batch_size": "bs",
    "train.epochs": "max_steps steps",
    "train.log_every": "log_interval",
    "train.micro_batch": "accum_iter accumulate_grad_batches gradient_accumulation_steps",
    "train.patience": "early_stopping",
}
OTHER_NAMES = {alias: ours for ours, aliases in ALIASES.items() for alias in aliases.split()}
# The most settings that a message suggests.
MOST_SUGGESTED = 3


def own_frames(error: BaseException | None) -> Sequence[traceback.FrameSummary]:
    """Return an error's traceback from the user's own code on; [] if the user's code has no part.

    Also return [] for the errors that this program reports to the user's code that called it.
    """
    frames = traceback.extract_tb(error.__traceback__ if error and own_modules() else None)
    own = [number for number, frame in enumerate(frames) if is_own(Path(frame.filename))]
    ours = [n for n, frame in enumerate(frames) if PACKAGE in Path(frame.filename).parents]
    is_reported = isinstance(error, EXPECTED) and own[-1:] < ours[-1:]
    return [] if not own or is_reported else frames[own[0] :]


def from_hydra(error: BaseException) -> bool:
    """Return True if Hydra, one of its plugins or a library that they use raised the error.

    For example, the Slurm plugin raises an error if Slurm is not installed.
    """
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return frame.f_globals["__name__"].partition(".")[0] in HYDRA


def is_expected(error: BaseException) -> bool:
    """Return True for an error whose message is enough for the user to correct it."""
    return (
        (isinstance(error, EXPECTED) and not own_frames(error))
        or from_hydra(error)
        or is_out_of_memory(error)
    )


def lines_above(error: BaseException) -> str:
    """Return the lines to print above an error's message: the traceback, as far as it helps.

    Show the user's own code, all of an unexpected error, and nothing for other errors.
    """
    frames = own_frames(error) or own_frames(error.__cause__)
    if SHOW_TRACEBACKS or not (frames or is_expected(error)):
        return "".join(traceback.format_exception(error))
    return "".join(traceback.format_list(frames))


def explain(error: BaseException, kind: type = TrainConfig) -> str:
    """Return an error's message for the user, with "…" for the middle of very long lines.

    `kind` is the dataclass of the command's settings.
    """
    message = describe(error, kind)
    name = type(error).__name__
    if not is_expected(error) and message != name:
        message = f"{name}: {message}"
    message += "".join(getattr(error, "__notes__", ()))
    frames = own_frames(error) or own_frames(error.__cause__)
    if own := [each for each in frames if is_own(Path(each.filename))]:
        message += f" ({own[-1].filename}:{own[-1].lineno})"
    return re.sub(r"(?m)^(.{200}).{500,}(.{200})$", r"\1…\2", message)


def describe(error: BaseException, kind: type) -> str:
    if is_out_of_memory(error) and not isinstance(error, ValueError):  # which has advice already
        return (
            f"out of memory ({reason(error)}): choose a smaller model, or fewer or smaller images"
        )
    # Hydra names the config file with the error.
    file = re.match(r"In '\w+/[^']+': ", str(error))
    context = None if error.__suppress_context__ else error.__context__
    for cause in (error, error.__cause__, context):
        if message := describe_setting(cause, kind):
            return f"{file[0] if file else ''}{message}"
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.filename2 or error.filename}: {error.strerror}"
    return str(error) or type(error).__name__


def describe_setting(error: BaseException | None, kind: type) -> str:
    """Return the message for an error of Hydra or OmegaConf in a setting; "" for other errors."""
    match error:
        case RecursionError() if not own_frames(error):
            return "an argument or a config file is nested too deeply"
        case OverrideParseException():
            return f"{error.override} cannot be read as {GRAMMAR}"
        case ConfigKeyError() | ConfigAttributeError() if error.full_key:
            return no_such_setting(error.full_key, kind)
        case MissingConfigException():
            return no_such_choice(error)
        case OmegaConfBaseException():
            wrong = str(error.msg).splitlines()[0].replace("is not Optional", "cannot be null")
            if "is not a ListConfig" in wrong:
                wrong = f"must be a list: {error.full_key}=[A,B]"
            return f"{error.full_key}: {wrong}"
    return ""


def no_such_setting(asked: str, kind: type) -> str:
    """Return the message for a setting that does not exist; suggest settings with similar names."""
    if asked == "experiment":
        return "the file of a recipe must begin with '# @package _global_'"
    group, _, name = asked.rpartition(".")
    having = [
        choice
        for choice, settings in CHOSEN_BY_NAME.get(group, {}).items()
        if name in declared(settings)
    ]
    known = declared(kind)
    near = [OTHER_NAMES[name]] if OTHER_NAMES.get(name) in known else similar(name, known)
    hint = f": did you mean {' or '.join(near)}?" if near else ""
    if having and asked not in known:
        return f"the setting {asked} cannot be set here: it comes from the run"
    if having:
        only = f"{group}={' or '.join(having)}{hint if name in OTHER_NAMES else ''}"
        return f"the setting {asked} exists only with {only}"
    return f"there is no setting {asked}{hint or ': --help lists the settings'}"


def similar(name: str, known: Iterable[str]) -> list[str]:
    """Return the settings, of any group, that the user may have meant by `name`.

    These have the name `name`. If there are none or too many, return those whose name contains
    `name` as whole words, or is the end of `name`; failing that, those spelled alike.
    """
    names = {key: key.rpartition(".")[2] for key in sorted(known)}
    same = [key for key, other in names.items() if other in (name, f"{name}s")]
    related = [
        key
        for key, other in names.items()
        if f"_{name}_" in f"_{other}_" or name.endswith(f"_{other}")
    ]
    nearest = difflib.get_close_matches(name, names.values(), n=1, cutoff=0.75)
    alike = [key for key, other in names.items() if other in nearest]
    return next((keys for keys in (same, related, alike) if 1 <= len(keys) <= MOST_SUGGESTED), [])


def require_known(config: DictConfig, kind: type) -> None:
    """Raise UsageError if a setting that the user added with + does not exist."""
    settings: Any = OmegaConf.to_container(config)
    if unknown := dict(flatten(settings)).keys() - declared(kind).keys():
        raise UsageError(no_such_setting(min(unknown), kind))


def no_such_choice(error: MissingConfigException) -> str:
    """Return the message for a missing preset or config file; list the available presets."""
    group, _, choice = str(error.missing_cfg_file).rpartition("/")
    if not group:
        return f"there is no config file {choice}.yaml"
    known = f": choose from {', '.join(error.options)}" if error.options else ""
    adding = "\nto add Optuna and Slurm, run pip install -e '.[sweeps]' in the checkout"
    return f"there is no {group}={choice}{known}{adding if group.startswith('hydra/') else ''}"


FULL_ERROR = "HYDRA_FULL_ERROR"
# Read before `short_errors` sets this variable for Hydra.
SHOW_TRACEBACKS = os.environ.get(FULL_ERROR) == "1"


@contextlib.contextmanager
def short_errors(command: str, kind: type = TrainConfig) -> Iterator[None]:
    """Exit with a short message if the block raises an error that the user can fix.

    Errors of the user's own code also print the lines of that code, and other errors their
    traceback; with HYDRA_FULL_ERROR=1, all errors do. The exit status is 2 for a wrong command
    line, that of a `Reported` error, or 1. If the user has not set this variable, this function
    sets it, so that Hydra does not print errors itself. `kind` is the dataclass of the command's
    settings.
    """
    replace_unencodable_characters()
    os.environ[FULL_ERROR] = "1"
    logging.raiseExceptions = False  # `vit-eval … | head` closes the pipe, which is not an error
    try:
        with ended_by_interrupt(command), report_lost_output(command):
            yield
    except Exception as error:
        print(
            printable(f"{lines_above(error)}{command}: {explain(error, kind)}", keep="\n"),
            file=sys.stderr,
        )
        if isinstance(error, Reported):
            sys.exit(error.exit_status)
        sys.exit(2 if isinstance(error, HydraException | OmegaConfBaseException) else 1)


@contextlib.contextmanager
def report_lost_output(command: str) -> Iterator[None]:
    """Exit with status 1 at the end of the block if output to stdout was lost.

    Print the reason, unless stdout is a pipe whose reader has ended, such as `head`. Within the
    block, logging ignores write errors, so that they do not end training.
    """
    try:
        yield
    except BrokenPipeError:  # as after `vit-results | head`
        sys.exit(1)
    finally:
        try:
            sys.stdout.flush()  # logging leaves what it could not write in the buffer
        except OSError as error:
            # At exit, Python would complain about unwritten output.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            gone = isinstance(error, BrokenPipeError)
            sys.exit(1 if gone else f"{command}: standard output: {error.strerror}")
