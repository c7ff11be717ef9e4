"""Graph to ModelProto."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import onnx
from onnx import GraphProto, ModelProto, NodeProto, SparseTensorProto

from .. import dtypes
from ..constants import Constant
from ..errors import InvalidOption
from ..ir import Graph, NameSupply, Node
from ..operators import schema
from ..types import TensorType, Type
from ..versions import Written, verbatim_problem, write_node
from .annotations import write_annotations
from .stated import stated as stated_inside
from .tensors import SPARSE, write_tensor
from .values import is_unnamed, value_info, write_attribute, write_tied

TensorWriter = Callable[[Constant, str], onnx.TensorProto]
_FIRST_IR_WITH_FREE_INITIALIZERS = 4
_OLDEST_OWN_IR = 8  # of models that egraft makes up itself


def to_model_proto(graph: Graph, opset: int | None = None, tensor: TensorWriter = write_tensor) -> ModelProto:
    """The model of a graph, at its own opset and IR version or at another default opset.

    Raises InvalidOption where a node has no form at that opset.
    """
    model = ModelProto()
    shell = graph.extras.get("model")
    if isinstance(shell, bytes):
        model.ParseFromString(shell)
    else:
        model.producer_name = "egraft"
    writer = Writer(graph, opset, tensor)
    proto = writer.graph(graph, None)
    write_annotations(model.graph, proto, graph, tensor)
    proto.MergeFrom(model.graph)
    model.graph.CopyFrom(proto)
    model.graph.name = graph.name or "graph"
    model.doc_string = graph.doc
    if not graph.doc:
        model.ClearField("doc_string")
    for key, value in graph.metadata.items():
        model.metadata_props.add(key=key, value=value)
    for domain, version in writer.opsets.items():
        model.opset_import.add(domain=domain, version=version)
    for function in graph.functions.values():
        model.functions.add().CopyFrom(function)  # type: ignore[arg-type]
    model.ir_version = writer.ir_version
    return model


def target_opset(node: Node, opset: int, graph: Graph) -> int:
    """The opset of a node's domain when the default domain is at `opset`."""
    return opset if node.domain == "" else graph.opsets.get(node.domain, 1)


def node_problem(node: Node, opset: int, graph: Graph, type_of: Callable[[str], Type | None]) -> str | None:
    """Why a node (or one nested in it) cannot be written with the default domain at `opset`."""
    if node.is_opaque:
        if node.domain == "":
            problem = verbatim_problem(node, graph.opset, opset)
            if problem is not None:
                return problem
    else:
        written = write_node(node, target_opset(node, opset, graph), type_of)
        if isinstance(written, str):
            return written
    for inner in node.graphs:
        inner_type = _typed(inner, type_of)
        for each in inner.nodes:
            problem = node_problem(each, opset, graph, inner_type)
            if problem is not None:
                return problem
    return None


def _typed(graph: Graph, outer: Callable[[str], Type | None] | None) -> Callable[[str], Type | None]:
    def type_of(name: str) -> Type | None:
        if name in graph.constants:
            return graph.constants[name].type
        if name in graph.types:
            return graph.types[name]
        return outer(name) if outer is not None else None

    return type_of


def _info_type(graph: Graph, name: str, other: Type | None) -> Type | None:
    """The type that a value of the interface is written with: what is declared of it, else what is known."""
    return graph.declared.get(name) or other or graph.type_of(name) or graph.types.get(name)


def writable(node: Node, opset: int, graph: Graph) -> str | None:
    """None if a node of a graph can be written at a default opset, else the reason why not."""
    return node_problem(node, opset, graph, _typed(graph, None))


