"""Where blocks lie: never two at one place at the same time, and in regions only while those are free."""

from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.arena import Region, Span, arrange, in_regions

TIMES = st.tuples(st.integers(0, 9), st.integers(0, 9)).map(sorted)
SPANS = st.lists(st.builds(lambda size, times: Span(size, *times), st.integers(0, 2000), TIMES), max_size=9)
REGIONS = st.lists(st.builds(lambda size, times: Region(size, *times), st.integers(0, 3000), TIMES), max_size=3)


def apart(spans: list[Span], offsets: list[int]) -> bool:
    placed = list(zip(spans, offsets))
    return all(one.last < other.first or other.last < one.first or at + one.size <= there or there + other.size <= at
               for index, (one, at) in enumerate(placed) for other, there in placed[:index] if one.size and other.size)


@settings(max_examples=200, deadline=None)
@given(SPANS)
def test_spans_that_are_needed_together_lie_apart(spans: list[Span]) -> None:
    offsets, size = arrange(spans)
    assert apart(spans, offsets)
    assert all(offset + span.size <= size for offset, span in zip(offsets, spans) if span.size)


@settings(max_examples=200, deadline=None)
@given(SPANS, REGIONS, st.data())
def test_regions_hold_what_fits_while_free(spans: list[Span], regions: list[Region], data: st.DataObject) -> None:
    fitting = [data.draw(st.integers(0, len(regions))) for _ in spans]
    inside = in_regions(regions, spans, fitting)
    for place, region in enumerate(regions):
        taken = [(spans[index], offset) for index, (number, offset) in inside.items() if number == place]
        assert apart([span for span, _ in taken], [offset for _, offset in taken])
        for span, offset in taken:
            assert region.first <= span.first and span.last <= region.last and offset + span.size <= region.size
    assert all(place < fitting[index] for index, (place, _) in inside.items())
    left = [span for index, span in enumerate(spans) if index not in inside]

    def most(among: list[Span]) -> int:
        return max(sum(each.size for each in among if each.first <= step <= each.last) for step in range(10))

    assert most(left) <= most(spans)


def test_a_region_takes_what_lies_in_the_way() -> None:
    """Of two that fit the one that is needed while most is needed."""
    spans = [Span(1000, 0, 0), Span(1000, 2, 3), Span(5000, 3, 4)]
    assert set(in_regions([Region(1024, 0, 5)], spans, [1, 1, 1])) == {1}
