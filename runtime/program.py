"""A graph prepared once for many runs: numbered slots for values, one closure a node, values freed after last use.

Elementwise arithmetic writes into an operand that nobody needs any more. Whether that is so is not guessed from the
graph but counted: an array that owns its memory and that nothing else refers to (no view, no constant, no feed, no
list) is free to be overwritten. Freed arrays are otherwise left to the allocator: handing them out again through
`out=` measured no faster than a fresh array, writing in place 1.7 times as fast.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np

from graphs.errors import EgraftError, ExecutionFailed
from graphs.ir import Graph, Node
from graphs.operators import is_pure
from graphs.types import TensorType

from .execute import FUSED_DOMAIN, Context, Hooks, NodeFunction, prepare, replaced
from .order import VIEWS
from .settled import remembering, settled_nodes

Environment = list[Any]
Step = Callable[[Environment], None]
ABSENT = 0  # the slot that always holds None
LINE = 64  # bytes
GROWTH = 16  # the part of it that memory of a result may be larger, so that more lies in it before

IN_PLACE_BYTES = 32768  # below this an allocation costs less than finding out whether the operand is free
IN_PLACE: dict[str, np.ufunc] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Neg": np.negative, "Abs": np.absolute,
    "Sqrt": np.sqrt, "Exp": np.exp, "Tanh": np.tanh,
}  # fmt: skip
_NATIVE_FLOATS = (np.dtype(np.float32), np.dtype(np.float64))


def references(array: np.ndarray) -> int:
    return sys.getrefcount(array)


def _sole_references() -> int:
    """What `references` says of an array that only one local variable of the caller holds."""
    array = np.zeros(1)
    return references(array)


SOLE = _sole_references()


class Program:
    """`run(values)` executes a graph on the values of its inputs, followed by those of the names it captures."""

    def __init__(self, graph: Graph, context: Context) -> None:
        self.graph = graph
        self.captured = tuple(graph.captured())
        self._slots: dict[str, int] = {"": ABSENT}
        self._template: Environment = [None]
        self._lazy_constants = context.hooks.constant
        self.arguments = [self._slot(name) for name in (*graph.inputs, *self.captured)]
        for name, constant in graph.constants.items():
            slot = self._slot(name)
            if self._lazy_constants is None:
                self._template[slot] = constant.array
        for node in graph.nodes:
            for name in node.outputs:
                self._slot(name)
        self.results = [self._slots[name] for name in graph.outputs]
        self.steps: list[tuple[Step, tuple[int, ...]]] = []
        self.nodes: list[Node | None] = []  # of each step; None loads a constant
        self._kept: set[int] = set()  # slots of values that outlive a run
        self._runs: list[tuple[Step, tuple[int, ...], int]] = []  # steps, or several as one; with places
        self._made_of: list[tuple[Any, ...]] = []  # of each step: slots read, written and dying; name and constant
        self._build(context)

    def _slot(self, name: str) -> int:
        if name not in self._slots:
            self._slots[name] = len(self._template)
            self._template.append(None)
        return self._slots[name]

    def _reads(self, node: Node) -> list[int]:
        inner = dict.fromkeys(name for graph in node.graphs for name in graph.captured()) if node.holds_graphs else ()
        return [self._slots[name] for name in (*node.inputs, *inner)]

    def _build(self, context: Context) -> None:
        read = [self._reads(node) for node in self.graph.nodes]
        last = {slot: index for index, reads in enumerate(read) for slot in reads}
        resident = set() if self._lazy_constants else {self._slots[name] for name in self.graph.constants}
        kept = {ABSENT, *self.results, *resident}
        waiting = dict(self.graph.constants) if self._lazy_constants else {}
        plain = context.hooks == Hooks()
        settled = settled_nodes(self.graph) if plain else set()
        inside = replace(context, around=self.graph)
        functions: list[NodeFunction] = []
        for index, (node, reads) in enumerate(zip(self.graph.nodes, read, strict=True)):
            for name in node.uses if waiting else ():
                if name in waiting:
                    self._add_constant(name, waiting.pop(name))
            writes = [self._slots[name] for name in node.outputs]
            dying = {slot for slot in reads if last[slot] == index and slot not in kept}
            function = prepare(node, inside, self.graph.types)
            if index in settled:
                self._kept.update(writes)
                own = [place for place, name in enumerate(node.inputs) if name in self.graph.constants]
                step = _general_step(remembering(node, function, own), reads, writes)
            else:
                step = _step(node, function, reads, writes, dying, context)
            unread = {slot for slot in writes if slot not in last and slot not in kept}
            frees = tuple(sorted(dying | unread))
            self._add(step, node, frees, (reads, writes, dying))
            functions.append(function)
        for name in self.graph.outputs:
            if name in waiting:
                self._add_constant(name, waiting.pop(name))
        self._runs = self._one_by_one()
        if plain and any(node.domain == FUSED_DOMAIN for node in self.graph.nodes):
            self._join(functions, settled)

    def _one_by_one(self) -> list[tuple[Step, tuple[int, ...], int]]:
        return [(step, frees, place) for place, (step, frees) in enumerate(self.steps)]

    def _join(self, functions: Sequence[NodeFunction], settled: set[int]) -> None:
        """Run fused nodes that follow each other as one."""
        from .fusion import FusedFunction, lone_function
        from .joined import FUSED, LONE, PLAIN, SETTLED, VIEW, Planned, Stretch, joined

        constants = {self._slots[name] for name in self.graph.constants}
        threads = next((each.threads for each in functions if isinstance(each, FusedFunction)), 1)
        planned: list[Planned] = []
        for index, (node, function) in enumerate(zip(self.graph.nodes, functions)):
            (step, frees), (reads, writes, _) = self.steps[index], self._made_of[index]
            kind, lone = PLAIN, None
            typed = all(isinstance(self.graph.type_of(name), TensorType) for name in node.inputs if name)
            if index in settled and typed and ABSENT not in writes:
                kind = SETTLED
            elif ABSENT in (*reads, *writes) or not typed:
                kind = PLAIN
            elif isinstance(function, FusedFunction):
                kind = FUSED
            elif self._is_view(node) and self._kept.union(constants).issuperset(reads[1:]):
                kind = VIEW
            elif (lone := lone_function(self.graph, node, function, threads)) is not None:
                kind = LONE
                step = _row_major(step, writes)
                self.steps[index] = step, frees  # in all runs alike: what reads it may sum in another order else
            planned.append(Planned(index, step, tuple(slot for slot in reads if slot != ABSENT), tuple(writes), frees,
                                   kind, lone or function))
        self._runs = [(part, (), part.steps[0].index) if isinstance(part, Stretch) else
                      (part.run, part.frees, part.index)
                      for part in joined(planned, constants, self._kept, self._fail)]

    def _is_view(self, node: Node) -> bool:
        if node.op == "Gather" and not node.domain:  # of one place of an axis
            index = self.graph.type_of(node.inputs[1])
            return index is not None and index.shape == () and not node.is_opaque
        return node.op in VIEWS and not node.domain and not node.is_opaque

    def _add(self, step: Step, node: Node | None, frees: tuple[int, ...], made_of: tuple[Any, ...]) -> None:
        self.steps.append((step, frees))
        self.nodes.append(node)
        self._made_of.append(made_of)

    def _add_constant(self, name: str, constant: Any) -> None:
        self._add(self._load_constant(name, constant), None, (), (name, constant))

    def variant(self, context: Context, differs: Callable[[Node], bool]) -> Program:
        """The same graph, prepared with other hooks of the same kind, constants loaded one by one: nodes for which they
        do the same share their functions. `differs`: the hook for nodes changes it otherwise."""
        assert self._lazy_constants is not None and context.hooks.constant is not None
        other = copy(self)
        other._lazy_constants = context.hooks.constant
        other.steps = [(other._again(step, node, made_of, context, differs), frees) for (step, frees), node, made_of
                       in zip(self.steps, self.nodes, self._made_of, strict=True)]
        other._runs = other._one_by_one()
        return other

    def _again(self, step: Step, node: Node | None, made_of: tuple[Any, ...], context: Context,
               differs: Callable[[Node], bool]) -> Step:
        if node is None:
            return self._load_constant(*made_of)
        reads, writes, dying = made_of
        types = self.graph.types
        alone = differs(node) or node.holds_graphs or not is_pure(node)  # opaque and fused nodes and calls are not pure
        function = prepare(node, context, types) if alone else replaced(node, context, types)
        return step if function is None else _step(node, function, reads, writes, dying, context)

    def _load_constant(self, name: str, constant: Any) -> Step:
        load, slot = self._lazy_constants, self._slots[name]
        assert load is not None

        def step(env: Environment) -> None:
            env[slot] = load(name, constant)

        return step

    def _start(self, values: Sequence[Any]) -> Environment:
        env = self._template.copy()
        for slot, value in zip(self.arguments, values):
            env[slot] = value
        return env

    def run(self, values: Sequence[Any]) -> list[Any]:
        """The output values. They may be inputs, captured values, constants or views: see `Session.run`."""
        env = self._start(values)
        index = 0
        try:
            for step, frees, index in self._runs:  # noqa: B007 - the handler reads it
                step(env)
                for slot in frees:
                    env[slot] = None
        except Exception as reason:
            self._fail(index, reason)
        return [env[slot] for slot in self.results]

    def run_counting(self, values: Sequence[Any]) -> tuple[list[Any], int, int]:
        """`run`; the largest number of bytes that node outputs held at one time; how many there were in all."""
        env, index, live, peak, written = self._start(values), 0, 0, 0, 0
        holders: dict[int, int] = {}
        foreign = {id(owner) for value in env for owner in owners(value)}
        seen: dict[int, list[tuple[int, int]]] = {}
        try:
            for index, (step, frees) in enumerate(self.steps):
                step(env)
                node = self.nodes[index]
                for slot in [self._slots[name] for name in node.outputs if name] if node else []:
                    seen[slot] = [(id(o), o.nbytes) for o in owners(env[slot]) if id(o) not in foreign]
                    for key, size in seen[slot]:
                        live += 0 if holders.get(key) else size
                        written += 0 if holders.get(key) else size
                        holders[key] = holders.get(key, 0) + 1
                peak = max(peak, live)
                for slot in frees:
                    env[slot] = None
                    for key, size in seen.pop(slot, []) if slot not in self._kept else ():
                        holders[key] -= 1
                        live -= 0 if holders[key] else size
        except Exception as reason:
            self._fail(index, reason)
        return [env[slot] for slot in self.results], peak, written

    def _fail(self, index: int, reason: Exception) -> None:
        if isinstance(reason, EgraftError):
            raise reason
        node = self.nodes[index]
        where = node.label if node else f"constants of graph {self.graph.name!r}"
        raise ExecutionFailed(where, f"{type(reason).__name__}: {reason}",
                              "check that sizes and values of the inputs suit this node") from reason


def _row_major(step: Step, writes: Sequence[int]) -> Step:
    """With results as a kernel writes them; NumPy's may lie like its operands."""
    def run(env: Environment) -> None:
        step(env)
        for slot in writes:
            env[slot] = np.array(env[slot], order="C", copy=None)

    return run


