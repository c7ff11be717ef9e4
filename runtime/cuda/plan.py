"""A graph planned for inputs of known sizes: what is launched in order, and where every tensor lies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graphs.errors import ExecutionFailed
from graphs.ir import Graph, Node
from graphs.operators import is_pure
from graphs.types import TensorType
from runtime.arena import Span, aligned, arrange
from runtime.codegen import Kernel

from .device import Gemm
from .emitter import NeedsValue, Recorder
from .lower import Values, lower_node
from .tensor import Storage, Tensor, item_size


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel on tensors."""

    kernel: Kernel
    tensors: tuple[Tensor, ...]

    @property
    def written(self) -> tuple[Tensor, ...]:
        """What it writes, in part or whole."""
        return tuple(each for each, parameter in zip(self.tensors, self.kernel.parameters) if parameter.output)


@dataclass(frozen=True, slots=True)
class Product:
    """A matrix product."""

    gemm: Gemm
    tensors: tuple[Tensor, ...]  # a, b, c

    @property
    def written(self) -> tuple[Tensor, ...]:
        """The product."""
        return self.tensors[2:]


@dataclass(frozen=True, slots=True)
class OnHost:
    """A node that NumPy runs: inputs come down, outputs go up."""

    node: Node
    call: Callable[[Sequence[Any]], Sequence[Any]]
    inputs: tuple[Any, ...]  # tensors and other values of the host
    outputs: tuple[Tensor | None, ...]
    reason: str = ""

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All that lie on the device."""
        return (*self.fetched, *self.written)

    @property
    def written(self) -> tuple[Tensor, ...]:
        """What goes up."""
        return tuple(each for each in self.outputs if each is not None)

    @property
    def fetched(self) -> tuple[Tensor, ...]:
        """What comes down."""
        return tuple(each for each in self.inputs if isinstance(each, Tensor) and each.host is None)

    @property
    def copied_bytes(self) -> int:
        """Bytes that cross the bus for it."""
        return sum(each.size * item_size(each.dtype) for each in self.tensors)


Instruction = Launch | Product | OnHost


@dataclass
class Layout:
    """Where the storages of a plan lie in its arena, by number. `dying[i]` are the blocks (offset, size) that nobody
    needs after instruction i; `rest` the blocks that hold nothing before the first one."""

    offsets: dict[int, int]
    size: int
    without_reuse: int
    dying: list[list[tuple[int, int]]]
    rest: list[tuple[int, int]]


@dataclass
class Plan(Recorder):
    """Instructions, and the storages that they use. Values of the host are laid into `constants` once."""

    instructions: list[Instruction] = field(default_factory=list)
    constants: dict[int, Tensor] = field(default_factory=dict)  # by id of the array, which `host` keeps alive
    inputs: dict[str, Tensor] = field(default_factory=dict)
    outputs: list[Any] = field(default_factory=list)
    views: int = 0

    def mark(self) -> int:
        """How much was emitted so far."""
        return len(self.instructions)

    def rollback(self, mark: int) -> None:
        """Take back what was emitted after a mark."""
        del self.instructions[mark:]

    def launch(self, kernel: Kernel, tensors: Sequence[Tensor]) -> None:
        """Append a kernel."""
        self.instructions.append(Launch(kernel, tuple(tensors)))

    def gemm(self, gemm: Gemm, a: Tensor, b: Tensor, c: Tensor) -> None:
        """Append a matrix product."""
        self.instructions.append(Product(gemm, (a, b, c)))

    def on_device(self, tensor: Tensor) -> Tensor:
        """Give a value of the host a storage."""
        if tensor.storage is not None:
            return tensor
        assert tensor.host is not None
        found = self.constants.get(id(tensor.host))
        if found is None:
            array = np.ascontiguousarray(tensor.host)
            storage = Storage(array.nbytes, array, kept=True)
            found = Tensor(tensor.dtype, tensor.shape, Tensor.known(array).strides, 0, storage, tensor.host)
            self.constants[id(tensor.host)] = found
        return found

    def fetch(self, tensor: Tensor) -> np.ndarray:
        """Raises NeedsValue: nothing has run yet."""
        raise NeedsValue("a value that only the run gives")

    def run_on_host(self, node: Node, call: Callable[..., Any], inputs: Sequence[Any],
                    types: Sequence[TensorType | None], reason: str) -> list[Tensor | None]:
        """Append a node for NumPy. Raises NeedsValue where the sizes of its outputs are not known."""
        made: list[Tensor | None] = []
        for name, type_ in zip(node.outputs, types):
            if name and (type_ is None or not type_.is_static or type_.dtype == "string"):
                raise NeedsValue(f"the size of output {name!r} of {node.label}")
            shape: tuple[int, ...] = () if type_ is None else type_.shape  # type: ignore[assignment]
            if name and min(shape, default=0) < 0:
                raise ExecutionFailed(node.label, f"its output {name!r} would have the sizes {list(shape)}",
                                      "check that sizes of the inputs suit this node")
            made.append(Tensor.new(type_.dtype, shape) if name and type_ is not None else None)
        self.instructions.append(OnHost(node, call, tuple(inputs), tuple(made), reason))
        return made

    @property
    def on_host(self) -> list[str]:
        """Labels of the nodes that NumPy runs, and why."""
        return [f"{each.node.label}: {each.reason}" for each in self.instructions if isinstance(each, OnHost)]

    @property
    def copied_bytes(self) -> int:
        """Bytes that cross the bus in a run for nodes on NumPy."""
        return sum(each.copied_bytes for each in self.instructions if isinstance(each, OnHost))

    def prune(self) -> None:
        """Drop the instructions that only feed what nobody reads."""
        needed = _numbers(each for each in self.outputs if isinstance(each, Tensor))
        kept: list[Instruction] = []
        for each in reversed(self.instructions):
            if needed & _numbers(each.written) or (isinstance(each, OnHost) and not is_pure(each.node)):
                kept.append(each)
                needed |= _numbers(each.tensors)  # what is written in part has to be written whole
        self.instructions = kept[::-1]

    def layout(self) -> Layout:
        """Lay the storages out. Outputs of a kernel lie on an input that dies there, where the kernel allows it."""
        first, last, sizes = self._lifetimes()
        block = {number: number for number in sizes}  # storage -> the one whose block it shares
        end = len(self.instructions)
        pinned = _numbers(self.inputs.values())
        for index, each in enumerate(self.instructions):
            for new, old in _in_place(each):
                if first[new] == index == last[old] and old not in pinned and sizes[new] == sizes[old]:
                    block[new] = block[old]
                    last[block[old]] = max(last[block[old]], last[new])
        owners = [number for number in sizes if block[number] == number]
        offsets, size = arrange([Span(sizes[each], first[each], last[each]) for each in owners])
        at = dict(zip(owners, offsets))
        dying: list[list[tuple[int, int]]] = [[] for _ in self.instructions]
        for each_owner in owners:
            if last[each_owner] < end and sizes[each_owner]:
                dying[last[each_owner]].append((at[each_owner], aligned(sizes[each_owner])))
        taken = sorted((at[number], aligned(sizes[number])) for number in pinned)
        return Layout({number: at[block[number]] for number in sizes}, size,
                      sum(aligned(each) for each in sizes.values()), dying, _complement(taken, size))

    def _lifetimes(self) -> tuple[dict[int, int], dict[int, int], dict[int, int]]:
        """First and last instruction that touches each storage of the arena, and sizes. Inputs are there before the
        first one and stay for the next run, outputs stay until they are read."""
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        sizes: dict[int, int] = {}

        def touch(tensors: Iterable[Any], index: int) -> None:
            for each in tensors:
                if isinstance(each, Tensor) and each.storage is not None and each.storage.array is None:
                    number = each.storage.number
                    sizes[number] = each.storage.size
                    first.setdefault(number, index)
                    last[number] = index

        touch(self.inputs.values(), -1)
        for index, instruction in enumerate(self.instructions):
            touch(instruction.tensors, index)
        touch([*self.inputs.values(), *self.outputs], len(self.instructions))
        return first, last, sizes


def _numbers(tensors: Iterable[Tensor]) -> set[int]:
    return {each.storage.number for each in tensors if each.storage is not None}


def _in_place(instruction: Instruction) -> list[tuple[int, int]]:
    """Pairs (storage written, storage read) that may share a block, one at most for each of them."""
    if not isinstance(instruction, Launch) or not instruction.kernel.in_place:
        return []
    uses = [each.storage for each in instruction.tensors]
    found: list[tuple[int, int]] = []
    taken: set[int] = set()
    for target in instruction.written:
        for source, parameter in zip(instruction.tensors, instruction.kernel.parameters):
            new, old = target.storage, source.storage
            if parameter.output or new is None or old is None or old.array is not None or old.number in taken:
                continue
            alike = source.shape == target.shape and source.dtype == target.dtype
            whole = source.is_dense and target.is_dense and not source.offset and not target.offset
            if alike and whole and uses.count(old) == 1 and uses.count(new) == 1:
                found.append((new.number, old.number))
                taken.add(old.number)
                break
    return found


def _complement(taken: Sequence[tuple[int, int]], size: int) -> list[tuple[int, int]]:
    found, at = [], 0
    for offset, length in [*taken, (size, 0)]:
        if offset > at:
            found.append((at, offset - at))
        at = max(at, offset + length)
    return found


def plan_graph(graph: Graph, shapes: Mapping[str, tuple[str, tuple[int, ...]]], values: Values) -> Plan:
    """Plan a graph for inputs of these dtypes and shapes. Raises NeedsValue where sizes depend on data."""
    plan = Plan()
    environment: dict[str, Any] = {"": None}
    for name, (dtype, shape) in shapes.items():
        tensor = Tensor.new(dtype, shape)
        assert tensor.storage is not None
        tensor.storage.kept = True
        plan.inputs[name] = environment[name] = tensor
    for name, constant in graph.constants.items():
        environment[name] = values.constant(name, constant)
    for node in graph.nodes:
        lower_node(node, environment, plan, values)
    for name in graph.outputs:
        plan.outputs.append(environment[name])
    plan.prune()
    return plan
