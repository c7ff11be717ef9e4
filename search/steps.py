"""Steps of a trace: named patches on a graph, replay, and comparing graphs up to the names of inner values."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from graphs.canonical import complete, version_at
from graphs.constants import Constant
from graphs.dtypes import numpy_dtype
from graphs.errors import ParseError
from graphs.inference import infer
from graphs.ir import Graph, NameSupply, Node
from graphs.operators import find
from graphs.text import INLINE_ELEMENTS, parse_graph, print_constant, print_graph, print_node
from graphs.types import Type
from graphs.uses import Uses
from rules.apply import remove_dead

from .alike import plain
from .terms import attribute_key

_OTHER_MODEL = "replay the trace with the model it was made for"


@dataclass(eq=False)
class Patch:
    """New nodes over named values, and which value each old value is replaced by. `types`: of values read and made."""

    add: list[Node] = field(default_factory=list)
    constants: dict[str, Constant] = field(default_factory=dict)
    replace: dict[str, str] = field(default_factory=dict)
    types: dict[str, Type] = field(default_factory=dict)

    def reads(self) -> list[str]:
        """Values of the graph that the new nodes read."""
        made = {name for node in self.add for name in node.outputs} | set(self.constants)
        return list(dict.fromkeys(name for node in self.add for name in node.uses if name not in made))


class Written(dict[str, Any]):
    """A patch as JSON values, with the step that it is of."""

    def __init__(self, values: Mapping[str, Any], step: Step) -> None:
        super().__init__(values)
        self.step = step

    def __reduce__(self) -> tuple[type[dict[str, Any]], tuple[dict[str, Any]]]:
        return dict, (dict(self),)  # whoever it is sent to gets the values


@dataclass(eq=False)
class Step:
    """One rewrite of the graph. `reverse`: the rule read from right to left. `region`: several rewrites at once that
    the search knows to be equal, without an order of single steps; `involved` names the rules that took part.
    `copy_of`: the index of the step that was found in an equal part of the graph, and repeated here."""

    index: int
    rule: str
    exactness: str
    meaning: str
    where: list[str]
    before: list[str]
    after: list[str]
    patch: Patch
    region: bool = False
    reverse: bool = False
    involved: list[str] = field(default_factory=list)
    opset: int = 0
    opsets: dict[str, int] = field(default_factory=dict)
    copy_of: int | None = None

    def to_dict(self, stored: Collection[str] = ()) -> dict[str, Any]:
        """The step as JSON values. Big constants of the patch are in base64, but for those whose digest is among
        `stored`: whoever reads the step has them. A copy is kept beside its text, so that within one run only the
        step that it repeats is read."""
        patch = self.patch
        constants = {name: print_constant(value) for name, value in patch.constants.items()}
        big = {constant.digest: constant for constant in patch.constants.values() if constant.size > INLINE_ELEMENTS}
        needs = [digest for digest in big if digest in stored]
        written = {
            "add": [print_node(node) for node in patch.add], "names": [node.name for node in patch.add],
            "origins": [list(node.origins) for node in patch.add],
            "constants": constants,
            "data": {digest: encode_constant(value) for digest, value in big.items() if digest not in stored},
            "needs": needs,
            "replace": patch.replace, "graph": print_graph(self._patch_graph()),
        }
        return {
            "index": self.index, "rule": self.rule, "exactness": self.exactness, "meaning": self.meaning,
            "where": self.where, "before": self.before, "after": self.after, "region": self.region,
            "reverse": self.reverse, "involved": self.involved,
            **({} if self.copy_of is None else {"copy_of": self.copy_of}),
            "patch": written if self.copy_of is None else Written(written, self),
        }

    @staticmethod
    def from_dict(data: Mapping[str, Any], stored: Mapping[str, Constant] | None = None) -> Step:
        """The step of what `to_dict` gave; `stored` holds by digest the constants that it left out."""
        raw = data["patch"]
        fields = {key: data[key] for key in ("index", "rule", "exactness", "meaning", "where", "before", "after",
                                             "region", "reverse", "involved")}
        if isinstance(raw, Written):
            return replace(raw.step, copy_of=data["copy_of"], **fields)
        known = {digest: decode_constant(each) for digest, each in raw["data"].items()}
        known.update({digest: stored[digest] for digest in raw["needs"]} if stored is not None else {})
        parsed = parse_graph(raw["graph"], known)
        for node, name, origins in zip(parsed.nodes, raw["names"], raw["origins"], strict=True):
            node.name, node.origins = name, tuple(origins)
        patch = Patch(parsed.nodes, parsed.constants, dict(raw["replace"]), dict(parsed.types))
        return Step(patch=patch, opset=parsed.opset, opsets=dict(parsed.opsets), copy_of=data.get("copy_of"), **fields)

    def _patch_graph(self) -> Graph:
        """The new nodes as a graph of their own: what they read are its inputs."""
        patch = self.patch
        made = [name for node in patch.add for name in node.outputs if name]
        graph = Graph("patch", patch.reads(), made, patch.add, dict(patch.constants), opsets=dict(self.opsets))
        graph.types = dict(patch.types)
        return graph

    def __str__(self) -> str:
        mark = " (region)" if self.region else " (reverse)" if self.reverse else ""
        lines = [f"{self.index}. {self.rule}{mark} [{self.exactness}] at {', '.join(self.where) or '?'}"]
        return "\n".join([*lines, *(f"  - {line}" for line in self.before), *(f"  + {line}" for line in self.after)])


def encode_constant(constant: Constant) -> dict[str, Any]:
    """A constant as JSON values."""
    raw = np.ascontiguousarray(constant.array)
    return {"dtype": constant.dtype, "shape": list(constant.shape),
            "base64": base64.b64encode(raw.view(np.uint8).tobytes()).decode()}


def decode_constant(data: Mapping[str, Any]) -> Constant:
    """The constant of what `encode_constant` gave."""
    array = np.frombuffer(base64.b64decode(data["base64"]), numpy_dtype(data["dtype"]))
    return Constant.of(array.reshape(data["shape"]), data["dtype"])


class Rewriter:
    """Applies patches to a copy of a graph, each in the time that it takes for what it changes. Nodes that become dead
    are removed at once."""

    def __init__(self, graph: Graph, names: NameSupply | None = None) -> None:
        self.graph = graph.copy()
        self.names = NameSupply(graph.names()) if names is None else names
        self.uses = Uses(self.graph)
        self.nodes: dict[int, Node] = {id(node): node for node in self.graph.nodes}
        self.outputs = set(graph.outputs)
        self._given = set(graph.inputs)
        self.changed: list[Node] = []  # by the last patch: new nodes, and those that read another value
        self.removed: list[Node] = []  # by the last patch

    def apply(self, patch: Patch) -> dict[str, str]:
        """Apply one patch. Returns values that took over the name of an output of the graph, with that name.

        Raises ParseError where the graph lacks a value that the patch names, or has another constant of its name.
        """
        graph, renamed = self.graph, dict[str, str]()
        for name, value in patch.constants.items():
            if graph.constants.setdefault(name, value) != value:
                raise ParseError("trace", f"the graph has another constant {name!r}", _OTHER_MODEL)
        self.changed, self.removed = [], []
        for node in patch.add:
            self._put(node.copy())
        self.names.taken.update(name for node in patch.add for name in node.outputs)
        missing = next((name for name in [*patch.replace, *patch.reads()] if not self._is_present(name)), None)
        if missing is not None:
            raise ParseError("trace", f"the graph has no value {missing!r}", _OTHER_MODEL)
        perhaps = list(self.changed)
        for old, new in patch.replace.items():
            maker = self.uses.makers.get(old)
            perhaps += [] if maker is None else [maker]
            self._redirect(old, renamed.get(new, new), renamed)
        graph.types.update(patch.types)
        self._sweep(perhaps)
        self.changed = [node for node in self.changed if id(node) in self.nodes]
        return renamed

    def finish(self) -> Graph:
        """The graph as it stands: sorted, without dead nodes, types inferred."""
        graph = self.graph
        graph.nodes = list(self.nodes.values())
        graph.sort()
        remove_dead(graph)
        infer(graph)
        return graph

    def _put(self, node: Node) -> None:
        self.nodes[id(node)] = node
        self.uses.add(node)
        self.changed.append(node)

    def _is_present(self, name: str) -> bool:
        return name in self.uses.makers or name in self._given or name in self.graph.constants

    def _redirect(self, old: str, new: str, renamed: dict[str, str]) -> None:
        """Let all readers of one value read another. A graph output keeps its name: what computes the new value takes
        it over (`renamed` says so), or an Identity does where the new value's name must stay."""
        uses = self.uses
        self.changed += uses.readers(old)
        if old not in self.outputs:
            uses.rename(old, new)
            return
        present = uses.makers.get(old)
        if present is not None:
            uses.rename_output(present, old, self.names.fresh(f"{old}_before"))
        uses.rename(old, new)
        maker = uses.makers.get(new)
        if maker is None or new in self.outputs:
            self._put(identity(self.graph, new, old))
            return
        uses.rename_output(maker, new, old)
        uses.rename(new, old)
        renamed[new] = old

    def _sweep(self, nodes: list[Node]) -> None:
        """Remove nodes that nobody needs, and what they alone read."""
        while nodes:
            node = nodes.pop()
            if id(node) not in self.nodes or any(name in self.outputs or self.uses.readers(name)
                                                 for name in node.outputs if name):
                continue
            read = node.uses
            self.uses.drop(node)
            self.removed.append(self.nodes.pop(id(node)))
            nodes += [self.uses.makers[name] for name in read if name in self.uses.makers]