def owners(value: object) -> list[np.ndarray]:
    """The arrays whose memory a value (an array or a sequence) occupies."""
    if isinstance(value, list):
        return [owner for item in value for owner in owners(item)]
    if not isinstance(value, np.ndarray):
        return []
    while isinstance(value.base, np.ndarray):
        value = value.base
    return [value]


def _step(node: Node, function: NodeFunction, reads: list[int], writes: list[int], dying: set[int],
          context: Context) -> Step:
    ufunc = IN_PLACE.get(node.op) if not node.domain and not node.is_opaque else None
    if ufunc is not None and len(writes) == 1:
        may_overwrite = context.hooks.function is None and context.hooks.node is None
        return _elementwise_step(ufunc, function, reads, writes[0], dying if may_overwrite else set())
    if len(writes) != 1:
        return _general_step(function, reads, writes)
    target = writes[0]
    if len(reads) == 1:
        source = reads[0]

        def unary(env: Environment) -> None:
            env[target] = function((env[source],))[0]

        return unary
    if len(reads) == 2:
        left, right = reads

        def binary(env: Environment) -> None:
            env[target] = function((env[left], env[right]))[0]

        return binary

    def step(env: Environment) -> None:
        env[target] = function([env[slot] for slot in reads])[0]

    return step


def _general_step(function: NodeFunction, reads: list[int], writes: list[int]) -> Step:
    named = [(position, slot) for position, slot in enumerate(writes) if slot != ABSENT]

    def step(env: Environment) -> None:
        found = function([env[slot] for slot in reads])
        for position, slot in named:
            env[slot] = found[position]

    return step


