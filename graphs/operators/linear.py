"""Records of the operators that contract axes: products of matrices, Einsum, Det."""

from __future__ import annotations

from ..dims import DimLike
from ..types import Shape, TensorType, Type
from ._common import broadcast_shapes, common_dtype, integer, shape_of, unify_checked
from .record import REQUIRED, Operator, Site


def _product_shape(site: Site) -> Shape | None:
    a, b = shape_of(site, 0), shape_of(site, 1)
    if a is None or b is None:
        return None
    if not a or not b:
        raise site.fail("a scalar operand", "matrix products need at least one axis")
    unify_checked(site, a[-1], b[-2] if len(b) > 1 else b[0])
    batch = broadcast_shapes(site, [a[:-2], b[:-2]])
    assert batch is not None
    return batch + (a[-2:-1] if len(a) > 1 else ()) + (b[-1:] if len(b) > 1 else ())


def _matmul(site: Site) -> list[Type | None]:
    dtype = common_dtype(site, (0, 1))
    return [None if dtype is None else TensorType(dtype, _product_shape(site))]


def _matmul_integer(site: Site) -> list[Type | None]:
    return [TensorType("int32", _product_shape(site))]


def _gemm(site: Site) -> list[Type | None]:
    dtype = common_dtype(site, (0, 1, 2))
    a, b = shape_of(site, 0), shape_of(site, 1)
    if dtype is None:
        return [None]
    for shape in (a, b):
        if shape is not None and len(shape) != 2:
            raise site.fail(f"an operand of rank {len(shape)}", "Gemm takes matrices; use MatMul")
    trans_a, trans_b = integer(site, "transA"), integer(site, "transB")
    if a is not None and b is not None:
        unify_checked(site, a[0] if trans_a else a[1], b[1] if trans_b else b[0])
    rows = site.unknown_dim(0) if a is None else a[1] if trans_a else a[0]
    columns = site.unknown_dim(1) if b is None else b[0] if trans_b else b[1]
    addend = shape_of(site, 2)
    if addend is not None and len(addend) > 2:
        raise site.fail(f"C of rank {len(addend)}", "C must broadcast to the product")
    if addend is not None:
        met = broadcast_shapes(site, [(rows, columns), addend])
        known = [
            (x, y) for x, y in zip(met or (), (rows, columns)) if isinstance(x, int) and isinstance(y, int)
        ]
        if any(x != y for x, y in known):
            raise site.fail("C larger than the product", "C must broadcast to the product")
    return [TensorType(dtype, (rows, columns))]


def parse_equation(equation: str, ranks: list[int]) -> tuple[list[list[str]], list[str], int]:
    """Subscripts of every operand and of the result, one label an axis, and the rank of the ellipsis.

    Axes of the ellipsis are labelled `.0`, `.1`, ..., aligned at the back. Raises ValueError on a bad equation.
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise ValueError(f"{len(terms)} terms for {len(ranks)} operands")
    extra = [rank - len(term.replace("...", "")) for term, rank in zip(terms, ranks) if "..." in term]
    widest = max(extra, default=0)
    operands = []
    for term, rank in zip(terms, ranks):
        operands.append(_labels(term, rank - len(term.replace("...", "")), widest))
        if len(operands[-1]) != rank:
            raise ValueError(f"{term!r} does not fit an operand of rank {rank}")
    if arrow:
        result = _labels(right, widest, widest)
    else:
        letters = "".join(terms).replace(".", "")
        once = sorted(letter for letter in set(letters) if letters.count(letter) == 1)
        result = [f".{i}" for i in range(widest)] * bool(extra) + once
    known = {label for operand in operands for label in operand}
    if len(set(result)) < len(result) or not set(result) <= known:
        raise ValueError(f"the result {right!r} repeats a label or has one that no operand has")
    return operands, result, widest


def _labels(term: str, width: int, widest: int) -> list[str]:
    before, dots, after = term.partition("...")
    if width < 0 or not all(letter.isalpha() for letter in before + after):
        raise ValueError(f"cannot read {term!r}")
    middle = [f".{i}" for i in range(widest - width, widest)] if dots else []
    return list(before) + middle + list(after)


def _einsum(site: Site) -> list[Type | None]:
    dtype = common_dtype(site, range(len(site.types)))
    if dtype is None:
        return [None]
    shapes = [shape_of(site, position) for position in range(len(site.types))]
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes):
        return [TensorType(dtype)]
    try:
        operands, result, _ = parse_equation(str(site.attrs["equation"]), [len(shape) for shape in known])
    except ValueError as error:
        raise site.fail(f"equation {site.attrs['equation']!r}: {error}") from error
    sizes: dict[str, DimLike] = {}
    for labels, shape in zip(operands, known):
        for label, size in zip(labels, shape):
            met = broadcast_shapes(site, [(sizes.get(label, 1),), (size,)])  # size 1 broadcasts, as in NumPy
            assert met is not None
            sizes[label] = met[0]
    return [TensorType(dtype, tuple(sizes[label] for label in result))]


def _det(site: Site) -> list[Type | None]:
    data = site.type(0)
    if data is None or data.shape is None:
        return [data]
    if len(data.shape) < 2:
        raise site.fail(f"a tensor of rank {len(data.shape)}", "Det takes square matrices")
    unify_checked(site, data.shape[-1], data.shape[-2])
    return [data.with_shape(data.shape[:-2])]


OPERATORS: list[Operator] = [
    Operator("MatMul", _matmul, (1, 9, 13)),
    # Versions 1 and 6 broadcast C by an attribute and in another way.
    Operator("Gemm", _gemm, (7, 9, 11, 13), {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0}),
    Operator("Einsum", _einsum, (12, 28), {"equation": REQUIRED}),
    Operator("MatMulInteger", _matmul_integer, (10,)),
    Operator("Det", _det, (11, 22)),
]
