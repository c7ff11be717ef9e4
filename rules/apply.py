"""Applying one rule at one place of a graph, and rules everywhere. The e-graph search does the same at large scale."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from itertools import count

from graphs.canonical import complete, version_at
from graphs.constants import Constant
from graphs.errors import InvalidModel
from graphs.inference import infer
from graphs.ir import Graph, NameSupply, Node
from graphs.operators import find, is_pure
from graphs.text import print_graph

from .declare import Match, Operand, Refusal, Rule, refuse
from .engine import Built, Replacement, fire
from .form import from_form
from .matching import Site, matches

__all__ = ["Site", "apply_at", "apply_everywhere", "fold_constants", "matches", "size_of"]

Fold = Callable[[Node, list], list]


def apply_at(graph: Graph, rule: Rule, match: Match) -> Graph | Refusal:
    """A copy of the graph with the match's roots replaced, or why the rule does not fire there."""
    replacements = fire(rule, match)
    if isinstance(replacements, Refusal):
        return replacements
    members = match.members if rule.group else (match,)
    roots = [root for member in members for root in member.roots]
    return _Rewriter(graph.copy()).replace([(str(root.key), new) for root, new in zip(roots, replacements, strict=True)
                                            if new is not None])


class _Rewriter:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.names = NameSupply(graph.names())
        self.constants = {constant: name for name, constant in reversed(graph.constants.items())}
        self.built: dict[int, list[str]] = {}
        self.origins: tuple[str, ...] = ()

    def replace(self, pairs: Sequence[tuple[str, Replacement]]) -> Graph | Refusal:
        producers = self.graph.producers()
        self.origins = tuple(dict.fromkeys(producers[root].name for root, _ in pairs if producers[root].name))
        values = [(root, self.value(new)) for root, new in pairs]
        renaming: dict[str, str] = {}
        for root, value in values:
            value = renaming.get(value, value)
            if value != root:
                self.redirect(root, value)
                renaming[root] = value
                renaming = {old: value if new == root else new for old, new in renaming.items()}
        try:
            self.graph.sort()
        except InvalidModel:
            return refuse("the rewrite would make a cycle")
        remove_dead(self.graph)
        infer(self.graph)
        return self.graph

    def value(self, new: Replacement) -> str:
        """The name of a replacement in the graph, with new nodes put in."""
        if isinstance(new, Operand):
            return str(new.key)
        if isinstance(new, Constant):
            if new not in self.constants:
                self.constants[new] = self.names.fresh("constant")
                self.graph.constants[self.constants[new]] = new
            return self.constants[new]
        if id(new.args) not in self.built:
            self.built[id(new.args)] = self.node(new)
        return self.built[id(new.args)][new.output]

    def node(self, new: Built) -> list[str]:
        inputs = [None if arg is None else arg.type for arg in new.args]
        spelled = from_form(new.op, new.domain, new.attrs, inputs, new.types[0])
        if isinstance(spelled, str):
            raise ValueError(f"{new.op} was built but cannot be spelled: {spelled}")
        record = find(spelled.op, new.domain)
        assert record is not None
        names = tuple("" if arg is None else self.value(arg) for arg in new.args)
        outputs = [self.names.fresh(f"{spelled.op.lower()}") for _ in new.types]
        version = version_at(spelled.op, new.domain, self.graph.opsets.get(new.domain, self.graph.opset))
        self.graph.nodes.append(Node(spelled.op, names, tuple(outputs), complete(record, spelled.attrs), new.domain,
                                     version=version, origins=self.origins))
        for name, type_ in zip(outputs, new.types, strict=True):
            self.graph.types[name] = type_
        return outputs

    def redirect(self, root: str, value: str) -> None:
        """Let all readers of one value read the other; a graph output keeps its name."""
        graph = self.graph
        graph.rename_uses({root: value})
        if root not in graph.outputs:
            return
        old, made = graph.producers()[root], graph.producers().get(value)
        old.outputs = tuple(self.names.fresh(f"{root}_old") if name == root else name for name in old.outputs)
        if made is not None and value not in graph.outputs:
            made.outputs = tuple(root if name == value else name for name in made.outputs)
            graph.rename_uses({value: root})
            return
        record = find("Identity")
        assert record is not None
        graph.nodes.append(Node("Identity", (value,), (root,), complete(record, {}),
                                version=version_at("Identity", "", graph.opset), origins=self.origins))


