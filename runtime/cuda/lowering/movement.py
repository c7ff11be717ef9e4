"""Lowerings of the operators that move elements: views wherever strides can say it, copies elsewhere."""

from __future__ import annotations

from ..emitter import Emitter
from . import rows

LOWERINGS, lowering = rows()


@lowering("Identity")
def _identity(emitter: Emitter) -> None:
    emitter.view(0, emitter.tensor(0))


@lowering("Transpose")
def _transpose(emitter: Emitter) -> None:
    value = emitter.tensor(0)
    order = emitter.attrs["perm"]
    emitter.view(0, value.viewed(tuple(value.shape[axis] for axis in order),
                                 tuple(value.strides[axis] for axis in order)))