def replay(graph: Graph, steps: Iterable[Step]) -> Graph:
    """The graph after some steps: sorted, without dead nodes, types inferred. Every prefix of a trace is valid."""
    rewriter = Rewriter(graph)
    for step in steps:
        rewriter.apply(step.patch)
    return rewriter.finish()


def identity(graph: Graph, value: str, output: str) -> Node:
    """A node that hands a value through under another name."""
    record = find("Identity")
    assert record is not None
    return Node("Identity", (value,), (output,), complete(record, {}),
                version=version_at("Identity", "", graph.opset))


def value_keys(graph: Graph, table: dict[object, int]) -> tuple[dict[str, int], Counter[int]]:
    """A number for each value that is the same for the same computation, and how many nodes compute each.

    `table` holds the numbers given so far; graphs that share it can be compared. Nodes must be in order.
    """
    keys: dict[str, int] = {"": -1}
    count: Counter[int] = Counter()
    for name in graph.inputs:
        keys[name] = table.setdefault(("input", name), len(table))
    for name, constant in graph.constants.items():
        keys[name] = table.setdefault(("constant", constant), len(table))
    for node in graph.nodes:
        nested = any(True for _ in node.graphs)
        attrs = tuple(sorted((name, _attribute(value, keys) if nested else attribute_key(value))
                             for name, value in node.attrs.items()))
        head = (node.domain, node.op, node.version, node.overload, len(node.outputs), attrs,
                *(keys.get(name, name) for name in node.inputs))
        whole = table.setdefault(head, len(table))
        count[whole] += 1
        for position, name in enumerate(node.outputs):
            if name:
                keys[name] = table.setdefault((whole, position), len(table))
    return keys, count


def _attribute(value: object, keys: Mapping[str, int]) -> object:
    if isinstance(value, Graph):
        inner = value.copy()
        inner.rename_uses({name: f"@{keys.get(name, name)}" for name in value.captured()}, outputs=True)
        return print_graph(plain(inner))
    if isinstance(value, tuple) and any(isinstance(item, Graph) for item in value):
        return tuple(_attribute(item, keys) for item in value)
    return attribute_key(value)


def same_graph(a: Graph, b: Graph) -> bool:
    """Structurally equal: same inputs and outputs, same nodes on the same values, whatever inner values are called
    and in whatever valid order the nodes stand."""
    if a.inputs != b.inputs or a.outputs != b.outputs or len(a.nodes) != len(b.nodes):
        return False
    table: dict[object, int] = {}
    (keys, count), (other_keys, other_count) = value_keys(a, table), value_keys(b, table)
    return count == other_count and all(keys.get(name) == other_keys.get(name) for name in a.outputs)


def texts(nodes: Sequence[Node]) -> list[str]:
    """The text lines of some nodes."""
    return [print_node(node) for node in nodes]
