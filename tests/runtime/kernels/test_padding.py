"""Pad with elements of its own beside NumPy's."""

import numpy as np
import pytest

from runtime.kernels.movement import _repeated


@pytest.mark.parametrize("mode", ["edge", "wrap", "reflect"])
def test_repeated_elements_are_those_of_numpy(mode: str) -> None:
    """Padding may be longer than the axis, which may be one element."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        x = rng.standard_normal(rng.integers(1, 6, rng.integers(1, 4))).astype(np.float32)
        added = [(int(before), int(after)) for before, after in rng.integers(0, 9, (x.ndim, 2))]
        np.testing.assert_array_equal(_repeated(x, added, mode), np.pad(x, added, mode=mode))  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="empty axis"):
        _repeated(np.zeros(0, np.float32), [(1, 0)], mode)
