"""Fused nodes: several nodes of a graph as one `egraft.Fused` node, whose body is a graph of them.

The body says what the node means. Where a C compiler is, it runs as one kernel (`runtime.codegen.c`); without one, for
sizes that have no kernel, and where a run is watched node by node, the body runs as it stands. Equal bodies have equal
texts, and share one kernel in a process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import onnx
import onnx.helper

from graphs import dims
from graphs.constants import Constant
from graphs.errors import ExecutionFailed
from graphs.ir import FUSED_VERSION, Graph, Node, is_fused
from graphs.operators import RUNTIME, find, is_pure
from graphs.structure import drop_unused_constants
from graphs.text import parse_graph, print_graph
from graphs.types import TensorType, Type

from .codegen.c import FusedKernel, NotFusable, Packs, unavailable
from .codegen.c.fused import Call
from .codegen.c.indexing import GATHERS
from .codegen.c.lowering import DTYPES, rules
from .execute import FUSED_DOMAIN, Context, Hooks, NodeFunction, Values
from .program import Program

DOMAIN, OP = FUSED_DOMAIN, "Fused"
BODY, EXACT, VARIANT = "body", "exact", "variant"
CALL, EXACT_CALL = "Fused_", "FusedExact_"  # how names of functions begin
CONSTANT = "w"  # how names of inputs begin that are constants where the body was taken from
_FIRST_IR_WITH_FUNCTIONS = 8


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes of a graph (by their places) that become one, whose last one makes `output`; `others` are values of them
    that are needed outside as well. Other nodes that others need too stay as well: they are computed twice. `variant`:
    how a GPU launches the kernel, where that is not as usual (`codegen.c.cuda.Variant` as text)."""

    nodes: tuple[int, ...]
    output: str
    others: tuple[str, ...] = ()
    variant: str = ""

    @property
    def outputs(self) -> tuple[str, ...]:
        """All values that leave the group."""
        return self.output, *self.others


def is_fusable(graph: Graph, node: Node) -> bool:
    """Whether a node may be part of a kernel, as far as can be told before sizes are known."""
    if node.is_opaque or (node.domain, node.op) not in rules() or not is_pure(node):
        return False
    if any(value is RUNTIME for value in node.attrs.values()):
        return False
    for name in (*node.inputs, *node.outputs):
        type_ = graph.type_of(name) if name else None
        if name and (type_ is None or type_.shape is None or type_.dtype not in DTYPES):
            return False
    return node.op == "Split" or len([name for name in node.outputs if name]) == 1


def is_movement(node: Node) -> bool:
    """An operator that a kernel reads through. One that reads by indices is none: it checks them."""
    record = find(node.op, node.domain)
    return node.op == "Identity" or (record is not None and record.movement and node.op not in GATHERS)


def is_splat(constant: Constant | None) -> bool:
    """A constant with one number in all places is part of a kernel's text; others are its inputs."""
    if constant is None or not constant.size:
        return False
    if constant.size > 1 and constant.array.flat[0] != constant.array.flat[-1]:  # facts of large weights take long
        return False
    return constant.facts.splat is not None


def body_of(graph: Graph, group: Group, types: Mapping[str, Type] | None = None) -> tuple[Graph, list[str]]:
    """The nodes of a group as a graph of their own, and the values of the graph around that are its inputs.

    Names and the order of nodes are canonical: of groups that compute the same, bodies print the same. Inputs that are
    constants in the graph are called `w0`, `w1`, ... (`constant_inputs`), others `x0`, `x1`, .... `types` replace
    those of the graph (with sizes in the place of symbols).
    """
    known = dict(graph.types) if types is None else dict(types)
    producers = {name: graph.nodes[index] for index in group.nodes for name in graph.nodes[index].outputs if name}
    ranks = _ranks(graph, producers, known)
    own = {name: f"y{place or ''}" for place, name in enumerate(group.outputs)}
    body = Graph("fused", outputs=list(own.values()), opsets=dict(graph.opsets))
    renamed: dict[str, str] = {}
    inputs: list[str] = []

    def visit(name: str) -> str:
        if name in renamed or not name:
            return renamed.get(name, "")
        node = producers.get(name)
        if node is None:
            _add_source(graph, name, body, inputs, renamed, known)
            return renamed[name]
        order = _order(node, ranks)
        found = {index: visit(node.inputs[index]) for index in order}
        outputs = []
        for each in node.outputs:
            renamed[each] = own.get(each) or (f"v{len(renamed)}" if each else "")
            outputs.append(renamed[each])
            if each in known:
                body.types[renamed[each]] = known[each]
        arguments = [found[index] for index in sorted(found)]
        if order != sorted(order):  # operands may be exchanged: in the order of their ranks
            arguments = [found[index] for index in order]
        body.nodes.append(Node(node.op, tuple(arguments), tuple(outputs), dict(node.attrs), node.domain,
                               version=node.version))
        return renamed[name]

    for name in group.outputs:
        visit(name)
    body.declared = {name: body.types[name] for name in (*body.inputs, *body.outputs) if name in body.types}
    return body, inputs


