"""Gradient rows of Conv and ConvTranspose."""

import pytest

from tests.runtime.gradients.checking import Sample, check
from tests.runtime.gradients.test_movement import t

SAMPLES = [
    Sample("Conv", [t(2, 3, 6), t(4, 3, 3), t(4)], {"pads": [1, 0]}),
    Sample("Conv", [t(2, 4, 7, 6), t(4, 2, 3, 2), t(4)],
           {"group": 2, "strides": [2, 3], "pads": [1, 0, 2, 1], "dilations": [1, 2]}),
    Sample("Conv", [t(2, 3, 6, 9), t(6, 1, 2, 2)], {"group": 3, "strides": [1, 4]}),  # depthwise; the last is not read
    Sample("Conv", [t(1, 2, 3, 4, 3), t(2, 2, 2, 2, 1)], {"strides": [1, 2, 2]}),
    *(Sample("Conv", [t(1, 2, 5, 8), t(2, 2, 2, 3), t(2)], {"auto_pad": auto, "strides": [2, 3]})
      for auto in ("SAME_UPPER", "SAME_LOWER", "VALID")),
    Sample("Conv", [t(1, 2, 5), t(2, 2, 4)], {"auto_pad": "SAME_LOWER", "kernel_shape": [4]}),
    Sample("ConvTranspose", [t(2, 3, 4), t(3, 2, 3), t(2)], {"strides": [2], "pads": [1, 0], "output_padding": [1]}),
    Sample("ConvTranspose", [t(1, 4, 3, 2), t(4, 1, 2, 3)], {"group": 2, "dilations": [2, 1], "strides": [1, 3]}),
    Sample("Conv", [t(2, 3, 5, 4), t(2, 3, 1, 1), t(2)], {"strides": [2, 3]}),
    Sample("ConvTranspose", [t(2, 3, 4), t(3, 2, 1)], {"strides": [2], "output_padding": [1]}),
    Sample("ConvTranspose", [t(2, 3, 4), t(3, 2, 1)], {"dilations": [3], "output_padding": [2]}, in_onnxruntime=False),
    *(Sample("ConvTranspose", [t(1, 2, 3, 3), t(2, 2, 3, 2), t(2)], {"strides": [2, 2], "auto_pad": auto})
      for auto in ("SAME_UPPER", "SAME_LOWER")),
    Sample("ConvTranspose", [t(1, 2, 3), t(2, 2, 3)], {"strides": [2], "output_shape": [6]}),
    Sample("LRN", [t(2, 5, 1, 2)], {"size": 3, "alpha": 0.5, "beta": 0.7}),
    Sample("LRN", [t(2, 5, 3)], {"size": 4, "alpha": 0.5}, in_onnxruntime=False),  # it wants four axes, an odd size
]  # fmt: skip


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.op)
def test_row(sample: Sample) -> None:
    check(sample)
