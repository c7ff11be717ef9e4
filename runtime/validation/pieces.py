"""A pair of large graphs cut at narrow places into pieces that are validated one after the other, in bounded memory.

Where few values cross from one part of the original to the next, and the optimized graph has values of the same
names, the graphs are cut. The original runs piece by piece on drawn inputs; both sides of a piece get the values that
the original gave before it. If each piece gives what it gave there, so does the whole: equal names need not be
believed, they are compared. A piece that fails where the whole may not (a name that means something else there) is
joined with the next one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graphs.inference import infer
from graphs.ir import Graph, Node
from graphs.operators import is_pure
from graphs.spill import let_go

from ..execute import Context
from ..program import Program
from .regions import Region
from .report import PASSED, Round, Validation

WHOLE_BYTES = 512 << 20  # of weights in a graph that is validated in one piece
PIECE_BYTES = 96 << 20  # of weights in a piece, from which on a place to cut is looked for
WIDEST = 8  # values that may cross a cut
MOST_JOINED = 2  # pieces that are joined with the next one because they fail
_SMALL = 1 << 16  # bytes of a constant that any piece may have again

Check = Callable[[Graph, Graph, list[dict[str, Any]], list[Round]], Validation]


def is_large(*graphs: Graph) -> bool:
    """One of the graphs is so large that it is validated in pieces where that is possible."""
    return any(_bytes(graph.constants.values()) > WHOLE_BYTES for graph in graphs)


def _bytes(constants: Collection[Any]) -> int:
    return sum(constant.nbytes for constant in {id(each): each for each in constants}.values())


@dataclass
class Cut:
    """What a piece gives: values that later pieces get, and outputs of the graph."""

    values: list[str]
    outputs: list[str]


def find_cuts(original: Graph, optimized: Graph) -> list[Cut]:
    """Places to cut, in order; the last is the end of the graph. Only one where none is narrow enough."""
    nodes = original.nodes
    heavy = _heavy(original)
    shared = _shared_values(original, optimized) & heavy
    last = {name: position for position, node in enumerate(nodes) for name in node.uses}
    made: dict[str, None] = {}
    alive: set[str] = set()
    read: dict[int, Any] = {}
    cuts: list[Cut] = []
    for position, node in enumerate(nodes):
        read.update((id(constant), constant) for name in node.uses
                    if (constant := original.constants.get(name)) is not None)
        made.update(dict.fromkeys(name for name in node.outputs if name in original.outputs))
        alive.update(name for name in node.outputs if name in heavy and name in last)
        alive = {name for name in alive if last[name] > position}
        if 0 < len(alive) <= WIDEST and alive <= shared and _bytes(read.values()) >= PIECE_BYTES:
            cuts.append(Cut(sorted(alive), list(made)))
            made, read = {}, {}
    return [*cuts, Cut([], [name for name in dict.fromkeys(original.outputs)
                            if not any(name in cut.outputs for cut in cuts)])]


def _heavy(graph: Graph) -> set[str]:
    """Values that depend on an input and on a large weight: what else crosses a cut is computed again."""
    inputs, weighty, found = set(graph.inputs), set[str](), set[str]()
    weighty.update(name for name, constant in graph.constants.items() if constant.nbytes > _SMALL)
    for node in graph.nodes:
        from_input = not is_pure(node) or any(name in inputs for name in node.uses)
        from_weight = not is_pure(node) or any(name in weighty for name in node.uses)
        outputs = [name for name in node.outputs if name]
        inputs.update(outputs if from_input else ())
        weighty.update(outputs if from_weight else ())
        found.update(outputs if from_input and from_weight else ())
    return found


def _shared_values(a: Graph, b: Graph) -> set[str]:
    """Tensors of one name, element type and rank that a node makes in both graphs."""
    makers = b.producers()
    return {name for name in a.producers() if name in makers
            and (one := a.type_of(name)) is not None and (two := b.type_of(name)) is not None
            and (one.dtype, one.rank) == (two.dtype, two.rank) and one.rank is not None}


def piece(graph: Graph, outputs: Sequence[str], stops: Collection[str], types: Graph) -> Graph:
    """What computes these outputs from the values of `stops` and the inputs of the graph; only inputs that it reads."""
    wanted = {name for name in outputs if name not in stops}
    read = set(outputs)
    nodes: list[Node] = []
    for node in reversed(graph.nodes):
        if not wanted.isdisjoint(node.outputs):
            read.update(node.uses)
            wanted.update(name for name in node.uses if name not in stops)
            nodes.append(node.copy() if node.holds_graphs else node)
    inputs = [name for name in (*graph.inputs, *sorted(stops)) if name in read]
    given = {name: type_ for name in inputs if (
        type_ := (graph if name in graph.inputs else types).types.get(name) or graph.declared.get(name)) is not None}
    opaque = {name: type_ for node in nodes if node.is_opaque for name in node.outputs
              if (type_ := graph.types.get(name)) is not None}
    part = dataclasses.replace(
        graph, nodes=nodes[::-1], inputs=inputs, outputs=list(outputs), types=given,
        declared={**opaque, **given}, extras={},
        constants={name: constant for name, constant in graph.constants.items() if name in read},
        defaults={name: value for name, value in graph.defaults.items() if name in inputs})
    infer(part)
    return part


@dataclass
class Pieces:
    """The pieces of a pair of graphs at work: `validate` runs the original through them and checks each."""

    original: Graph
    optimized: Graph
    cuts: list[Cut]
    check: Check
    values: list[dict[str, Any]] = field(default_factory=list)  # of each round: inputs, then what pieces gave
    largest: int = 0

    def validate(self, feeds: list[dict[str, Any]], plan: list[Round], result: Validation) -> Validation:
        """Check all pieces; the first that fails, alone and joined with the next ones, ends it."""
        self.values = [dict(each) for each in feeds]
        stops: set[str] = set()
        waiting: list[str] = []
        joined = count = 0
        result.status = PASSED
        for index, cut in enumerate(self.cuts):
            waiting += cut.outputs
            wanted = [*waiting, *(name for name in cut.values if name not in waiting)]
            if not wanted:
                continue
            region = self._region(wanted, stops)
            found = self.check(region.original, region.optimized, self._feeds(region), [
                dataclasses.replace(each) for each in plan])
            if not found.ok and joined < MOST_JOINED and index + 1 < len(self.cuts):
                joined += 1
                continue
            count += 1
            _add(result, found)
            if not found.ok:
                break
            self._go_on(region.original, index)
            for constant in (*region.original.constants.values(), *region.optimized.constants.values()):
                let_go(constant.array)
            stops |= {name for name in wanted if name not in self.original.inputs
                      and name not in self.original.constants}
            waiting, joined = [], 0
        result.executed |= {"nodes": self.original.shown_count(), "nodes_after": self.optimized.shown_count(),
                            "pieces": count}
        result.notes.append(f"validated in {count} pieces, of at most {self.largest / 1e6:.0f} MB of weights each: "
                            "what the original gave before a piece was given to both sides of it")
        return result

    def _region(self, outputs: list[str], stops: set[str]) -> Region:
        before = piece(self.original, outputs, stops, self.original)
        after = piece(self.optimized, outputs, stops, self.original)
        order = [*self.original.inputs, *sorted(stops)]
        inputs = sorted({*before.inputs, *after.inputs}, key=order.index)
        for part, other in ((before, after), (after, before)):
            for name in inputs:
                if name not in part.inputs:
                    part.types[name] = other.types[name]
                    part.declared[name] = other.declared.get(name, other.types[name])
        before.inputs, after.inputs = list(inputs), list(inputs)
        self.largest = max(self.largest, *(_bytes(part.constants.values()) for part in (before, after)))
        return Region(before, after)

    def _feeds(self, region: Region) -> list[dict[str, Any]]:
        return [{name: each[name] for name in region.original.inputs} for each in self.values]

    def _go_on(self, part: Graph, index: int) -> None:
        """Run the original's side, for the pieces that follow, and forget what none of them reads."""
        if index + 1 == len(self.cuts):
            return
        program = Program(part, Context.of(part, 0))
        for each in self.values:
            with np.errstate(all="ignore"):
                found = program.run([each[name] for name in part.inputs])
            each.update(zip(part.outputs, map(_own, found)))


def _own(value: Any) -> Any:
    """An array that no later run of the program overwrites."""
    return np.array(value) if isinstance(value, np.ndarray) else value


def _add(result: Validation, found: Validation) -> None:
    """Take what one piece gave into the whole."""
    result.outputs += found.outputs
    for position, each in enumerate(found.rounds):
        if position == len(result.rounds):
            result.rounds.append(each)
        elif not each.ok and result.rounds[position].ok:
            result.rounds[position] = each
    result.notes += [note for note in found.notes if note not in result.notes]
    for key in ("not_executed", "random", "by_reference"):
        known: list[Any] = result.executed.setdefault(key, [])  # type: ignore[assignment]
        known += [each for each in found.executed.get(key, []) if each not in known]  # type: ignore[attr-defined]
    result.executed["pinned"] = (result.executed.get("pinned", 0)  # type: ignore[operator]
                                 + found.executed.get("pinned", 0))
    if not found.ok:
        result.status, result.reason = found.status, found.reason


