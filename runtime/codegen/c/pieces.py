"""A graph lowered over its result: in one piece, or in several where a Concat, or the rim of a window, cuts a loop."""

from __future__ import annotations

from typing import Any

from .lowering import Lowering, Values, whole_shape
from .text import row_loops
from .views import Cut, Domain, NotFusable, Refine

MOST_PIECES = 16  # of a kernel with Concat
MOST_STEPS = 64  # how often lowering starts again


def pieces_of(values: Values, exact: bool) -> list[Lowering]:
    """The graph lowered over its result, in pieces where a Concat ends in the middle of a loop."""
    waiting, found = [Domain.of(whole_shape(values))], []
    for _ in range(MOST_STEPS):
        if not waiting:
            break
        domain = waiting.pop()
        try:
            found.append(Lowering(values, domain, exact))
        except Refine as need:
            waiting.append(_loop_of_result(domain, need).refined(need))
        except Cut as need:
            waiting.extend(reversed(_loop_of_result(domain, need).cut(need)))
    if waiting or len(found) > MOST_PIECES:
        raise NotFusable("too many pieces")
    if len(found) > 1 and any(each.columns is not None for each in found):
        raise NotFusable("a Concat beside a reduction")
    return found


def _loop_of_result(domain: Domain, need: Refine | Cut) -> Domain:
    if need.loop not in domain.loops:
        raise NotFusable("a Reshape or Concat of what is reduced")
    return domain


def grouped(pieces: list[Lowering]) -> list[list[Lowering]]:
    """Pieces that one kernel walks through together: those that have all loops but the last in common."""
    found: dict[tuple[Any, ...], list[Lowering]] = {}
    for piece in pieces:
        rows = row_loops(piece, len(pieces) > 1)
        found.setdefault(tuple((loop, piece.trips[loop]) for loop in rows), []).append(piece)
    return list(found.values())
