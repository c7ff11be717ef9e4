"""Normalizations of the last axis, spelled out as exporters do."""


def spelled_norm(value: str, to: str, epsilon: str = "", centred: bool = True) -> str:
    """Lines of a graph that normalize `value` with the constants `two` and, if one is named, `epsilon`; without its
    mean where it is not `centred`."""
    lines, moved, variance = [], value, f"{to}_variance"
    if centred:
        moved = f"{to}_moved"
        lines = [f"{to}_mean = ReduceMean({value}, axes=[-1])", f"{moved} = Sub({value}, {to}_mean)"]
    lines += [f"{to}_squares = Pow({moved}, two)", f"{variance} = ReduceMean({to}_squares, axes=[-1])"]
    if epsilon:
        lines.append(f"{to}_shifted = Add({variance}, {epsilon})")
        variance = f"{to}_shifted"
    return "\n  ".join([*lines, f"{to}_root = Sqrt({variance})", f"{to} = Div({moved}, {to}_root)"])
