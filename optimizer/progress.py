"""Progress of a run: stages, told to a callback; on a terminal a line that is rewritten."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from . import interrupts

# Shares of the whole by experience, so that a bar moves evenly.
STAGES = {"load": 0.02, "recall": 0.03, "normalize": 0.08, "saturate": 0.3, "measure": 0.6, "extract": 0.65,
          "build": 0.7, "finalists": 0.85, "recompute": 0.92,
          "validate": 0.97, "report": 0.99, "buckets": 0.99, "done": 1.0}


@dataclass(frozen=True)
class Event:
    """A stage was entered: its name, the share of the run that is behind, seconds so far, a text, the best cost."""

    stage: str
    share: float
    seconds: float
    text: str = ""
    best: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """For server-sent events."""
        return {"stage": self.stage, "progress": self.share, "seconds": round(self.seconds, 3), "text": self.text,
                "best": self.best}


Progress = Callable[[Event], None]


@dataclass
class Clock:
    """Times the stages of one run and tells the callback."""

    callback: Progress | None = None
    start: float = field(default_factory=time.monotonic)
    stages: list[dict[str, Any]] = field(default_factory=list)

    def enter(self, stage: str, text: str = "", best: float | None = None) -> None:
        """A stage begins; the one before it ends. Raises KeyboardInterrupt where one was lost in the one before."""
        interrupts.check()
        now = time.monotonic() - self.start
        if self.stages and "seconds" not in self.stages[-1]:
            self.stages[-1]["seconds"] = round(now - self.stages[-1]["at"], 4)
        if stage != "done":
            self.stages.append({"stage": stage, "at": round(now, 4)})
        if self.callback is not None:
            self.callback(Event(stage, STAGES.get(stage, 0.5), now, text, best))

    def note(self, **facts: Any) -> None:
        """Add facts to the stage that runs (why it stopped, counts)."""
        self.stages[-1]["notes"] = {**self.stages[-1].get("notes", {}), **facts}

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.start


@contextmanager
def terminal_progress(quiet: bool = False) -> Iterator[Progress | None]:
    """A progress callback for a terminal, None where standard error is none (or `quiet`)."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    with Bar(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=Console(stderr=True),
             transient=True) as bar:
        task = bar.add_task("load", total=1.0)

        def tell(event: Event) -> None:
            bar.update(task, completed=event.share, description=f"{event.stage} {event.text}".strip()[:60])

        yield tell
