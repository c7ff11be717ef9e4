"""Search form: how rules and the e-graph see a node, so that equal things look equal.

Differences from the canonical node of `graphs`: axes are not negative (where the rank is known), Reshape, Flatten,
Squeeze and Unsqueeze with a result shape that follows from the inputs' sizes are all `Reshape(x, shape=DIMS)` with
the exact result dimensions (integers or symbolic), likewise `Expand(x, shape=DIMS)`; Transpose always has its perm.
`to_form` makes it, `from_form` writes it as ONNX nodes again or says why that cannot be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from graphs.axes import from_front
from graphs.dims import DimLike, Expr
from graphs.operators import RUNTIME, find
from graphs.types import Shape, TensorType

VIEWS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})


@dataclass(frozen=True, slots=True)
class Form:
    """A node in search form: operator, domain, attributes, and which original inputs remain (by position)."""

    op: str
    domain: str
    attrs: Mapping[str, Any]
    args: tuple[int, ...]


def to_form(op: str, domain: str, attrs: Mapping[str, Any], inputs: Sequence[TensorType | None],
            output: TensorType | None) -> Form:
    """The search form of a canonical node with these input types and (first) output type."""
    args = tuple(range(len(inputs)))
    if domain == "" and op in VIEWS and output is not None and output.is_known:
        return Form("Reshape", "", {"shape": output.shape}, (0,))
    if domain == "" and op == "Expand" and output is not None and output.is_known:
        return Form("Expand", "", {"shape": output.shape}, (0,))
    return Form(op, domain, from_front(op, domain, attrs, inputs[0] if inputs else None), args)


@dataclass(frozen=True, slots=True)
class Spelling:
    """A canonical node that computes a form: operator and attributes (inputs as in the form)."""

    op: str
    attrs: Mapping[str, Any]


def from_form(op: str, domain: str, attrs: Mapping[str, Any], inputs: Sequence[TensorType | None],
              output: TensorType | None) -> Spelling | str:
    """A canonical node for a form, or the reason why ONNX cannot state it with these (symbolic) shapes."""
    if domain == "" and op == "Reshape" and attrs.get("shape") is not RUNTIME:
        source = inputs[0]
        if source is None or source.shape is None:
            return "the shape of the reshaped value is not known"
        return spell_reshape(source.shape, tuple(attrs["shape"]))
    if domain == "" and op == "Expand" and attrs.get("shape") is not RUNTIME:
        source = inputs[0]
        if source is None or source.shape is None:
            return "the shape of the expanded value is not known"
        return _spell_expand(source.shape, tuple(attrs["shape"]))
    record = find(op, domain)
    if record is None:
        return f"no operator record of {op}"
    return Spelling(op, attrs)


def spell_reshape(source: Shape, target: Shape) -> Spelling | str:
    """Squeeze or Unsqueeze where ones come or go, else Reshape with at most one -1 and zeros that copy."""
    squeezed = _removed_ones(source, target)
    if squeezed is not None and any(isinstance(dim, Expr) for dim in source):
        return Spelling("Squeeze", {"axes": squeezed})
    added = _removed_ones(target, source)
    if added is not None and any(isinstance(dim, Expr) for dim in source):
        return Spelling("Unsqueeze", {"axes": added})
    spelled: list[int] = []
    free = 0
    for index, dim in enumerate(target):
        if isinstance(dim, int):
            spelled.append(dim)
        elif index < len(source) and source[index] == dim:
            spelled.append(0)
        else:
            spelled.append(-1)
            free += 1
    if free > 1:
        return f"Reshape cannot state {list(map(str, target))} with one free size"
    if 0 in [dim for dim in target if isinstance(dim, int)]:
        if any(isinstance(dim, Expr) for dim in target):
            return "Reshape cannot mix empty and symbolic sizes"
        return Spelling("Reshape", {"shape": tuple(spelled), "allowzero": 1})
    return Spelling("Reshape", {"shape": tuple(spelled), "allowzero": 0})


def _removed_ones(longer: Shape, shorter: Shape) -> tuple[int, ...] | None:
    """Axes of `longer` (all of size 1) whose removal gives `shorter`, None if that is not how they differ."""
    if len(longer) <= len(shorter):
        return None
    axes: list[int] = []
    position = 0
    for axis, dim in enumerate(longer):
        if position < len(shorter) and dim == shorter[position]:
            position += 1
        elif dim == 1:
            axes.append(axis)
        else:
            return None
    return tuple(axes) if position == len(shorter) else None


def _spell_expand(source: Shape, target: Shape) -> Spelling | str:
    offset = len(target) - len(source)
    spelled: list[int] = []
    for index, dim in enumerate(target):
        if isinstance(dim, int):
            spelled.append(dim)
        elif index >= offset and source[index - offset] == dim:
            spelled.append(1)  # Expand broadcasts both ways: 1 keeps the size
        else:
            return f"Expand cannot state the size {dim}"
    return Spelling("Expand", {"shape": tuple(spelled)})


def dims_equal(a: Sequence[DimLike], b: Sequence[DimLike]) -> bool:
    """Equal for every size."""
    return tuple(a) == tuple(b)
