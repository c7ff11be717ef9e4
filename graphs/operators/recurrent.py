"""Recurrent family: LSTM, GRU, RNN."""

from __future__ import annotations

from ..dims import DimLike
from ..types import Shape, TensorType, Type
from .record import Operator, Site

_RANK = 3


def _cube(site: Site, index: int, what: str) -> Shape | None:
    type_ = site.type(index)
    if type_ is None or type_.shape is None:
        return None
    if len(type_.shape) != _RANK:
        raise site.fail(f"{what} is {type_}", f"give {what} three dimensions")
    return type_.shape


class _Infer:
    """Types of Y, Y_h (and Y_c) from X, W and R."""

    def __init__(self, gates: int) -> None:
        self.gates = gates

    def __call__(self, site: Site) -> list[Type | None]:
        type_ = site.type(0) or site.type(1)
        if type_ is None:
            return [None] * site.outputs
        x, w, r = _cube(site, 0, "X"), _cube(site, 1, "W"), _cube(site, 2, "R")
        hidden: DimLike | None = site.attrs.get("hidden_size")  # type: ignore[assignment]
        if hidden is None and r is not None:
            hidden = r[2]
        self._check(site, x, w, r, hidden)
        directions = 2 if site.attrs["direction"] == "bidirectional" else 1
        if x is None or hidden is None:
            return [TensorType(type_.dtype)] * site.outputs
        if site.attrs["layout"]:
            batch, steps = x[0], x[1]
            all_steps: Shape = (batch, steps, directions, hidden)
            last: Shape = (batch, directions, hidden)
        else:
            steps, batch = x[0], x[1]
            all_steps, last = (steps, directions, batch, hidden), (directions, batch, hidden)
        found: list[Type | None] = [TensorType(type_.dtype, all_steps)]
        found += [TensorType(type_.dtype, last)] * 2
        return found[: site.outputs]

    def _check(self, site: Site, x: Shape | None, w: Shape | None, r: Shape | None, hidden: DimLike | None) -> None:
        if isinstance(hidden, int):
            for name, weights in (("W", w), ("R", r)):
                if weights is not None and isinstance(weights[1], int) and weights[1] != self.gates * hidden:
                    raise site.fail(f"{name} has {weights[1]} rows for a hidden size of {hidden}",
                                    f"give it {self.gates * hidden}")
        if x is not None and w is not None and isinstance(x[2], int) and isinstance(w[2], int) and x[2] != w[2]:
            raise site.fail(f"X has {x[2]} features, W {w[2]}")


# ONNX and runtimes differ in what these use where no alpha and beta are given.
_NEEDS_PARAMETERS = frozenset({"affine", "scaledtanh", "thresholdedrelu"})


def _read(attrs: dict[str, object], version: int) -> dict[str, object] | None:
    names = {str(name).lower() for name in attrs.get("activations") or ()}  # type: ignore[attr-defined]
    needed = names & _NEEDS_PARAMETERS
    if needed and not attrs.get("activation_alpha"):
        return None
    if needed - {"thresholdedrelu"} and not attrs.get("activation_beta"):
        return None
    return attrs


def _write(attrs: dict[str, object], version: int) -> dict[str, object] | None:
    out = dict(attrs)
    return None if version < 14 and out.pop("layout", 0) else out


_ATTRS = {
    "activation_alpha": None, "activation_beta": None, "activations": None, "clip": None, "direction": "forward",
    "hidden_size": None, "layout": 0,
}  # fmt: skip

# Versions before 7 say by `output_sequence` whether Y is there at all.
OPERATORS: list[Operator] = [
    Operator("LSTM", _Infer(4), (7, 14, 22), {**_ATTRS, "input_forget": 0}, read=_read, write=_write),
    Operator("GRU", _Infer(3), (7, 14, 22), {**_ATTRS, "linear_before_reset": 0}, read=_read, write=_write),
    Operator("RNN", _Infer(1), (7, 14, 22), {**_ATTRS, "activations": ("Tanh", "Tanh")},
             read=_read, write=_write),
]