def _elementwise_step(ufunc: np.ufunc, function: NodeFunction, reads: list[int], target: int,
                      dying: set[int]) -> Step:
    """Float32 and float64 go to the ufunc itself, which is what the kernel calls in the end."""
    candidates = [position for position, slot in enumerate(reads) if slot in dying]
    first, last = reads[0], reads[-1]

    def step(env: Environment) -> None:
        dtype = env[first].dtype
        if dtype not in _NATIVE_FLOATS or env[last].dtype != dtype:
            env[target] = function([env[slot] for slot in reads])[0]
            return
        values = [env[slot] for slot in reads]
        for position in candidates:
            value = values[position]
            if value.nbytes < IN_PLACE_BYTES or value.base is not None:
                continue
            if len(values) == 2 and not _fits_into(values[1 - position], value):
                continue
            env[reads[position]] = values[position] = None
            if references(value) == SOLE and value.flags.writeable:
                values[position] = value
                env[target] = ufunc(*values, out=value)
                return
            env[reads[position]] = values[position] = value
        found = ufunc(*values)
        env[target] = found if type(found) is np.ndarray else np.asarray(found)  # rank 0 comes as a NumPy scalar

    return step


def _fits_into(other: np.ndarray, value: np.ndarray) -> bool:
    return other.shape == value.shape or np.broadcast(other, value).shape == value.shape


