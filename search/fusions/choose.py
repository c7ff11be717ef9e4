"""Which of the measured groups to take: the set packing of greatest gain, solved exactly."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from runtime.fusion import Group

from ..exact import LinearModel, QuietSolver

SCALE = 1e6  # gains in microseconds, so that the solver's absolute tolerances are small


def best_packing(groups: Sequence[tuple[Group, float]], shared: Collection[int], seconds: float = 10.0) -> list[int]:
    """The places in `groups` (with the seconds that each saves) of those that save most together and have no node in
    common, apart from `shared` ones, which may be computed twice."""
    useful = [place for place, (_, gain) in enumerate(groups) if gain > 0]
    if not useful:
        return []
    model = LinearModel()
    columns = {place: model.column(-groups[place][1] * SCALE, 0.0, 1.0, True) for place in useful}
    members: dict[int, list[int]] = {}
    for place in useful:
        for index in groups[place][0].nodes:
            if index not in shared:
                members.setdefault(index, []).append(place)
    for places in members.values():
        if len(places) > 1:
            model.row([(columns[place], 1.0) for place in places], 0.0, 1.0)
    solver = QuietSolver()
    for option, value in (("threads", 1), ("random_seed", 0), ("time_limit", seconds)):
        solver.setOptionValue(option, value)
    solver.passModel(model.lp())
    solver.run()
    values = solver.getSolution().col_value
    return [place for place in useful if values[columns[place]] > 0.5]
