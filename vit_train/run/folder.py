"""A run's folder and all files in it, from the config to the summary."""

import contextlib
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any
from zlib import crc32

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import OmegaConf

from vit_train.base.log import logger
from vit_train.base.reading import read_object, typed
from vit_train.base.text import csv_text
from vit_train.base.writing import (
    remove_partial,
    require_own,
    save_archive,
    write_json,
    write_text,
)
from vit_train.config.data import IMAGES, FolderConfig
from vit_train.config.run import IMPORT, keys_of
from vit_train.data.dataset import ImageSet
from vit_train.figures.measures import figures, result_dict
from vit_train.loop.metrics import Evaluation
from vit_train.loop.precision import bf16_speedup
from vit_train.loop.resuming import state_of
from vit_train.loop.state import Best, State
from vit_train.loop.trainer import Trainer
from vit_train.run.earlier import Earlier
from vit_train.run.reports import (
    MetricsCsv,
    Pictures,
    TensorBoard,
    Trackers,
    draw_first_images,
    read_table,
    reports,
    truncate_reports,
)
from vit_train.run.saver import CheckpointManager
from vit_train.run.setup import Setup
from vit_train.run.terminal import (
    Terminal,
    hint,
    next_steps,
    opening,
    result_lines,
    warn_of_uneven_classes,
    without_same,
)
from vit_train.trained import provenance
from vit_train.trained.checkpoint import Checkpoint, newest_intact
from vit_train.trained.folder import CHECKPOINTS, CONFIG, SUMMARY, resume_command


