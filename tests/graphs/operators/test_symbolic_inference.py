"""Inference against what kernels make: with static sizes, with symbols for sizes, and with less and less known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest

from graphs import dims
from graphs.canonical import newest_opset
from graphs.constants import Constant
from graphs.dtypes import name_of
from graphs.inference import contents_of, infer_site
from graphs.operators import RUNTIME, Contents, Site, find
from graphs.types import TensorType
from runtime.execute import evaluate
from tests.runtime.kernels import cases_movement  # noqa: F401 (fills CASES)
from tests.runtime.kernels.cases import CASES, DTYPES, make
from tests.runtime.kernels.models import model_of, node_of

SEEDS = range(12)
OUTPUTS = {"Split": 3, "TopK": 2, "Unique": 4}
Arrays = list["np.ndarray | None"]


def drawn(op: str, seed: int) -> tuple[dict[str, object], Arrays, Arrays]:
    dtype = DTYPES[op][seed % len(DTYPES[op])]
    attrs, inputs = make(op, seed, dtype)
    node = node_of(op, attrs, inputs, OUTPUTS.get(op, 1), 1)
    return attrs, inputs, evaluate(node, inputs)


def symbolic(shape: tuple[int, ...]) -> tuple[dims.DimLike, ...]:
    """Sizes of 2 and more as symbols, equal ones as the same symbol."""
    return tuple(dims.symbol(f"s{size}") if size > 1 else size for size in shape)


SIZES = {f"s{size}": size for size in range(2, 1000)}


def check(op: str, site: Site, results: Arrays, complete: bool) -> None:
    record = find(op)
    assert record is not None
    found = infer_site(record, site)
    for type_, array in zip(found.types, results):
        assert array is not None and isinstance(type_, TensorType), (site, found)
        assert type_.dtype == name_of(array.dtype)
        if type_.shape is None:
            assert not complete, (site, found)
            continue
        assert len(type_.shape) == array.ndim, (site, type_, array.shape)
        for dim, size in zip(type_.shape, array.shape):
            value = dims.evaluate(dim, SIZES)
            assert value == size or (value is None and not complete), (site, str(type_), array.shape)
    if found.contents is not None:
        elements = tuple(dims.evaluate(item, SIZES) for item in found.contents)
        assert results[0] is not None
        assert elements == tuple(int(item) for item in results[0].ravel()), (site, found.contents)


def site_of(op: str, attrs: dict[str, object], inputs: Arrays, outputs: int, types: Sequence[TensorType | None],
            contents: Sequence[Contents | None], constants: Sequence[Constant | None]) -> Site:  # fmt: skip
    return Site(op, attrs, types, contents, constants, outputs, "out")


def constant(array: np.ndarray | None) -> Constant | None:
    return None if array is None else Constant.of(array)


# What only data tell, even where all else is known.
BY_DATA = {"NonZero", "Unique"}


@pytest.mark.parametrize("op", sorted(CASES))
def test_static(op: str) -> None:
    for seed in SEEDS:
        attrs, inputs, results = drawn(op, seed)
        constants = [constant(array) for array in inputs]
        types = [None if each is None else each.type for each in constants]
        contents = [None if each is None else contents_of(each) for each in constants]
        site = site_of(op, attrs, inputs, len(results), types, contents, constants)
        check(op, site, results, complete=op not in BY_DATA)


@pytest.mark.parametrize("op", sorted(CASES))
def test_symbolic(op: str) -> None:
    for seed in SEEDS:
        attrs, inputs, results = drawn(op, seed)
        types = [None if a is None else TensorType(name_of(a.dtype), symbolic(a.shape)) for a in inputs]
        blank: list[None] = [None] * len(inputs)
        check(op, site_of(op, attrs, inputs, len(results), types, blank, blank), results, complete=False)


def loosened(op: str, attrs: dict[str, object], inputs: Arrays) -> tuple[dict[str, object], Arrays]:
    """The same node with its static attributes as runtime inputs."""
    record = find(op)
    assert record is not None
    attrs, inputs = dict(attrs), list(inputs)
    for name, position in record.static.items():
        if attrs[name] is not None:
            inputs += [None] * (position + 1 - len(inputs))
            inputs[position] = np.array(attrs[name])
            attrs[name] = RUNTIME
    return attrs, inputs


@pytest.mark.parametrize("op", sorted(name for name in CASES if find(name).static))  # type: ignore[union-attr]
@pytest.mark.parametrize("known", ["contents", "lengths", "ranks"])
def test_runtime_attributes(op: str, known: str) -> None:
    for seed in SEEDS:
        attrs, inputs, results = drawn(op, seed)
        attrs, inputs = loosened(op, attrs, inputs)
        constants = [constant(array) for array in inputs]
        types: list[TensorType | None] = []
        for index, array in enumerate(inputs):
            shape = () if array is None else array.shape if known != "ranks" or not index else None
            types.append(None if array is None else TensorType(name_of(array.dtype), shape))
        contents = [None if each is None or known != "contents" else contents_of(each) for each in constants]
        blank: list[None] = [None] * len(inputs)
        check(op, site_of(op, attrs, inputs, len(results), types, contents, blank), results, complete=False)


@pytest.mark.parametrize("op", sorted(CASES))
def test_nothing_known_is_no_error(op: str) -> None:
    attrs, inputs, results = drawn(op, 0)
    record = find(op)
    assert record is not None
    blank: list[None] = [None] * len(inputs)
    record.infer(site_of(op, attrs, inputs, len(results), list(blank), blank, blank))
    types: list[TensorType | None] = [None if a is None else TensorType(name_of(a.dtype)) for a in inputs]
    check(op, site_of(op, attrs, inputs, len(results), types, blank, blank), results, complete=False)


@pytest.mark.parametrize("op", sorted(set(CASES) - BY_DATA - {"Scatter"}))
def test_no_less_precise_than_onnx(op: str) -> None:
    """Where ONNX's own inference knows a size, so do we, and the same one."""
    record = find(op)
    assert record is not None
    for seed in SEEDS:
        attrs, inputs, results = drawn(op, seed)
        node = node_of(op, attrs, inputs, len(results), max(record.versions))
        model = model_of(node, inputs, newest_opset(), results)
        if isinstance(model, str):
            continue
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
        types = [None if a is None else TensorType(name_of(a.dtype), a.shape) for a in inputs]
        blank: list[None] = [None] * len(inputs)
        ours = record.infer(site_of(op, attrs, inputs, len(results), types, blank, blank))
        for proto, type_, array in zip(inferred.graph.output, ours, results):
            assert isinstance(type_, TensorType) and array is not None
            if not proto.type.tensor_type.HasField("shape"):
                continue
            assert type_.shape is not None, (op, attrs, proto)
            for theirs, dim in zip(proto.type.tensor_type.shape.dim, type_.shape):
                assert not theirs.HasField("dim_value") or theirs.dim_value == dim, (op, attrs, proto, str(type_))
