"""Random operators: moments, purity, and Dropout as the identity outside of training."""

from __future__ import annotations

import numpy as np
import pytest

from graphs.ir import Node
from graphs.operators import RUNTIME, find, is_pure
from runtime.kernels import GENERATOR
from tests.runtime.kernels.harness import canonical, check_types, compare, evaluate_ours

F = np.float32


def draw(
    op: str, inputs: list[np.ndarray | None], outputs: int = 1, seed: int = 0, **attrs: object
) -> list[np.ndarray]:
    record = find(op)
    assert record is not None
    full = {**record.attrs, **attrs}
    results = evaluate_ours(op, {**full, GENERATOR: np.random.default_rng(seed)}, inputs, outputs)
    check_types(op, full, inputs, results)
    return results


@pytest.mark.parametrize("dtype", [1, 10, 11])
def test_moments(dtype: int) -> None:
    normal = draw("RandomNormal", [], shape=(20000,), dtype=dtype, mean=2.0, scale=3.0)[0].astype(np.float64)
    assert abs(normal.mean() - 2) < 0.1 and abs(normal.std() - 3) < 0.1
    uniform = draw("RandomUniform", [], shape=(20000,), dtype=dtype, low=-1.0, high=3.0)[0].astype(np.float64)
    assert uniform.min() >= -1 and uniform.max() <= 3 and abs(uniform.mean() - 1) < 0.1
    like = np.zeros((200, 50), F)
    assert abs(draw("RandomNormalLike", [like])[0].std() - 1) < 0.1
    assert abs(draw("RandomUniformLike", [like], dtype=dtype)[0].astype(float).mean() - 0.5) < 0.1


def test_discrete() -> None:
    chances = np.array([0, 0.25, 1] * 5000, F)
    found = draw("Bernoulli", [chances])[0].reshape(-1, 3)
    assert not found[:, 0].any() and found[:, 2].all() and abs(found[:, 1].mean() - 0.25) < 0.03
    classes = draw("Multinomial", [np.log(np.array([[1, 2, 1], [0, 0, 5]], F) + 1e-30)], sample_size=8000, dtype=7)[0]
    assert abs((classes[0] == 1).mean() - 0.5) < 0.05 and (classes[1] == 2).all()


def test_same_generator_same_numbers() -> None:
    first, second = (draw("RandomNormal", [], seed=5, shape=(9,))[0] for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_dropout() -> None:
    x = np.ones((100, 100), F)
    np.testing.assert_array_equal(draw("Dropout", [x], 2)[0], x)
    y, mask = draw("Dropout", [x], 2, training_mode=True, ratio=0.25)
    assert abs(mask.mean() - 0.75) < 0.03
    np.testing.assert_allclose(y, mask / 0.75, rtol=1e-6)
    for opset in (7, 10, 13):
        compare("Dropout", [x], opset)


@pytest.mark.parametrize(("opset", "attrs", "mask"), [(1, {"is_test": 1}, 1), (7, {}, 1), (10, {}, 0), (13, {}, 0)])
def test_old_dropout(opset: int, attrs: dict[str, object], mask: int) -> None:
    form = canonical("Dropout", attrs, [np.ones(3, F)], opset)
    assert form is not None and form[0]["legacy_mask"] == mask and not form[0]["training_mode"]
    assert canonical("Dropout", {"is_test": 0}, [np.ones(3, F)], 6) is None


@pytest.mark.parametrize(("op", "attrs", "pure"), [
    ("RandomNormal", {}, False), ("Multinomial", {}, False), ("Dropout", {"training_mode": False}, True),
    ("Dropout", {"training_mode": True}, False), ("Dropout", {"training_mode": RUNTIME}, False),
    ("BatchNormalization", {"training_mode": 0}, True), ("BatchNormalization", {"training_mode": 1}, False),
])  # fmt: skip
def test_purity(op: str, attrs: dict[str, object], pure: bool) -> None:
    assert is_pure(Node(op, ("x",), ("y",), attrs, version=1)) is pure
