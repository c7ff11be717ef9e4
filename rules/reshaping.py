"""Movement rules: Reshape carried through operators with a constant, and through products with a matrix."""

from __future__ import annotations

from collections.abc import Sequence

from graphs.constants import Constant
from graphs.dims import DimLike, exact_quotient, product

from .declare import Leaf, Match, Operand, Outcome, Rule, refuse, rule, term
from .values import fits_into, is_float, splat_of

FAMILY = "movement"
SMALL = 1 << 16
Group = tuple[list[int], list[int]]  # axes of one shape, and those of the other that hold the same elements


def groups(first: Sequence[DimLike], second: Sequence[DimLike]) -> list[Group] | None:
    """The finest runs of axes of two shapes of one value that hold the same elements, None where that is not known."""
    if 0 in first or 0 in second:
        return None
    found: list[Group] = []
    i = j = 0
    while i < len(first) and j < len(second):
        left, right = [i], [j]
        i, j = i + 1, j + 1
        while (a := product([first[axis] for axis in left])) != (b := product([second[axis] for axis in right])):
            if i < len(first) and _divides(a, b):
                left.append(i)
                i += 1
            elif j < len(second) and _divides(b, a):
                right.append(j)
                j += 1
            else:
                return None
        found.append((left, right))
    rest = [*first[i:], *second[j:]]
    if any(dim != 1 for dim in rest):
        return None
    if found:
        found[-1][0].extend(range(i, len(first)))
        found[-1][1].extend(range(j, len(second)))
    return found


def _divides(small: DimLike, large: DimLike) -> bool:
    if isinstance(small, int) and isinstance(large, int):
        return small < large  # the product goes on until both are equal, or cannot be
    return exact_quotient(large, small) is not None


def carried(operand: Operand, source: Sequence[DimLike], target: Sequence[DimLike]) -> Leaf | None:
    """What broadcasts to the target as the operand does to the source, where a Reshape leads from one to the other.

    None where an axis along which the operand varies is taken apart, or joined with one along which it does not.
    """
    if splat_of(operand) is not None and all(dim == 1 for dim in operand.shape) and operand.rank <= len(target):
        return operand
    found = groups(source, target)
    if found is None or operand.rank > len(source):
        return None
    sizes = (1,) * (len(source) - operand.rank) + operand.shape
    shape: list[DimLike] = [1] * len(target)
    for left, right in found:
        if all(sizes[axis] == 1 for axis in left):
            continue
        if any(sizes[axis] != source[axis] for axis in left):
            return None
        for axis in right:
            shape[axis] = target[axis]
    while shape and shape[0] == 1 and len(shape) > 1:
        shape.pop(0)
    if tuple(shape) == operand.shape:
        return operand
    array = operand.array  # an equal constant made on another way is the same one, where it is known
    sizes_known = all(isinstance(dim, int) for dim in shape)
    if array is None or not sizes_known or array.size > SMALL:
        return term("Reshape", operand, shape=tuple(shape))
    return Constant.of(array.reshape(shape), operand.dtype)  # type: ignore[arg-type]


def _with_constant(op: str) -> list[Rule]:
    head = "graph opset 17 (x: float32[n, 3, 4]) -> (y)"

    @rule(
        family=FAMILY, exactness="exact", meaning=f"{op} with a constant that a Reshape leaves so: Reshape first.",
        before=f"Reshape({op}(x, $c), shape=s)",
        example=head + f" {{ c = constant float32[4] [1, 2, 3, 4] t = {op}(x, c) y = Reshape(t, shape=[-1, 4]) }}",
        near_miss=head + f" {{ c = constant float32[4] [1, 2, 3, 4] t = {op}(x, c) y = Reshape(t, shape=[-1, 3]) }}",
    )
    def first(m: Match) -> Outcome:
        if not fits_into(m.c.shape, m.x.shape):
            return refuse("the constant widens the value")
        constant = carried(m.c, m.x.shape, m["s"])
        if constant is None:
            return refuse("the constant varies along an axis that does not stay")
        return term(op, term("Reshape", m.x, shape=m["s"]), constant)

    @rule(
        family=FAMILY, exactness="exact", meaning=f"{op} with a constant that a Reshape leaves so: Reshape last.",
        before=f"{op}(Reshape(x, shape=s), $c)",
        example=head + f" {{ c = constant float32[4] [1, 2, 3, 4] t = Reshape(x, shape=[-1, 4]) y = {op}(t, c) }}",
        near_miss=head + f" {{ c = constant float32[3] [1, 2, 3] t = Reshape(x, shape=[-1, 3]) y = {op}(t, c) }}",
    )
    def last(m: Match) -> Outcome:
        if not fits_into(m.c.shape, m["s"]):
            return refuse("the constant widens the value")
        constant = carried(m.c, m["s"], m.x.shape)
        if constant is None:
            return refuse("the constant varies along an axis that does not stay")
        return term("Reshape", term(op, m.x, constant), shape=m["s"])

    name = op.lower()
    return [first.renamed(f"reshape-before-{name}-constant"), last.renamed(f"reshape-after-{name}-constant")]


WITH_CONSTANT = [each for op in ("Add", "Sub", "Mul", "Div") for each in _with_constant(op)]


@rule(
    family=FAMILY, exactness="rounding",
    meaning="A product with a matrix multiplies rows, however they are arranged: Reshape last.",
    before="MatMul(Reshape(x, shape=s), w)",
    example="graph opset 17 (x: float32[n, 3, 4], w: float32[4, 2]) -> (y) "
            "{ t = Reshape(x, shape=[-1, 4]) y = MatMul(t, w) }",
    near_miss="graph opset 17 (x: float32[n, 3, 4], w: float32[3, 2]) -> (y) "
              "{ t = Reshape(x, shape=[-1, 3]) y = MatMul(t, w) }",
)
def reshape_after_matmul(m: Match) -> Outcome:
    if m.w.rank != 2 or not m.x.rank > len(m["s"]) >= 2 or not is_float(m.x):
        return refuse("the second operand is no matrix, or no axes are joined")
    if m.x.shape[-1] != m["s"][-1]:
        return refuse("the rows themselves change")
    return term("Reshape", term("MatMul", m.x, m.w), shape=(*m["s"][:-1], m.w.shape[1]))
