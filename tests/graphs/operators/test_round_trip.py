"""Canonical nodes written at every version of their record and read again are the same nodes."""

from __future__ import annotations

import pytest

from graphs import load
from graphs.operators import RUNTIME, find
from runtime.execute import evaluate
from tests.runtime.kernels import cases_movement  # noqa: F401 (fills CASES)
from tests.runtime.kernels.cases import CASES, DTYPES, make
from tests.runtime.kernels.models import model_of, node_of

OUTPUTS = {"Split": 3, "TopK": 2, "Unique": 4}


def canonical(attrs: dict[str, object], op: str, version: int) -> dict[str, object]:
    """What is expected of the attributes: forms that mean the same at this version fall together."""
    found = dict(attrs)
    if op == "Pad" and version < 11 and found["constant_value"] == 0:
        found["constant_value"] = None
    if op == "Clip" and version < 11:
        found |= {name: float(value) for name, value in attrs.items() if value is not None}  # type: ignore[arg-type]
        if version == 6:  # where a bound is missing it is infinite, as an attribute
            found["min"] = float("-inf") if found["min"] is None else found["min"]
            found["max"] = float("inf") if found["max"] is None else found["max"]
    if op == "Slice" and version < 10:
        found["steps"] = None
    if op.startswith("Reduce") and found["axes"] and version < (13 if op == "ReduceSum" else 18):
        found["noop_with_empty_axes"] = 0  # without effect where axes are given
    return found


def from_front(op: str, value: object, inputs: list) -> object:
    """Before opset 11 axes are written counted from the front."""
    axes = value if isinstance(value, tuple) else (value,)
    rank = inputs[0].ndim + (len(axes) if op == "Unsqueeze" else 0)
    front = tuple(axis + rank if axis < 0 else axis for axis in axes)
    return front if isinstance(value, tuple) else front[0]


@pytest.mark.parametrize("op", sorted(CASES))
def test_round_trip(op: str) -> None:
    record = find(op)
    assert record is not None
    for version in record.versions:
        written = 0
        for dtype in DTYPES[op]:
            for seed in range(6):
                attrs, inputs = make(op, seed, dtype)
                node = node_of(op, attrs, inputs, OUTPUTS.get(op, 1), version)
                model = model_of(node, inputs, version, evaluate(node, inputs))
                if isinstance(model, str):
                    continue
                read = load(model.SerializeToString()).nodes[-1]
                assert (read.op, read.version) == (op, version)
                expected = canonical(attrs, op, version)
                for name, value in read.attrs.items():
                    if version < 11 and name in ("axis", "axes") and isinstance(expected[name], int | tuple):
                        if value == from_front(op, expected[name], inputs):
                            continue
                    # A float64 that float32 cannot hold stays an input.
                    assert value == expected[name] or (value is RUNTIME and dtype == "float64"), (op, version, name)
                written += 1
        assert written, f"{op} at version {version} was never written"