def _add_source(graph: Graph, name: str, body: Graph, inputs: list[str], renamed: dict[str, str],
                types: Mapping[str, Type]) -> None:
    constant = graph.constants.get(name)
    if constant is not None and is_splat(constant):
        renamed[name] = f"k{len(renamed)}"
        body.constants[renamed[name]] = constant
        return
    renamed[name] = f"{'x' if constant is None else CONSTANT}{len(inputs)}"
    inputs.append(name)
    body.inputs.append(renamed[name])
    found = types.get(name) or graph.type_of(name)
    if found is not None:
        body.types[renamed[name]] = found


def _ranks(graph: Graph, producers: Mapping[str, Node], types: Mapping[str, Type]) -> dict[str, str]:
    """A digest of what each value is, whatever its name, to order the operands that may be exchanged."""
    found: dict[str, str] = {}

    def rank(name: str) -> str:
        if name not in found:
            node, constant = producers.get(name), graph.constants.get(name)
            if node is not None:
                ranks = [rank(each) for each in node.inputs]
                ranks = sorted(ranks) if _may_be_exchanged(node) else ranks
                text = f"{node.op} {sorted(node.attrs.items(), key=str)} {ranks} {node.outputs.index(name)}"
            elif constant is not None and is_splat(constant):
                text = constant.digest
            else:
                text = f"{'outer' if constant is None else 'constant'} {types.get(name) or graph.type_of(name)}"
            found[name] = hashlib.sha256(text.encode()).hexdigest()[:16]
        return found[name]

    for node in producers.values():
        for name in (*node.inputs, *node.outputs):
            if name:
                rank(name)
    return found


def _may_be_exchanged(node: Node) -> bool:
    record = find(node.op, node.domain)
    return record is not None and record.commutative and len(node.inputs) == 2


def _order(node: Node, ranks: Mapping[str, str]) -> list[int]:
    order = list(range(len(node.inputs)))
    if _may_be_exchanged(node):
        order.sort(key=lambda index: ranks.get(node.inputs[index], ""))
    return order


def constant_inputs(body: Graph) -> frozenset[int]:
    """The places of the inputs that are constants in the graph that a body was taken from."""
    return frozenset(place for place, name in enumerate(body.inputs) if name.startswith(CONSTANT))


def signature(body: Graph) -> str:
    """What identifies a body: its text without the graph's name."""
    return hashlib.sha256(print_graph(body).encode()).hexdigest()[:24]


def fuse(graph: Graph, groups: Iterable[Group], exact: bool = False) -> Graph:
    """A copy of the graph with a Fused node for each group; nodes and constants that nothing needs any more are gone.

    Raises InvalidModel where groups of several outputs need each other.
    """
    made = graph.copy()
    replaced: dict[int, Node] = {}
    for group in groups:
        root = max(group.nodes)
        body, inputs = body_of(graph, group)
        first = next(graph.nodes[index].name or graph.nodes[index].outputs[0] for index in group.nodes)
        origins = tuple(dict.fromkeys(name for index in group.nodes for name in
                                      (graph.nodes[index].origins or (graph.nodes[index].name,)) if name))
        body.opsets = {}  # as a nested graph's: those of the graph around it
        attrs: dict[str, object] = {BODY: body, EXACT: int(exact)}
        if group.variant:
            attrs[VARIANT] = group.variant
        replaced[root] = Node(OP, tuple(inputs), group.outputs, attrs, DOMAIN, f"fused_{first}", FUSED_VERSION,
                              origins=origins)
    elsewhere = {name for node in replaced.values() for name in node.outputs}
    made.nodes = [replaced.get(index, node) for index, node in enumerate(made.nodes)
                  if index in replaced or elsewhere.isdisjoint(node.outputs)]
    made.sort()  # what reads one of several outputs may have stood before the others were made
    needed, kept = set(made.outputs), []
    for node in reversed(made.nodes):
        if needed & set(node.outputs) or not is_pure(node):
            needed.update(node.uses)
            kept.append(node)
    made.nodes = kept[::-1]
    drop_unused_constants(made)  # those of bodies are in them now
    return made


