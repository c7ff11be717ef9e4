"""Patches between two versions of a graph: what normalization and bodies contribute to the trace.

A patch names nodes by their first output: `remove` some, `add` others as text, drop and add constants. A new constant
is in the patch itself if it is small, else it is the value that a removed node of the same name computed, and
applying the patch computes it again and compares its digest. So a trace stays small and still replays exactly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from graphs.constants import Constant
from graphs.errors import ParseError
from graphs.inference import infer
from graphs.ir import Graph, Node
from graphs.onnx_io.stated import forget
from graphs.spill import spilled
from graphs.text import parse_graph, print_constant, print_node
from graphs.text_parser import Parser
from runtime.execute import evaluate
from search.steps import decode_constant, encode_constant

from .fixing import fixed
from .normalize.memory import Place

INLINE_ELEMENTS = 64
_OTHER_MODEL = "replay the trace with the model it was made for"


def node_key(node: Node) -> str:
    """The name that identifies a node inside its graph."""
    return next((out for out in node.outputs if out), node.name)


def diff(before: Graph, after: Graph) -> dict[str, Any]:
    """The patch that turns `before` into `after` (same inputs and outputs)."""
    earlier, later = ({node_key(node): node for node in graph.nodes} for graph in (before, after))
    same = {key for key, node in later.items() if key in earlier and _is_untouched(earlier[key], node)}
    old = {key: "" if key in same else print_node(node) for key, node in earlier.items()}
    new = {key: "" if key in same else print_node(node) for key, node in later.items()}
    removed = [key for key, text in old.items() if new.get(key) != text]
    added = [text for key, text in new.items() if old.get(key) != text]
    constants: dict[str, Any] = {}
    for name, constant in after.constants.items():
        known = before.constants.get(name)
        if known is not None and (known is constant or known == constant):
            continue
        if constant.size <= INLINE_ELEMENTS:
            constants[name] = {"value": print_constant(constant)}
        else:
            constants[name] = {"digest": constant.digest, "type": str(constant.type)}
    dropped = [name for name in before.constants if name not in after.constants]
    inner = [node for node in after.nodes if old.get(node_key(node)) != new[node_key(node)]]
    makes = {out for node in before.nodes for out in node.outputs}
    held = [after.constants[name] for name, row in constants.items() if "digest" in row and name not in makes]
    return {"kind": "diff", "remove": removed, "add": added, "constants": constants, "drop_constants": dropped,
            "data": _new_data(before, inner, held)}


def _is_untouched(one: Node, other: Node) -> bool:
    """A copy of a node that nothing has changed: both print alike. False says nothing."""
    return (one.inputs == other.inputs and one.outputs == other.outputs and one.attrs.keys() == other.attrs.keys()
            and all(value is other.attrs[name] for name, value in one.attrs.items())
            and (one.op, one.domain, one.version, one.overload) == (other.op, other.domain, other.version,
                                                                    other.overload)
            and not one.holds_graphs)


def _new_data(before: Graph, added: list[Node], constants: list[Constant]) -> dict[str, Any]:
    """By digest the large tensors that `before` does not have: inside added nodes (of nested graphs, of attributes),
    and constants that no node of it computes."""
    wanted = {each.digest: each for each in [*_tensors_of(added), *constants] if each.size > INLINE_ELEMENTS}
    known = _store(before) if wanted else {}
    return {digest: encode_constant(each) for digest, each in wanted.items() if digest not in known}


def apply(graph: Graph, patch: Mapping[str, Any]) -> Graph:
    """A copy of `graph` with a patch applied; types are inferred again.

    Raises ParseError where the patch does not fit the graph.
    """
    result = fixed(graph, patch["fix_dims"]) if "fix_dims" in patch else graph.copy()
    if patch.get("forget_types"):
        forget(result)
    data = patch.get("data", {})
    held = _Held(graph, patch["constants"])
    values = {name: decode_constant(data[row["digest"]]) if row.get("digest") in data else held.constant(name, row)
              for name, row in patch["constants"].items()}
    gone = set(patch["remove"])
    missing = sorted(gone - {node_key(node) for node in result.nodes}) + sorted(
        name for name in patch["drop_constants"] if name not in result.constants)
    if missing:
        raise ParseError("trace", f"the graph has no value {missing[0]!r}", _OTHER_MODEL)
    former = [node for node in result.nodes if node_key(node) in gone]
    result.nodes = [node for node in result.nodes if node_key(node) not in gone]
    for name in patch["drop_constants"]:
        result.constants.pop(name, None)
    result.constants.update(values)
    added = parse_nodes(graph, patch["add"], data)
    _name(added, former)
    result.nodes += added
    result.sort()
    if "order" in patch:
        place = {key: index for index, key in enumerate(patch["order"])}
        result.nodes.sort(key=lambda node: place[node_key(node)])
    infer(result)
    return result


def _name(added: list[Node], former: list[Node]) -> None:
    """Names of nodes, which their text does not have: those of the nodes that they replace, where it is clear which."""
    kinds = Counter((node.op, node.domain) for node in added)
    inside = {node_key(node): node for old in former for node in _nested(old)}
    for node in added:
        alike = [old for old in former if (old.op, old.domain) == (node.op, node.domain)]
        same = [old for old in alike if node_key(old) == node_key(node)]
        if same or (len(alike) == 1 and kinds[node.op, node.domain] == 1):
            _call(node, (same or alike)[0])
        for each in _nested(node):
            known = inside.get(node_key(each))
            if known is not None and (known.op, known.domain) == (each.op, each.domain):
                _call(each, known)


def _call(node: Node, old: Node) -> None:
    node.name, node.doc, node.metadata = old.name, old.doc, old.metadata


def _nested(node: Node) -> Iterator[Node]:
    for graph in node.graphs:
        for each in graph.walk():
            yield from each.nodes


def parse_nodes(graph: Graph, lines: list[str], data: Mapping[str, Any]) -> list[Node]:
    """Nodes from their text, read at the graph's operator sets; `data` holds large tensors that the graph lacks."""
    if not lines:
        return []
    opsets = ", ".join(f"{domain} {version}" if domain else str(version)
                       for domain, version in sorted(graph.opsets.items()))
    store = {digest: decode_constant(each) for digest, each in data.items()}
    if any("sha256:" in line for line in lines):
        store.update(_store(graph))
    text = "\n".join([f"graph opset {opsets} () -> () {{", *lines, "}"])
    return Parser(text, store).graph(outermost=True).nodes  # names that they read are of the graph around them


