"""Gradient rows of the attention family. ONNX Runtime runs what they build where it runs the operator itself."""

import numpy as np
import pytest

from runtime.gradients.attention import ROWS
from tests.runtime.gradients.checking import Sample, check
from tests.runtime.gradients.test_movement import i, t

Q, K, V = t(2, 2, 3, 4), t(2, 2, 5, 4), t(2, 2, 5, 3)
SEEN = np.array([[1, 0, 1, 0, 1], [0, 0, 0, 0, 0], [1, 1, 1, 0, 0]], np.bool_)  # one query sees nothing
BARE = np.where(SEEN, t(3, 5), -np.inf)
HEADS = {"q_num_heads": 4, "kv_num_heads": 2}
SAMPLES = [
    Sample("Attention", [Q, K, V]),
    Sample("Attention", [Q, K, V, SEEN], {"softcap": 0.7, "scale": 0.9}),
    Sample("Attention", [Q, K, V, BARE], {"qk_matmul_output_mode": 3}, outputs=4, by=[0, 1, 2]),
    Sample("Attention", [Q, K, V, t(2, 1, 3, 5)], {"is_causal": 1}),
    Sample("Attention", [t(2, 3, 8), t(2, 3, 4), t(2, 3, 6), None, t(2, 2, 2, 2), t(2, 2, 2, 3)],
           {**HEADS, "is_causal": 1, "qk_matmul_output_mode": 1}, outputs=4),
    Sample("Attention", [Q, K, V, t(3, 4), None, None, i(4, 2)], {"is_causal": 1}, opset=24, by=[0, 1, 2],
           in_onnxruntime=False),  # it refuses a mask that does not reach all keys
    Sample("Attention", [Q, K, V], {"left_window_size": 1, "right_window_size": 0}, opset=25,
           in_onnxruntime=False),
    *(Sample("RotaryEmbedding", [t(2, 3, 8), t(2, 3, 2), t(3, 3, 2)[:2]], {"num_heads": 2, "interleaved": mixed})
      for mixed in (0, 1)),
    Sample("RotaryEmbedding", [t(2, 2, 3, 6), t(5, 2), t(5, 2) + 0.1, np.array([[4, 0, 2], [1, 1, 3]])],
           {"rotary_embedding_dim": 4}),
]  # fmt: skip
for sample in SAMPLES:
    sample.opset = max(sample.opset, 23)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.op)
def test_row(sample: Sample) -> None:
    check(sample)


def test_every_row_has_a_sample() -> None:
    assert set(ROWS) == {sample.op for sample in SAMPLES}
