"""E-nodes as text over the names of the graph's values, for reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from graphs.canonical import complete, version_at
from graphs.ir import Node
from graphs.operators import find
from graphs.text import print_constant, print_node, quote

from .saturated import ENode, Saturated
from .terms import SMALL

DEPTH = 4  # of calls inside a call
SHORT = 40  # characters of a constant without a name


class Speaker:
    """Says e-nodes as lines of the text form; what no value of the graph equals stands inside the line as a call."""

    def __init__(self, saturated: Saturated) -> None:
        self.saturated = saturated
        self.names: dict[int, str] = {}  # class -> the first value of the graph in it
        for name, label in saturated.encoded.labels.items():
            self.names.setdefault(saturated.classes[label], name)

    def lines(self, enodes: Sequence[ENode]) -> list[str]:
        """One line for each e-node, but for those that stand inside the line of another one."""
        forms = {enode.cls: enode for enode in enodes if enode.cls not in self.names}
        read = {arg for enode in enodes for arg in enode.args}
        return [self._line(enode, forms) for enode in enodes if enode.cls not in forms or enode.cls not in read]

    def place(self, label: int) -> str:
        """The value of the graph that a label equals, or how it is computed."""
        return self._value(self.saturated.classes[label], {}, 0)

    def _line(self, enode: ENode, forms: Mapping[int, ENode]) -> str:
        if enode.origin is not None:
            return print_node(self.saturated.graph.nodes[enode.origin])
        name = self.names.get(enode.cls)
        call = self._call(enode, forms, 0)
        return call if name is None else f"{quote(name)} = {call}"

    def _value(self, cls: int, forms: Mapping[int, ENode], depth: int) -> str:
        name = self.names.get(cls)
        if name is not None:
            return quote(name)
        enode = forms.get(cls) or self._simplest(cls)
        return self._call(enode, forms, depth + 1) if enode is not None else "..."

    def _simplest(self, cls: int) -> ENode | None:
        """A leaf, or what was made first."""
        enodes = [enode for enode in self.saturated.by_class.get(cls, ()) if cls not in enode.args]
        return min(enodes, key=lambda enode: (enode.kind != "leaf", enode.index), default=None)

    def _call(self, enode: ENode, forms: Mapping[int, ENode], depth: int) -> str:
        if enode.kind == "leaf":
            return self._leaf(enode)
        if depth > DEPTH:
            return "..."
        args = ["" if arg < 0 else self._value(arg, forms, depth) for arg in enode.args]
        if enode.kind == "proj":
            whole = forms.get(enode.args[0]) or self._simplest(enode.args[0])
            return f"{self._call(whole, forms, depth) if whole is not None else '...'}[{enode.output}]"
        head, attributes = _spelled(enode, self.saturated.graph.opsets)
        return f"{head}({', '.join([*args, *attributes])})"

    def _leaf(self, enode: ENode) -> str:
        constant = self.saturated.constant_of(enode)
        if constant is None:
            return "..."
        text = print_constant(constant) if constant.size <= SMALL else ""
        return text if text and len(text) <= SHORT else f"{constant.type} constant"


def _spelled(enode: ENode, opsets: Mapping[str, int]) -> tuple[str, list[str]]:
    """Operator and attributes as the text form has them."""
    record = find(enode.op, enode.domain)
    if enode.spelling is None or isinstance(enode.spelling, str) or record is None:
        return enode.op, []
    record = find(enode.spelling.op, enode.domain) or record
    node = Node(enode.spelling.op, (), ("y",), complete(record, enode.spelling.attrs), enode.domain,
                version=version_at(enode.spelling.op, enode.domain, opsets.get(enode.domain, opsets.get("", 1))))
    head, _, rest = print_node(node).partition(" = ")[2].partition("(")
    return head, [rest[:-1]] if rest[:-1] else []
