"""Fusions in nested graphs (branches of If, bodies of Loop, Scan and SequenceMap): each is looked at as a graph of its
own, with what it reads of graphs around it as inputs, and validated on inputs of its own.

The engine runs nested graphs on the processor, those of `egraft:cuda` too: their kernels are those of `egraft:cpu`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cost_model.costs import Cost
from cost_model.signature import graph_digest
from graphs.ir import Graph, Node, is_fused
from graphs.operators import is_pure
from graphs.structure import drop_unused_constants
from graphs.wording import counted
from runtime.codegen.c.lowering import rules
from runtime.fusion import Group, fuse, is_fusable
from search.fusions import Explorer, Fusion

from .bodies import improve_bodies
from .context import Context
from .validating import fault_alone, unsteady_alone

Key = tuple[str, ...]  # a nested graph's place, and its outputs: nodes may have one name


@dataclass(frozen=True)
class Named:
    """A group whose nodes are told by their first outputs: places change when others are fused."""

    nodes: tuple[str, ...]
    group: Group

    @staticmethod
    def of(graph: Graph, group: Group) -> Named:
        """A group of a graph."""
        return Named(tuple(_first(graph.nodes[index]) for index in group.nodes), group)

    def within(self, places: Mapping[str, int]) -> Group:
        """The group where nodes, by first outputs, have these places."""
        return replace(self.group, nodes=tuple(sorted(places[name] for name in self.nodes)))


@dataclass
class InBodies:
    """A graph with Fused nodes in its nested graphs; the fusions of each; why others have none, by place."""

    graph: Graph
    placed: dict[Key, list[tuple[Fusion, Named]]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)


class BodyFuser:
    """Fuses in the nested graphs of several graphs that belong together: equal ones are looked at once."""

    def __init__(self, explorer: Explorer, context: Context) -> None:
        self.explorer, self.context = explorer, context
        self.refused: dict[str, str] = {}  # by place, of all graphs
        self._known: dict[Key, tuple[list[tuple[Fusion, Named]], str]] = {}

    def fused(self, graph: Graph) -> InBodies:
        """The graph with what is faster fused in its nested graphs."""
        found = InBodies(graph)
        if self.explorer.trials.missing is not None or not any(
                node.holds_graphs and not is_fused(node) for node in graph.nodes):
            return found
        found.graph = graph.copy()

        def improve(body: Graph, place: str) -> Graph:
            placed, reason = self._looked(body, place)
            if reason:
                found.refused[place] = self.refused[place] = reason
            if not placed:
                return body
            found.placed[place, *body.outputs] = placed
            made = _with(body, [named for _, named in placed], self.exact)
            seconds = {named.group.output: fusion.fused for fusion, named in placed}
            for node in made.nodes:
                if is_fused(node) and node.outputs[0] in seconds:
                    self.context.costs.know(made, node, Cost(seconds[node.outputs[0]], "measured"))
            return made

        with self.explorer.sharing():
            improve_bodies(found.graph, improve)
        drop_unused_constants(found.graph)
        return found

    @property
    def exact(self) -> bool:
        """Whether kernels have to have the bits of their nodes."""
        return self.context.options.precision == "exact"

    def _looked(self, body: Graph, place: str) -> tuple[list[tuple[Fusion, Named]], str]:
        """The fusions of a nested graph, and why there are none or fewer."""
        own = graph_digest(body), *map(_first, body.nodes), *body.inputs  # equal ones may have other names
        if own not in self._known:
            self._known[own] = self._look(body, place)
        return self._known[own]

    def _look(self, body: Graph, place: str) -> tuple[list[tuple[Fusion, Named]], str]:
        reason = _unknown(body)
        for _ in range(2):
            found = self.explorer.discover(body, self.context.sizes)
            if not found.groups:
                return [], reason
            wrong = self._fault(body, found.groups)
            if not wrong:
                return [(fusion, Named.of(body, group)) for fusion, group in found.placed], reason
            guilty = {fusion.signature for fusion in found.fusions
                      if self._fault(body, [group for other, group in found.placed if other is fusion])}
            self.context.warn(f"{place}: fused by itself it failed validation ({wrong}); "
                              f"{counted(len(guilty), 'kind')} of kernels are not used: a defect of egraft, please "
                              "report it")
            self.explorer.refused |= guilty
            if not guilty:
                break
        return [], "fused by itself it fails validation"

    def _fault(self, body: Graph, groups: Sequence[Group]) -> str:
        """What is wrong with a nested graph with these groups fused, on inputs of its own."""
        made = fuse(body, groups, self.exact)
        return fault_alone(body, made, self.context) or unsteady_alone(made, self.context)


def fuse_again(graph: Graph, wanted: Mapping[Key, Collection[Named]], exact: bool) -> Graph:
    """The graph with these groups fused in its nested graphs."""
    made = graph.copy()
    improve_bodies(made, lambda body, place: _with(body, wanted.get((place, *body.outputs), ()), exact))
    drop_unused_constants(made)
    return made


def moved_bodies(fused: Graph, other: Graph, names: Mapping[str, str]) -> Graph:
    """Another graph that computes the same as a graph did, with what was made of the nested graphs of that: `names` are
    those of its values there. Where names would mean something else there, nested graphs stay as they are."""
    made = other.copy()
    makers = {name: node for node in made.nodes for name in node.outputs if name}
    taken = {*made.inputs, *made.constants, *makers}
    for node in fused.nodes:
        there = makers.get(names.get(_first(node), _first(node)))
        if is_fused(node) or there is None or (there.op, there.domain) != (node.op, node.domain):
            continue
        for name, body in node.attrs.items():
            if not isinstance(body, Graph) or not any(is_fused(inner) for each in body.walk() for inner in each.nodes):
                continue
            renaming = {outer: new for outer in body.captured() if (new := names.get(outer, outer)) != outer}
            if renaming and not taken.isdisjoint(_defined(body)):
                continue
            there.attrs[name] = body.copy()
            there.attrs[name].rename_uses(renaming, outputs=True)  # type: ignore[attr-defined]
    return made


def _defined(body: Graph) -> set[str]:
    """The names that a nested graph gives, and those nested in it."""
    found = {*body.inputs, *body.constants, *(name for node in body.nodes for name in node.outputs if name)}
    return found.union(*(_defined(each) for node in body.nodes if not is_fused(node) for each in node.graphs))


def _with(body: Graph, groups: Iterable[Named], exact: bool) -> Graph:
    places = {_first(node): index for index, node in enumerate(body.nodes)}
    here = [named.within(places) for named in groups]
    made = fuse(body, here, exact) if here else body.copy()
    drop_unused_constants(made)  # of graphs nested deeper, too
    return made


def _unknown(body: Graph) -> str:
    """Which values of a nested graph have no known shape, so that nodes cannot be part of a kernel."""
    found = dict.fromkeys(name for node in body.nodes
                          if not node.is_opaque and (node.domain, node.op) in rules() and is_pure(node)
                          and not is_fusable(body, node) for name in (*node.inputs, *node.outputs)
                          if name and ((type_ := body.type_of(name)) is None or type_.shape is None))
    if not found:
        return ""
    others = f" and {counted(len(found) - 1, 'other value')}" if len(found) > 1 else ""
    return f"the shape of {next(iter(found))!r}{others} is unknown"


def _first(node: Node) -> str:
    return next((name for name in node.outputs if name), node.name)
