"""Branches that no run which succeeds can take.

PyTorch writes `squeeze` as an If: drop the dimension where it is 1, else hand the value through. The two branches give
values of different rank, and what comes after often accepts one of them alone (LSTM asks for three dimensions): the
other branch leads to an error, always. So the condition holds wherever the model runs at all, and the If is its other
branch. With it the ranks after it are known, and the conditions that ask for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from graphs.ir import Graph, NameSupply, Node
from graphs.operators import find
from graphs.types import TensorType, Type

from .branches import inline_branch

Ranks = frozenset[int]
BRANCHES = ("then_branch", "else_branch")
RECURRENT = {"LSTM", "GRU", "RNN"}


def drop_failing_branches(graph: Graph) -> list[str]:
    """Put the other branch in the place of an If one of whose branches gives a rank that is not accepted."""
    if not any(_is_if(node) for node in graph.nodes):
        return []
    accepted = _accepted(graph, dict.fromkeys(graph.outputs))
    changed: list[str] = []
    names: NameSupply | None = None
    for node in [node for node in graph.nodes if _is_if(node)]:
        failing = [name for name in BRANCHES if _fails(node, _branch(node, name), accepted, graph.types)]
        if len(failing) == 1:
            names = names or NameSupply(graph.names())
            taken = _branch(node, BRANCHES[1 - BRANCHES.index(failing[0])])
            changed.append(next(out for out in node.outputs if out))
            inline_branch(graph, node, taken, names)
    return changed


def _is_if(node: Node) -> bool:
    return node.op == "If" and node.domain == "" and not node.is_opaque


def _branch(node: Node, name: str) -> Graph:
    branch = node.attrs[name]
    assert isinstance(branch, Graph)
    return branch


def _fails(node: Node, branch: Graph, accepted: Mapping[str, Ranks | None], outer: Mapping[str, Type]) -> bool:
    """Does an output of the branch have a rank that the readers of the If do not accept?"""
    for out, inner in zip(node.outputs, branch.outputs, strict=True):
        ranks, rank = accepted.get(out), _rank(branch.type_of(inner) or outer.get(inner))
        if ranks is not None and rank is not None and rank not in ranks:
            return True
    return False


def _rank(type_: Type | None) -> int | None:
    return len(type_.shape) if isinstance(type_, TensorType) and type_.shape is not None else None


def _accepted(graph: Graph, outputs: Mapping[str, Ranks | None]) -> dict[str, Ranks | None]:
    """Value -> the ranks that it can have where all nodes that the outputs need succeed; what is missing or None may
    have any. `outputs` says so of the outputs."""
    found: dict[str, Ranks | None] = dict(outputs)
    needed = set(outputs)
    for node in reversed(graph.nodes):
        if needed.isdisjoint(node.outputs):
            continue
        needed.update(node.uses)
        for name, ranks in _asks(node, found, graph):
            known = found.get(name)
            found[name] = ranks if known is None else known & ranks
    return found


def _asks(node: Node, found: Mapping[str, Ranks | None], graph: Graph) -> list[tuple[str, Ranks]]:
    """(a value that the node reads, the ranks that the node accepts), given those of what it makes."""
    if node.domain != "" or node.is_opaque:
        return []
    if _is_if(node):
        return _branches_ask(node, found, graph)
    if node.op in RECURRENT:
        return [(name, frozenset({3})) for name in (*node.inputs[:1], *node.inputs[5:7]) if name]
    made, record = found.get(node.outputs[0]), find(node.op)
    if made is None or record is None or not node.inputs:
        return []
    axes = node.attrs.get("axes")
    if node.op == "Unsqueeze" and isinstance(axes, tuple):
        return [(node.inputs[0], frozenset(rank - len(axes) for rank in made))]
    if node.op == "Squeeze" and isinstance(axes, tuple):
        return [(node.inputs[0], frozenset(rank + len(axes) for rank in made))]
    if record.pointwise and len(node.inputs) == 1:
        return [(node.inputs[0], made)]
    return []


def _branches_ask(node: Node, found: Mapping[str, Ranks | None], graph: Graph) -> list[tuple[str, Ranks]]:
    """What both branches ask of a value, or the one that can be taken."""
    asked: list[dict[str, Ranks | None]] = []
    for name in BRANCHES:
        branch = _branch(node, name)
        if _fails(node, branch, found, graph.types):
            continue
        outputs: dict[str, Ranks | None] = {}
        for out, inner in zip(node.outputs, branch.outputs, strict=True):
            known, ranks = outputs.get(inner), found.get(out)
            outputs[inner] = known if ranks is None else ranks if known is None else known & ranks
        asked.append(_accepted(branch, outputs))
    rows: list[tuple[str, Ranks]] = []
    for value, ranks in asked[0].items() if asked else ():
        others = [each.get(value) for each in islice(asked, 1, None)]
        if ranks is not None and None not in others and value in node.uses:
            rows.append((value, ranks.union(*(each for each in others if each is not None))))
    return rows
