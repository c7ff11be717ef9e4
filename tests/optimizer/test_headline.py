"""What a winner is said to be worth, and whether it is one, in fresh sessions: by scripted times."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cost_model.timings import Timings
from optimizer import finalists, headline, reporting, specialize
from optimizer.candidates import Improved
from optimizer.finalists import INPUT, Finalist, Outcome, race
from optimizer.headline import confirmed
from optimizer.report import handed_back_lines, ratio_text
from optimizer.reporting import headline_of
from tests.optimizer.test_finalists import (
    BEFORE,
    HEAD,
    LEANER,
    MICROSECOND,
    OTHER,
    Scripted,
    context_of,
    graph_of,
)

THIRD = f"{HEAD} a = Exp(x) b = Abs(a) y = Relu(b) }}"


def said(path: Path, scripts: dict[str, list[tuple[float, ...]]], predicted: float = 8.0,
         **options: Any) -> tuple[Outcome, Outcome, Scripted]:
    """(the race, what holds, the target)."""
    target = Scripted({BEFORE: [(10.0,)], **scripts})
    context = context_of(path / "t.db", target, **options)
    entries = [Finalist(INPUT, graph_of(BEFORE), list), *(
        Finalist(f"new {index}", graph_of(text), list, predicted * MICROSECOND) for index, text in enumerate(scripts))]
    raced = race(entries, context, 10 * MICROSECOND)
    return raced, confirmed(entries[0], raced, context, 10 * MICROSECOND), target


def test_the_headline_is_not_that_of_the_session_that_won(tmp_path: Path) -> None:
    """The race met a session that lay well: 5 us. Others of the same graph take 7 to 8."""
    looks = [(5.0,), (8.0,), (7.0,), (7.5,), (7.5,), (7.2,), (7.8,), (7.6,), (7.4,)]
    raced, outcome, target = said(tmp_path, {OTHER: looks})
    assert raced.comparison is not None and outcome.headline is not None
    assert raced.comparison.results["new 0"].ratio == pytest.approx(0.5)
    found = outcome.headline.results["new 0"]
    assert outcome.headline.pairs == 8 and target.sessions[str(graph_of(OTHER))] == 9
    assert (found.ratio, found.low, found.high) == pytest.approx((0.75, 0.7, 0.8)) and found.verdict == "faster"
    assert outcome.ranked[0].name == "new 0" and headline_of(outcome.ranked[0], outcome) is outcome.headline
    assert headline_of(outcome.ranked[1], outcome) is raced.comparison  # of others only the race tells


@pytest.mark.parametrize(("text", "seconds", "winner"), [
    (OTHER, 10.5, INPUT),  # slower after all
    (OTHER, 9.9, INPUT),  # no gain of two percent, and no simpler than the input
    (LEANER, 9.9, "new 0"),  # no gain, and simpler
    (LEANER, 10.5, INPUT),
    (OTHER, 9.7, "new 0"),
])
def test_a_gain_that_does_not_hold_is_not_handed_back(text: str, seconds: float, winner: str, tmp_path: Path) -> None:
    raced, outcome, _ = said(tmp_path, {text: [(9.0,), (seconds,)]})
    assert raced.ranked[0].name == "new 0" and outcome.ranked[0].name == winner
    assert (outcome.headline is None) == (winner == INPUT)
    assert set(outcome.not_taken) == ({"new 0"} if winner == INPUT else set())
    rows = reporting._finalists(outcome, Improved([]))
    assert {row["name"] for row in rows} == {INPUT, "new 0"} and all("speed_up" in row for row in rows)
    if winner == INPUT:
        assert "of fresh sessions, it was" in outcome.not_taken["new 0"]
        measured = reporting._measured(outcome.ranked[0], outcome)
        assert outcome.not_taken["new 0"] in "\n".join(handed_back_lines(measured, outcome.not_taken))


def test_the_next_one_is_asked_where_the_first_does_not_hold(tmp_path: Path) -> None:
    raced, outcome, _ = said(tmp_path, {OTHER: [(7.0,), (10.0,)], THIRD: [(8.0,), (8.5,)]})
    assert [entry.name for entry in raced.ranked] == ["new 0", "new 1", INPUT]
    assert [entry.name for entry in outcome.ranked] == ["new 1", INPUT]
    assert outcome.headline is not None and outcome.headline.results["new 1"].ratio == pytest.approx(0.85)


def test_a_gain_whose_interval_is_wide_stays_where_the_race_was_certain(tmp_path: Path) -> None:
    _, outcome, _ = said(tmp_path, {OTHER: [(9.0,), (9.0,), (9.9,), (9.2,)]})
    assert outcome.headline is not None and outcome.ranked[0].name == "new 0"
    assert outcome.headline.results["new 0"].verdict == "equal"  # and is said to be no more than that


def test_what_was_equal_in_the_race_did_not_win_by_its_time(tmp_path: Path) -> None:
    raced, outcome, target = said(tmp_path, {LEANER: [(10.0,)]})
    assert outcome.ranked == raced.ranked and raced.ranked[0].name == "new 0" and outcome.headline is None
    assert target.sessions[str(graph_of(LEANER))] == 1


def test_the_input_needs_no_second_measurement(tmp_path: Path) -> None:
    _, outcome, target = said(tmp_path, {OTHER: [(12.0,)]}, predicted=12.0)
    assert outcome.ranked[0].name == INPUT and outcome.headline is None
    assert target.sessions[str(graph_of(BEFORE))] == 1


def test_other_objectives_keep_their_order(tmp_path: Path) -> None:
    _, outcome, _ = said(tmp_path, {LEANER: [(9.0,), (11.0,)]}, objective="nodes")
    assert outcome.ranked[0].name == "new 0" and outcome.headline is not None
    assert outcome.headline.results["new 0"].verdict == "slower"


@pytest.mark.parametrize("limit", [{"LEAST_SECONDS": 1e-6}, {"NODE_SECONDS": 1.0}, {"TOGETHER_BYTES": -1}])
def test_where_sessions_are_dear_the_race_says_it(limit: dict[str, float], tmp_path: Path,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in limit.items():
        monkeypatch.setattr(headline, name, value)
    monkeypatch.setattr(headline, "SHARE", 0.0)
    raced, outcome, target = said(tmp_path, {OTHER: [(7.0,)]})
    assert outcome.headline is None and outcome.ranked == raced.ranked
    assert target.sessions[str(graph_of(OTHER))] == 1


def test_large_models_are_left_to_the_race(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finalists, "LARGE_NODES", 1)
    assert said(tmp_path, {OTHER: [(7.0,)]})[1].headline is None


def test_the_database_says_the_same_again(tmp_path: Path) -> None:
    script = {OTHER: [(5.0,), (8.0,), (7.0,)]}
    _, first, _ = said(tmp_path, script)
    records = list(Timings(tmp_path / "t.db").records())
    for options in ({}, {"frozen": True}):
        _, again, target = said(tmp_path, script, **options)
        assert not target.prepared and first.headline is not None
        assert again.headline is not None and again.headline.results == first.headline.results
        assert [entry.name for entry in again.ranked] == [entry.name for entry in first.ranked]
    assert list(Timings(tmp_path / "t.db").records()) == records


def test_a_frozen_database_without_it_goes_on_with_the_race(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headline, "LEAST_SECONDS", 0.0)
    said(tmp_path, {OTHER: [(7.0,)]})
    monkeypatch.undo()
    _, outcome, target = said(tmp_path, {OTHER: [(7.0,)]}, frozen=True)
    assert outcome.headline is None and outcome.ranked[0].name == "new 0" and not target.prepared


@pytest.mark.parametrize(("looks", "speed_up", "pairs"), [
    ([(5.0,), (8.0,)], 1.25, 8),  # the session of the comparison lay well
    ([(12.0,), (12.0,), (8.0,)], 1 / 1.2, 0),  # slower twice: there is nothing to tell more of
])  # fmt: skip
def test_fixed_sizes_are_told_in_the_same_way(looks: list[tuple[float, ...]], speed_up: float, pairs: int,
                                              tmp_path: Path) -> None:
    target = Scripted({BEFORE: [(10.0,)], OTHER: looks})
    entries = [Finalist(INPUT, graph_of(BEFORE), list), Finalist(specialize.RESULT, graph_of(OTHER), list)]
    row, note = specialize._against_the_file(entries, context_of(tmp_path / "t.db", target))
    assert (row["pairs"], note) == (pairs, "") and row["speed_up"] == pytest.approx(speed_up)


def test_the_summary_says_what_the_interval_is_over() -> None:
    measured = {"rounds": 24, "pairs": 8, "confidence": 0.9921875}
    assert ratio_text(measured) == "the median ratio of 8 pairs of fresh sessions"
    assert ratio_text({**measured, "pairs": 3, "confidence": 0.75}) == (
        "the median ratio of 3 pairs of fresh sessions, the interval at 75 %")
    assert ratio_text({**measured, "pairs": 0}) == "the median ratio of 24 rounds"


def test_the_report_tells_the_headline_and_the_race(tmp_path: Path) -> None:
    looks = [(5.0,), (8.0,), (7.0,), (7.5,), (7.5,), (7.2,), (7.8,), (7.6,), (7.4,)]
    _, outcome, _ = said(tmp_path, {OTHER: looks, THIRD: [(9.0,)]})
    row = reporting._measured(outcome.ranked[0], outcome)
    assert (row["speed_up"], row["low"], row["high"]) == pytest.approx((1 / 0.75, 1 / 0.8, 1 / 0.7))
    assert row["pairs"] == 8 and "8 pairs of fresh sessions" in ratio_text(row)
    assert [(each["name"], each["verdict"]) for each in row["others"]] == [("new 1", "faster")]
    rows = reporting._finalists(outcome, SimpleNamespace(predicted_input=1e-5))  # type: ignore[arg-type]
    assert (rows[0]["name"], rows[0]["pairs"]) == ("new 0", 0) and rows[0]["speed_up"] == pytest.approx(2.0)
    back = reporting._measured(outcome.ranked[-1], outcome)  # the input, where validation refused the others
    assert (back["speed_up"], back["pairs"]) == (1.0, 0)
