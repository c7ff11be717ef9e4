"""What the examples share: the superoptimized step, a loop with a progress bar, the drawing of a loss."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from graphs.ir import Graph
from graphs.onnx_io import proto_bytes
from optimizer import optimize
from runtime import Session
from runtime.training.builder import Assignment, Execution, Feeds, TrainingSession, Value

TARGETS = ("egraft:cpu", "onnxruntime:cpu")


def execution(target: str = "egraft:cpu", superoptimize: bool = False,
              effort: str = "low") -> Callable[[Graph], Execution]:
    """How a session runs its graphs: with egraft's runtime or with ONNX Runtime, as they are or optimized first.

    Only a graph that assigns is optimized: it is run often enough to earn the seconds that the search takes.
    """
    def prepare(graph: Graph) -> Execution:
        if superoptimize and any(name.startswith("next_") for name in graph.outputs):
            result = optimize(graph, target=target, effort=effort)
            print(result.summary(), file=sys.stderr)
            graph = result.graph
        if target == "egraft:cpu":
            return Session(graph, target).run
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # it warns of each variable that it takes no constant
        session = onnxruntime.InferenceSession(proto_bytes(graph), options, providers=["CPUExecutionProvider"])
        return lambda feeds: dict(zip(graph.outputs, session.run(
            graph.outputs, {name: np.asarray(array) for name, array in feeds.items()})))

    return prepare


def train(session: TrainingSession, loss: Value, update: Sequence[Assignment], batches: Iterable[Feeds], steps: int,
          text: str) -> list[float]:
    """Run `steps` updates, a batch each, with a progress bar on a terminal; the loss of each step."""
    from rich.console import Console
    from rich.progress import track

    found: list[float] = []
    rows = zip(range(steps), batches)
    console = Console(stderr=True)
    for _, feed in track(rows, text, steps, console=console, disable=not console.is_terminal):
        found.append(float(session.run([loss, *update], feed)[0]))
    return found


def loss_plot(curves: dict[str, list[float]], width: int = 640, height: int = 320) -> str:
    """Losses by step as an SVG drawing: each curve faint, and its mean over a fiftieth of the steps on top."""
    left, top, right, bottom = 56, 16, width - 16, height - 36
    most = max(max(curve) for curve in curves.values())
    steps = max(len(curve) for curve in curves.values())

    def path(values: Sequence[float]) -> str:
        return " ".join(f"{left + (right - left) * i / max(steps - 1, 1):.1f},{bottom - (bottom - top) * v / most:.1f}"
                        for i, v in enumerate(values))

    colours = ("#1b6ca8", "#c1440e", "#2d7d46", "#7b3f9d")
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
             'font-size="12" fill="none">',
             f'<path d="M{left},{top} V{bottom} H{right}" stroke="#888"/>']
    for share in (0.0, 0.5, 1.0):
        y = bottom - (bottom - top) * share
        lines.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end" fill="#444">{most * share:.2f}</text>')
    lines.append(f'<text x="{right}" y="{height - 12}" text-anchor="end" fill="#444">step {steps}</text>')
    for index, (name, curve) in enumerate(curves.items()):
        colour = colours[index % len(colours)]
        lines += [f'<polyline points="{path(curve)}" stroke="{colour}" opacity="0.25"/>',
                  f'<polyline points="{path(smoothed(curve, max(1, len(curve) // 50)))}" stroke="{colour}" '
                  'stroke-width="2"/>',
                  f'<text x="{right - 8}" y="{top + 14 + 16 * index}" text-anchor="end" fill="{colour}">{name}</text>']
    return "\n".join([*lines, "</svg>", ""])


def smoothed(values: Sequence[float], span: int) -> list[float]:
    """At each step the mean of the last `span` values."""
    sums = np.cumsum([0.0, *values])
    return [float((sums[i + 1] - sums[max(0, i + 1 - span)]) / min(i + 1, span)) for i in range(len(values))]


def write_plot(path: Path | None, curves: dict[str, list[float]]) -> None:
    """Write the drawing where a file is named."""
    if path is not None:
        path.write_text(loss_plot(curves), encoding="utf-8")


def batches(rng: np.random.Generator, size: int, *arrays: np.ndarray) -> Iterable[tuple[Any, ...]]:
    """Endless random batches of rows that belong together."""
    while True:
        order = rng.permutation(len(arrays[0]))
        for start in range(0, len(order) - size + 1, size):
            rows = order[start : start + size]
            yield tuple(array[rows] for array in arrays)
