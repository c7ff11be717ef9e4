"""From a selection back to a graph: original nodes where the choice is an original one, new nodes elsewhere."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from graphs.canonical import complete, version_at
from graphs.errors import SearchFailed
from graphs.inference import infer
from graphs.ir import Graph, NameSupply, Node
from graphs.operators import find
from rules.form import Spelling

from .saturated import ENode, Saturated
from .selection import Selection, order_of
from .snapshot import conflicting, weaker


def build_graph(graph: Graph, saturated: Saturated, selection: Selection) -> Graph:
    """The graph that a selection stands for. Expressions over constants stay nodes, for the folding pass.

    Inputs, outputs and everything else of the contract are those of `graph`. Raises SearchFailed where the types of
    the outputs would not be the same.
    """
    return placed(graph, saturated, selection)[0]


def placed(graph: Graph, saturated: Saturated, selection: Selection) -> tuple[Graph, list[ENode | None]]:
    """The graph of a selection, and the e-node that each of its nodes is (none for an Identity before an output)."""
    builder = Builder(graph, saturated, selection.choice)
    built = builder.build()
    infer(built)
    return checked(graph, built), [builder.enode_of.get(id(node)) for node in built.nodes]


def checked(graph: Graph, built: Graph) -> Graph:
    """A rewritten graph, with what was known of the outputs before. Raises SearchFailed where their types differ."""
    for name in graph.outputs:
        before, after = graph.type_of(name), built.type_of(name)
        if conflicting(before, after):
            raise SearchFailed(f"output {name!r}", f"the new graph computes {after} instead of {before}",
                               "this is a defect of egraft or of a rule; please report it with the model")
        if before is not None and weaker(after, before):
            built.types[name] = before  # what was known of a value stays known, however it is computed now
    return built


class NodeMaker:
    """Turns e-nodes into nodes over named values."""

    def __init__(self, graph: Graph, saturated: Saturated, names: NameSupply) -> None:
        self.graph, self.saturated, self.names = graph, saturated, names
        self._originals: dict[int, list[int]] = {}
        for index, label in sorted(saturated.encoded.nodes.items()):
            self._originals.setdefault(saturated.classes[label], []).append(index)
            for name in graph.nodes[index].outputs:
                if name in saturated.encoded.labels:
                    cls = saturated.class_of(name)
                    if index not in self._originals.setdefault(cls, []):
                        self._originals[cls].append(index)
        self._makers: dict[int, Any] = {}
        for firing in saturated.firings:
            for label in firing.built:
                self._makers.setdefault(label, firing)

    def original(self, enode: ENode, inputs: Mapping[int, str], outputs: tuple[str, ...]) -> Node:
        """A copy of the original node that an e-node is, reading these values (by class)."""
        assert enode.origin is not None
        old = self.graph.nodes[enode.origin]
        node = old.copy()
        node.outputs = outputs
        encoded = self.saturated.encoded
        if enode.origin in encoded.spelled_anew:
            fresh = self.new(enode, [inputs[arg] if arg >= 0 else "" for arg in enode.args], outputs)
            node.op, node.attrs, node.inputs, node.version = fresh.op, fresh.attrs, fresh.inputs, fresh.version
            return node
        renaming = {name: inputs[self.saturated.class_of(name)] for name in old.uses}
        node.inputs = tuple(renaming[name] if name else "" for name in old.inputs)
        for nested in node.graphs:
            own = set(nested.inputs) | set(nested.constants) | {out for n in nested.nodes for out in n.outputs}
            nested.rename_uses({a: b for a, b in renaming.items() if a not in own and a != b}, outputs=True)
        return node

    def new(self, enode: ENode, inputs: list[str], outputs: tuple[str, ...]) -> Node:
        """A new node for an e-node."""
        spelling = enode.spelling
        if not isinstance(spelling, Spelling):
            raise SearchFailed(f"{enode.op} in class {enode.cls}", f"it cannot be written: {spelling}",
                               "this is a defect of egraft; please report it with the model")
        record = find(spelling.op, enode.domain)
        assert record is not None
        opset = self.graph.opsets.get(enode.domain, self.graph.opset)
        return Node(spelling.op, tuple(inputs), outputs, complete(record, spelling.attrs), enode.domain,
                    version=version_at(spelling.op, enode.domain, opset), origins=self.origins(enode))

    def origins(self, enode: ENode) -> tuple[str, ...]:
        """Names of the original nodes that a new node stands for: those of its class, or of what it was made from."""
        names: dict[str, None] = {}
        seen: set[int] = set()
        todo = [enode.cls]
        label = enode.labels[0]
        while todo and not names and len(seen) < 50:
            for cls in todo:
                names.update((self._name(index), None) for index in self._originals.get(cls, ()))
            seen.update(todo)
            firing = self._makers.get(label)
            if firing is None or names:
                break
            todo = [self.saturated.classes[root] for root, _ in firing.roots]
            todo = [cls for cls in dict.fromkeys(todo) if cls not in seen]
            label = firing.roots[0][0]
        return tuple(name for name in names if name)

    def _name(self, index: int) -> str:
        node = self.graph.nodes[index]
        return node.name or next((name for name in node.outputs if name), "")


@dataclass
class Builder:
    """Builds one graph from a choice of e-nodes."""

    graph: Graph
    saturated: Saturated
    choice: Mapping[int, ENode]
    names: NameSupply = field(init=False)
    values: dict[int, str] = field(init=False, default_factory=dict)
    produced: dict[int, tuple[str, ...]] = field(init=False, default_factory=dict)
    enode_of: dict[int, ENode] = field(init=False, default_factory=dict)  # by the identity of the node

    def build(self) -> Graph:
        """The graph, in topological order, without inferred types of new values."""
        saturated, graph = self.saturated, self.graph
        self.names = NameSupply(graph.names())
        self.maker = NodeMaker(graph, saturated, self.names)
        self.result = graph.copy()
        self.result.nodes, self.result.constants = [], {}
        order = order_of(self.choice, saturated.outputs)
        self.wanted = self._outputs_wanted(order)
        self.needed = set(order)
        made: list[tuple[int, Node]] = []
        for cls in order:
            node = self._place(self.choice[cls])
            if node is not None:
                made.append((cls, node))
                self.enode_of[id(node)] = self.choice[cls]
        self.result.nodes = self._ordered(made)
        self._outputs()
        known = set(self.result.inputs) | set(self.result.outputs)
        known.update(out for node in self.result.nodes for out in node.outputs)
        self.result.types = {name: type_ for name, type_ in self.result.types.items() if name in known}
        self.result.constants = {name: value for name, value in graph.constants.items()
                                 if name in self.result.constants} | self.result.constants
        return self.result

    def _outputs_wanted(self, order: list[int]) -> dict[int, set[int]]:
        """Class of a node with several outputs -> the outputs that are read."""
        wanted: dict[int, set[int]] = {}
        for cls in order:
            enode = self.choice[cls]
            if enode.kind == "proj":
                wanted.setdefault(enode.args[0], set()).add(enode.output)
        return wanted

    def _place(self, enode: ENode) -> Node | None:
        """Put an e-node into the graph; its node if it has one."""
        cls = enode.cls
        if enode.kind == "leaf":
            self.values[cls] = self._leaf(enode)
            return None
        if enode.kind == "proj":
            self.values[cls] = self.produced[enode.args[0]][enode.output]
            return None
        outputs = self._output_names(enode)
        if enode.origin is not None:
            node = self.maker.original(enode, self.values, outputs)
        else:
            node = self.maker.new(enode, [self.values[arg] if arg >= 0 else "" for arg in enode.args], outputs)
        while node.inputs and not node.inputs[-1]:
            node.inputs = node.inputs[:-1]
        self.produced[cls] = node.outputs
        if len(enode.outputs) == 1:
            self.values[cls] = node.outputs[0]
        for name, type_ in zip(node.outputs, enode.outputs):
            if name and type_ is not None:
                self.result.types.setdefault(name, type_)
        return node

    def _leaf(self, enode: ENode) -> str:
        assert enode.leaf is not None
        if enode.leaf.kind == "input":
            return enode.leaf.name
        constant = self.saturated.constant_of(enode)
        assert constant is not None
        name = enode.leaf.name or self.names.fresh("constant")
        self.result.constants[name] = constant
        return name

    def _output_names(self, enode: ENode) -> tuple[str, ...]:
        wanted = self.wanted.get(enode.cls, set())
        if enode.origin is not None:
            old = self.graph.nodes[enode.origin].outputs
            return tuple(name or (self.names.fresh(f"{enode.op.lower()}_{position}") if position in wanted else "")
                         for position, name in enumerate(old))
        return tuple(self.names.fresh(enode.op.lower()) for _ in enode.outputs)

    def _ordered(self, made: list[tuple[int, Node]]) -> list[Node]:
        """Topological order near the original one; nodes that rules must not touch keep their relative order."""
        opaque = [position for position, (cls, _) in enumerate(made) if self.choice[cls].kind == "opaque"]
        opaque.sort(key=lambda position: self.choice[made[position][0]].origin or 0)
        found = self._kahn(made, list(pairwise(opaque)))
        return self._kahn(made, []) if len(found) < len(made) else found

    def _kahn(self, made: list[tuple[int, Node]], edges: list[tuple[int, int]]) -> list[Node]:
        producer = {name: position for position, (_, node) in enumerate(made) for name in node.outputs if name}
        needs = [{producer[name] for name in node.uses if name in producer} for _, node in made]
        for before, after in edges:
            needs[after].add(before)
        readers: dict[int, list[int]] = {}
        for position, each in enumerate(needs):
            for need in each:
                readers.setdefault(need, []).append(position)
        places = self._places(made, needs)
        ready = [(places[position], position) for position, each in enumerate(needs) if not each]
        heapq.heapify(ready)
        missing = [len(each) for each in needs]
        order: list[Node] = []
        while ready:
            _, position = heapq.heappop(ready)
            order.append(made[position][1])
            for reader in readers.get(position, ()):
                missing[reader] -= 1
                if not missing[reader]:
                    heapq.heappush(ready, (places[reader], reader))
        return order

    def _places(self, made: list[tuple[int, Node]], needs: list[set[int]]) -> list[int]:
        """Where each node would like to stand: at its original index, new ones after what they read."""
        places: list[int] = []
        for position, (cls, _) in enumerate(made):
            origin = self.choice[cls].origin
            after = max((places[need] for need in needs[position] if need < position), default=0)
            places.append(origin if origin is not None else after)
        return places

    def _outputs(self) -> None:
        """Outputs keep their names: rename what computes them, or add an Identity where that cannot be."""
        fixed = set(self.graph.inputs) | set(self.result.constants)
        for name, cls in zip(self.graph.outputs, self.saturated.outputs, strict=True):
            if name in self.graph.constants:  # it stays one, even if it equals another
                self.result.constants.setdefault(name, self.graph.constants[name])
                continue
            if self.values[cls] != name:
                self._free(name)
            rename_to_output(self.result, self.values[cls], name, fixed, self.values)

    def _free(self, name: str) -> None:
        """A node that stays for its other outputs must not keep the name of one that is computed elsewhere now."""
        for node in self.result.nodes:
            if name in node.outputs:
                dead = self.names.fresh(f"{name}_before")
                node.outputs = tuple(dead if out == name else out for out in node.outputs)
                self.result.rename_uses({name: dead})
                self.values.update((cls, dead) for cls, value in self.values.items() if value == name)


def rename_to_output(result: Graph, value: str, output: str, fixed: set[str],
                     values: dict[int, str] | None = None) -> None:
    """Let a value be the graph output of this name. `fixed` are names that must stay (inputs, constants)."""
    if value == output:
        return
    if value not in fixed and value not in result.outputs:
        for node in result.nodes:
            node.outputs = tuple(output if name == value else name for name in node.outputs)
        result.rename_uses({value: output})
        if value in result.types:
            type_ = result.types.pop(value)
            result.types.setdefault(output, type_)
        for cls, name in (values or {}).items():
            if values is not None and name == value:
                values[cls] = output
        return
    record = find("Identity")
    assert record is not None
    result.nodes.append(Node("Identity", (value,), (output,), complete(record, {}),
                             version=version_at("Identity", "", result.opset)))

