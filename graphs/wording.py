"""Numbers with their nouns, for messages and reports."""

from __future__ import annotations


def counted(count: object, noun: str, many: str | None = None) -> str:
    """`1 rule`, `2 rules`, `0 rules`; `many` is the plural where it does not just take an `s`."""
    return f"{count} {noun if count == 1 else many or noun + 's'}"
