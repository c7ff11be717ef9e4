"""Dimensions that come together."""

from hypothesis import given
from hypothesis import strategies as st

from graphs.dims import DimLike, broadcast, data_dim, evaluate, floordiv, parse_dim, symbol

LEAVES = [symbol("a"), symbol("b"), symbol("c") + 1, floordiv(symbol("a"), 2), 1]
trees = st.recursive(st.sampled_from(LEAVES), lambda inner: st.tuples(inner, inner), max_leaves=12)


def joined(tree: object) -> DimLike:
    if not isinstance(tree, tuple):
        return tree  # type: ignore[return-value]
    found = broadcast(*map(joined, tree))
    assert found is not None
    return found


def leaves(tree: object) -> list[DimLike]:
    return [leaf for each in tree for leaf in leaves(each)] if isinstance(tree, tuple) else [tree]  # type: ignore[list-item]


@given(trees, st.fixed_dictionaries({name: st.sampled_from([0, 1, 2, 3, 7]) for name in "abc"}))
def test_a_common_size_is_that_of_all_whatever_their_order(tree: object, sizes: dict[str, int]) -> None:
    """ONNX: sizes agree, or are 1."""
    found = {evaluate(leaf, sizes) for leaf in leaves(tree)} - {1}
    if len(found) < 2:
        assert evaluate(joined(tree), sizes) == (found.pop() if found else 1)
    assert parse_dim(str(joined(tree))) == joined(tree)


def test_a_size_that_is_in_it_already_adds_nothing() -> None:
    """As in a network whose layers add what they got to what they made of it."""
    batch, data = symbol("batch"), data_dim("r")
    state: DimLike = batch
    for _ in range(40):
        found = broadcast(state, broadcast(broadcast(batch, data), state))  # type: ignore[arg-type]
        assert found is not None
        state = found
    assert state == broadcast(batch, data)
