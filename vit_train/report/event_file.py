"""A file of TensorBoard's events, of which nothing is lost if the disk fails for a while."""

import io
import os
import socket
import time
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from vit_train.files.writing import write_from


class EventFile:
    """A new file of events; they stay in memory until `flush` has written them.

    The file is made by the first `flush`; its folder is not.
    """

    def __init__(self, folder: Path) -> None:
        now = f"{time.time():017.6f}"  # by their names files are in the order of their beginning
        self.path = folder / f"events.out.tfevents.{now}.{socket.gethostname()}.{os.getpid()}"
        self.written, self.unwritten = 0, bytearray()
        self._add(Event(file_version="brain.Event:2"))

    @property
    def length(self) -> int:
        """Return the file's length in bytes once everything is written."""
        return self.written + len(self.unwritten)

    def add(self, summary: Summary, step: int = 0) -> None:
        self._add(Event(summary=summary, step=step))

    def _add(self, event: Event) -> None:
        event.wall_time = time.time()
        record = io.BytesIO()
        RecordWriter(record).write(event.SerializeToString())
        self.unwritten += record.getvalue()

    def flush(self) -> None:
        """Write what is not written; after an OSError, which this raises, everything still is."""
        if self.unwritten:
            write_from(self.path, self.written, self.unwritten)
            self.written, self.unwritten = self.length, bytearray()
