"""The checking emulation finds what a kernel must not do, and lets through what it may."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from runtime.codegen import emulation
from runtime.codegen.emulation import Argument, Faults, Memory
from runtime.codegen.kernel import Kernel, Parameter

pytestmark = pytest.mark.skipif(emulation.unavailable() is not None, reason=str(emulation.unavailable()))
SIZE = 64


FAULTS = [
    ("read outside", "EG_PUT(y, threadIdx.x, EG_GET(x, threadIdx.x + 1));"),
    ("write outside", "EG_PUT(y, threadIdx.x - 1, 0.0f);"),
    ("two threads write", "EG_PUT(y, threadIdx.x / 2, 0.0f);"),
    ("read of what another thread writes|write of what another thread reads",
     "EG_PUT(y, threadIdx.x, 0.0f); EG_GET(y, 63 - threadIdx.x);"),
    ("nothing has written", "EG_PUT(y, threadIdx.x, EG_GET(y, threadIdx.x));"),
    ("uninitialised read of shared", "EG_SHARED(float, s, 64); EG_BARRIER(); EG_PUT(y, threadIdx.x, s[threadIdx.x]);"),
    ("race in shared", "EG_SHARED(float, s, 64); s[threadIdx.x] = 0; EG_PUT(y, threadIdx.x, s[63 - threadIdx.x]);"),
    ("outside of shared", "EG_SHARED(float, s, 64); s[threadIdx.x + 1] = 0;"),
    ("lane that does not exist", "EG_PUT(y, threadIdx.x, EG_SHUFFLE_XOR(1.0f, 32));"),
]  # fmt: skip


def _kernel(body: str, waits: bool = True) -> Kernel:
    return Kernel("eg_test", (Parameter("x", "float32"), Parameter("y", "float32", True)), body, SIZE, columns=SIZE,
                  waits=waits)


@pytest.fixture(scope="module", autouse=True)
def compiled_together() -> None:
    emulation.prepare([_kernel(body) for _, body in FAULTS])


def _run(body: str, *, waits: bool = True, seed: int = 1, overlap: bool = False) -> np.ndarray:
    """y after a kernel with one block of 64 threads on x, which counts from 0."""
    memory = Memory.of(8 * SIZE)
    memory.data[: 4 * SIZE] = np.arange(SIZE, dtype=np.float32).view(np.uint8)
    memory.filled[: 4 * SIZE] = 1
    start = 4 if overlap else 4 * SIZE
    arguments = [Argument(memory, 0, "float32", (SIZE,), (1,)), Argument(memory, start, "float32", (SIZE,), (1,))]
    emulation.launch(_kernel(body, waits), arguments, seed)
    return memory.data[start : start + 4 * SIZE].view(np.float32).copy()


SHARING = """
  EG_SHARED(float, s, 64);
  const int i = threadIdx.x;
  s[i] = EG_GET(x, i) + EG_SHUFFLE_XOR(EG_GET(x, i), 1);
  EG_BARRIER();
  EG_PUT(y, i, s[63 - i]);"""
SHARED = [float(i + (i ^ 1)) for i in range(SIZE)][::-1]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_shuffles_barriers_and_shared_memory(seed: int) -> None:
    assert _run(SHARING, seed=seed).tolist() == SHARED


def test_two_threads_do_not_mix_their_kernels() -> None:
    body = f"for (int n = 0; n < 100; ++n) {{ {SHARING} EG_BARRIER(); }}"
    with ThreadPoolExecutor(2) as pool:
        for found in pool.map(lambda seed: _run(body, seed=seed), range(20)):
            assert found.tolist() == SHARED


def test_a_kernel_after_one_that_broke_off() -> None:
    with pytest.raises(Faults, match="divergent"):
        _run("if (threadIdx.x < 3) EG_BARRIER(); EG_PUT(y, threadIdx.x, 1.0f);")
    assert (_run("EG_BARRIER(); EG_PUT(y, threadIdx.x, 2.0f);") == 2).all()


@pytest.mark.parametrize("words, body", FAULTS)
def test_faults(words: str, body: str) -> None:
    with pytest.raises(Faults, match=words):
        _run(body)


def test_a_kernel_that_waits_must_say_so() -> None:
    with pytest.raises(Faults, match="declares none"):
        _run("EG_BARRIER(); EG_PUT(y, threadIdx.x, 0.0f);", waits=False)


def test_tensors_that_overlap_share_what_is_known_of_them() -> None:
    with pytest.raises(Faults, match="race"):
        _run("EG_PUT(y, threadIdx.x, EG_GET(x, threadIdx.x));", overlap=True, waits=False)


def test_kernels_do_not_share_the_shared_memory_of_one_reduction() -> None:
    """It has a size for each shape of a block; the first one loaded must not serve for all."""
    for columns in (64, 1024):
        body = """EG_ROWS(row, 1)
          float best = (float)threadIdx.x;
          eg_index at = (eg_index)threadIdx.x;
          eg_row_best<eg_largest_first<float>, float>(best, at);
          EG_PUT_ROW(y, threadIdx.x, best + (float)at);
        EG_END"""
        kernel = Kernel("eg_best", (Parameter("y", "float32", True),), body, 1, columns=columns, waits=True)
        memory = Memory.of(4 * columns)
        emulation.launch(kernel, [Argument(memory, 0, "float32", (columns,), (1,))], seed=1)
        assert (memory.data.view(np.float32) == 2 * (columns - 1)).all()
