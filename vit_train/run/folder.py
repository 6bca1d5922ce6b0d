"""A run's folder and all files in it, from the config to the summary."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4
from zlib import crc32

from omegaconf import OmegaConf

from vit_train.base import machine
from vit_train.base.log import logger
from vit_train.base.reading import read_object, typed
from vit_train.base.text import csv_text, reason
from vit_train.base.writing import (
    remove_partial,
    save_archive,
    write_json,
    write_text,
)
from vit_train.config.data import APPLIED, IMAGES, FolderConfig
from vit_train.config.run import CHOSEN_BY_NAME, TrainConfig
from vit_train.config.tasks import ReconstructConfig
from vit_train.figures.measures import NUMBERS, figures, result_dict
from vit_train.loop.metrics import Results
from vit_train.loop.schedule import SCHEDULES
from vit_train.loop.state import State
from vit_train.loop.trainer import CALLBACKS, Callback, Trainer
from vit_train.model import products
from vit_train.model.attention import ATTENTIONS
from vit_train.model.build import parameter_count
from vit_train.model.layers import ACTIVATIONS
from vit_train.model.positions import POSITIONS
from vit_train.run.earlier import Earlier, state_of
from vit_train.run.reports import (
    MetricsCsv,
    Pictures,
    TensorBoard,
    Trackers,
    draw_first_images,
    open_tracker,
    read_table,
    reports,
    truncate_reports,
)
from vit_train.run.saver import CheckpointManager
from vit_train.run.start import Run
from vit_train.run.terminal import (
    Terminal,
    hint,
    next_steps,
    opening,
    result_lines,
    warn_of_uneven_classes,
    without_same,
)
from vit_train.trained.checkpoint import Checkpoint
from vit_train.trained.folder import (
    CHECKPOINTS,
    CONFIG,
    REQUESTED,
    SUMMARY,
    Launch,
    resume_command,
)
from vit_train.trained.own_code import (
    is_own_part,
    own_code,
    save_code,
    saved_code,
    warn_of_changes,
)

# The tables of parts, by the setting that chooses from them.
TABLES: dict[str, Mapping[str, Any]] = {
    "model.positions": POSITIONS,
    "model.attention": ATTENTIONS,
    "model.activation": ACTIVATIONS,
    "optim.schedule": SCHEDULES,
    **CHOSEN_BY_NAME,
}


class RunFiles:
    """What a process writes during a run; this base class writes nothing."""

    callbacks: Sequence[Callback] = ()

    def open(self) -> None:
        """Write the settings and the first reports, and describe the run in the log."""

    def shown(self, trainer: Trainer) -> contextlib.AbstractContextManager[None]:
        """Within the block, show the trainer's progress."""
        return contextlib.nullcontext()

    def close(self, trainer: Trainer, results: Results) -> None:
        """Write and log the results; empty `results` mean that the run was stopped."""

    def best_weights(self) -> State | None:
        """Read the best epoch's weights; return None if they are lost."""
        return None

    def fail(self, status: str, error: BaseException) -> None:
        """Write the status of a begun run that an error ends, if the disk still allows that."""

    def advice(self) -> str:
        """Return how to resume, for the end of an error message; "" if the run has not begun."""
        return ""


NO_FILES = RunFiles()


