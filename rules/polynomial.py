"""Reading sums and products of one value as a polynomial, so that one rule sees through all spellings."""

from __future__ import annotations

from collections.abc import Callable

from .declare import Match, NodeView, Operand
from .values import number

Coefficients = dict[int, float]  # power -> coefficient
_MAX_DEPTH, _MAX_POWER = 7, 4


def polynomial(m: Match, operand: Operand, x: Operand) -> Coefficients | None:
    """The coefficients of an operand as a polynomial in x, None if it is none. Nodes relied on are noted in `m`.

    Real arithmetic: only for rules of class rounding.
    """
    used: list[NodeView] = []
    found = _read(operand, x, used, _MAX_DEPTH)
    if found is not None:
        for view in used:
            m.use(view)
    return found


def _read(operand: Operand | None, x: Operand, used: list[NodeView], depth: int) -> Coefficients | None:
    if operand is None or depth == 0:
        return None
    if operand.key == x.key:
        return {1: 1.0}
    if operand.is_constant:
        value = number(operand)
        return None if value is None else {0: value}
    for op, combine in _READERS.items():
        for view in operand.forms(op):
            mark = len(used)
            found = combine(view, x, used, depth - 1)
            if found is not None and max(found, default=0) <= _MAX_POWER:
                used.append(view)
                return found
            del used[mark:]
    return None


def _both(view: NodeView, x: Operand, used: list[NodeView], depth: int) -> tuple[Coefficients, Coefficients] | None:
    if len(view.args) != 2:
        return None
    left, right = (_read(arg, x, used, depth) for arg in view.args)
    return None if left is None or right is None else (left, right)


def _sum(sign: float) -> Callable[..., Coefficients | None]:
    def combine(view: NodeView, x: Operand, used: list[NodeView], depth: int) -> Coefficients | None:
        both = _both(view, x, used, depth)
        if both is None:
            return None
        left, right = both
        total = {power: left.get(power, 0.0) + sign * right.get(power, 0.0) for power in {*left, *right}}
        return {power: value for power, value in total.items() if value}

    return combine


def _product(view: NodeView, x: Operand, used: list[NodeView], depth: int) -> Coefficients | None:
    both = _both(view, x, used, depth)
    return None if both is None else _multiply(*both)


def _multiply(left: Coefficients, right: Coefficients) -> Coefficients:
    total: Coefficients = {}
    for p, a in left.items():
        for q, b in right.items():
            total[p + q] = total.get(p + q, 0.0) + a * b
    return total


def _quotient(view: NodeView, x: Operand, used: list[NodeView], depth: int) -> Coefficients | None:
    divisor = number(view.args[1]) if len(view.args) == 2 else None
    left = _read(view.args[0], x, used, depth)
    return None if left is None or not divisor else {power: value / divisor for power, value in left.items()}


def _power(view: NodeView, x: Operand, used: list[NodeView], depth: int) -> Coefficients | None:
    exponent = number(view.args[1]) if len(view.args) == 2 else None
    base = _read(view.args[0], x, used, depth)
    if base is None or exponent not in (1.0, 2.0, 3.0):
        return None
    result = base
    for _ in range(int(exponent) - 1):
        result = _multiply(result, base)
    return result


_READERS: dict[str, Callable[..., Coefficients | None]] = {
    "Mul": _product, "Add": _sum(1.0), "Sub": _sum(-1.0), "Div": _quotient, "Pow": _power,
}