def prepare_fused(node: Node, context: Context) -> NodeFunction:
    """The function of a Fused node."""
    body = node.attrs[BODY]
    assert isinstance(body, Graph)
    # Nodes of a body are no nodes of the model: none of them is replaced.
    inner = replace(context, hooks=replace(context.hooks, function=None))
    return fused_function(body, bool(node.attrs.get(EXACT)), inner, node.inputs, node.label)


def fused_function(body: Graph, exact: bool, context: Context, names: Sequence[str], label: str = "") -> NodeFunction:
    """A body as one kernel, or node by node where there is none. `names` are what its inputs are called around it:
    constants of the graph are packed for products once. `label`: of the node, which errors name."""
    slow: list[Program] = []

    def by_nodes(values: Values) -> Values:
        if not slow:
            slow.append(Program(body, context))
        try:
            return slow[0].run(values)
        except ExecutionFailed as error:  # names of a body tell nobody where it is
            raise ExecutionFailed(f"{error.where} in {label}" if label else error.where, error.found,
                                  error.fix) from error

    if context.hooks != Hooks() or unavailable() is not None:
        return by_nodes
    known = (context.around or context.model).constants
    constants = [(place, known[name]) for place, name in enumerate(names) if name in known]
    return FusedFunction(kernel_of(body, exact), constants, context.threads, by_nodes)


class FusedFunction:
    """The function of a Fused node that has a kernel. `constants`: places of its inputs with what the model has."""

    def __init__(self, kernel: FusedKernel, constants: Sequence[tuple[int, Constant]], threads: int,
                 by_nodes: NodeFunction) -> None:
        self.kernel, self.constants, self.threads, self.by_nodes = kernel, constants, threads, by_nodes
        self.packs = Packs(frozenset(place for place, _ in constants))

    def _packs(self, values: Values) -> Packs | None:
        # A name may stand for something else where a call is: only the very same arrays are known to be constant.
        for place, constant in self.constants:
            if values[place] is not constant.array:
                return None
        return self.packs

    def __call__(self, values: Values) -> Values:
        try:
            return self.kernel(*values, threads=self.threads, packs=self._packs(values))
        except NotFusable:
            return self.by_nodes(values)

    def call_of(self, values: Values) -> Call | None:
        """How the engine is called with these arrays; None where it does not read them as they lie."""
        return self.kernel.call_of(values, self.threads, self._packs(values))


LONE = frozenset({"Concat", "Gather"})  # beside pointwise operators


def lone_function(graph: Graph, node: Node, function: NodeFunction, threads: int) -> FusedFunction | None:
    """The function of a pointwise node, a Concat, a Gather or a Pad that mirrors by itself as a kernel, with the same
    bits; None for others. It gains nothing alone, but lets kernels around it run in one call."""
    record = find(node.op, node.domain)
    if node.op == "Pad" and not node.domain and not node.is_opaque:
        mirrored = _mirrored(graph, node)
        return None if mirrored is None else FusedFunction(kernel_of(mirrored, True), (), threads, function)
    if record is None or not (record.pointwise or node.op in LONE) or not is_fusable(graph, node):
        return None
    names = [f"x{place}" for place in range(len(node.inputs))]
    types = dict(zip((*names, "y"), (graph.type_of(name) for name in (*node.inputs, node.outputs[0]))))
    body = Graph("lone", names, ["y"], [Node(node.op, tuple(names), ("y",), dict(node.attrs), node.domain,
                                             version=node.version)],
                 types={name: type_ for name, type_ in types.items() if type_ is not None}, opsets=dict(graph.opsets))
    return FusedFunction(kernel_of(body, True), (), threads, function)