def _store(graph: Graph) -> dict[str, Constant]:
    """The large tensors of a graph by digest, those of nested graphs and of attributes too."""
    tensors = [*graph.constants.values(), *_tensors_of(graph.nodes)]
    return {each.digest: each for each in tensors if each.size > INLINE_ELEMENTS}


def _tensors_of(nodes: Iterable[Node]) -> list[Constant]:
    """Tensors inside nodes: of their attributes and of the graphs nested in them."""
    found: list[Constant] = []
    for node in nodes:
        found += [value for value in node.attrs.values() if isinstance(value, Constant)]
        for graph in node.graphs:
            found += [*graph.constants.values(), *_tensors_of(graph.nodes)]
    return found


class _Held:
    """What the graph before a patch knows of the patch's constants."""

    def __init__(self, graph: Graph, rows: Mapping[str, Mapping[str, Any]]) -> None:
        self.graph = graph
        self.types = {row["type"] for row in rows.values() if "type" in row}

    @cached_property
    def stored(self) -> dict[str, Constant]:
        """By digest the large tensors of the wanted types: of the graph, and of branches, which may be inlined."""
        tensors = (*self.graph.constants.values(), *_tensors_of(self.graph.nodes)) if self.types else ()
        return {each.digest: each for each in tensors if each.size > INLINE_ELEMENTS and str(each.type) in self.types}

    @cached_property
    def producers(self) -> dict[str, Node]:
        """Value -> the node that makes it."""
        return self.graph.producers()

    def constant(self, name: str, row: Mapping[str, Any]) -> Constant:
        """A constant of the patch: as it is written there, stored, or computed again."""
        if "value" in row:
            parsed = parse_graph(f"graph opset 21 () -> (value) {{ value = constant {row['value']} }}")
            return parsed.constants["value"]
        if row["digest"] in self.stored:
            return self.stored[row["digest"]]
        computed = _recompute(self.graph, name, self.producers)
        if computed.digest != row["digest"]:
            raise ParseError(f"constant {name!r}", "computing it again gives another content",
                             _OTHER_MODEL)
        return computed


def _recompute(graph: Graph, name: str, producers: Mapping[str, Node]) -> Constant:
    """The value of a node over constants."""
    place = Place(graph, name, producers)
    known = place.recall()
    if known is not None:
        return known
    values: dict[str, np.ndarray] = {}
    stack = [name]
    while stack:
        current = stack[-1]
        if current in values or current in graph.constants:
            stack.pop()
            continue
        node = producers.get(current)
        if node is None:
            raise ParseError(f"constant {name!r}", f"nothing computes {current!r}",
                             _OTHER_MODEL)
        missing = [used for used in node.inputs if used and used not in values and used not in graph.constants]
        if missing:
            stack += missing
            continue
        arrays = [None if not used else graph.constants[used].array if used in graph.constants else values[used]
                  for used in node.inputs]
        with np.errstate(all="ignore"):
            results = evaluate(node, arrays)
        values.update({out: spilled(np.asarray(result))
                       for out, result in zip(node.outputs, results, strict=False) if out})
        stack.pop()
    found = Constant.of(values[name])
    place.keep(found)
    return found
