"""Nested graphs (branches of If, bodies of Loop and Scan) are optimized as graphs of their own.

What a body reads from outside becomes an input of the working graph (outer constants become constants), so that
the same passes and the same search work on it; afterwards those names are captured again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from graphs.constants import Constant
from graphs.ir import Graph, NameSupply, is_fused
from graphs.nested import alone, nested_again
from graphs.types import Type

Improve = Callable[[Graph, str], Graph]


def improve_bodies(graph: Graph, improve: Improve, outer_types: Mapping[str, Type] | None = None,
                   outer_constants: Mapping[str, Constant] | None = None, outermost: Graph | None = None,
                   around: str = "") -> list[str]:
    """Replace every nested graph by what `improve` makes of it, innermost ones first. Returns changed places.

    `improve` gets a graph whose types are inferred, and its place ("If 'a' then_branch", behind ` / ` that of the
    graphs `around` it), and returns an equivalent one with the same inputs and outputs. `outermost` states the operator
    sets and functions: nested graphs have none of their own.
    """
    outermost = graph if outermost is None else outermost
    types = {**(outer_types or {}), **graph.types}
    constants = {**(outer_constants or {}), **graph.constants}
    changed: list[str] = []
    for node in graph.nodes:
        for name, value in list(node.attrs.items()):
            if not isinstance(value, Graph) or is_fused(node):
                continue
            place = f"{around}{node.label} {name}"
            inside = improve_bodies(value, improve, types, constants, outermost, f"{place} / ")
            better = _improve_one(outermost, value, place, improve, types, constants)
            if better is not None:
                node.attrs[name] = better
            if inside or better is not None:
                changed.append(place)
    return changed


def _improve_one(outermost: Graph, body: Graph, place: str, improve: Improve, types: Mapping[str, Type],
                 constants: Mapping[str, Constant]) -> Graph | None:
    work = alone(body, types, constants, outermost)
    before = str(work)
    better = improve(work, place)
    return None if str(better) == before else nested_again(better, body, constants)


def make_names_unique(graph: Graph) -> None:
    """Rename values and nodes of nested graphs that clash with names elsewhere (ONNX forbids shadowing)."""
    seen = set(graph.inputs) | set(graph.constants) | {out for node in graph.nodes for out in node.outputs if out}
    _unique(graph, NameSupply(graph.names()), seen)  # new names are none of graphs nested deeper, which may read them


def _unique(graph: Graph, supply: NameSupply, seen: set[str]) -> None:
    for node in graph.nodes:
        for body in () if is_fused(node) else node.graphs:  # a Fused one's body becomes a function
            own = [*body.inputs, *body.constants, *(out for inner in body.nodes for out in inner.outputs if out)]
            renaming = {name: supply.fresh(name) for name in dict.fromkeys(own) if name in seen}
            seen.update(own)
            if renaming:
                _rename(body, renaming)
            _unique(body, supply, seen)


def _rename(body: Graph, renaming: Mapping[str, str]) -> None:
    def new(name: str) -> str:
        return renaming.get(name, name)

    body.rename_uses(renaming, outputs=True)
    body.inputs = [new(name) for name in body.inputs]
    for node in body.nodes:
        node.outputs = tuple(new(out) for out in node.outputs)
    body.constants = {new(name): value for name, value in body.constants.items()}
    body.types = {new(name): value for name, value in body.types.items()}
    body.declared = {new(name): value for name, value in body.declared.items()}
