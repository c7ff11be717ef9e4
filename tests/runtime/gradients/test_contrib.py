"""Gradient rows of ONNX Runtime's own operators."""

import numpy as np
import pytest

from graphs.builder import Builder, Value
from graphs.errors import NotDifferentiable
from graphs.ir import Node
from runtime import gradients
from runtime.gradients import contrib_attention
from runtime.gradients.contrib import DOMAIN, ROWS
from tests.runtime.gradients.checking import Sample, check
from tests.runtime.gradients.test_movement import t


def simplified(b: Builder, x: Value, scale: Value) -> list[Value]:
    """It stands in ONNX's own domain without being in it, so that the builder does not know it."""
    name, attrs = b.fresh("y"), {"axis": 1, "epsilon": 1e-5, "stash_type": 1}
    b.place(Node("SimplifiedLayerNormalization", (x.name, scale.name), (name,), attrs, version=1))
    return [Value(b, name)]


X, ROW = t(2, 3, 4), t(1, 4)[0]
SAMPLES = [
    Sample("Gelu", [X], domain=DOMAIN), Sample("BiasGelu", [X, ROW], domain=DOMAIN),
    Sample("FastGelu", [X], domain=DOMAIN), Sample("FastGelu", [X, ROW], domain=DOMAIN),
    Sample("QuickGelu", [X], {"alpha": 1.3}, domain=DOMAIN),
    Sample("SimplifiedLayerNormalization", [X, t(3, 4)], build=simplified),
    Sample("SkipLayerNormalization", [X, t(2, 3, 4) * 2 + 0.1, ROW, t(4), t(4) + 1.0], domain=DOMAIN),
    Sample("SkipSimplifiedLayerNormalization", [X, t(2, 3, 4) * 2 + 0.1, ROW, t(4)], domain=DOMAIN),
]  # fmt: skip
PROMPT = [np.array([2, 1], np.int32), np.array(3, np.int32)]  # all but one of each sequence; the longest
WINDOW = {"pads": [1, 1, 1, 1], "strides": [2, 2]}
IMAGE, KERNEL, FACTOR = t(1, 2, 4, 4), t(3, 2, 3, 3) + 0.3, t(3, 4) + 0.2
LENGTHS, MASK = np.array([2, 3], np.int32), np.array([[1, 1, 0], [1, 0, 1]], np.int32)
FUSED: dict[str, dict[str, object]] = {
    "Relu": {}, "LeakyRelu": {"activation_params": [0.3]}, "Tanh": {}, "HardSigmoid": {"activation_params": [0.2, 0.4]},
    "Clip": {"activation_params": [-0.71, 0.83]}}
SAMPLES += [Sample("FusedConv", [IMAGE, KERNEL, t(3), t(1, 3, 2, 2) * 0.4], {"activation": name, **WINDOW, **more},
                   domain=DOMAIN) for name, more in FUSED.items()]