def detached(values: list[Any]) -> list[Any]:
    """Values as arrays of their own, copied only where something else refers to their memory. Empties the list."""
    own = []
    for index in range(len(values)):
        value = values[index]
        values[index] = None
        if isinstance(value, np.generic):
            value = np.asarray(value)
        own.append(value.copy() if isinstance(value, np.ndarray) and not _is_sole(value) else _copied(value))
    return own


def _is_sole(value: np.ndarray) -> bool:
    # Two references more than in `_sole_references`: the caller's variable is this function's argument as well.
    if references(value) != _SOLE_ARGUMENT or not value.flags.writeable:
        return False
    base = value.base
    if base is None:
        return True
    # Memory of the engine begins at a line of the cache somewhere in its array, and may be a little larger.
    most = value.nbytes + value.nbytes // GROWTH + LINE
    whole = isinstance(base, np.ndarray) and base.base is None and base.nbytes <= most
    return whole and references(base) == SOLE + 1  # type: ignore[arg-type]  # `value` refers to it too


def _count_argument(value: np.ndarray) -> int:
    return references(value)


def _sole_argument() -> int:
    array = np.zeros(1)
    return _count_argument(array)


_SOLE_ARGUMENT = _sole_argument()


def _copied(value: object) -> object:
    if isinstance(value, list):
        return [item.copy() if isinstance(item, np.ndarray) else _copied(item) for item in value]
    return value


def constants_of(graph: Graph) -> Mapping[str, Any]:
    """Names and constants of a graph and of those nested in it."""
    return {name: constant for each in graph.walk() for name, constant in each.constants.items()}
