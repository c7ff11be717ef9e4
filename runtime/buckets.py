"""Running a model that was written as several files with a manifest (`egraft optimize --buckets ... -o manifest.json`).

    session = BucketSession("manifest.json")
    outputs = session.run(None, {"ids": ids})      # as onnxruntime.InferenceSession.run

The manifest is JSON: `{"egraft_buckets": 1, "general": FILE, "buckets": [{"file": FILE, "sizes": {NAME: SIZE}, "guard":
[{"input": NAME, "axis": AXIS, "size": SIZE}]}]}`, files beside it. The first bucket all of whose guard holds takes the
inputs, `general` takes all others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from graphs.errors import InvalidInput, TargetUnavailable, UnreadableFile

VERSION = 1


class Runs(Protocol):
    """What a session has to be able to do: that of ONNX Runtime is one."""

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Any]:
        """The outputs (all for None) for inputs by name."""


@dataclass(frozen=True)
class Bucket:
    """One file, and the (input, axis, size) that it is for; the general file is for all."""

    file: Path
    guard: tuple[tuple[str, int, int], ...] = ()

    def takes(self, feeds: Mapping[str, Any]) -> bool:
        """Do the inputs have the sizes?"""
        shapes = {name: np.shape(feeds[name]) if name in feeds else () for name, _, _ in self.guard}
        return all(axis < len(shapes[name]) and shapes[name][axis] == size for name, axis, size in self.guard)


def read_manifest(path: str | Path) -> list[Bucket]:
    """The buckets in the order in which they are asked, the general file last. Raises InvalidInput and
    UnreadableFile."""
    place = Path(path)
    try:
        data = json.loads(place.read_text(encoding="utf-8"))
    except OSError as error:
        raise UnreadableFile.of(path, error) from None
    except (ValueError, RecursionError):
        raise InvalidInput(str(path), "not a JSON document", "give a manifest that egraft wrote") from None
    try:
        if data["egraft_buckets"] != VERSION:
            raise ValueError
        found = [Bucket(_beside(place, row["file"]),
                        tuple((str(part["input"]), int(part["axis"]), int(part["size"])) for part in row["guard"]))
                 for row in data["buckets"]]
        if not all(each.guard and all(axis >= 0 for _, axis, _ in each.guard) for each in found):
            raise ValueError
        return [*found, Bucket(_beside(place, data["general"]))]
    except (KeyError, TypeError, ValueError):
        raise InvalidInput(str(path), f"not a manifest of buckets, version {VERSION}",
                           "give a manifest that egraft wrote") from None


def _beside(manifest: Path, name: str) -> Path:
    """A file in the folder of the manifest, nowhere else. Raises ValueError."""
    if Path(name).name != name:
        raise ValueError
    return manifest.parent / name


class BucketSession:
    """Chooses among the files by the sizes of the inputs. A file is opened when it is first chosen."""

    def __init__(self, manifest: str | Path, open_session: Callable[[Path], Runs] | None = None) -> None:
        """`open_session` opens one file; without it ONNX Runtime does, on the CPU with its defaults."""
        self.buckets = read_manifest(manifest)
        self._open = open_session or _open_session
        self._sessions: dict[Path, Runs] = {}

    def choose(self, feeds: Mapping[str, Any]) -> Path:
        """The file that is for these inputs."""
        return next(bucket.file for bucket in self.buckets if bucket.takes(feeds))

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Any]:
        """The outputs of these names (all for None)."""
        file = self.choose(feeds)
        if file not in self._sessions:
            self._sessions[file] = self._open(file)
        return self._sessions[file].run(output_names, feeds)


def _open_session(path: Path) -> Runs:
    try:
        import onnxruntime
    except ImportError:
        raise TargetUnavailable("onnxruntime:cpu", "ONNX Runtime is not installed",
                                "pip install 'egraft[ort]'") from None
    found: Runs = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return found