class RunFolder:
    """Writes all files of a run into the folder `path`.

    `resumed` is True if the folder already holds this run. `earlier` is the checkpoint to continue
    from, or None to start with the first step.
    """

    def __init__(self, setup: Setup, path: Path, earlier: Earlier | None, resumed: bool) -> None:
        self.setup, self.config, self.path = setup, setup.config, path
        self.settings = asdict(self.config)
        self.earlier, self.resumed = earlier, resumed
        self.extends = earlier.chain if earlier else []
        require_own(path / CHECKPOINTS, "folder")
        before = read_object(path / SUMMARY) if resumed else {}
        # The command that began the run or, if that is lost, this process's command.
        self.command = str(before.get("command", own_command()))
        # The settings on that command line, and those that its sweep varied.
        self.chosen = typed(list[str], before.get("chosen", chosen_settings()), "chosen")
        # Facts that may differ between the processes that successively trained the run.
        self.stages = typed(list[dict[str, Any]], before.get("earlier", []), "earlier")
        if before:
            self.stages.append(
                {key: before.get(key) for key in ("commit", "versions", "machine", "precision")}
            )
        self.terminal, self.board = Terminal(), TensorBoard(path)
        self.csv = MetricsCsv(path / "metrics.csv")
        self.pictures = Pictures(setup, self.board, path / "pictures.png")
        self.checkpoints = CheckpointManager(
            path / CHECKPOINTS, self.config.checkpoint, self.make_checkpoint, self.flush, self.send
        )
        # Checkpoints come last, because they include the lengths of the other reports.
        self.callbacks = [self.terminal, self.board, self.csv, self.pictures, self.checkpoints]

    def make_checkpoint(self, trainer: Trainer) -> Checkpoint:
        """Return a checkpoint, including the current lengths of the reports."""
        return Checkpoint(
            **vars(state_of(trainer)),
            config=self.settings,
            **self.setup.data._asdict(),
            **self.setup.statistics._asdict(),
            versions=provenance.versions(),
            extends=self.extends,
            teacher=self.setup.teacher,
            written=self.lengths(),
        )

    def lengths(self) -> dict[str, int]:
        lengths = {path.name: path.stat().st_size for path in reports(self.path)}
        lengths |= {each.path.name: each.length for each in (self.board, self.csv)}
        return {name: length for name, length in lengths.items() if length}

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
        """Write the config, the first reports and summary.json, and log a description of the run.

        For a resumed run, first cut the reports to their lengths at the checkpoint. Call this only
        after the checkpoint has been loaded, because loading fails for another run's checkpoint.
        """
        self.trackers = Trackers(self.config.trackers, self.path, self.settings)
        # This run's own checkpoint if it is resumed; not that of a run to extend or fork.
        own_state = self.earlier.state if self.earlier and not self.earlier.folder else None
        remove_partial(self.path, self.path / CHECKPOINTS)
        if self.resumed:
            truncate_reports(self.path, own_state.written if own_state else {})
        if self.earlier:
            self.copy_history(self.earlier)
        self.csv.open()
        text = OmegaConf.to_yaml(OmegaConf.create(self.settings))
        if own_state is None:
            self.board.begin(text)
            self.board.figure("train/augmented", draw_first_images(self.setup))
        write_text(self.path / CONFIG, text)
        if isinstance(self.config.data, FolderConfig):
            write_text(self.path / IMAGES, csv_text(self.setup.image_rows()))
        self.summarize("running")
        self.flush()
        origin = self.earlier.words(self.config) if self.earlier else self.setup.origin
        logger.info(opening(self.setup, self.path, origin))
        advice = hint(self.setup, self.command, chosen_settings()) if own_state is None else ""
        if advice:
            logger.info(advice)
        warn_of_uneven_classes(self.setup)

    def copy_history(self, earlier: Earlier) -> None:
        """Copy the curve of the run that this one extends or forks, and the best checkpoint.

        Rows of the curve that were written after the checkpoint to continue from are left out.
        """
        name, best = self.csv.path.name, self.checkpoints.best_path
        if earlier.folder and (earlier.folder / name).exists():
            rows = read_table(earlier.folder / name).encode()[: earlier.state.written.get(name, 0)]
            write_text(self.csv.path, rows.decode())
        if earlier.best and earlier.best.absolute() != best.absolute():
            save_archive(best, earlier.best.read_bytes())

    def close(self, trainer: Trainer, results: dict[str, Evaluation], reason: str) -> None:
        """Write and log the results, the final summary and the next commands.

        Empty `results` mean that the run was stopped before its end, for the given `reason`.
        """
        for line in result_lines(results, self.config.data.selected_on):
            logger.info(line)
        self.show_test(results, trainer.step)
        final = final_metrics(results, trainer.best, self.setup.task.best_by)
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
            training_tflop=self.setup.training_tflop(trainer.images_seen),
            steps_left_out=trainer.nonfinite.skipped,
            evaluated_weights="ema" if trainer.ema else "raw",
            best_val=trainer.best and {"epoch": trainer.best.epoch, **trainer.best.values},
            selected_on=self.config.data.selected_on,
            test={name: result_dict(result) for name, result in results.items()},
            evaluated_images={
                name: checksum(part)
                for name, part in self.setup.splits.parts.items()
                if results and name != "train"
            },
            seconds=round(trainer.seconds, 1),
        )
        if not results:
            logger.info(
                f"stopped after step {trainer.step}, {reason}. "
                f"Resume with: {resume_command(self.path)}"
            )
        elif not in_sweep():  # a sweep prints the next steps for all its runs at its end
            logger.info(next_steps(self.setup, self.path))

    def show_test(self, results: dict[str, Evaluation], step: int) -> None:
        """Add the figures of the test results to TensorBoard."""
        test, classes = self.setup.splits.test, self.setup.data.classes
        for name, result in without_same(results).items():
            for metric, figure in figures(result, test.images, classes, test.all_names.tolist()):
                self.board.figure(f"{test_tag(name)}/{metric}", figure, step)

    def summarize(self, status: str, **results: Any) -> None:
        """Write summary.json: the run's status, origin, settings and `results`."""
        setup, device = self.setup, self.setup.precision.device
        here = {
            "commit": provenance.commit(),
            "versions": provenance.versions(),
            "machine": provenance.machine(device),
            "precision": setup.precision.name,
        }
        known = {
            "status": status,
            "command": self.command,
            "chosen": self.chosen,
            "date": provenance.today(),
            **here,
            "bf16_speedup": round(bf16_speedup(setup.model), 2) if device.type == "cpu" else None,
            "earlier": [each for each in self.stages if each != here],
            "processes": setup.processes.count,
            "parameters": sum(parameter.numel() for parameter in setup.model.parameters()),
            "images": setup.sizes,
            "fingerprint": setup.data.fingerprint,
            "config": self.settings,
            "extends": [asdict(each) for each in self.extends],
            "teacher": setup.teacher or None,
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

    def fail(self, status: str) -> None:
        """Write the status of a begun run that an error ends, if the disk still allows that."""
        with contextlib.suppress(OSError, ValueError):
            if read_object(self.path / SUMMARY).get("status") == "running":
                self.summarize(status)

    def advice(self) -> str:
        """Return how to resume, for the end of an error message; "" if the run has not begun."""
        if intact := newest_intact(self.path / CHECKPOINTS):
            return f". {intact} is intact; resume with: {resume_command(intact)}"
        has_begun = (self.path / CONFIG).exists()
        return f". Resume with: {resume_command(self.path)}" if has_begun else ""


def checksum(images: ImageSet) -> int:
    """Return a checksum of the images' names and labels, which does not depend on their size."""
    return crc32(repr((images.all_names.tolist(), images.labels.tolist())).encode())


def test_tag(weights: str) -> str:
    """Return the TensorBoard tag prefix for test results of the "final" or "best" weights."""
    return "test" if weights == "final" else f"test/{weights}"


def final_metrics(results: dict[str, Evaluation], best: Best | None, by: str) -> dict[str, float]:
    """Return the final metrics by tag, for TensorBoard's table of hyperparameters."""
    metrics = {f"{test_tag(name)}/{by}": result.values[by] for name, result in results.items()}
    if results and best:
        metrics[f"val/best_{by}"] = best.values[by]
    return metrics


def in_sweep() -> bool:
    """Return True if this run is a job of a sweep."""
    return HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN


def chosen_settings() -> list[str]:
    """Return the keys of the settings given on the command line or varied by a sweep."""
    return keys_of(HydraConfig.get().overrides.task if HydraConfig.initialized() else [])


def own_command() -> str:
    """Return the command that repeats this run.

    If this run is a job of a sweep, the command repeats only this job.
    """
    if not in_sweep():
        return provenance.command_line()
    settings = HydraConfig.get()
    # Hydra's name for the source that --config-dir adds.
    folders = [s.path for s in settings.runtime.config_sources if s.provider == "command-line"]
    flags = [
        *(f"--config-dir={folder}" for folder in folders),
        *(each for each in settings.overrides.hydra if each.startswith("hydra.searchpath=")),
        *(each for each in sys.argv[1:] if each.startswith(IMPORT)),
    ]
    if settings.job.config_name != "train":
        flags.append(f"--config-name={settings.job.config_name}")
    # An experiment may turn every command that names it into a sweep.
    return provenance.command_line([*settings.overrides.task, "hydra.mode=RUN", *flags])
