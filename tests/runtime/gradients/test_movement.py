"""Gradient rows of the operators that move elements."""

import numpy as np
import pytest

from runtime.gradients.movement import ROWS
from tests.runtime.gradients.checking import Sample, check


def t(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape) + len(shape)).uniform(-1.0, 1.0, shape)


def i(*items: int) -> np.ndarray:
    return np.array(items, np.int64)


X = t(2, 3, 4)
SLICES = [
    {"starts": [1], "ends": [3], "axes": [1]}, {"starts": [0, -3], "ends": [1, -1], "axes": [0, -1]},
    {"starts": [3, 0], "ends": [-10, 3], "axes": [2, 1], "steps": [-2, 2]}, {"starts": [1, 1], "ends": [9, 2]},
]  # fmt: skip
PADS = [{"pads": [0, 1, 0, 1, 0, 2]}, {"pads": [0, -1, 0, 1, 0, -2]}, {"pads": [1, 2], "axes": [-1]},
        *({"pads": [0, 0, 1, 0, 1, 2], "mode": mode} for mode in ("reflect", "edge", "wrap"))]
SAMPLES = [
    Sample("Reshape", [X], {"shape": [4, -1]}), Sample("Reshape", [X, i(0, -1)], by=[0]),
    Sample("Flatten", [X], {"axis": 2}), Sample("Flatten", [X], {"axis": -1}),
    Sample("Squeeze", [t(1, 3, 1)], {"axes": [0, -1]}), Sample("Squeeze", [t(1, 3, 1)]),
    Sample("Unsqueeze", [X], {"axes": [0, -1]}), Sample("Unsqueeze", [X, i(1)], by=[0]),
    Sample("Transpose", [X]), Sample("Transpose", [X], {"perm": [1, 2, 0]}),
    *(Sample("DepthToSpace", [t(1, 8, 2, 3)], {"blocksize": 2, "mode": mode}) for mode in ("DCR", "CRD")),
    Sample("SpaceToDepth", [t(2, 2, 4, 2)], {"blocksize": 2}),
    *(Sample("Slice", [X], attrs) for attrs in SLICES), Sample("Slice", [X, i(0), i(2), i(2), i(1)], by=[0]),
    *(Sample("Pad", [X], attrs) for attrs in PADS), Sample("Pad", [X, i(0, 0, 1, 1, 0, 0), np.array(0.7)], by=[0, 2]),
    Sample("Pad", [X, i(1, 0), np.array(0.7), i(2)], by=[0, 2]),
    *(Sample("CenterCropPad", [X], attrs) for attrs in ({"shape": [5, 1, 4]}, {"shape": [2, 5], "axes": [1, 2]})),
    Sample("Concat", [X, t(2, 1, 4), t(2, 2, 4)], {"axis": 1}), Sample("Concat", [X, t(2, 3, 1)], {"axis": -1}),
    Sample("Concat", [X], {"axis": 0}),
    Sample("Split", [X], {"axis": 2, "num_outputs": 2}, outputs=2),
    Sample("Split", [X], {"axis": -1, "split": [1, 3]}, outputs=2), Sample("Split", [X, i(2, 1)], {"axis": 1},
                                                                           outputs=2, by=[0]),
    Sample("Tile", [X], {"repeats": [2, 1, 3]}), Sample("Tile", [X, i(1, 2, 1)], by=[0]),
    Sample("Expand", [t(3, 1)], {"shape": [2, 3, 4]}), Sample("Expand", [t(3, 1), i(1, 2)], by=[0]),
    Sample("Range", [np.array(0.3), np.array(2.0), np.array(0.45)], by=[0, 2]),
    Sample("EyeLike", [t(2, 3)]),
    Sample("Trilu", [t(2, 3, 3)]), Sample("Trilu", [t(3, 4)], {"upper": 0, "k": 1}),
    Sample("Trilu", [t(3, 4), np.array(-1)], by=[0]),
    Sample("Compress", [X, np.array([True, False, True])], {"axis": 1}, by=[0]),
    Sample("Compress", [X, np.arange(24) % 3 == 0], by=[0]),
    Sample("ReverseSequence", [t(4, 3, 2), i(2, 4, 1)], {"batch_axis": 1, "time_axis": 0}, by=[0]),
]  # fmt: skip


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.op)
def test_row(sample: Sample) -> None:
    check(sample)


def test_every_row_has_a_sample() -> None:
    assert set(ROWS) == {sample.op for sample in SAMPLES}
