"""What a product gives does not depend on how its operands lie in memory."""

from __future__ import annotations

import numpy as np
import pytest

from runtime.kernels import find

VIEWS = {
    "expanded rows": lambda x: np.broadcast_to(x[..., :1, :], x.shape),
    "expanded columns": lambda x: np.broadcast_to(x[..., :1], x.shape),
    "every other row": lambda x: np.repeat(x, 2, -2)[..., ::2, :],
    "every other column": lambda x: np.repeat(x, 2, -1)[..., ::2],
    "backwards": lambda x: x[..., ::-1, ::-1],
    "a part of each row": lambda x: np.concatenate([x, x], -1)[..., 1:1 + x.shape[-1]],
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_copy_of_an_operand_changes_no_bit(view: str, dtype: type) -> None:
    """Fuzz 901048: Concat of the parts of a Split of an Expand, before a MatMul, is that Expand to the bit."""
    kernel, random = find("MatMul", ""), np.random.default_rng(0)
    assert kernel is not None
    for _ in range(60):
        rows, depth, columns = random.integers(1, 9, 3)
        a = VIEWS[view](random.standard_normal((3, rows, depth)).astype(dtype))
        b = VIEWS[view](random.standard_normal((depth, columns)).astype(dtype))
        found, expected = (np.asarray(kernel({}, operands)[0]) for operands in ([a, b], [a.copy(), b.copy()]))
        assert found.tobytes() == expected.tobytes()
        assert np.allclose(found, np.einsum("bik,kj->bij", a, b), rtol=1e-4, atol=1e-5)
