"""Where blocks lie: never two at one place at the same time, and in regions only while those are free."""

from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.arena import Region, Span, aligned, arrange, in_regions

TIMES = st.tuples(st.integers(0, 9), st.integers(0, 9)).map(sorted)
SPANS = st.lists(st.builds(lambda size, times: Span(size, *times), st.integers(0, 2000), TIMES), max_size=9)
REGIONS = st.lists(st.builds(lambda size, times, more: Region(size, *times, more), st.integers(0, 3000), TIMES,
                             st.sampled_from([0, 0, 400])), max_size=3)


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
    places, arena = in_regions(regions, spans, fitting)
    for place, region in enumerate([*regions, Region(arena, 0, 9)]):
        taken = [(span, offset) for span, (number, offset) in zip(spans, places) if number == place]
        assert apart([span for span, _ in taken], [offset for _, offset in taken])
        for span, offset in taken:
            assert not span.size or (region.first <= span.first and span.last <= region.last)
            assert not span.size or offset + span.size <= region.size + region.more
    assert all(place < most or place == len(regions) for most, (place, _) in zip(fitting, places))
    grown = [max([0, *(offset + span.size - region.size for span, (number, offset) in zip(spans, places)
                       if number == place)]) for place, region in enumerate(regions)]
    alone = sum(aligned(span.size) for span in spans)
    assert needed(spans) <= arena + sum(grown) + sum(region.size for region in regions) and arena + sum(grown) <= alone


def needed(among: list[Span]) -> int:
    return max(sum(each.size for each in among if each.first <= step <= each.last) for step in range(10))


def test_a_region_takes_what_lies_in_the_way() -> None:
    """Of two that fit the one that is needed while most is needed is there, whatever becomes of the other."""
    spans = [Span(1000, 0, 0), Span(1000, 2, 3), Span(5000, 3, 4)]
    places, arena = in_regions([Region(1024, 0, 5)], spans, [1, 1, 1])
    assert places[1] == (0, 0) and arena == aligned(5000)


def test_a_region_grows_only_where_that_saves_memory() -> None:
    """Beside each other the first two need a little more than there is; in the arena one of them would need all."""
    spans = [Span(512, 0, 0), Span(768, 0, 0), Span(256, 1, 1)]
    region = Region(1024, 0, 1, 256)
    places, arena = in_regions([region], spans, [1, 1, 1])
    assert (places[2][0], arena) == (0, 0) and {number for number, _ in places} == {0}
    assert in_regions([region], spans[:1], [1]) == ([(0, 0)], 0)


def test_another_order_needs_less() -> None:
    """The largest first take 4096 bytes where 3840 are needed."""
    spans = [Span(512, 0, 3), Span(1024, 2, 6), Span(512, 3, 4), Span(1024, 2, 6), Span(1024, 0, 2), Span(768, 3, 4)]
    assert arrange(spans)[1] == needed(spans) == 3840
