"""Which nodes give the same bits in every runtime: what class `exact` may compute beforehand.

IEEE 754 defines + - * / and the square root to the bit, ONNX what moves, compares and rounds elements. Sums, products
of matrices and functions like exp have an order or an approximation of the runtime's own; what picks the largest (Max,
Clip, ArgMax, TopK, pools) does as it likes with NaN and the sign of zero. Casts of floats to integers and text are
defined only for some values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from graphs.dtypes import FLOATS
from graphs.ir import Graph, Node
from graphs.types import TensorType, Type

_NAMES = """
    Abs Add And BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Ceil Compress Concat ConstantOfShape DepthToSpace
    Div Equal Expand EyeLike Flatten Floor Gather GatherElements GatherND Greater GreaterOrEqual Identity IsInf IsNaN
    Less LessOrEqual Mul Neg NonZero Not OneHot Or Pad Relu Reshape ReverseSequence Round ScatterElements ScatterND
    Shape Size Slice SpaceToDepth Split Sqrt Squeeze Sub Tile Transpose Trilu Unsqueeze Where Xor
"""
OPERATORS = frozenset(_NAMES.split())
EXACT_DTYPES = frozenset({"bool", "string", "int4", "uint4", "int2", "uint2", *(f"{sign}int{bits}" for sign in ("", "u")
                                                                                for bits in (8, 16, 32, 64))})


def is_reproducible(graph: Graph, node: Node) -> bool:
    """Does every runtime compute the same bits?"""
    inputs, outputs = ([graph.type_of(name) for name in names if name] for names in (node.inputs, node.outputs))
    return gives_same_bits(node.op, node.domain, node.attrs, inputs, outputs)


def gives_same_bits(op: str, domain: str, attrs: Mapping[str, object], inputs: Sequence[Type | None],
                    outputs: Sequence[Type | None]) -> bool:
    """`is_reproducible` of a node with these types: so are the operators above (those that scatter only without adding
    up), casts to floats, and all others on integers, bools and strings alone."""
    if not domain and op in OPERATORS:
        return attrs.get("reduction") in (None, "none")
    types = [*inputs, *outputs]
    if op in ("Cast", "CastLike") and not domain and all(isinstance(type_, TensorType) for type_ in types):
        source, target = types[0].dtype, types[-1].dtype  # type: ignore[union-attr]
        if target in FLOATS and source in (*FLOATS, *EXACT_DTYPES - {"string"}):
            return True
    return all(isinstance(type_, TensorType) and type_.dtype in EXACT_DTYPES for type_ in types)
