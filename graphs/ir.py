"""The dataflow graph: nodes in topological order over named values, in static single assignment.

A value is a name; it is an input of the graph, a constant, or one output of one node. `types` holds what is known
of each. Control-flow nodes hold nested graphs as attributes; a nested graph may read values of the graphs around it
(`Graph.captured()`), and those count as uses by the node that holds it.

Nodes are in *canonical form*: see `graphs.operators` (attribute defaults filled in, small constant inputs that
decide the meaning turned into attributes). `version` 0 marks an opaque node, kept verbatim.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn

from .constants import Constant
from .errors import InvalidModel
from .types import TensorType, Type

if TYPE_CHECKING:
    import networkx


@dataclass(eq=False, slots=True)
class Node:
    """One operation. `inputs` and `outputs` are value names, '' for an absent optional one.

    `version` is the `since_version` of the operator's schema that the node was read with, 0 if egraft has no record
    for it (then it is opaque: attributes are kept as they are, it is never merged, folded or executed).
    """

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: dict[str, object] = field(default_factory=dict)
    domain: str = ""
    name: str = ""
    version: int = 0
    doc: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    origins: tuple[str, ...] = ()  # names of the original nodes that a new node stands for
    overload: str = ""  # of a model-local function that an opaque node calls
    seen: object = field(default=None, init=False, repr=False)  # what its types followed from: see graphs.inference

    @property
    def is_opaque(self) -> bool:
        """egraft has no record of this operator (or of this version of it)."""
        return self.version == 0

    @property
    def graphs(self) -> Iterator[Graph]:
        """Nested graphs, in the order of attributes."""
        for value in self.attrs.values():
            kind = type(value)
            if kind is Graph:
                yield value  # type: ignore[misc]
            elif kind is tuple and value and type(value[0]) is Graph:  # type: ignore[index]
                yield from value  # type: ignore[misc]

    @property
    def uses(self) -> tuple[str, ...]:
        """Every value that the node reads: inputs, then values captured by nested graphs."""
        inputs = self.inputs
        nested = self.holds_graphs
        if not nested and inputs and "" not in inputs and (
                len(inputs) == 1 or (len(inputs) == 2 and inputs[0] != inputs[1])):
            return inputs  # nearly every node; this is asked for often
        names = dict.fromkeys(inputs)
        names.pop("", None)
        if nested:
            for graph in self.graphs:
                names.update(dict.fromkeys(graph.captured()))
        return tuple(names)

    @property
    def holds_graphs(self) -> bool:
        """Whether an attribute is a nested graph, or several."""
        for value in self.attrs.values():
            kind = type(value)
            if kind is Graph or (kind is tuple and value and type(value[0]) is Graph):  # type: ignore[index]
                return True
        return False

    @property
    def label(self) -> str:
        """How messages call the node."""
        first = next((name for name in self.outputs if name), "")
        return f"{self.op} {self.name or first!r}" if not self.domain else f"{self.domain}.{self.op} {self.name!r}"

    def rename_uses(self, renaming: Mapping[str, str]) -> None:
        """Read new names instead of old ones, in nested graphs too (unless they define the name)."""
        if not renaming.keys().isdisjoint(self.inputs):
            self.inputs = tuple([renaming.get(name, name) for name in self.inputs])
        for graph in self.graphs if self.holds_graphs else ():
            own = set(graph.inputs) | set(graph.constants) | {o for n in graph.nodes for o in n.outputs}
            graph.rename_uses({a: b for a, b in renaming.items() if a not in own}, outputs=True)

    def copy(self) -> Node:
        """A copy that shares constants; nested graphs are copied."""
        attrs = {name: _copy_attribute(value) for name, value in self.attrs.items()}
        copy = Node(self.op, self.inputs, self.outputs, attrs, self.domain, self.name, self.version, self.doc,
                    dict(self.metadata), self.origins, self.overload)
        copy.seen = self.seen
        return copy


FUSED = "egraft", "Fused"  # domain and operator of a node that runs as one kernel, and means what its body says
FUSED_VERSION = 1
WRITTEN = "written"  # among extras: (domain, operator, overload) -> how many nodes of it the file has, nested ones too


def is_fused(node: Node) -> bool:
    """Whether a node is an `egraft.Fused` one: attribute `body` is a graph of its own, with the node's inputs in order,
    which reads nothing of the graph around it."""
    return (node.domain, node.op) == FUSED and isinstance(node.attrs.get("body"), Graph)


def fused_count(graph: Graph) -> int:
    """How many Fused nodes a graph has, nested graphs included."""
    return sum(is_fused(node) for each in graph.walk() for node in each.nodes)


def _copy_attribute(value: object) -> object:
    if isinstance(value, Graph):
        return value.copy()
    if isinstance(value, tuple) and any(isinstance(item, Graph) for item in value):
        return tuple(item.copy() if isinstance(item, Graph) else item for item in value)
    return value


@dataclass(eq=False)
class Graph:
    """A graph of nodes. `inputs` and `outputs` are value names, in the order of the contract.

    `declared` holds the types of inputs and outputs as the model states them (written back unchanged); `types` holds
    what inference proved. `defaults` names inputs that have a default value (ONNX IR >= 4 initializers that are also
    inputs); they are never treated as constants.
    """

    name: str = "graph"
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    constants: dict[str, Constant] = field(default_factory=dict)
    types: dict[str, Type] = field(default_factory=dict)
    declared: dict[str, Type] = field(default_factory=dict)
    defaults: dict[str, Constant] = field(default_factory=dict)
    opsets: dict[str, int] = field(default_factory=dict)
    functions: dict[tuple[str, str, str], object] = field(default_factory=dict)  # (domain, name, overload)
    ir_version: int = 0
    doc: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    # What the ONNX writer must hand back (producer, ...), and WRITTEN.
    extras: dict[str, object] = field(default_factory=dict)

    @property
    def opset(self) -> int:
        """Version of the default operator set that the graph is written at."""
        return self.opsets.get("", 0)

    def type_of(self, name: str) -> TensorType | None:
        """The tensor type of a value where it is known."""
        if name in self.constants:
            return self.constants[name].type
        found = self.types.get(name)
        return found if isinstance(found, TensorType) else None

    def producers(self) -> dict[str, Node]:
        """Value name -> the node that makes it."""
        return {out: node for node in self.nodes for out in node.outputs if out}

    def consumers(self) -> dict[str, list[Node]]:
        """Value name -> the nodes that read it (a node once, nested reads included)."""
        table: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in node.uses:
                table.setdefault(name, []).append(node)
        return table

    def captured(self) -> list[str]:
        """Names that this graph (as a nested one) reads from the graphs around it, in order of first use."""
        own = set(self.inputs) | set(self.constants) | {out for node in self.nodes for out in node.outputs}
        names: dict[str, None] = {}
        for node in self.nodes:
            names.update(dict.fromkeys(name for name in node.uses if name not in own))
        names.update(dict.fromkeys(name for name in self.outputs if name not in own))
        return list(names)

    def names(self) -> set[str]:
        """Every value name of this graph and of the graphs nested in it."""
        found = set(self.inputs) | set(self.constants) | set(self.outputs) | set(self.types)
        for node in self.nodes:
            found.update(node.inputs, node.outputs)
            for graph in node.graphs:
                found |= graph.names()
        found.discard("")
        return found

    def walk(self) -> Iterator[Graph]:
        """This graph and all nested ones, outermost first."""
        yield self
        for node in self.nodes:
            for graph in node.graphs:
                yield from graph.walk()

    def rename_uses(self, renaming: Mapping[str, str], outputs: bool = False) -> None:
        """Let every reader of old names (nested graphs too, unless they define the name) read the new ones.

        Graph outputs keep their names unless `outputs` is set.
        """
        if not renaming:
            return
        for node in self.nodes:
            node.rename_uses(renaming)
        if outputs:
            self.outputs = [renaming.get(name, name) for name in self.outputs]

    def copy(self) -> Graph:
        """A copy that shares constants and types but no nodes."""
        return Graph(self.name, list(self.inputs), list(self.outputs), [node.copy() for node in self.nodes],
                     dict(self.constants), dict(self.types), dict(self.declared), dict(self.defaults),
                     dict(self.opsets), dict(self.functions), self.ir_version, self.doc, dict(self.metadata),
                     dict(self.extras))

    def node_count(self) -> int:
        """Number of nodes, nested graphs included."""
        return sum(len(graph.nodes) for graph in self.walk())

    def shown_count(self) -> int:
        """Number of nodes as a reader of the file counts them: nested graphs included, a Fused node as one."""
        return sum(1 if is_fused(node) else 1 + sum(graph.shown_count() for graph in node.graphs)
                   for node in self.nodes)

    def sort(self) -> None:
        """Put the nodes into a topological order, stable with respect to the present one.

        Raises InvalidModel with the cycle if there is one.
        """
        made_by = {out: index for index, node in enumerate(self.nodes) for out in node.outputs if out}
        needs = [[made_by[name] for name in node.uses if name in made_by] for node in self.nodes]
        if all(not reads or max(reads) < index for index, reads in enumerate(needs)):
            return
        state = [0] * len(needs)  # 1: on the way down, 2: placed
        order: list[int] = []
        for start in range(len(needs)):
            if state[start]:
                continue
            stack = [(start, iter(needs[start]))]
            state[start] = 1
            while stack:
                index, rest = stack[-1]
                for need in rest:
                    if state[need] == 1:
                        self._refuse_cycle([i for i, _ in stack], need)
                    if not state[need]:
                        state[need] = 1
                        stack.append((need, iter(needs[need])))
                        break
                else:
                    state[index] = 2
                    order.append(index)
                    stack.pop()
        self.nodes = [self.nodes[index] for index in order]

    def _refuse_cycle(self, path: list[int], end: int) -> NoReturn:
        cycle = [*path[path.index(end):], end]
        text = " -> ".join(self.nodes[index].label for index in cycle[:6])
        raise InvalidModel(f"graph {self.name!r}", f"the nodes form a cycle: {text}",
                           "break the cycle; a graph must be acyclic")

    def to_networkx(self) -> networkx.MultiDiGraph:
        """A networkx graph: a vertex for each node (its index), input and constant; edges carry value and slot."""
        import networkx as nx  # only for analysis: it takes longer to import than a small model to read

        net = nx.MultiDiGraph(name=self.name)
        vertex: dict[str, object] = {}
        for name in self.inputs:
            vertex[name] = ("input", name)
            net.add_node(vertex[name], kind="input", label=name, type=str(self.types.get(name, "")))
        for name, constant in self.constants.items():
            vertex[name] = ("constant", name)
            net.add_node(vertex[name], kind="constant", label=name, type=str(constant.type))
        for index, node in enumerate(self.nodes):
            net.add_node(index, kind="node", label=node.op, op=node.op, domain=node.domain, name=node.name)
            vertex.update({out: index for out in node.outputs if out})
        for index, node in enumerate(self.nodes):
            for slot, name in enumerate(node.inputs):
                if name in vertex:
                    net.add_edge(vertex[name], index, value=name, slot=slot)
            for name in node.uses:
                if name not in node.inputs and name in vertex:
                    net.add_edge(vertex[name], index, value=name, slot=-1)
        for position, name in enumerate(self.outputs):
            net.add_node(("output", position), kind="output", label=name)
            if name in vertex:
                net.add_edge(vertex[name], ("output", position), value=name, slot=0)
        return net

    def __str__(self) -> str:
        from .text import print_graph

        return print_graph(self)


class NameSupply:
    """Hands out value or node names that clash with none in use, the same ones for the same requests."""

    def __init__(self, taken: set[str]) -> None:
        self.taken = set(taken)
        self._next: dict[str, int] = {}

    def fresh(self, stem: str) -> str:
        """`stem` itself if free, else `stem_1`, `stem_2`, ..."""
        name = stem
        while not name or name in self.taken:
            self._next[stem] = self._next.get(stem, 0) + 1
            name = f"{stem}_{self._next[stem]}"
        self.taken.add(name)
        return name
