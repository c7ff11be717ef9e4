"""Lowerings, one function an operator, in the family files that every floor has.

A lowering takes an `Emitter` and emits kernels, matrix products or views for the node. It raises `NoKernel` for the
variants that it leaves to NumPy. An operator without a row here runs on NumPy, with copies that the report counts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib import import_module

from ..emitter import Emitter

FAMILIES = ("elementwise", "movement", "linear", "reduction", "normalization", "convolution", "indexing", "attention",
            "recurrent", "pooling", "resampling")
Lowering = Callable[[Emitter], None]


def rows() -> tuple[dict[str, Lowering], Callable[..., Callable[[Lowering], Lowering]]]:
    """A family's table and the decorator that enters a function under names (`domain.Op` for other domains)."""
    table_: dict[str, Lowering] = {}

    def lowering(*names: str) -> Callable[[Lowering], Lowering]:
        def enter(function: Lowering) -> Lowering:
            for name in names:
                if name in table_:
                    raise ValueError(f"two lowerings for {name}")
                table_[name] = function
            return function

        return enter

    return table_, lowering


@lru_cache(maxsize=1)
def table() -> dict[tuple[str, str], Lowering]:
    """All lowerings by (domain, operator)."""
    found: dict[tuple[str, str], Lowering] = {}
    for family in FAMILIES:
        for name, function in import_module(f"{__name__}.{family}").LOWERINGS.items():
            domain, _, op = name.rpartition(".")
            if (domain, op) in found:
                raise ValueError(f"two lowerings for {name}")
            found[domain, op] = function
    return found


def find(op: str, domain: str = "") -> Lowering | None:
    """The lowering of an operator, or None."""
    return table().get((domain, op))
