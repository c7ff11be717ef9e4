"""Numbers with their nouns."""

from __future__ import annotations

import pytest

from graphs.wording import counted


@pytest.mark.parametrize(("count", "words"), [(0, "0 cores"), (1, "1 core"), (2, "2 cores"), ("1", "1 core"),
                                              ("16", "16 cores"), ("?", "? cores")])
def test_one_is_no_plural_whether_number_or_text(count: object, words: str) -> None:
    assert counted(count, "core") == words


def test_a_plural_that_takes_more_than_an_s() -> None:
    assert counted(1, "entry", "entries") == "1 entry" and counted("2", "entry", "entries") == "2 entries"
