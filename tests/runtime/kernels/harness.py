"""Runs single operators three ways: our record and kernel, ONNX Runtime, and ONNX's reference and inference.

`canonical` is a small reader of its own, so that these tests do not lean on `graphs.onnx_io`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import onnx
from onnx import helper

from graphs.constants import Constant
from graphs.dims import evaluate, symbol
from graphs.dtypes import ONNX_NUMBER, name_of
from graphs.operators import REQUIRED, Site, find, schema
from graphs.types import TensorType
from runtime.kernels import OUTPUTS
from runtime.kernels import find as find_kernel

Arrays = Sequence["np.ndarray | None"]


def make_model(
    op: str, inputs: Arrays, opset: int, outputs: int = 1, symbolic: bool = False, **attrs: object
) -> onnx.ModelProto:
    """A model of one node; absent inputs are None."""
    names = ["" if array is None else f"i{index}" for index, array in enumerate(inputs)]
    while names and not names[-1]:
        names.pop()
    results = [f"o{index}" for index in range(outputs)]
    infos = [
        helper.make_tensor_value_info(
            name,
            ONNX_NUMBER[name_of(array.dtype)],
            [f"d{index}_{axis}" for axis in range(array.ndim)] if symbolic else array.shape,
        )
        for index, (name, array) in enumerate(zip(names, inputs))
        if array is not None
    ]
    given = {name: value for name, value in attrs.items() if value is not None}
    node = helper.make_node(op, names, results, **given)  # type: ignore[arg-type]
    graph = helper.make_graph([node], "test", infos, [helper.make_empty_tensor_value_info(r) for r in results])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def run_ort(model: onnx.ModelProto, inputs: Arrays) -> list[np.ndarray]:
    """ONNX Runtime without its graph optimizations."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {f"i{k}": array for k, array in enumerate(inputs) if array is not None})


def plain_attribute(attribute: onnx.AttributeProto) -> object:
    """An ONNX attribute as canonical nodes hold it."""
    value = helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, (list, tuple)) or type(value).__name__.startswith("Repeated"):
        return tuple(item.decode() if isinstance(item, bytes) else item for item in value)
    return value


def canonical(
    op: str, attrs: Mapping[str, object], inputs: Arrays, opset: int, runtime: bool = False
) -> tuple[dict[str, object], list[np.ndarray | None]] | None:
    """Canonical attributes and inputs of a node; None where the record keeps it opaque.

    `runtime` says that inputs which may become attributes do not (they arrive as RUNTIME ones, already read).
    """
    record, found = find(op), schema(op, opset)
    if record is None or found is None or found.since_version not in record.versions:
        return None
    out: dict[str, object] = {
        name: plain_attribute(a.default_value) for name, a in found.attributes.items() if a.default_value.name
    }
    out.update(attrs)
    arrays = list(inputs)
    for name, index in record.static.items():
        is_input = len(found.inputs) > index and name not in found.attributes
        array = arrays[index] if is_input and index < len(arrays) else None
        if array is not None:
            out[name] = array.item() if array.ndim == 0 else tuple(array.tolist())
            arrays[index] = None
    if record.read is not None:
        read = record.read(out, found.since_version)
        if read is None:
            return None
        out = read
    for name, default in record.attrs.items():
        if name not in out:
            assert default is not REQUIRED, f"{op} needs {name}"
            out[name] = default
    assert set(out) == set(record.attrs), (op, sorted(out), sorted(record.attrs))
    return out, arrays


def evaluate_ours(op: str, attrs: Mapping[str, object], inputs: Arrays, outputs: int = 1) -> list[np.ndarray]:
    """Our kernel on a canonical node."""
    function = find_kernel(op)
    assert function is not None
    arrays = list(inputs)
    while arrays and arrays[-1] is None:
        arrays.pop()
    before = [None if array is None else array.copy() for array in arrays]
    with np.errstate(all="ignore"):
        results = [np.asarray(array) for array in function({**attrs, OUTPUTS: outputs}, arrays)]
    for old, new in zip(before, arrays):
        if old is not None and new is not None and new.dtype != object:
            assert old.tobytes() == new.tobytes(), f"{op} wrote into an input"
    return results


@dataclass
class Inferred:
    """Types from static and from symbolic input shapes, and the sizes of the symbols."""

    static: list[object]
    symbolic: list[object]
    sizes: dict[str, int]


