"""Measure what runs of `egraft:cpu` take beside the values that are live: `scripts/bench_memory.py [MODEL ...]`.

Models are those of the zoo and the files of the development zoo (`scripts.trained_models`), each in a process of its
own, fused: every node is in the largest set that a kernel can be made for, or with `--timings FILE` as `egraft optimize
--target egraft:cpu` makes it with that timing database. Taken is the peak of all traced bytes of
Python and NumPy in a run after those in which stretches are found: node outputs, workspaces of the engine, temporary
arrays of NumPy kernels, Python's own objects. Live is the largest sum of bytes of node outputs over the order that was
chosen (`runtime.order`), those of nested graphs included. Prints a table in Markdown, in megabytes, and which step took
most.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tracemalloc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np

from graphs import dtypes, load, zoo
from graphs.errors import EgraftError
from graphs.ir import Graph
from graphs.types import TensorType
from optimizer import optimize
from runtime import Session
from runtime.codegen.c import NotFusable
from runtime.codegen.c.fused import plan_of
from runtime.execute import FUSED_DOMAIN
from runtime.feeds import default_sizes, draw
from runtime.fusion import Group, body_of, fuse, is_movement, with_sizes
from runtime.order import memory_order
from runtime.program import Program, owners
from runtime.session import check_feeds
from scripts.bench_page import table
from scripts.trained_models import MODELS, folder
from search.fusions.enumerate import enumerate_groups

MOST_PER_ROOT, MOST_NODES = 200, 48
RUNS_BEFORE = 4  # nothing is noted any more after them
HEAD = ("model", "nodes", "kernels", "live, input order", "live", "taken", "ratio", "two threads",
        "step that takes most")


@dataclass
class Row:
    """Bytes of one model; `taken` with one and with two threads."""

    name: str
    nodes: int
    fused: int
    input_live: int
    live: int
    taken: tuple[int, ...]
    step: str

    def line(self) -> list[object]:
        """Of the table."""
        ratios = [f"{each / max(self.live, 1):.2f}" for each in self.taken]
        return [self.name, self.nodes, self.fused, f"{self.input_live / 1e6:.3f}", f"{self.live / 1e6:.3f}",
                f"{self.taken[0] / 1e6:.3f}", *ratios, self.step]


def in_largest_sets(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """Every node in the largest set that it may be in and that has a kernel, unmeasured."""
    types = with_sizes(graph, sizes)
    taken: set[int] = set()
    groups: list[Group] = []
    found = enumerate_groups(graph, types, MOST_PER_ROOT, MOST_NODES).groups
    for each in sorted(found, key=lambda group: -len(group.nodes)):
        usual = len(each.nodes) == 1 or not each.others
        own = {index for index in each.nodes if not is_movement(graph.nodes[index])}  # views may be in several
        if usual and own and taken.isdisjoint(own) and _has_kernel(body_of(graph, each, types)[0]):
            taken.update(own)
            groups.append(each)
    return fuse(graph, groups)


def _has_kernel(body: Graph) -> bool:
    shapes = {}
    for name in body.inputs:
        type_ = body.types.get(name)
        if not isinstance(type_, TensorType) or type_.shape is None or not all(isinstance(d, int) for d in type_.shape):
            return False
        shapes[name] = tuple(int(str(dim)) for dim in type_.shape)
    try:
        return plan_of(body, shapes).in_tiles  # as the search wants it
    except NotFusable:
        return False


class Live:
    """Counts the bytes of node outputs in all programs, the nested ones too."""

    def __init__(self) -> None:
        self.now = self.peak = 0
        self.held: dict[int, int] = {}
        self.types: dict[str, TensorType] = {}  # of the values of the outermost graph
        self.depth = 0

    def run(self, program: Program, values: Sequence[Any]) -> list[Any]:
        """In the place of `Program.run`."""
        env = program._start(values)
        foreign = {id(owner) for value in env for owner in owners(value)}
        self.depth += 1
        mine: dict[int, list[int]] = {}
        for (step, frees), node in zip(program.steps, program.nodes, strict=True):
            step(env)
            for name in node.outputs if node else ():
                slot = program._slots[name]
                mine[slot] = [id(owner) for owner in owners(env[slot]) if id(owner) not in foreign]
                for owner in owners(env[slot]):
                    if id(owner) not in foreign:
                        self.now += 0 if self.held.get(id(owner)) else owner.nbytes
                        self.held[id(owner)] = self.held.get(id(owner), 0) + 1
                if self.depth == 1 and name and isinstance(env[slot], np.ndarray):
                    self.types[name] = TensorType(dtypes.name_of(env[slot].dtype), env[slot].shape)
            self.peak = max(self.peak, self.now)
            for slot in frees:
                self._free(env, slot, mine)
        found = [env[slot] for slot in program.results]
        for slot in list(mine):
            self._free(env, slot, mine)
        self.depth -= 1
        return found

    def _free(self, env: list[Any], slot: int, mine: dict[int, list[int]]) -> None:
        sizes = {id(owner): owner.nbytes for owner in owners(env[slot])}
        env[slot] = None
        for key in mine.pop(slot, []):
            self.held[key] -= 1
            self.now -= 0 if self.held[key] else sizes[key]


def measured(name: str, timings: str = "") -> Row:
    """One model."""
    graph, sizes, feeds = model_of(name)
    if timings:
        graph = optimize(graph, target="egraft:cpu", threads=1, timings=timings,
                         dims={key: [size] for key, size in sizes.items()}).graph
    else:
        graph = in_largest_sets(graph, sizes)
    session = Session(graph, threads=1)
    session.run(feeds)
    live, program = Live(), session.program
    assert isinstance(program, Program)
    values = check_feeds(graph, feeds)[0]
    with np.errstate(all="ignore"), patch.object(Program, "run", lambda self, values: live.run(self, values)):
        program.run(values)
    graph.types.update(live.types)  # as they were: not all of them can be inferred
    program.graph.types.update(live.types)
    order, own = memory_order(graph, sizes), memory_order(program.graph, sizes)
    step, taken = _worst_step(program, values), []
    for threads in (1, 2):
        again = session if threads == 1 else Session(graph, threads=threads)
        for _ in range(RUNS_BEFORE):
            again.run(feeds)
        taken.append(_traced(again, feeds))
    return Row(name, len(graph.nodes), sum(node.domain == FUSED_DOMAIN for node in graph.nodes), order.input_peak,
               max(own.input_peak, live.peak), tuple(taken), step)


def _traced(session: Session, feeds: Mapping[str, Any]) -> int:
    tracemalloc.start()
    try:
        start = tracemalloc.get_traced_memory()[0]
        session.run(feeds)
        return tracemalloc.get_traced_memory()[1] - start
    finally:
        tracemalloc.stop()


def _worst_step(program: Program, values: Sequence[Any]) -> str:
    tracemalloc.start()
    found: tuple[int, str] = (0, "")
    env = program._start(values)
    with np.errstate(all="ignore"):
        for (step, frees), node in zip(program.steps, program.nodes, strict=True):
            tracemalloc.reset_peak()
            step(env)
            label = node.op if node else "constant"
            if node is not None and node.domain == FUSED_DOMAIN:
                body = node.attrs["body"]
                assert isinstance(body, Graph)
                label = " ".join(each.op for each in body.nodes[:4]) + (" ..." if len(body.nodes) > 4 else "")
            found = max(found, (tracemalloc.get_traced_memory()[1], label))
            for slot in frees:
                env[slot] = None
    tracemalloc.stop()
    return found[1]


def model_of(name: str) -> tuple[Graph, dict[str, int], dict[str, np.ndarray]]:
    if name in zoo.names(trained=False):
        sizes = dict(zoo.describe(name).dims)
        graph = zoo.build(name)
        return graph, sizes, draw(graph, 0, sizes)
    graph = load(folder() / f"{name}.onnx")
    trained = MODELS.get(name)
    sizes = {**default_sizes(graph), **(trained.sizes(1) if trained else {})}
    return graph, sizes, trained.feeds(graph, 1) if trained else draw(graph, 0, sizes)


def main() -> None:
    """The table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", help="names (default: all that are here)")
    parser.add_argument("--timings", default="", help="a timing database: measure what `egraft optimize` makes")
    parser.add_argument("--seconds", type=float, default=120, help="for a model (default: 120)")
    options = parser.parse_args()
    names = options.models or [*zoo.names(trained=False),
                               *sorted(path.stem for path in folder().glob("*.onnx"))]
    rows, left_out = [], []
    for name in names:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            try:
                rows.append(pool.apply_async(measured, (name, options.timings)).get(options.seconds))
                print(rows[-1].line(), flush=True)
            except (EgraftError, multiprocessing.TimeoutError) as reason:
                left_out.append(f"- {name}: {' '.join(str(reason).split()) or 'takes longer'}")
                print(left_out[-1], flush=True)
    print(table(HEAD, [row.line() for row in rows]))
    print("\n".join(left_out))


if __name__ == "__main__":
    main()
