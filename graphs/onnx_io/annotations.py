"""What a file says about the quantization of its values (`TensorAnnotation`): kept for those that are still there."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from onnx import GraphProto, TensorAnnotation, TensorProto

from ..constants import Constant
from ..ir import Graph

EXTRA = "annotated"  # key of the tensors that annotations name, among a graph's extras


def annotated(proto: GraphProto, graph: Graph) -> dict[str, Constant]:
    """The tensors (scales, zero points) that annotations name: no node need read them."""
    return {name: graph.constants[name] for each in proto.quantization_annotation
            for name in _parameters(each) if name in graph.constants}


def write_annotations(shell: GraphProto, proto: GraphProto, graph: Graph,
                      tensor: Callable[[Constant, str], TensorProto]) -> None:
    """Drop from `shell` what the old file says about values that are gone; add the tensors that the rest names."""
    tensors: Mapping[str, Constant] = graph.extras.get(EXTRA, {})  # type: ignore[assignment]
    there = {name for node in proto.node for name in node.output} | {info.name for info in proto.input}
    there |= {each.name for each in proto.initializer}
    taken = graph.names() | there

    def holds(name: str) -> bool:
        return name not in tensors or name not in taken or graph.constants.get(name) == tensors[name]

    kept = [each for each in shell.quantization_annotation
            if each.tensor_name in there and all(holds(name) for name in _parameters(each))]
    for name in dict.fromkeys(name for each in kept for name in _parameters(each)):
        if name in tensors and name not in there:
            proto.initializer.append(tensor(tensors[name], name))
    if len(kept) < len(shell.quantization_annotation):
        del shell.quantization_annotation[:]
        shell.quantization_annotation.extend(kept)


def _parameters(annotation: TensorAnnotation) -> list[str]:
    return [entry.value for entry in annotation.quant_parameter_tensor_names]
