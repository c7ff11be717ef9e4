"""Numbers with their nouns, for messages and reports."""

from __future__ import annotations


def counted(count: object, noun: str, many: str | None = None) -> str:
    """`1 rule`, `2 rules`, `0 rules`, also of a number that is text; `many` is a plural other than with an `s`."""
    return f"{count} {noun if str(count) == '1' else many or noun + 's'}"
