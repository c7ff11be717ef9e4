"""What a gradient row sees of its node, and the tape on which all nodes are built."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from graphs.builder import Builder, Value
from graphs.constants import Constant
from graphs.dtypes import is_float
from graphs.errors import NotDifferentiable
from graphs.inference import infer_node
from graphs.ir import Node
from graphs.operators import RUNTIME
from graphs.types import TensorType


def float_dtype(b: Builder, name: str) -> str | None:
    """The element type of a value if gradients flow through it: a float type, or a type that is not known ('')."""
    type_ = b.scope.lookup(name)[0]
    if type_ is None:
        return ""
    return type_.dtype if isinstance(type_, TensorType) and is_float(type_.dtype) else None


class Site:
    """One node of the graph that is differentiated.

    `s[i]` is input i as a value of the builder `s.b`, `s.get(i)` is None where it is absent; `s.out` is output 0 and
    `s.output(k)` output k, which the node is made to compute if it did not. `s.operands` are the inputs, then the
    values that nested graphs of the node capture (named `s.names`).
    """

    def __init__(self, b: Builder, node: Node, active: frozenset[str] | set[str]) -> None:
        self.b, self.node, self._active = b, node, active
        captured = [name for name in node.uses if name not in node.inputs] if node.holds_graphs else []
        self.names: tuple[str, ...] = (*node.inputs, *captured)
        self._shared: dict[str, Value] = {}

    @property
    def attrs(self) -> Mapping[str, object]:
        """Canonical attributes."""
        return self.node.attrs

    @property
    def operands(self) -> list[Value | None]:
        """Inputs and captured values, None where absent."""
        return [self.get(index) for index in range(len(self.names))]

    def get(self, index: int) -> Value | None:
        """Operand `index`, None where it is absent."""
        name = self.names[index] if index < len(self.names) else ""
        return Value(self.b, name) if name else None

    def __getitem__(self, index: int) -> Value:
        found = self.get(index)
        assert found is not None, f"{self.node.label} has no input {index}"
        return found

    def rank(self, index: int) -> int:
        """The number of axes of operand `index`; a row that needs it cannot do without."""
        shape = self[index].shape
        if shape is None:
            raise self.fail(f"the rank of {self.names[index]!r} is not known")
        return len(shape)

    def constant(self, index: int) -> Constant | None:
        """Operand `index` where it is a constant."""
        name = self.names[index] if index < len(self.names) else ""
        return self.b.scope.lookup(name)[2] if name else None

    def static(self, name: str, index: int) -> object:
        """A static attribute as the builder takes it: the value, or the input that gives it when the graph runs."""
        return self[index] if self.attrs[name] is RUNTIME else self.attrs[name]

    def shared(self, key: str, build: Callable[[], Value]) -> Value:
        """What several inputs' derivatives have in common, built once for this node."""
        if key not in self._shared:
            self._shared[key] = build()
        return self._shared[key]

    def fail(self, found: str) -> NotDifferentiable:
        """The error to raise for a node that the row cannot handle."""
        return NotDifferentiable(self.node.label, f"the gradient of {self.node.op} cannot be built: {found}",
                                 "differentiate by values that do not reach the output through this node, or "
                                 "express it by other operators")

    def wants(self, index: int) -> bool:
        """Whether a cotangent of operand `index` is of use: it depends on what is differentiated by."""
        name = self.names[index] if index < len(self.names) else ""
        return bool(name) and name in self._active and float_dtype(self.b, name) is not None

    @property
    def out(self) -> Value:
        """Output 0."""
        return self.output(0)

    def output(self, index: int) -> Value:
        """Output `index`; the node computes it from now on if it did not name it."""
        node = self.node
        if index >= len(node.outputs) or not node.outputs[index]:
            names = list(node.outputs) + [""] * (index + 1 - len(node.outputs))
            names[index] = self.b.fresh(f"{names[0] or node.op.lower()}_{index}")
            node.outputs = tuple(names)
            found = [self.b.scope.lookup(name) if name else (None, None, None) for name in node.inputs]
            types = infer_node(node, [each[0] for each in found], [each[1] for each in found],
                               [each[2] for each in found], self.b.scope.path + names[0]).types
            if types[index] is not None:
                self.b.scope.types[names[index]] = types[index]  # type: ignore[assignment]
        return Value(self.b, node.outputs[index])

    def again(self, inputs: Sequence[Value | None]) -> list[Value | None]:
        """The outputs of the same operator on other inputs (without captured ones)."""
        node = self.node
        made = self.b.op(node.op, *inputs[: len(node.inputs)], outputs=max(len(node.outputs), 1), domain=node.domain,
                         **node.attrs)  # type: ignore[arg-type]
        return [made] if isinstance(made, Value) else list(made)
