"""The graph that a trace works on: which e-node each live value is, who reads it, and how patches change it."""

from __future__ import annotations

from collections.abc import Iterator

from graphs.ir import Graph, NameSupply, Node

from .build import NodeMaker
from .saturated import ENode, Saturated
from .steps import Patch, identity


class State:
    """A graph under rewriting. `enode[value]` says which e-node a value is; dead nodes are removed at once."""

    def __init__(self, graph: Graph, saturated: Saturated) -> None:
        self.graph, self.saturated = graph, saturated
        self.names = NameSupply(graph.names())
        self.maker = NodeMaker(graph, saturated, self.names)
        self.outputs = list(graph.outputs)
        self.producer: dict[str, Node] = {}
        self.readers: dict[str, dict[int, Node]] = {}
        self.enode: dict[str, ENode] = {}
        self.values: dict[int, dict[str, None]] = {}  # class -> live values, in the order they came
        self.constants = dict(graph.constants)
        self.whole: dict[int, ENode] = {}  # id of a node -> its e-node
        self.patch = Patch()
        self._added: list[Node] = []
        self.several: dict[int, list[Node]] = {}  # e-node with several outputs -> its nodes
        self.parts = {(enode.args[0], enode.output): enode for enode in saturated.enodes if enode.kind == "proj"}
        for name in [*graph.inputs, *graph.constants]:
            self._know(name, saturated.of_label[saturated.encoded.labels[name]])
        for index, node in enumerate(graph.nodes):
            copy = node.copy()
            self._put(copy)
            self._is(copy, saturated.of_label[saturated.encoded.nodes[index]])
        for name, label in saturated.encoded.labels.items():
            if name in self.producer:
                self._know(name, saturated.of_label[label])
        for node in list(self.producer.values()):
            self._sweep(node)

    def _know(self, name: str, enode: ENode) -> None:
        self.enode[name] = enode
        self.values.setdefault(enode.cls, {})[name] = None

    def _is(self, node: Node, enode: ENode) -> None:
        self.whole[id(node)] = enode
        if len(enode.outputs) > 1:
            self.several.setdefault(enode.index, []).append(node)

    def _put(self, node: Node) -> None:
        for name in node.outputs:
            if name:
                self.producer[name] = node
        for name in node.uses:
            self.readers.setdefault(name, {})[id(node)] = node

    def _sweep(self, start: Node) -> None:
        """Remove a node that nobody reads, and what it alone read."""
        stack = [start]
        while stack:
            node = stack.pop()
            if any(name and (self.readers.get(name) or name in self.outputs) for name in node.outputs):
                continue
            if not any(self.producer.get(name) is node for name in node.outputs if name):
                continue
            self.whole.pop(id(node), None)  # another node may come to have its id
            for name in node.outputs:
                if name:
                    self.producer.pop(name, None)
                    enode = self.enode.pop(name, None)
                    if enode is not None:
                        self.values.get(enode.cls, {}).pop(name, None)
            for name in node.uses:
                self.readers.get(name, {}).pop(id(node), None)
                if name in self.producer:
                    stack.append(self.producer[name])

    def is_live(self, name: str) -> bool:
        """The value is there and can be read."""
        return name in self.producer or name in self.graph.inputs or name in self.constants

    def arguments(self, name: str) -> list[str]:
        """The values that a value's node has as arguments, in the order of its e-node."""
        node = self.producer.get(name)
        if node is None:
            return []
        pool = [each for each in [*node.inputs, *node.uses] if each]
        found: list[str] = []
        for arg in self.whole[id(node)].args:
            match = next((each for each in pool if each in self.enode and self.enode[each].cls == arg), "")
            if match and pool.count(match) + found.count(match) > 1:
                pool.remove(match)
            elif match and any(self.enode[each].cls == arg for each in pool if each != match and each in self.enode):
                pool = [each for each in pool if each != match]
            found.append(match)
        return found

    def upstream(self, of: str) -> set[str]:
        """Every value that needs this one, itself included: none of them may become its input."""
        seen, stack = {of}, [of]
        while stack:
            for node in self.readers.get(stack.pop(), {}).values():
                for name in node.outputs:
                    if name and name not in seen:
                        seen.add(name)
                        stack.append(name)
        return seen

    # Changing the graph; every change is noted in `patch`

    def begin(self) -> None:
        """Start a new patch."""
        self.patch = Patch()
        self._added = []

    def leaf(self, enode: ENode) -> str:
        """The value of an input or constant e-node; a new constant is put in."""
        for name in self.values.get(enode.cls, {}):
            if self.enode[name] is enode:
                if name in self.constants and name not in self.graph.inputs:
                    self.patch.constants[name] = self.constants[name]
                return name
        constant = self.saturated.constant_of(enode)
        assert constant is not None, "inputs are always there"
        name = self.names.fresh("constant")
        self.constants[name] = self.patch.constants[name] = constant
        self._know(name, enode)
        return name

    def node(self, enode: ENode, arguments: list[str]) -> tuple[str, ...]:
        """Outputs of a node for an e-node over these values: one that is there already, or a new one."""
        known = self._same(enode, arguments)
        if known is not None:
            return known
        outputs = tuple(self.names.fresh(enode.op.lower()) for _ in enode.outputs)
        by_class = dict(zip(enode.args, arguments))
        if enode.origin is not None and enode.kind == "op":
            node = self.maker.original(enode, by_class, outputs)
        else:
            node = self.maker.new(enode, arguments, outputs)
        self.add(node, enode)
        return outputs

    def add(self, node: Node, enode: ENode) -> None:
        """Put a new node in, as part of the patch."""
        while node.inputs and not node.inputs[-1]:
            node.inputs = node.inputs[:-1]
        self._put(node)
        self._is(node, enode)
        self._added.append(node)
        self.patch.add.append(node.copy())
        for name in node.inputs:
            if name in self.constants and name not in self.graph.inputs:
                self.patch.constants[name] = self.constants[name]
        for name, type_ in zip(node.outputs, enode.outputs):
            if type_ is not None:
                self.patch.types[name] = type_
        for index, name in enumerate(node.outputs):
            known = enode if len(node.outputs) == 1 else self.parts.get((enode.cls, index))
            if name and known is not None:
                self._know(name, known)

    def again(self, node: Node) -> dict[str, str]:
        """Put a copy of a node in, as part of the patch: its outputs by those of the node."""
        copy, fresh = node.copy(), {name: self.names.fresh(name) for name in node.outputs if name}
        copy.outputs = tuple(fresh.get(name, "") for name in node.outputs)
        self.add(copy, self.whole[id(node)])
        for old, new in fresh.items():
            if old in self.enode:
                self._know(new, self.enode[old])
        return fresh

    def _same(self, enode: ENode, arguments: list[str]) -> tuple[str, ...] | None:
        if len(enode.outputs) > 1:
            for node in self.several.get(enode.index, ()):
                live = [name for name in node.outputs if self.producer.get(name) is node]
                if live and sorted(self.arguments(live[0])) == sorted(arguments):
                    return node.outputs
            return None
        for name in self.values.get(enode.cls, {}):
            if self.enode[name] is enode and sorted(self.arguments(name)) == sorted(arguments):
                return (name,)
        return None

    def output_of(self, enode: ENode, outputs: tuple[str, ...]) -> str:
        """The value of an output e-node of a node with several."""
        name = outputs[enode.output]
        self._know(name, enode)
        return name

    def output_is(self, name: str, enode: ENode) -> None:
        """Say which e-node a new value is."""
        self._know(name, enode)

    def redirect(self, old: str, new: str) -> str:
        """Let readers of a value read another; the name that the new value has afterwards."""
        self.patch.replace[old] = new
        node = self.producer.get(old)
        self._rename_readers(old, new)
        if old in self.outputs:
            new = self._take_over(old, new)
        if node is not None:
            self._sweep(node)
        return new

    def _rename_readers(self, old: str, new: str) -> None:
        for reader in self.readers.pop(old, {}).values():
            reader.inputs = tuple(new if name == old else name for name in reader.inputs)
            for nested in reader.graphs:
                if old in nested.captured():
                    nested.rename_uses({old: new}, outputs=True)
            self.readers.setdefault(new, {})[id(reader)] = reader

    def _take_over(self, old: str, new: str) -> str:
        """Give the name of a graph output to what now computes it."""
        maker = self.producer.get(old)
        if maker is not None:
            dead = self.names.fresh(f"{old}_before")
            self._rename_output(maker, old, dead)
        made_by = self.producer.get(new)
        if made_by is None or new in self.outputs:
            handed = identity(self.graph, new, old)
            self._put(handed)
            if maker is not None:
                self._sweep(maker)
            return new
        self._rename_output(made_by, new, old)
        self._rename_readers(new, old)
        if maker is not None:
            self._sweep(maker)
        return old

    def _rename_output(self, node: Node, old: str, new: str) -> None:
        node.outputs = tuple(new if name == old else name for name in node.outputs)
        self.producer.pop(old, None)
        self.producer[new] = node
        enode = self.enode.pop(old, None)
        if enode is not None:
            entries = self.values[enode.cls]
            self.values[enode.cls] = {new if name == old else name: None for name in entries}
            self.enode[new] = enode

    def close(self) -> Patch:
        """End the patch: sweep new nodes that stayed unused, note the types of what is read."""
        for node in self._added:
            self._sweep(node)
        stays = [any(self.producer.get(name) is node for name in node.outputs if name) for node in self._added]
        self.patch.add = [copy for copy, kept in zip(self.patch.add, stays) if kept]
        self._types()
        read = {name for node in self.patch.add for name in node.uses} | set(self.patch.replace.values())
        self.patch.constants = {name: value for name, value in self.patch.constants.items() if name in read}
        return self.patch

    def _types(self) -> None:
        made = {name for node in self.patch.add for name in node.outputs}
        self.patch.types = {name: type_ for name, type_ in self.patch.types.items() if name in made}
        for name in self.patch.reads():
            enode = self.enode.get(name)
            type_ = None if enode is None else self.saturated.types.get(enode.cls)
            if type_ is not None:
                self.patch.types[name] = type_

    def live_nodes(self) -> Iterator[Node]:
        """Every node, each once, in no order."""
        seen: set[int] = set()
        for node in self.producer.values():
            if id(node) not in seen:
                seen.add(id(node))
                yield node

    def to_graph(self) -> Graph:
        """The present graph, in order."""
        graph = self.graph.copy()
        graph.nodes = [node.copy() for node in self.live_nodes()]
        read = {name for node in graph.nodes for name in node.uses} | set(graph.outputs)
        graph.constants = {name: value for name, value in self.constants.items() if name in read}
        graph.sort()
        return graph
