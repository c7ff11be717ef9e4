"""What is known of the elements of integer tensors, and what is refused because it is not certain."""

from __future__ import annotations

import numpy as np
import pytest

from graphs.canonical import complete
from graphs.constants import Constant
from graphs.dims import DimLike, floordiv, parse_dim, symbol
from graphs.errors import InferenceError
from graphs.operators import Contents, Site, find
from graphs.types import TensorType

n, m = symbol("n"), symbol("m")
Known = tuple[str, tuple[int, ...], tuple[DimLike, ...] | None]  # dtype, shape, elements


def vector(*items: DimLike, dtype: str = "int64") -> Known:
    return dtype, (len(items),), items


def scalar(item: DimLike, dtype: str = "int64") -> Known:
    return dtype, (), (item,)


def site(op: str, inputs: tuple[Known, ...], attrs: dict[str, object], outputs: int = 1) -> Site:
    record = find(op)
    assert record is not None
    types = [TensorType(dtype, shape) for dtype, shape, _ in inputs]
    constants = [None if items is None or not all(isinstance(i, int) for i in items)
                 else Constant.of(np.array(items, dtype).reshape(shape)) for dtype, shape, items in inputs]  # fmt: skip
    return Site(op, complete(record, attrs), types, [each[2] for each in inputs], constants, outputs, "y")


def contents(op: str, *inputs: Known, **attrs: object) -> Contents | None:
    record = find(op)
    assert record is not None and record.contents is not None
    return record.contents(site(op, inputs, attrs))


def shape(op: str, inputs: list[Known], attrs: dict[str, object], outputs: int = 1) -> str:
    record = find(op)
    assert record is not None
    return " ".join(str(type_) for type_ in record.infer(site(op, tuple(inputs), attrs, outputs)))


def typed(*sizes: DimLike, dtype: str = "float32") -> Known:
    return dtype, sizes, None  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("op", "inputs", "attrs", "expected"),
    [
        ("Shape", [typed(n, 3, m)], {}, (n, 3, m)),
        ("Shape", [typed(n, 3, m)], {"start": -2, "end": -1}, (3,)),
        ("Size", [typed(n, 3)], {}, (3 * n,)),
        ("Gather", [vector(n, 3, m), scalar(-1)], {}, (m,)),
        ("Gather", [vector(n, 3, m), scalar(7)], {}, None),
        ("Slice", [vector(n, 3, m)], {"starts": (1,), "ends": (2**31 - 1,)}, (3, m)),
        ("Slice", [vector(n, 3, m)], {"starts": (-1,), "ends": (-(2**62),), "steps": (-1,)}, (m, 3, n)),
        ("Concat", [vector(n), vector(2, m)], {"axis": 0}, (n, 2, m)),
        ("Unsqueeze", [scalar(n)], {"axes": (0,)}, (n,)),
        ("Squeeze", [vector(n)], {"axes": (0,)}, (n,)),
        ("Mul", [vector(n, 2), scalar(m)], {}, (n * m, 2 * m)),
        ("Div", [vector(6 * n), scalar(2)], {}, (3 * n,)),
        ("Div", [vector(n), scalar(2)], {}, (floordiv(n, 2),)),
        ("Div", [scalar(-7), scalar(2)], {}, (-3,)),  # truncates
        ("Div", [scalar(n - 5), scalar(2)], {}, None),  # may be negative, where truncation is not floor
        ("Div", [scalar(n), scalar(0)], {}, None),
        ("Mod", [scalar(-7), scalar(4)], {}, (1,)),
        ("Equal", [vector(n, -1, 3), vector(n, n, n)], {}, None),
        ("Equal", [vector(n, 2), vector(n, 3)], {}, (1, 0)),
        ("Equal", [scalar(n), scalar(-1)], {}, (0,)),
        ("Equal", [scalar(floordiv(n - 5, 2)), scalar(-1)], {}, None),  # n = 3 makes them equal
        ("Where", [vector(1, 0, dtype="bool"), vector(n, n), vector(5, 6)], {}, (n, 6)),
        ("Where", [vector(1, dtype="bool"), vector(n), ("int64", (1,), None)], {}, (n,)),
        ("Where", [vector(0, dtype="bool"), vector(n), ("int64", (1,), None)], {}, None),
        ("Max", [scalar(n), scalar(0)], {}, (n,)),
        ("Min", [scalar(n), scalar(3)], {}, (parse_dim("min(3, n)"),)),
        ("Cast", [vector(n)], {"to": 6}, (n,)),
        ("Cast", [vector(300)], {"to": 2}, None),  # wraps around
        ("Cast", [vector(n)], {"to": 3}, None),  # may wrap around
        ("Cast", [vector(5, 0)], {"to": 9}, (1, 0)),
        ("Cast", [vector(n)], {"to": 1}, None),
        ("Range", [scalar(0), scalar(3), scalar(1)], {}, (0, 1, 2)),
        ("Range", [scalar(n), scalar(n + 2), scalar(1)], {}, (n, n + 1)),
        ("ConstantOfShape", [vector(3)], {"value": Constant.of(np.array([7]))}, (7, 7, 7)),
        ("ConstantOfShape", [vector(3)], {}, None),  # float32 zeros
        ("ReduceProd", [vector(n, 2, m)], {"axes": (0,), "keepdims": 0}, (2 * n * m,)),
        ("Add", [vector(2**31 - 1, dtype="int32"), vector(1, dtype="int32")], {}, None),
        ("Expand", [scalar(n)], {"shape": (2,)}, (n, n)),
    ],
)  # fmt: skip
def test_contents(op: str, inputs: list[Known], attrs: dict[str, object], expected: Contents | None) -> None:
    assert contents(op, *inputs, **attrs) == expected