SAMPLES += [
    Sample("FusedGemm", [FACTOR, FACTOR + 0.5, t(3)], {"activation": "Sigmoid", "transB": 1, "alpha": 0.5},
           domain=DOMAIN),
    Sample("FusedMatMul", [X, X + 0.3], {"transB": 1, "alpha": 0.7}, domain=DOMAIN),
    Sample("FusedMatMul", [t(3, 2, 4), t(2, 4, 5)], {"transBatchA": 1}, domain=DOMAIN),
    Sample("TransposeMatMul", [t(2, 4, 3), X[:, :1] @ np.ones((4, 1)) + t(2, 4, 2)], {"transA": 1}, domain=DOMAIN,
           in_onnxruntime=False),
    Sample("BiasAdd", [X, ROW, t(2, 3, 4) * 0.7], domain=DOMAIN, in_onnxruntime=False),
    Sample("EmbedLayerNormalization", [MASK, MASK * 0 + 1, t(3, 4), t(5, 4) * 2, t(2, 4) + 0.4, ROW, t(4) + 1.0],
           domain=DOMAIN, outputs=3),
    Sample("Attention", [X, t(4, 12) * 0.4, t(12) * 0.2, MASK], {"num_heads": 2}, domain=DOMAIN, symbolic=False),
    Sample("Attention", [X, t(4, 12) * 0.4, t(12) * 0.2, LENGTHS, t(2, 2, 2, 2, 2)],
           {"num_heads": 2, "unidirectional": 1, "scale": 0.4}, domain=DOMAIN, outputs=2, symbolic=False),
    Sample("Attention", [X, t(4, 12) * 0.4, t(12) * 0.2, None, None, t(2, 2, 3, 3)], {"num_heads": 2}, domain=DOMAIN,
           symbolic=False),
    Sample("MultiHeadAttention", [X, t(2, 5, 4) * 0.8, t(2, 5, 4) + 0.1], {"num_heads": 2}, domain=DOMAIN),
    Sample("MultiHeadAttention", [X, t(2, 3, 4) * 0.8, t(2, 3, 4) + 0.1, t(12) * 0.3, MASK, t(1, 2, 3, 3)],
           {"num_heads": 2}, domain=DOMAIN, symbolic=False),
    Sample("RotaryEmbedding", [X, np.array([1]), t(5, 1), t(5, 1) + 0.4], domain=DOMAIN, by=[0, 2, 3], symbolic=False),
    Sample("RotaryEmbedding", [t(2, 2, 3, 6), np.array([[0, 2, 1], [3, 3, 0]]), t(5, 2), t(5, 2) + 0.4],
           {"interleaved": 1, "rotary_embedding_dim": 4, "num_heads": 2}, domain=DOMAIN, by=[0, 2, 3]),
    Sample("MultiHeadAttention", [t(2, 3, 2, 3, 2)], {"num_heads": 2}, domain=DOMAIN, in_onnxruntime=False),
    Sample("MultiHeadAttention", [X, t(2, 5, 2, 2, 2)], {"num_heads": 2}, domain=DOMAIN, in_onnxruntime=False),
    Sample("MultiHeadAttention", [X, t(2, 3, 4) * 0.8, t(2, 3, 4) + 0.1, None, None, None, t(2, 2, 2, 2),
                                  t(2, 2, 2, 2) * 1.2], {"num_heads": 2}, domain=DOMAIN, outputs=3),
    Sample("GroupQueryAttention", [t(2, 3, 32), t(2, 3, 16) * 0.8, t(2, 3, 16) + 0.1, None, None, *PROMPT, None, None,
                                   None, t(1, 4, 3, 3)],
           {"num_heads": 4, "kv_num_heads": 2, "softcap": 1.5, "scale": 0.4}, domain=DOMAIN, outputs=3, symbolic=False,
           by=[0, 1, 2, 10]),
    Sample("GroupQueryAttention", [t(2, 3, 16), None, None, None, None, *PROMPT, t(4, 1), t(4, 1) + 0.4],
           {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1, "local_window_size": 2, "smooth_softmax": 1},
           domain=DOMAIN, outputs=3, symbolic=False, by=[0], in_onnxruntime=False),
]  # fmt: skip
for sample in SAMPLES:  # the sum is the last of four outputs
    if sample.op.startswith("Skip"):
        sample.outputs = 4


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.op)
def test_row(sample: Sample) -> None:
    check(sample)


def test_every_row_has_a_sample() -> None:
    assert {name.rpartition(".")[2] for name in (*ROWS, *contrib_attention.ROWS)} == {sample.op for sample in SAMPLES}


def test_grouped_attention_with_a_cache_is_refused() -> None:
    sample = Sample("GroupQueryAttention", [t(1, 1, 8), t(1, 1, 4), t(1, 1, 4), t(1, 2, 2, 2), t(1, 2, 2, 2),
                                            np.array([2], np.int32), np.array(3, np.int32)],
                    {"num_heads": 4, "kv_num_heads": 2}, domain=DOMAIN, outputs=3)
    with pytest.raises(NotDifferentiable, match="cache"):
        gradients(sample.graph(), ["y0"], ["x0"])