def _mirrored(graph: Graph, node: Node) -> Graph | None:
    """A Pad that mirrors one axis, as slices that are joined. They are shorter than it where the axis is: the engine
    does not take what has another shape."""
    type_, pads, axes = graph.type_of(node.inputs[0]), node.attrs["pads"], node.attrs["axes"]
    if node.attrs["mode"] != "reflect" or not isinstance(pads, tuple) or not isinstance(axes, tuple | None) \
            or type_ is None or type_.shape is None or type_.dtype not in DTYPES:
        return None
    half = len(pads) // 2
    wide = [place for place in range(half) if pads[place] or pads[half + place]]
    if len(wide) != 1 or min(pads) < 0:
        return None
    place, = wide
    axis, before, after = place if axes is None else axes[place], pads[place], pads[half + place]
    parts, made = ["x"], []
    if before:
        parts.insert(0, "a")
        made.append(f"a = Slice(x, starts=[{before}], ends=[0], axes=[{axis}], steps=[-1])")
    if after:
        parts.append("b")
        made.append(f"b = Slice(x, starts=[-2], ends=[{-2 - after}], axes=[{axis}], steps=[-1])")
    lines = "\n".join([*made, f"y = Concat({', '.join(parts)}, axis={axis})"])
    return parse_graph(f'graph "mirrored" opset 18 (x: {type_}) -> (y) {{\n{lines}\n}}')


def kernel_of(body: Graph, exact: bool) -> FusedKernel:
    """The kernel of a body, one for all bodies with its text."""
    return _kernel(_Body(body), exact)


class _Body:
    """A body that is equal to those that print the same."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.text = graph, print_graph(graph)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Body) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)


@lru_cache(maxsize=1024)
def _kernel(body: _Body, exact: bool) -> FusedKernel:
    return FusedKernel(body.graph, exact)


def as_functions(graph: Graph) -> Graph:
    """A copy whose Fused nodes are calls of model-local functions, as an ONNX file can hold them. Their bodies are
    plain ONNX, so that any runtime can run them; this one knows their names and runs each as one kernel again."""
    from graphs.onnx_io import to_model_proto

    made = graph.copy()
    for each in made.walk():
        for index, node in enumerate(each.nodes):
            body = node.attrs.get(BODY) if is_fused(node) else None
            if not isinstance(body, Graph):
                continue
            variant = f"{node.attrs[VARIANT]}_" if node.attrs.get(VARIANT) else ""
            name = f"{EXACT_CALL if node.attrs.get(EXACT) else CALL}{variant}{signature(body)[:16]}"
            key = DOMAIN, name, ""
            if key not in made.functions:
                whole = body.copy()
                whole.opsets = body.opsets or dict(made.opsets)
                made.functions[key] = _function(name, to_model_proto(whole))
            each.nodes[index] = Node(name, node.inputs, node.outputs, {}, DOMAIN, node.name, 0, node.doc,
                                     dict(node.metadata), node.origins)
    if made.functions:
        made.opsets.setdefault(DOMAIN, 1)
        made.ir_version = max(made.ir_version, _FIRST_IR_WITH_FUNCTIONS)
    return made


def _function(name: str, model: onnx.ModelProto) -> onnx.FunctionProto:
    body = model.graph
    constants = [onnx.helper.make_node("Constant", [], [each.name], value=each) for each in body.initializer]
    return onnx.helper.make_function(DOMAIN, name, [each.name for each in body.input],
                                     [each.name for each in body.output], [*constants, *body.node], model.opset_import)


def is_fused_call(node: Node) -> bool:
    """Whether a node calls a function that `as_functions` made."""
    return node.domain == DOMAIN and node.op.startswith((CALL, EXACT_CALL))


def is_exact_call(node: Node) -> bool:
    """Whether such a call is of class exact."""
    return node.op.startswith(EXACT_CALL)


def variant_of_call(node: Node) -> str:
    """How a GPU launches the kernel of such a call; empty for the usual way."""
    found, _, digest = node.op.removeprefix(EXACT_CALL).removeprefix(CALL).rpartition("_")
    return found if digest else ""


def with_sizes(graph: Graph, sizes: Mapping[str, int]) -> dict[str, Type]:
    """Types of all values with sizes in the place of symbols, where they tell."""
    found: dict[str, Type] = {}
    for name, type_ in graph.types.items():
        if isinstance(type_, TensorType) and type_.shape is not None:
            shape = [dims.evaluate(dim, sizes) if isinstance(dim, dims.Expr) else dim for dim in type_.shape]
            found[name] = TensorType(type_.dtype, tuple(dim if size is None else size
                                                        for dim, size in zip(type_.shape, shape)))
        else:
            found[name] = type_
    return found