@pytest.mark.parametrize(
    ("op", "inputs", "attrs", "expected"),
    [
        ("Reshape", [typed(n, 12, 64)], {"shape": (0, -1)}, "float32[n, 768]"),
        ("Reshape", [typed(n, m, 768)], {"shape": (0, 0, 12, 64)}, "float32[n, m, 12, 64]"),
        ("Reshape", [typed(n, m, 768)], {"shape": (-1, 768)}, "float32[m*n, 768]"),
        ("Reshape", [typed(n, m)], {"shape": (-1, 4)}, "float32[floordiv(m*n, 4), 4]"),
        ("Reshape", [typed(n + 1, 4)], {"shape": (4, -1)}, "float32[4, n + 1]"),
        ("Slice", [typed(n, 4)], {"starts": (0,), "ends": (-1,)}, "float32[max(0, n - 1), 4]"),
        ("Slice", [typed(n + 1, 4)], {"starts": (1,), "ends": (2**63 - 1,)}, "float32[n, 4]"),
        ("Slice", [typed(n, 4)], {"starts": (0,), "ends": (2**31 - 1,), "steps": (2,)},
         "float32[floordiv(n + 1, 2), 4]"),
        ("Slice", [typed(n, 4)], {"starts": (-1,), "ends": (-(2**31),), "steps": (-1,)}, "float32[n, 4]"),
        ("Slice", [typed(n, 4)], {"starts": (3,), "ends": (1,), "steps": (-1,)}, "float32[data(y, 0), 4]"),
        ("Concat", [typed(n, 3), typed(m, 3)], {"axis": 0}, "float32[m + n, 3]"),
        ("Split", [typed(n * 2, 3)], {"axis": 0}, "float32[n, 3] float32[n, 3]"),
        ("Expand", [typed(1, 3)], {"shape": (4, 1)}, "float32[4, 3]"),
        ("Pad", [typed(n, 3)], {"pads": (1, 0, 2, 0)}, "float32[n + 3, 3]"),
        ("Tile", [typed(n, 3)], {"repeats": (2, 1)}, "float32[2*n, 3]"),
        ("Squeeze", [typed(n, 1)], {}, "float32[...]"),  # n may be 1
        ("Squeeze", [typed(n, 1)], {"axes": ()}, "float32[...]"),
        ("Add", [typed(n, 1), typed(1, m)], {}, "float32[n, m]"),
        ("MatMul", [typed(n, m, 8), typed(8, 4)], {}, "float32[n, m, 4]"),
        ("Range", [scalar(0), scalar(n), scalar(1)], {}, "int64[n]"),
        ("Range", [scalar(0), scalar(n), scalar(2)], {}, "int64[floordiv(n + 1, 2)]"),
        ("Einsum", [typed(n, m, 8), typed(n, 5, 8)], {"equation": "bqd,bkd->bqk"}, "float32[n, m, 5]"),
    ],
)  # fmt: skip
def test_symbolic_shapes(op: str, inputs: list[Known], attrs: dict[str, object], expected: str) -> None:
    assert shape(op, inputs, attrs, 2 if op == "Split" else 1) == expected


@pytest.mark.parametrize(
    ("op", "inputs", "attrs"),
    [
        ("Add", [typed(2, 3), typed(4)], {}),
        ("Add", [typed(2), typed(2, dtype="int64")], {}),
        ("MatMul", [typed(2, 3), typed(4, 2)], {}),
        ("Reshape", [typed(2, 3)], {"shape": (4, -1)}),
        ("Reshape", [typed(2, 3)], {"shape": (7,)}),
        ("Transpose", [typed(2, 3)], {"perm": (0, 0)}),
        ("Concat", [typed(2, 3), typed(2, 4)], {"axis": 0}),
        ("Squeeze", [typed(2, 3)], {"axes": (0,)}),
        ("ReduceSum", [typed(2, 3)], {"axes": (2,)}),
        ("Gather", [typed(2, 3), typed(1)], {}),
        ("Where", [typed(2), typed(2), typed(2)], {}),
    ],
)  # fmt: skip
def test_ill_typed(op: str, inputs: list[Known], attrs: dict[str, object]) -> None:
    with pytest.raises(InferenceError):
        shape(op, inputs, attrs)
