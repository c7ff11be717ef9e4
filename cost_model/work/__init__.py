"""Work rows: floating-point operations and bytes moved by one node, for the roofline and for reports.

The default row counts one operation per output element and every input and output byte once. Families override
rows where that is wrong. A row that returns `None` for bytes keeps the default bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module

from graphs.operators import FAMILIES
from graphs.types import TensorType


@dataclass(frozen=True, slots=True)
class Work:
    """Floating-point (or integer) operations and bytes read and written."""

    flops: float
    bytes: float


Types = Sequence["TensorType | None"]
# A row gets canonical attributes, input types (None = absent) and output types, all static.
Row = Callable[[Mapping[str, object], Types, Types], Work]


def elements(type_: TensorType | None) -> float:
    """Number of elements; 0 for an absent value. The shape must be static."""
    if type_ is None:
        return 0.0
    count = type_.elements
    if not isinstance(count, int):
        raise ValueError(f"the work of a node needs static shapes, not {type_}")
    return float(count)


def traffic(inputs: Types, outputs: Types) -> float:
    """Bytes of all inputs and outputs, each once."""
    return sum((type_.static_bytes or 0.0) for type_ in (*inputs, *outputs) if type_ is not None)


def plain(inputs: Types, outputs: Types, per_element: float = 1.0) -> Work:
    """`per_element` operations for each element of the first output, every byte once."""
    return Work(per_element * elements(outputs[0] if outputs else None), traffic(inputs, outputs))


@lru_cache(maxsize=1)
def table() -> dict[tuple[str, str], Row]:
    """All rows by (domain, operator); a name with a dot holds its domain."""
    found: dict[tuple[str, str], Row] = {}
    for family in FAMILIES:
        for name, row in import_module(f"{__name__}.{family}").WORK.items():
            domain, _, op = name.rpartition(".")
            found[domain, op] = row
    return found


def work(op: str, domain: str, attrs: Mapping[str, object], input_types: Types, output_types: Types) -> Work:
    """Work of one node whose types are static."""
    row = table().get((domain, op))
    return plain(input_types, output_types) if row is None else row(attrs, input_types, output_types)