def infer_ours(op: str, attrs: Mapping[str, object], inputs: Arrays, outputs: int = 1) -> Inferred:
    """Our inference, with known and with symbolic input shapes."""
    record = find(op)
    assert record is not None
    sizes: dict[str, int] = {}
    inputs = list(inputs)
    while inputs and inputs[-1] is None:
        inputs.pop()
    static: list[TensorType | None] = []
    dynamic: list[TensorType | None] = []
    for index, array in enumerate(inputs):
        if array is None:
            static.append(None)
            dynamic.append(None)
            continue
        names = [f"d{index}_{axis}" for axis in range(array.ndim)]
        sizes.update(zip(names, array.shape))
        static.append(TensorType(name_of(array.dtype), array.shape))
        dynamic.append(TensorType(name_of(array.dtype), tuple(symbol(name) for name in names)))
    contents = [
        tuple(int(v) for v in a.ravel()) if a is not None and a.dtype.kind in "iub" and a.size <= 64 else None
        for a in inputs
    ]
    constants = [None if array is None else Constant.of(array) for array in inputs]
    nothing: list[None] = [None] * len(constants)
    known = record.infer(Site(op, attrs, static, contents, constants, outputs, "n"))
    unknown = record.infer(Site(op, attrs, dynamic, nothing, nothing, outputs, "n"))
    return Inferred(list(known), list(unknown), sizes)


def check_types(op: str, attrs: Mapping[str, object], inputs: Arrays, results: Sequence[np.ndarray]) -> None:
    """Our inference against arrays that were really computed."""
    inferred = infer_ours(op, attrs, inputs, len(results))
    for kind, types in (("static", inferred.static), ("symbolic", inferred.symbolic)):
        assert len(types) == len(results), f"{op}: {len(types)} types for {len(results)} outputs"
        for type_, array in zip(types, results):
            if not isinstance(type_, TensorType):
                assert kind == "symbolic", f"{op}: no type"
                continue
            assert type_.dtype == name_of(array.dtype), f"{op}: {type_} for {array.dtype}"
            if type_.shape is None:
                continue
            sizes = [evaluate(dim, inferred.sizes) for dim in type_.shape]
            assert len(sizes) == array.ndim, f"{op}: {kind} {type_} for {array.shape}"
            for size, real in zip(sizes, array.shape):
                if kind == "static" or size is not None:
                    assert size == real or (kind == "static" and size is None), f"{op}: {type_} for {array.shape}"


TOLERANCE = {"float32": (2e-5, 2e-6), "float64": (1e-9, 1e-10), "float16": (4e-3, 2e-3), "bfloat16": (3e-2, 2e-2)}


def check_close(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray | None], slack: float = 1.0) -> None:
    """Same dtype, shape and (within rounding) values; NaN and infinities in the same places."""
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs):
        if b is None:
            continue
        b = np.asarray(b)
        assert a.shape == b.shape, (a.shape, b.shape)
        assert a.dtype == b.dtype, (a.dtype, b.dtype)
        if a.dtype.name in TOLERANCE:
            relative, absolute = TOLERANCE[a.dtype.name]
            np.testing.assert_allclose(
                a.astype(np.float64), b.astype(np.float64), rtol=relative * slack, atol=absolute * slack
            )
        elif a.dtype.kind == "V" or a.dtype.name in dir(ml_dtypes):
            np.testing.assert_array_equal(a.astype(np.float32), b.astype(np.float32))
        else:
            np.testing.assert_array_equal(a, b)


def compare(op: str, inputs: Arrays, opset: int, outputs: int = 1, slack: float = 1.0,
            may_be_opaque: bool = False, **attrs: object) -> None:
    """Our kernel and inference against ONNX Runtime for one node.

    Skips what ONNX Runtime has no implementation of (float64 in places).
    """
    model = make_model(op, inputs, opset, outputs, **attrs)  # type: ignore[arg-type]
    given = {a.name: plain_attribute(a) for a in model.graph.node[0].attribute}
    form = canonical(op, given, inputs, opset)
    if form is None and may_be_opaque:
        return
    assert form is not None, f"{op} is opaque at {opset}"
    try:
        theirs = run_ort(model, inputs)
    except Exception as reason:
        if "NOT_IMPLEMENTED" not in str(reason):
            raise
        return
    ours = evaluate_ours(op, *form, outputs)
    check_close(ours, theirs, slack)
    check_types(op, *form, theirs)
    back = find(op).write  # type: ignore[union-attr]
    if back is not None:
        version = schema(op, opset).since_version  # type: ignore[union-attr]
        assert back(dict(form[0]), version) is not None, f"{op} cannot be written back at {opset}"
