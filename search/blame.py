"""Which rules made two terms equal: a path of firings and congruences between them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from .snapshot import Snapshot

Edge = tuple[int, int | None]  # the other label, and the rule (None: same node on equal arguments)


def blamed_rules(snapshot: Snapshot, labels: tuple[int, int], firings: Iterable[tuple[int, Sequence[tuple[int, int]]]],
                 ) -> list[int]:
    """Rules on a path between two labels of one class, and on the paths between the arguments it goes through.

    `firings`: (rule, pairs of labels that it made equal).
    """
    united: dict[int, list[Edge]] = {}
    for fired, pairs in firings:
        for one, two in pairs:
            united.setdefault(one, []).append((two, fired))
            united.setdefault(two, []).append((one, fired))
    rules: dict[int, None] = {}
    todo: list[tuple[int, int]] = [labels]
    seen = {labels}
    while todo:
        start, goal = todo.pop()
        for label, other, rule in _path(snapshot, start, goal, united):
            if rule is not None:
                rules[rule] = None
                continue
            for pair in zip(snapshot.tables.terms[label].args, snapshot.tables.terms[other].args):
                if pair[0] != pair[1] and pair not in seen:
                    seen.add(pair)
                    todo.append(pair)
    return list(rules)


def _path(snapshot: Snapshot, start: int, goal: int,
          united: dict[int, list[Edge]]) -> list[tuple[int, int, int | None]]:
    """Steps (label, next label, rule) between two labels of one class."""
    congruent: dict[object, list[int]] = {}
    for label in snapshot.members.get(snapshot.of(start), ()):
        congruent.setdefault(snapshot.key(snapshot.tables.terms[label]), []).append(label)
    came: dict[int, tuple[int, int | None] | None] = {start: None}
    queue = deque([start])
    while queue and goal not in came:
        at = queue.popleft()
        same = congruent.get(snapshot.key(snapshot.tables.terms[at]), [])
        for other, rule in [*united.get(at, ()), *((label, None) for label in same)]:
            if other not in came:
                came[other] = (at, rule)
                queue.append(other)
    path: list[tuple[int, int, int | None]] = []
    at = goal
    while came.get(at) is not None:
        back = came[at]
        assert back is not None
        path.append((back[0], at, back[1]))
        at = back[0]
    return path[::-1]
