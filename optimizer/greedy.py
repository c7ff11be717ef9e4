"""The same rules without an e-graph: each match is tried in turn and kept where the sum of node times goes down.

This is what most optimizers do, and what the search is compared with in ablations (`stages="greedy"`). What a rule is
worth is counted where it is applied: the nodes that it makes, less the nodes that nothing reads any more. A rewrite
that only pays after a second one is never taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from cost_model.costs import ABSENT, NodeInput, NodeSpec
from cost_model.signature import small_array, spec_of
from graphs.constants import Constant
from graphs.inference import infer
from graphs.ir import Graph, Node
from graphs.wording import counted
from rules.apply import Site, apply_at, matches
from rules.declare import Match, NodeView, Operand, Refusal, Rule
from rules.engine import Built, Replacement, fire
from rules.form import from_form

from .candidates import Candidate, Improved
from .context import Context
from .normalize import fold_constants, fold_reproducible
from .progress import Clock
from .stepcosts import Total

NAME = "greedy"
TIE_SECONDS = 1e-9  # as in the search: among forms of equal time the one with fewer nodes


@dataclass
class Prices:
    """Seconds of nodes. What would decide and is only estimated is measured when it is asked for."""

    context: Context

    def of(self, spec: NodeSpec, sure: bool = True) -> float:
        """Seconds of a described node, infinite without a kernel; `sure`: measured, where it can be."""
        costs = self.context.costs
        if sure:
            costs.cost_of(spec)  # notes what is missing
            costs.measure([costs.signature(spec)])
        return costs.cost_of(spec).seconds + TIE_SECONDS

    def of_node(self, graph: Graph, node: Node) -> float:
        """Seconds of a node of the graph, measured where it can be."""
        if node.uses and all(name in graph.constants for name in node.uses):
            return 0.0
        if node.holds_graphs:
            return self.holding(graph, node)
        return self.of(spec_of(graph, node, self.context.sizes))

    def holding(self, graph: Graph, node: Node) -> float:
        """Seconds of a node whose graphs read what is around them."""
        return self.context.costs.node_in(graph, node).seconds + TIE_SECONDS


class CountedNodes(Prices):
    """One for each node: nested graphs, as in the search."""

    def of(self, spec: NodeSpec, sure: bool = True) -> float:
        """Always 1."""
        return 1.0

    def holding(self, graph: Graph, node: Node) -> float:
        """Always 1."""
        return 1.0


def search(graph: Graph, context: Context, clock: Clock, improved: Improved) -> None:
    """Fill `improved` with one candidate."""
    clock.enter("greedy", counted(len(graph.nodes), "node"))
    prices = Prices(context)
    improved.predicted_input, improved.input_sources = total(graph, prices), Total(graph, context.costs).counts
    done, count = rewrite(graph, context, prices)
    improved.candidates.append(Candidate(NAME, done, list, total(done, prices)))
    improved.statistics = {"stop": "no rule makes the graph faster", "firings": count}
    clock.note(**improved.statistics)


def fewest_nodes(graph: Graph, context: Context) -> Graph:
    """A nested graph with as few nodes as single rewrites reach."""
    return rewrite(graph, context, CountedNodes(context))[0]


def total(graph: Graph, prices: Prices) -> float:
    """Predicted seconds of a graph: the sum over its nodes."""
    return sum(prices.of_node(graph, node) for node in graph.nodes)


@dataclass
class _Place:
    """A graph that is being rewritten, as rules see it, and who reads what in it."""

    graph: Graph

    def __post_init__(self) -> None:
        self.site = Site(self.graph)
        self.producers = self.graph.producers()
        self.uses = Counter(name for node in self.graph.nodes for name in node.uses)
        self.uses.update(self.graph.outputs)


def rewrite(graph: Graph, context: Context, prices: Prices) -> tuple[Graph, int]:
    """(a copy on which no single rewrite lowers the price any more, how many were applied). Rules in the order of the
    catalogue, again until none of them applies. It ends, since the price goes down each time."""
    place, count, before = _Place(graph.copy()), 0, -1
    while before != count:
        before = count
        for rule in context.rules:
            while (better := _applied(place, rule, context, prices)) is not None:
                place, count = _Place(better), count + 1
    return place.graph, count


def _applied(place: _Place, rule: Rule, context: Context, prices: Prices) -> Graph | None:
    """The graph after the first application of a rule that pays, None where none does."""
    for match in matches(place.site, rule):
        made = fire(rule, match)
        if isinstance(made, Refusal) or not _pays(place, match, made, context, prices):
            continue
        better = apply_at(place.graph, rule, match)
        if isinstance(better, Refusal):  # it would make a cycle
            continue
        fold = fold_reproducible if context.options.precision == "exact" else fold_constants
        if fold(better):
            infer(better)
        return better
    return None


def _pays(place: _Place, match: Match, made: list[Replacement | None], context: Context, prices: Prices) -> bool:
    graph = place.graph
    views = [view for member in (match.members or (match,)) for view in member.roots]
    pairs = [(view, new) for view, new in zip(views, made, strict=True) if new is not None]
    gone = _unread(place, pairs)
    if not pairs or any(node.name in context.options.keep for node in gone):
        return False
    new = [_spec(graph, each) for each in _new_nodes(replacement for _, replacement in pairs)]
    limit = sum(prices.of_node(graph, node) for node in gone)
    # Estimates are optimistic: what does not even pay by them is not measured.
    return all(sum(prices.of(spec, sure=sure) for spec in new) < limit for sure in (False, True))


def _new_nodes(replacements: Iterable[Replacement]) -> Iterator[Built]:
    """Each node that has to run, once."""
    seen: set[int] = set()
    for new in replacements:
        for each in new.walk() if isinstance(new, Built) else ():
            if id(each.args) not in seen and not each.is_constant:
                seen.add(id(each.args))
                yield each


def _unread(place: _Place, pairs: list[tuple[NodeView, Replacement]]) -> list[Node]:
    """The nodes that nothing reads once these roots are replaced."""
    uses, producers = place.uses.copy(), place.producers
    for new in (built for _, replacement in pairs if isinstance(replacement, Built) for built in replacement.walk()):
        uses.update(str(arg.key) for arg in new.args if isinstance(arg, Operand))
    for root, replacement in pairs:
        moved, uses[str(root.key)] = uses[str(root.key)], 0
        if isinstance(replacement, Operand):
            uses[str(replacement.key)] += moved
    gone: list[Node] = []
    todo = [producers[str(root.key)] for root, _ in pairs]
    while todo:
        node = todo.pop()
        if any(node is each for each in gone) or any(uses[name] for name in node.outputs if name):
            continue
        gone.append(node)
        for name in node.uses:
            uses[name] -= 1
            if name in producers:
                todo.append(producers[name])
    return gone


def _spec(graph: Graph, new: Built) -> NodeSpec:
    """What is to be priced for a new node."""
    inputs = [None if arg is None else arg.type for arg in new.args]
    spelled = from_form(new.op, new.domain, new.attrs, inputs, new.types[0])
    assert not isinstance(spelled, str)  # the engine refuses what has no spelling
    return NodeSpec(spelled.op, new.domain, spelled.attrs, tuple(map(_input, new.args)), len(new.types), graph.opset,
                    opsets=dict(graph.opsets))


def _input(arg: Built | Operand | Constant | None) -> NodeInput:
    if arg is None:
        return ABSENT
    if isinstance(arg, Constant):
        return NodeInput(arg.type, True, small_array(arg))
    constant = arg.is_constant
    array = arg.array if constant and isinstance(arg, Operand) else None
    return NodeInput(arg.type, constant, None if array is None else small_array(Constant.of(array)))
