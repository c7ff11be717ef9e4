"""Gradient rows of Resize, Upsample and GridSample."""

import numpy as np
import pytest

from runtime.gradients._resampling import ROWS
from tests.runtime.gradients.checking import Sample, check
from tests.runtime.gradients.test_movement import t

X = t(2, 2, 4, 5)
DOUBLE, MIXED = [1.0, 1.0, 2.0, 2.0], [1.0, 1.0, 1.5, 0.6]
GRID = t(2, 3, 2, 2) * 1.4
SAMPLES = [
    Sample("Resize", [X], {"scales": DOUBLE, "mode": "nearest", "coordinate_transformation_mode": "asymmetric",
                           "nearest_mode": "floor"}),
    Sample("Resize", [X], {"scales": MIXED, "mode": "linear"}),
    Sample("Resize", [X], {"sizes": [2, 2, 3, 9], "mode": "linear", "coordinate_transformation_mode": "align_corners"}),
    Sample("Resize", [X], {"scales": MIXED, "mode": "cubic"}),
    Sample("Resize", [X], {"sizes": [3, 2], "axes": [3, 2], "mode": "linear", "antialias": 1}, in_onnxruntime=False),
    Sample("Resize", [X, None, np.float32([1, 1, 2, 0.7])], {"mode": "linear"}, by=[0]),
    Sample("Resize", [X, None, None, np.array([2, 2, 7, 3])], {"mode": "nearest"}, by=[0]),
    Sample("Resize", [X], {"sizes": [2, 2, 3, 4], "mode": "linear", "roi": [0.0, 0.0, -0.2, 0.1, 1.0, 1.0, 0.8, 0.9],
                           "coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 5.0},
           symbolic=False, in_onnxruntime=False),
    *(Sample("Upsample", [X], {"scales": DOUBLE, "mode": mode}, opset=9) for mode in ("nearest", "linear")),
    *(Sample("GridSample", [X, GRID], {"mode": mode, "padding_mode": padding, "align_corners": corners},
             by=[0] if mode == "nearest" else None)
      for mode, padding, corners in (("linear", "zeros", 0), ("linear", "border", 1), ("linear", "reflection", 0),
                                     ("cubic", "zeros", 1), ("nearest", "zeros", 0))),
]  # fmt: skip
for sample in SAMPLES:
    if sample.op == "GridSample":
        sample.opset = 20


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.op)
def test_row(sample: Sample) -> None:
    check(sample)


def test_every_row_has_a_sample() -> None:
    assert {*ROWS, "Upsample"} == {sample.op for sample in SAMPLES}
