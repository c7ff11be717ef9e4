"""LSTM, GRU and RNN of float32: kernels by themselves, which the engine computes whole (`native/recurrent.h`)."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from graphs.ir import Graph, Node
from runtime.kernels.recurrent import named_activations

from .. import address
from .launch import STEP_WORDS, Made, address_of, at, panels
from .lowering import Values
from .native import engine
from .tiles import THREAD_WORK, Packs, is_plain
from .views import NotFusable

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
DEFAULTS = {"RNN": ("Tanh",), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh")}
DTYPES = frozenset({"float32", "int32"})  # of data and of lengths
FEW = 3  # sequences that are computed without a product like others
_CELLS = {"RNN": 0, "GRU": 1, "LSTM": 3}
_LATE = 2  # a GRU whose reset gate multiplies what the product has made
_FUNCTIONS = {"sigmoid": 0, "tanh": 1, "relu": 2}
_X, _W, _R, _BIAS, _LENGTHS, _H0, _C0, _PEEPHOLES = range(8)  # inputs, as ONNX and the engine number them
_STATES = (_H0, _C0)
_PLANNED = (0,) * 32  # what `eg_plan_recurrent` sets, addresses, memory


def is_recurrent(node: Node) -> bool:
    """Whether a node is one of these operators."""
    return node.op in GATES and not node.domain and not node.is_opaque


@dataclass(frozen=True)
class Recurrent:
    """A recurrent node as a step of a plan: `sources` of what it reads and writes are (argument, bytes into it), or
    (-1, address), 0 where there is none. `words` are those of an `eg_recurrent` before what is packed."""

    cell: int
    words: tuple[int, ...]
    sources: tuple[tuple[int, int], ...]
    hidden: int
    width: int
    directions: int
    rows: int  # steps times sequences
    batch: int
    told: bool  # lengths that are too long
    keeps: tuple[object, ...]

    @property
    def gates(self) -> int:
        """Columns of all gates."""
        return self.hidden * (GATES["LSTM"] if self.cell == _CELLS["LSTM"] else GATES["GRU"] if self.cell else 1)

    @property
    def work(self) -> int:
        """Products of two numbers."""
        return self.directions * self.rows * self.gates * (self.width + self.hidden)

    @property
    def kind(self) -> tuple[object, ...]:
        """What parts of the engine it uses."""
        return self.cell, self.batch > FEW

    def step(self, addresses: Sequence[int], threads: int, packs: Packs) -> Made:
        """As a step of a call. `addresses` of the arguments: of those that `packs` calls fixed they stay."""
        second = self.hidden if self.cell == _CELLS["GRU"] else 0
        weights = {_W: (self.gates, 0, self.width), _R: (self.gates - second, second, self.hidden)}
        packed = {which: self._packed(which, sizes, packs, addresses) for which, sizes in weights.items()
                  if self.sources[which][0] in packs.fixed}
        plain = [which in packed and is_plain(packed[which]) for which in weights]
        job = array("q", [*self.words, *(which in packed for which in weights), *plain,
                          max(1, min(threads, self.work // THREAD_WORK)), *_PLANNED])
        room = int(engine().eg_plan_recurrent(at(job)))
        sources = array("q", [number for which, source in enumerate(self.sources) for number in
                              ((-1, address_of(packed[which])) if which in packed else source)])
        words = array("q", [0, at(sources), *[0] * (STEP_WORDS - 4), at(job), 0])
        return Made(words, sources, (self, job, packed), room)

    def _packed(self, which: int, sizes: tuple[int, int, int], packs: Packs, addresses: Sequence[int]) -> np.ndarray:
        """The weights of all directions as panels."""
        argument, start = self.sources[which]
        key = "recurrent", argument, start, self.directions, sizes
        if key not in packs.made:
            first, second, depth = sizes
            wide = int(engine().eg_width())
            columns = sum(-(-each // wide) * wide for each in (first, second))
            packs.made[key] = panels(self.directions * columns * depth)
            engine().eg_pack_gates(addresses[argument] + start, self.directions, first, second, depth,
                                   address_of(packs.made[key]))
        return packs.made[key]


def recurrent_of(values: Values, place: Mapping[str, int], fault: int, exact: bool) -> Recurrent | None:
    """The recurrent node of a graph that has nothing else; None where it has none. Raises NotFusable."""
    graph = values.graph
    if not any(is_recurrent(node) for node in graph.nodes):
        return None
    if len(graph.nodes) > 1:
        raise NotFusable("a recurrent operator with others")
    (node,) = graph.nodes
    if exact:
        raise NotFusable(f"{node.op}, whose bits would not be those of the unfused kernel")
    kinds = {which: values.dtypes[name] for which, name in enumerate(node.inputs) if name}
    if kinds.pop(_LENGTHS, "int32") != "int32" or set(kinds.values()) != {"float32"}:
        raise NotFusable(f"{node.op} of other than float32")
    if any(name not in node.outputs for name in graph.outputs):
        raise NotFusable("an output that no node makes")
    return _made(values, node, place, fault)


def _named(node: Node, which: int) -> str:
    return node.inputs[which] if which < len(node.inputs) else ""


def _made(values: Values, node: Node, place: Mapping[str, int], fault: int) -> Recurrent:
    shape, attrs = values.shapes[_named(node, _X)], node.attrs
    backward = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[str(attrs["direction"])]
    layout, directions, hidden = bool(attrs.get("layout")), len(backward), values.shapes[_named(node, _R)][-1]
    (batch, steps) = shape[:2] if layout else shape[1::-1]
    width, gates, cell = shape[2], GATES[node.op] * hidden, _CELLS[node.op]
    if node.op == "GRU" and attrs.get("linear_before_reset"):
        cell = _LATE
    states = (batch, directions, hidden) if layout else (directions, batch, hidden)
    wanted = {_W: (directions, gates, width), _R: (directions, gates, hidden), _BIAS: (directions, 2 * gates),
              _LENGTHS: (batch,), _H0: states, _C0: states, _PEEPHOLES: (directions, 3 * hidden)}
    known = (*wanted, _X) if node.op == "LSTM" else tuple(each for each in (*wanted, _X) if each <= _H0)
    names = {which: _named(node, which) for which in known if _named(node, which)}
    kept: list[np.ndarray] = []
    for which, name in names.items():
        _check(values, name, wanted.get(which, tuple(shape)), which == _X)
    sources = [_source(values, names.get(which, ""), place, kept, which in _STATES) for which in range(_PEEPHOLES + 1)]
    outputs = [*node.outputs, "", "", ""][:3]
    sources += [(place[name], 0) if name in values.graph.outputs else (-1, 0) for name in outputs]
    x, y = values.strides[_named(node, _X)], address.contiguous(
        (batch, steps, directions, hidden) if layout else (steps, directions, batch, hidden))
    of_states, functions = address.contiguous(states), _functions(node, directions)
    bound = np.array([attrs.get("clip") or 0], np.float32)
    if bound[0] < 0:
        raise NotFusable("a negative clip")
    words = (cell, directions, backward[0], steps, batch, width, hidden,
             *((x[1], x[0], x[2]) if layout else (x[0], x[1], x[2])),
             *((y[1], y[2], y[0]) if layout else (y[0], y[1], y[2])),
             *((of_states[1], of_states[0]) if layout else (of_states[0], of_states[1])),
             bool(attrs.get("input_forget")), address_of(bound) if bound[0] else 0, at(functions))
    return Recurrent(cell, tuple(map(int, words)), (*sources, (fault, 0)), hidden, width, directions, steps * batch,
                     batch, _LENGTHS in names and any(backward), (bound, functions, *kept))


def _check(values: Values, name: str, wanted: tuple[int, ...], moved: bool) -> None:
    """Only the data may lie in any way."""
    shape = tuple(values.shapes[name])
    if shape != wanted:
        raise NotFusable(f"{name} is {list(shape)} and not {list(wanted)}")
    steps = zip(shape, values.strides[name], address.contiguous(shape))
    if not moved and any(size != 1 and own != step for size, own, step in steps):
        raise NotFusable(f"{name} is not row-major")


def _source(values: Values, name: str, place: Mapping[str, int], kept: list[np.ndarray],
            is_state: bool) -> tuple[int, int]:
    """Where an input comes from. One number in all places is no argument: it is written out, zeros of a state apart."""
    if name in place or not name:
        return (place[name], 0) if name else (-1, 0)
    constant = values.graph.constants[name]
    if is_state and constant.facts.splat == 0:
        return -1, 0
    kept.append(np.ascontiguousarray(constant.array))
    return -1, address_of(kept[-1])


def _functions(node: Node, directions: int) -> array[int]:
    """The numbers of three activations for each direction."""
    try:
        named = named_activations(node.attrs, DEFAULTS[node.op], directions)
    except NotImplementedError as reason:
        raise NotFusable(str(reason)) from reason
    found = array("q")
    for each in named:
        unknown = [name for name, _, _ in each if name not in _FUNCTIONS]
        if unknown:
            raise NotFusable(f"{node.op} with {unknown[0]}")
        found.extend(([_FUNCTIONS[name] for name, _, _ in each] + [0, 0])[:3])
    return found


def may_be_kernel(graph: Graph, node: Node) -> bool:
    """Whether a recurrent node may be a kernel, as far as can be told before sizes are known."""
    types = [graph.type_of(name) for name in (*node.inputs, *node.outputs) if name]
    return is_recurrent(node) and all(type_ is not None and type_.shape is not None and type_.dtype in DTYPES
                                      for type_ in types)
