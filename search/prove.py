"""Proving two graphs equal: both go into one e-graph, and rules must join their outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from graphs.errors import InvalidOption
from graphs.ir import Graph
from rules.declare import Match, Rule, rule

from . import run
from .budget import FOLDING, NORMAL, Budget, Folding
from .encode import Encoded, Shared, encode
from .saturated import ENode, Saturated
from .selection import Selection
from .steps import Step, same_graph
from .terms import Tables
from .trace import rebuild


@rule(
    family="movement", exactness="exact", meaning="Identity hands its input through.", before="Identity(x)", after="x",
    example="graph opset 18 (x: float32[3]) -> (y) { a = Identity(x) y = Neg(a) }",
    near_miss="graph opset 18 (x: float32[3]) -> (y) { a = Abs(x) y = Neg(a) }",
)
def _identity(m: Match) -> None:
    """Outputs that are inputs, or other outputs, are Identity nodes in a file; elsewhere normalization removes them."""


@dataclass
class Proof:
    """Whether every output of two graphs was joined; `outputs` says it for each (by the first graph's names).

    `steps` lead from the first graph to the second where all are joined. `stop` says why the search ended; a proof
    that was not found says nothing about the graphs. `left_out`: constants that the budget did not let be computed.
    """

    joined: bool
    outputs: dict[str, bool]
    steps: list[Step] = field(default_factory=list)
    stop: str = ""
    exactness: str = "exact"  # the weakest class among the steps
    left_out: int = 0


def prove(a: Graph, b: Graph, rules: Sequence[Rule], budget: Budget = NORMAL,
          folding: Folding | None = FOLDING) -> Proof:
    """Join two graphs by saturation. Inputs and outputs correspond by name, or by position where names differ.

    Raises InvalidOption where the inputs or outputs do not correspond.
    """
    inputs = _pairs(a, b, "input")
    outputs = _pairs(a, b, "output")
    shared = Shared(Tables(a.opset))
    first = encode(a, shared=shared)
    shared.inputs = {theirs: first.labels[mine] for mine, theirs in inputs}
    second = encode(b, shared=shared)
    first.tables = shared.tables
    saturated = run(first, [*rules, _identity], budget, folding)
    joined = {mine: saturated.classes[first.labels[mine]] == saturated.classes[second.labels[theirs]]
              for mine, theirs in outputs}
    proof = Proof(all(joined.values()), joined, stop=saturated.stop, left_out=saturated.left_out)
    if proof.joined:
        renaming = {theirs: mine for mine, theirs in [*inputs, *outputs]}
        goal = _renamed(b, renaming, a)
        if not same_graph(a, goal):
            proof.steps = rebuild(a, saturated, _choice_of(second, saturated), goal)
        order = ["exact", "rounding", "finite", "approximate"]
        proof.exactness = max((step.exactness for step in proof.steps), key=order.index, default="exact")
    return proof


def _pairs(a: Graph, b: Graph, kind: str) -> list[tuple[str, str]]:
    mine, theirs = (a.inputs, b.inputs) if kind == "input" else (a.outputs, b.outputs)
    if len(mine) != len(theirs):
        raise InvalidOption("the second graph", f"it has {len(theirs)} {kind}s, the first has {len(mine)}",
                            f"give two graphs with the same {kind}s")
    pairs = list(zip(mine, mine if set(mine) == set(theirs) else theirs))
    for one, other in pairs:
        left, right = a.type_of(one), b.type_of(other)
        if kind == "input" and left != right:
            raise InvalidOption(f"{kind} {other!r} of the second graph", f"it is {right}, in the first {left}",
                                "give both graphs the same types and names of sizes")
    return pairs


def _choice_of(encoded: Encoded, saturated: Saturated) -> Selection:
    """The second graph as a selection."""
    choice: dict[int, ENode] = {}
    for label in sorted({*encoded.labels.values(), *encoded.nodes.values()}):
        choice.setdefault(saturated.classes[label], saturated.of_label[label])
    needed: dict[int, ENode] = {}
    stack = list(saturated.outputs)
    while stack:
        cls = stack.pop()
        if cls not in needed:
            needed[cls] = choice[cls]
            stack += choice[cls].children
    return Selection(needed, 0.0, "second graph")


def _renamed(graph: Graph, renaming: dict[str, str], like: Graph) -> Graph:
    """A graph with the names of inputs and outputs of another one."""
    result = graph.copy()
    taken = set(renaming.values())
    clash = {name: f"{name}_of_b" for name in graph.names() if name in taken and name not in renaming}
    table = {**clash, **renaming}
    table = {old: new for old, new in table.items() if old != new}
    for node in result.nodes:
        node.outputs = tuple(table.get(name, name) for name in node.outputs)
    result.rename_uses(table)
    result.constants = {table.get(name, name): value for name, value in result.constants.items()}
    result.types = {table.get(name, name): type_ for name, type_ in result.types.items()}
    result.inputs, result.outputs = list(like.inputs), list(like.outputs)
    return result
