"""NumPy kernels: what each operator computes, as plain and as exact as NumPy allows.

A kernel takes the canonical attributes of a node (see `graphs.operators.record`) and its input arrays (None for an
absent one) and returns all outputs. The engine has put the values of `RUNTIME` attributes in their place: a static
attribute arrives as a scalar where its input tensor has rank 0 and as a tuple where it has rank 1, so kernels take
both. `attrs[OUTPUTS]` is the number of outputs that the node names (only Split and the like need it);
`attrs[GENERATOR]` is the `np.random.Generator` that a random or training-mode operator draws from (the engine has
seeded it: by the node's `seed` attribute where it has one).

Kernels never write into their inputs; an output may be a view of an input (the engine must not write into it either).
bfloat16 and float16 are computed in float32 and rounded once, as ONNX Runtime and `onnx.reference` do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from typing import TypeVar

import numpy as np

from graphs.operators import FAMILIES

Arrays = Sequence["np.ndarray | None"]
Kernel = Callable[[Mapping[str, object], Arrays], "Sequence[np.ndarray]"]
OUTPUTS = "*outputs"  # no ONNX attribute can have this name
GENERATOR = "*generator"

_K = TypeVar("_K", bound=Kernel)


def rows() -> tuple[dict[str, Kernel], Callable[..., Callable[[_K], _K]]]:
    """A family's table and the decorator that fills it.

    `KERNELS, kernel = rows()`, then `@kernel("Add")` above a function. An operator of another domain is named
    `domain.Op`. Several names may share one function.
    """
    table_: dict[str, Kernel] = {}

    def kernel(*names: str) -> Callable[[_K], _K]:
        def enter(function: _K) -> _K:
            for name in names:
                if name in table_:
                    raise ValueError(f"two kernels for {name}")
                table_[name] = function
            return function

        return enter

    return table_, kernel


@lru_cache(maxsize=1)
def table() -> dict[tuple[str, str], Kernel]:
    """All kernels by (domain, operator)."""
    found: dict[tuple[str, str], Kernel] = {}
    for family in FAMILIES:
        for name, function in import_module(f"{__name__}.{family}").KERNELS.items():
            domain, _, op = name.rpartition(".")
            if (domain, op) in found:
                raise ValueError(f"two kernels for {name}")
            found[domain, op] = function
    return found


def find(op: str, domain: str = "") -> Kernel | None:
    """The kernel of an operator, or None."""
    return table().get((domain, op))