def remove_dead(graph: Graph) -> None:
    """Drop nodes and constants that no output needs."""
    needed = set(graph.outputs)
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if not needed.isdisjoint(node.outputs):
            needed.update(node.uses)
            kept.append(node)
    graph.nodes = kept[::-1]
    graph.constants = {name: constant for name, constant in graph.constants.items() if name in needed}
    made = {out for node in graph.nodes for out in node.outputs} | set(graph.inputs)
    graph.types = {name: type_ for name, type_ in graph.types.items() if name in made}


def fold_constants(graph: Graph, evaluate: Fold | None = None, budget: int = 1 << 24) -> None:
    """Compute nodes whose inputs are all constants, in place; results above the budget (bytes) stay."""
    if evaluate is None:
        from runtime.execute import evaluate  # type: ignore[assignment]
    assert evaluate is not None
    kept: list[Node] = []
    for node in graph.nodes:
        inputs = [graph.constants.get(name) if name else None for name in node.inputs]
        ready = all(not name or value is not None for name, value in zip(node.inputs, inputs, strict=True))
        types = [graph.type_of(name) for name in node.outputs if name]
        small = all(type_ is not None and type_.is_static and (type_.static_bytes or 0) <= budget for type_ in types)
        nested = any(True for _ in node.graphs)
        if nested or not (ready and small and is_pure(node) and not set(node.outputs) & set(graph.outputs)):
            kept.append(node)
            continue
        arrays = evaluate(node, [None if value is None else value.array for value in inputs])
        for name, array in zip(node.outputs, arrays):
            if name:
                graph.constants[name] = Constant.of(array)
    graph.nodes = kept
    remove_dead(graph)


_HEAVY = {"MatMul": 12.0, "Gemm": 12.5, "Conv": 20.0, "ConvTranspose": 20.0, "Einsum": 16.0, "Pow": 4.0, "Reshape": 0.6,
          "Squeeze": 0.6, "Unsqueeze": 0.6, "Flatten": 0.6, "Identity": 0.1, "Div": 1.2}


def size_of(graph: Graph) -> float:
    """A simple cost for tests and ablations: nodes, heavy ones count more; nodes over constants alone are free."""
    free = set(graph.constants)
    total = 0.0
    for node in graph.nodes:
        if node.inputs and all(not name or name in free for name in node.inputs):
            free.update(node.outputs)
        else:
            total += _HEAVY.get(node.op, 1.0)
    return total


def apply_everywhere(graph: Graph, rules: Iterable[Rule], limit: int = 60, fold: Fold | None = None) -> Graph:
    """The cheapest graph (`size_of`) that a best-first walk over single rewrites finds in `limit` expansions."""
    rules = list(rules)
    order = count()
    best, best_size = graph, size_of(graph)
    start = graph.copy()
    fold_constants(start, fold)
    queue = [(best_size, next(order), start)]
    seen = {_signature(start)}
    if len(start.nodes) < len(graph.nodes):
        best = start
    for _ in range(limit):
        if not queue:
            break
        size, _, current = heapq.heappop(queue)
        if size > best_size + 3:
            continue
        site = Site(current)
        for rule in rules:
            for match in matches(site, rule):
                new = apply_at(current, rule, match)
                if isinstance(new, Refusal):
                    continue
                fold_constants(new, fold)
                text = _signature(new)
                if text not in seen:
                    seen.add(text)
                    cost = size_of(new)
                    heapq.heappush(queue, (cost, next(order), new))
                    if cost < best_size:
                        best, best_size = new, cost
    return best


def _signature(graph: Graph) -> str:
    """The text of a graph with inner values numbered in order, so that fresh names make no difference."""
    plain = graph.copy()
    keep = {*plain.inputs, *plain.outputs}
    renaming = {}
    for index, node in enumerate(plain.nodes):
        for position, name in enumerate(node.outputs):
            if name and name not in keep:
                renaming[name] = f"v{index}_{position}"
    for node in plain.nodes:
        node.outputs = tuple(renaming.get(name, name) for name in node.outputs)
        node.inputs = tuple(renaming.get(name, name) for name in node.inputs)
    return print_graph(plain)
