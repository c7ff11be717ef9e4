"""Attention and rotary embeddings on the emulated device against ONNX Runtime and ONNX's reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx.reference
import pytest

from graphs import save
from graphs.builder import Builder, Value
from runtime.codegen import rowwise

from .harness import check, expected, needs_compiler

pytestmark = needs_compiler


class Cases:
    """Builds a graph with random inputs."""

    def __init__(self, opset: int, dtype: str = "float32") -> None:
        self.b = Builder("cases", opset=opset, opsets={"com.microsoft": 1})
        self.random = np.random.default_rng(0)
        self.feeds: dict[str, np.ndarray] = {}
        self.dtype = dtype

    def put(self, array: np.ndarray) -> Value:
        """A new input."""
        name = f"x{len(self.feeds)}"
        self.feeds[name] = array
        return self.b.input(name, array.dtype.name, array.shape)

    def normal(self, *shape: int) -> Value:
        """A random input."""
        return self.put(self.random.normal(size=shape).astype(np.float16).astype(self.dtype))

    def bools(self, *shape: int) -> Value:
        """A mask that lets every query see one key."""
        array = self.random.random(shape) < 0.6
        array[..., 0] = True
        return self.put(array)

    def attention(self, batch: int, heads: tuple[int, int], sizes: tuple[int, int], lengths: tuple[int, int, int],
                  mask: Value | None = None, flat: bool = False, outputs: int = 1, ends: list[int] | None = None,
                  **attrs: Any) -> None:
        """`heads` of queries and of keys, `sizes` of keys and of values, `lengths` of queries, keys and the past."""
        (of_q, of_kv), (size, width), (queries, keys, past) = heads, sizes, lengths
        if flat:
            inputs = [self.normal(batch, queries, of_q * size), self.normal(batch, keys, of_kv * size),
                      self.normal(batch, keys, of_kv * width)]
            attrs |= {"q_num_heads": of_q, "kv_num_heads": of_kv}
        else:
            inputs = [self.normal(batch, of_q, queries, size), self.normal(batch, of_kv, keys, size),
                      self.normal(batch, of_kv, keys, width)]
        caches = [self.normal(batch, of_kv, past, size), self.normal(batch, of_kv, past, width)] if past else []
        caches = [None, None, self.put(np.array(ends))] if ends else caches
        made = self.b.op("Attention", *inputs, mask, *caches, outputs=outputs, **attrs)
        for value in made if isinstance(made, tuple) else (made,):
            self.b.output(value)


def test_heads_masks_and_caches(tmp_path: Path) -> None:
    c = Cases(23)
    c.attention(2, (2, 2), (4, 3), (3, 5, 0))
    c.attention(2, (2, 2), (4, 3), (3, 5, 0), flat=True, scale=0.3)
    c.attention(2, (4, 2), (4, 3), (3, 5, 0), c.bools(2, 1, 3, 5), softcap=1.5)
    c.attention(1, (6, 2), (2, 3), (3, 3, 0), c.normal(3, 3), flat=True, is_causal=1)
    c.attention(2, (2, 2), (4, 4), (3, 3, 2), c.normal(2, 2, 3, 5), outputs=3, is_causal=1)
    c.attention(2, (4, 2), (4, 2), (2, 2, 2), c.bools(2, 4), outputs=3, flat=True)
    c.attention(1, (2, 2), (4, 2), (3, 40, 0), outputs=4, qk_matmul_output_mode=0)
    c.attention(1, (2, 2), (4, 2), (3, 40, 0), outputs=4, qk_matmul_output_mode=3)
    graph = c.b.graph()
    executor = check(graph, c.feeds, expected(graph, c.feeds, tmp_path))
    launches = set(executor.device.launches)  # type: ignore[attr-defined]
    assert launches == {"gemm", "eg_attention_weights", "eg_copy"}  # copies for caches only


def test_what_onnx_runtime_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rowwise, "MOST_KEPT", 0)  # as where rows are long
    c = Cases(25)
    c.attention(2, (2, 2), (4, 2), (3, 4, 0), ends=[4, 3], is_causal=1)
    c.attention(2, (2, 2), (4, 2), (2, 4, 0), c.bools(2, 3), ends=[2, 1])
    c.attention(1, (2, 2), (4, 2), (5, 5, 0), left_window_size=2, right_window_size=1)
    c.attention(1, (2, 2), (4, 2), (3, 5, 0), c.bools(3, 5), softmax_precision=11)
    c.attention(1, (2, 2), (4, 2), (2, 3, 0), c.put(np.array([[False] * 3, [True] * 3])))  # one query sees nothing
    c.attention(1, (2, 2), (4, 2), (3, 4, 0), c.normal(3, 4), outputs=4, qk_matmul_output_mode=1, softcap=0.8)
    c.attention(1, (2, 2), (4, 2), (3, 4, 0), c.normal(3, 4), outputs=4, qk_matmul_output_mode=2, softcap=0.8)
    graph = c.b.graph()
    save(graph, tmp_path / "model.onnx")
    wanted = onnx.reference.ReferenceEvaluator(str(tmp_path / "model.onnx")).run(None, c.feeds)
    check(graph, c.feeds, wanted)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_other_element_types(dtype: str, tmp_path: Path) -> None:
    wide, c = Cases(23), Cases(23, dtype)
    for each in (wide, c):
        each.attention(2, (4, 2), (4, 3), (3, 5, 0), flat=True, is_causal=1)
    wanted = [array.astype(dtype) for array in expected(wide.b.graph(), wide.feeds, tmp_path)]
    tolerance = 5e-3 if dtype == "float16" else 1e-5
    check(c.b.graph(), c.feeds, wanted, rtol=tolerance, atol=tolerance)


def test_multi_head_attention_of_onnx_runtime(tmp_path: Path) -> None:
    c = Cases(21)
    for mask, attrs in ((None, {}), (c.normal(2, 3, 4, 4), {"scale": 0.4}), (None, {"unidirectional": 1})):
        inputs = [c.normal(2, 4, 6) for _ in range(3)]
        extra = [None, None, mask] if mask is not None else []
        c.b.output(c.b.op("MultiHeadAttention", *inputs, *extra, domain="com.microsoft", num_heads=3, **attrs))  # type: ignore[arg-type]
    graph = c.b.graph()
    check(graph, c.feeds, expected(graph, c.feeds, tmp_path))


def test_rotary_embeddings(tmp_path: Path) -> None:
    c = Cases(23)
    positions = c.put(c.random.integers(0, 5, (2, 3)))
    for interleaved in (0, 1):
        for width in (0, 2):
            cache = [c.normal(5, (width or 6) // 2) for _ in range(2)]
            c.b.output(c.b.RotaryEmbedding(c.normal(2, 2, 3, 6), *cache, positions, interleaved=interleaved,
                                           rotary_embedding_dim=width, num_heads=2))
        flat, caches = c.normal(2, 3, 8), [c.normal(2, 3, 2), c.normal(2, 3, 2)]
        c.b.output(c.b.RotaryEmbedding(flat, *caches, interleaved=interleaved, num_heads=2))
        for given in (positions, c.put(np.array([1]))):
            caches = [c.normal(5, 2), c.normal(5, 2)]
            c.b.output(c.b.op("RotaryEmbedding", c.normal(2, 3, 8), given, *caches, domain="com.microsoft",  # type: ignore[arg-type]
                              interleaved=interleaved))
    graph = c.b.graph()
    check(graph, c.feeds, expected(graph, c.feeds, tmp_path))