class RunFolder(RunFiles):
    """Writes all files of a run into the folder `path`.

    `resumed` is True if the folder already holds this run. `earlier` is the checkpoint to continue
    from, or None to start with the first step.
    """

    def __init__(
        self,
        path: Path,
        requested: TrainConfig,
        run: Run,
        launch: Launch,
        earlier: Earlier | None,
        resumed: bool,
    ) -> None:
        self.path = path
        self.requested = requested
        self.run = run
        self.launch = launch
        self.settings = asdict(run.config)
        self.earlier = earlier
        self.resumed = resumed
        self.extends = earlier.chain if earlier else []
        before = read_object(path / SUMMARY) if resumed else {}
        begun = typed(list[dict[str, Any]], before.get("extends", []), "extends")
        known = [each.fingerprint for each in self.extends[-1:]]
        if earlier and begun and begun[-1].get("fingerprint") not in known:
            first = begun[-1].get("run")
            raise ValueError(
                f"{first} has changed since this run began from it, or the checkpoint is a copy of "
                f"its own: use resume={path}, or start a new run from {first}"
            )
        # The command and its settings are those of the launch that began the run.
        self.command = str(before.get("command", launch.command))
        self.chosen = typed(list[str], before.get("chosen", list(launch.chosen)), "chosen")
        # Facts that may differ between the processes that successively trained the run.
        self.here = {
            "commit": machine.commit(),
            "versions": machine.versions(),
            "machine": machine.hardware(run.precision.device),
            "precision": run.precision.name,
        }
        self.stages = typed(list[dict[str, Any]], before.get("earlier", []), "earlier")
        if before:
            self.stages.append({key: before.get(key) for key in self.here})
        # Not the name of the folder, which folders of different projects may share.
        self.record = str(before.get("record") or uuid4().hex)
        # That of the first start, because a resumed run does not measure it again.
        self.bf16_speedup = before.get("bf16_speedup") or run.precision.bf16_speedup
        self.code = saved_code(path) if resumed else registered_code()
        self.trackers = Trackers({})  # until the run is opened
        self.terminal = Terminal()
        self.board = TensorBoard(path)
        self.csv = MetricsCsv(path / "metrics.csv")
        self.pictures = Pictures(run, self.board, path / "pictures.png")
        self.checkpoints = CheckpointManager(
            path / CHECKPOINTS, run.config.checkpoint, self.make_checkpoint, self.flush, self.send
        )
        # Checkpoints come last, because they include the lengths of the other reports.
        self.callbacks = [self.terminal, self.board, self.csv, self.pictures, self.checkpoints]
        if isinstance(run.config.task, ReconstructConfig):
            from vit_train.run.neighbors import neighbors_of  # rarely needed

            self.callbacks = [*neighbors_of(run), *self.callbacks]

    def make_checkpoint(self, trainer: Trainer) -> Checkpoint:
        """Return a checkpoint, including the current lengths of the reports."""
        lengths = {path.name: path.stat().st_size for path in reports(self.path)}
        lengths |= {each.path.name: each.length for each in (self.board, self.csv)}
        return Checkpoint(
            **vars(state_of(trainer)),
            config=self.settings,
            **self.run.data.facts._asdict(),
            **self.run.data.statistics._asdict(),
            versions=machine.versions(),
            extends=self.extends,
            teacher=self.run.teacher,
            written={name: length for name, length in lengths.items() if length},
        )

    def flush(self) -> None:
        """Write all reports to disk.

        Raise ValueError if the folder is gone, and OSError if writing fails.
        """
        if not (self.path / CONFIG).exists():
            raise ValueError(
                f"{self.path} has been deleted, moved or unmounted. Restore the folder, then "
                f"resume with: {resume_command(self.path)}"
            )
        for report in (self.board, self.csv, self.pictures):
            report.flush()

    def send(self) -> None:
        """Send the points that the last checkpoint covers to the trackers."""
        for step, values in self.board.points.items():
            self.trackers.log(values, step)
        self.board.points.clear()

    def open(self) -> None:
        """Write the settings and the first reports, and describe the run in the log.

        For a resumed run, first cut the reports to their lengths at the checkpoint. Call this only
        after the checkpoint has been loaded, because loading fails for another run's checkpoint.
        """
        run = self.run
        earlier = self.earlier
        self.trackers = Trackers(
            {
                name: open_tracker(name, self.path, self.record, self.settings)
                for name in run.config.trackers
            }
        )
        # This run's own checkpoint if it is resumed; not that of a run to extend or fork.
        own_state = earlier.state if earlier and not earlier.folder else None
        remove_partial(self.path, self.path / CHECKPOINTS)
        if self.resumed:
            truncate_reports(self.path, own_state.written if own_state else {})
        else:
            write_text(self.path / REQUESTED, as_yaml(asdict(self.requested)))
            save_code(self.path, self.code)
        if earlier:
            self.copy_history(earlier)
        self.csv.open()
        if own_state is None:
            self.board.begin(as_yaml(self.settings))
            self.board.figure("train/augmented", draw_first_images(run))
        write_text(self.path / CONFIG, as_yaml(self.settings))
        if isinstance(run.config.data, FolderConfig):
            write_text(self.path / IMAGES, csv_text(run.data.image_rows()))
            if decisions := run.config.data.decisions:
                write_text(self.path / APPLIED, Path(decisions).read_text(encoding="utf-8-sig"))
        self.summarize("running")
        self.flush()
        origin = earlier.words(run.config) if earlier else run.origin
        is_part = earlier is not None and earlier.verb != "extend"
        logger.info(opening(run, self.path, origin, is_part))
        advice = hint(self.requested, run, self.command)
        if advice and own_state is None and self.launch.chosen:  # only for a command line
            logger.info(advice)
        warn_of_uneven_classes(run)

    def shown(self, trainer: Trainer) -> contextlib.AbstractContextManager[None]:
        return self.terminal.shown(trainer)

    def copy_history(self, earlier: Earlier) -> None:
        """Copy the curve of the run that this one extends or forks, and the best checkpoint.

        Rows of the curve that were written after the checkpoint to continue from are left out.
        """
        best = self.checkpoints.best_path
        if earlier.folder:
            warn_of_changes(earlier.folder, self.code)
            table = earlier.folder / self.csv.path.name
            if table.exists():
                rows = read_table(table).encode()[: earlier.state.written.get(table.name, 0)]
                write_text(self.csv.path, rows.decode())
        if earlier.best and earlier.best[0].absolute() != best.absolute():
            save_archive(best, earlier.best[1].to_bytes())

    def close(self, trainer: Trainer, results: Results) -> None:
        """Write and log the results, the final summary and the next commands.

        Empty `results` mean that the run was stopped before its end.
        """
        run = self.run
        data = run.config.data
        for line in result_lines(results, data.selected_on):
            logger.info(line)
        for name, result in without_same(results).items():
            for metric, figure in figures(result, run.data.splits.test, run.data.facts.classes):
                self.board.figure(f"{test_tag(name)}/{metric}", figure, trainer.step)
        # The final metrics by tag, for TensorBoard's table of hyperparameters.
        by = run.task.best_by
        final = {f"{test_tag(name)}/{by}": result.values[by] for name, result in results.items()}
        if results and trainer.best:
            final[f"val/best_{by}"] = trainer.best.values[by]
        self.board.close(self.settings, final, self.chosen)
        if final:
            self.trackers.log(final, trainer.step)
        self.flush()
        if results and trainer.stopped_early:
            logger.info(
                f"stopped early after epoch {trainer.epoch}: no better epoch within "
                f"train.patience={trainer.loop.patience}"
            )
        self.summarize(  # last, because a run that is marked "finished" cannot be resumed
            "finished" if results else "interrupted",
            stopped_early=trainer.stopped_early,
            epochs=trainer.epoch,
            steps=trainer.step,
            images_seen=trainer.images_seen,
            training_tflop=run.training_tflop(trainer.images_seen),
            steps_left_out=trainer.nonfinite.skipped,
            evaluated_weights="ema" if trainer.ema else "raw",
            best_val=trainer.best and {"epoch": trainer.best.epoch, **trainer.best.values},
            selected_on=data.selected_on,
            test={name: result_dict(result) for name, result in results.items()},
            # Checksums of names and labels, which do not depend on the images' size.
            evaluated_images={
                name: crc32(repr((part.all_names.tolist(), part.labels.tolist())).encode())
                for name, part in run.data.splits.parts.items()
                if results and name != "train"
            },
            seconds=round(trainer.seconds, 1),
        )
        self.trackers.close()
        if not results:
            why = trainer.stop_reason or "because another process was stopped"
            logger.info(
                f"stopped after step {trainer.step}, {why}. "
                f"Resume with: {resume_command(self.path)}"
            )
        elif not self.launch.in_sweep:  # a sweep prints the next steps for all its runs at its end
            logger.info(next_steps(run, self.path))

    def summarize(self, status: str, **results: Any) -> None:
        """Write summary.json: the run's status, origin, settings and `results`."""
        run = self.run
        code = {name: sha256(each).hexdigest() for name, each in self.code.items()}
        known = {
            "status": status,
            "command": self.command,
            "chosen": self.chosen,
            "date": machine.today(),
            **self.here,
            "bf16_speedup": self.bf16_speedup and round(self.bf16_speedup, 2),
            "fp32_products": "oneDNN" if products.uses_onednn() else "PyTorch's default",
            "earlier": [each for each in self.stages if each != self.here],
            "processes": run.processes.count,
            "parameters": parameter_count(run.model),
            "images": run.data.sizes,
            "fingerprint": run.data.facts.fingerprint,
            "config": self.settings,
            **({"code": code} if code else {}),
            **({"record": self.record} if self.run.config.trackers else {}),
            "extends": [asdict(each) for each in self.extends],
            "teacher": run.teacher or None,
        }
        write_json(self.path / SUMMARY, known | results)

    def best_weights(self) -> State | None:
        """Read the best epoch's weights; warn and return None if the file is missing or damaged."""
        try:
            saved = Checkpoint.load(self.checkpoints.best_path)
        except ValueError as error:
            logger.warning(f"the best weights are lost: {error}")
            return None
        return saved.model if saved.ema is None else saved.ema

    def fail(self, status: str, error: BaseException) -> None:
        self.trackers.close(failed=True)
        with contextlib.suppress(OSError, ValueError):
            if read_object(self.path / SUMMARY).get("status") == "running":
                self.summarize(status, reason=f"{type(error).__name__}: {reason(error)}")

    def advice(self) -> str:
        has_begun = (self.path / CONFIG).exists()
        return f". Resume with: {resume_command(self.path)}" if has_begun else ""


def registered_code() -> dict[str, bytes]:
    """Return the files of the user's own code, also of parts that a Python program registered.

    Figures do not count, because they change no result.
    """
    parts: list[object] = [*CALLBACKS, *NUMBERS.values()]
    for table in TABLES.values():
        parts += table.values()
    own = [part for part in parts if is_own_part(part)]
    return own_code([*own, *(getattr(part, "builds", None) for part in own)])


def test_tag(weights: str) -> str:
    """Return the TensorBoard tag prefix for test results of the "final" or "best" weights."""
    return "test" if weights == "final" else f"test/{weights}"


def as_yaml(settings: dict[str, Any]) -> str:
    return OmegaConf.to_yaml(OmegaConf.create(settings))