class Writer:
    """Writes one model."""

    def __init__(self, graph: Graph, opset: int | None, tensor: TensorWriter) -> None:
        self.root, self.tensor = graph, tensor
        self.opset = opset if opset is not None else graph.opset or onnx.defs.onnx_opset_version()
        self.moved = opset is not None and opset != graph.opset
        self.opsets = dict(graph.opsets)
        if opset is not None or any(node.domain == "" for each in graph.walk() for node in each.nodes):
            self.opsets[""] = self.opset
        for each in graph.walk():
            for node in each.nodes:
                self.opsets.setdefault(node.domain, 1)
        self.ir_version = self._ir_version()
        self.names = NameSupply(graph.names() | set(graph.defaults))
        shapes = [type_.shape or () for name in dict.fromkeys([*graph.inputs, *graph.outputs])
                  if isinstance(type_ := _info_type(graph, name, graph.types.get(name)), TensorType)]
        uses = Counter(dim for shape in shapes for dim in shape if is_unnamed(dim))
        self.tied = {dim for dim, count in uses.items() if count > 1}  # without names they would be read as different

    def _ir_version(self) -> int:
        own = self.root.ir_version
        if own and not self.moved:
            return own
        imports = [onnx.helper.make_opsetid(domain, version) for domain, version in self.opsets.items()
                   if domain in ("", "ai.onnx.ml")]
        try:
            needed = onnx.helper.find_min_ir_version_for(imports) if imports else _OLDEST_OWN_IR
        except ValueError as error:
            if not self.moved:  # newer than onnx knows, of a file that states no IR version
                return own or onnx.IR_VERSION
            raise InvalidOption("opset", f"opset {self.opset} is unknown to onnx {onnx.__version__}",
                                "choose an older opset") from error
        return max(own or _OLDEST_OWN_IR, needed)

    def graph(self, graph: Graph, outer: Callable[[str], Type | None] | None) -> GraphProto:
        """The GraphProto of a graph; `outer` is given for nested graphs."""
        proto = GraphProto(name=graph.name or "graph")
        if graph.doc and outer is not None:
            proto.doc_string = graph.doc
        type_of = _typed(graph, outer)
        listed = self._listed(graph, proto, nested=outer is not None)
        created: dict[Constant, str] = {}
        nodes: list[NodeProto] = []
        ordered = replace(graph, nodes=list(graph.nodes))
        ordered.sort()
        for node in ordered.nodes:
            nodes.append(self._node(node, graph, proto, type_of, created))
        front: list[NodeProto] = []
        for name, constant in graph.constants.items():
            as_node = outer is not None and name in graph.outputs
            self._constant(proto, front, name, constant, name in listed, as_node)
        for constant, name in created.items():
            self._constant(proto, front, name, constant, False, False)
        proto.node.extend(front)
        proto.node.extend(nodes)
        self._interface(graph, proto, type_of, nested=outer is not None)
        return proto

    def _listed(self, graph: Graph, proto: GraphProto, nested: bool) -> set[str]:
        """Write the inputs; old files list initializers there too. Returns those."""
        order = graph.extras.get("input_order")
        names = list(graph.inputs)
        listed: set[str] = set()
        if self.ir_version < _FIRST_IR_WITH_FREE_INITIALIZERS and not nested and isinstance(order, tuple):
            listed = {name for name in order if name in graph.constants}
            rest = iter(graph.inputs)
            if [name for name in order if name not in listed] == graph.inputs:
                names = [name if name in listed else next(rest) for name in order]
            else:
                names += [name for name in order if name in listed]
        for name in names:
            proto.input.append(self._info(graph, name, None if name not in listed else graph.constants[name].type))
        for name, constant in graph.defaults.items():
            proto.initializer.append(self.tensor(constant, name))
        return listed

    def _info(self, graph: Graph, name: str, type_: Type | None) -> onnx.ValueInfoProto:
        infos = graph.extras.get("value_infos")
        stated = infos.get(name) if isinstance(infos, dict) else None
        found = _info_type(graph, name, type_)
        if stated is not None and (stated[0] == graph.declared.get(name) or name in graph.constants):
            info = onnx.ValueInfoProto.FromString(stated[1])
        else:
            info = value_info(name, found)
        if graph is self.root:
            write_tied(info, found, self.tied)
        return info

    def _interface(self, graph: Graph, proto: GraphProto, type_of: Callable[[str], Type | None],
                   nested: bool) -> None:
        made = set(graph.inputs) | set(graph.constants) | {out for node in graph.nodes for out in node.outputs}
        for name in graph.outputs:
            info = self._info(graph, name, type_of(name))
            if nested and name not in made:  # runtimes refuse to hand out a value of the graph around
                info.name = self.names.fresh(f"{name}_out")
                proto.node.add(op_type="Identity", input=[name], output=[info.name])
            proto.output.append(info)
        infos = graph.extras.get("value_infos")
        stated = infos if isinstance(infos, dict) else {}
        for node in graph.nodes:
            for name in node.outputs if node.is_opaque else ():
                if name in stated and name not in graph.outputs and stated[name][0] == graph.declared.get(name):
                    proto.value_info.append(onnx.ValueInfoProto.FromString(stated[name][1]))
        proto.value_info.extend(stated_inside(graph))

    def _constant(self, proto: GraphProto, front: list[NodeProto], name: str, constant: Constant, listed: bool,
                  as_node: bool) -> None:
        """An initializer, or a Constant node where initializers would have to be inputs."""
        sparse = constant.__dict__.get(SPARSE)
        old = self.ir_version < _FIRST_IR_WITH_FREE_INITIALIZERS and not listed
        as_node = as_node or old
        if isinstance(sparse, onnx.AttributeProto):
            front.append(NodeProto(op_type="Constant", output=[name], attribute=[sparse]))
        elif isinstance(sparse, SparseTensorProto) and not as_node:
            copy = proto.sparse_initializer.add()
            copy.CopyFrom(sparse)
            copy.values.name = name
        elif as_node and self._holds_constant(constant):
            node = onnx.helper.make_node("Constant", [], [name])
            node.attribute.add(name="value", type=onnx.AttributeProto.TENSOR).t.CopyFrom(write_tensor(constant, ""))
            front.append(node)
        else:
            if old:
                proto.input.append(value_info(name, constant.type))
            proto.initializer.append(self.tensor(constant, name))

    def _holds_constant(self, constant: Constant) -> bool:
        found = schema("Constant", self.opset)
        return found is not None and dtypes.schema_type(constant.dtype) in found.outputs[0].types

    def _node(self, node: Node, graph: Graph, owner: GraphProto, type_of: Callable[[str], Type | None],
              created: dict[Constant, str]) -> NodeProto:
        written = self._written(node, type_of)
        proto = NodeProto(op_type=node.op, name=node.name, domain=node.domain, overload=node.overload,
                          doc_string=node.doc)
        for field in ("name", "domain", "overload", "doc_string"):
            if not getattr(proto, field):
                proto.ClearField(field)
        stem = next((name for name in node.outputs if name), node.op)
        for given in written.inputs:
            if isinstance(given, str):
                proto.input.append(given)
                continue
            role, constant = given
            if constant not in created:
                # Not `squeeze_axes`: ONNX Runtime 1.32 puts an initializer of that very name beside those of the model.
                created[constant] = self.names.fresh(f"{stem}.{role}")
            proto.input.append(created[constant])
        proto.output.extend(node.outputs)
        for name, value, kind in written.attrs:
            proto.attribute.append(write_attribute(name, value, kind, lambda inner: self.graph(inner, type_of)))
        for key, text in node.metadata.items():
            proto.metadata_props.add(key=key, value=text)
        return proto

    def _written(self, node: Node, type_of: Callable[[str], Type | None]) -> Written:
        if node.is_opaque:
            problem = verbatim_problem(node, self.root.opset, self.opset) if node.domain == "" else None
            written: Written | str = write_node(node, 0, type_of)
        else:
            problem, written = None, write_node(node, self.opsets[node.domain], type_of)
        if problem is not None or isinstance(written, str):
            raise InvalidOption(node.label, problem or str(written), f"write at another opset than {self.opset}")
        return written
