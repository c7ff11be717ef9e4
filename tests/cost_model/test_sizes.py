"""Sizes of dimensions that data decide."""

from cost_model.sizes import DATA_DEPENDENT, _without_data, size_of
from graphs.dims import DimLike, call, data_dim


def test_parts_that_a_size_is_made_of_again_and_again_are_looked_at_once() -> None:
    """Each is made of the one before it twice: written out, the last one has 4,096 times the first."""
    dim: DimLike = data_dim("n")
    for _ in range(12):
        dim = call("max", dim + 1, dim + 2)
    _without_data.cache_clear()
    assert size_of(dim, {}) == DATA_DEPENDENT + 2 * 12
    assert _without_data.cache_info().misses <= 3 * 12 + 1
