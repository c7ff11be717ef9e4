"""Contests that were held one after the other tell as one what each has told, and who of two is ahead."""

from __future__ import annotations

import dataclasses

import pytest

from cost_model.comparison import Comparison, estimated
from cost_model.joining import joined
from cost_model.protocol import Settings, compare
from cost_model.statistics import Interval
from tests.cost_model.fakes import FakeTime

MICROSECOND = 1e-6


def contest(speed: float, rounds: int, **microseconds: float) -> Comparison:
    """A comparison with a baseline of 10 us while the machine takes `speed` times as long as usual."""
    time = FakeTime()
    time.speed = speed
    runners = {name: time.runner(each * MICROSECOND) for name, each in {"base": 10.0, **microseconds}.items()}
    return compare(runners, "base", 1, Settings(max_rounds=rounds), time.clocks)


def test_ratios_stay_and_others_follow_from_them() -> None:
    first, second = contest(1.0, 6, a=8.0, slow=13.0), contest(3.0, 9, b=9.0, even=10.0)
    both = joined([first, second])
    expected = {"base": 1.0, "a": 0.8, "slow": 1.3, "b": 0.9, "even": 1.0}
    assert {name: each.ratio for name, each in both.results.items()} == pytest.approx(expected)
    assert [both.results[name].verdict for name in expected] == ["equal", "faster", "slower", "faster", "equal"]
    for name, ratio in expected.items():
        assert both.results[name].seconds == pytest.approx(ratio * 30 * MICROSECOND)  # as slow as in the longer contest
        found = both.ratio(name, "a")
        assert found is not None and found.median == pytest.approx(ratio / 0.8)
    assert both.verdict("b", "a") == "slower" and both.choose(["b", "a"]) == "a"
    assert both.rounds == 9 and len(both.samples["a"].cpu) == 9
    assert Comparison.from_dict(both.to_dict()) == both


def test_the_noisiest_part_sets_the_threshold() -> None:
    quiet = contest(1.0, 7, a=9.0)
    noisy = dataclasses.replace(contest(1.0, 7, c=9.0), threshold=0.2, noise=Interval(1.0, 0.7, 1.3, 0.99))
    both = joined([quiet, noisy])
    assert both.threshold == 0.2 and both.noise == noisy.noise
    assert both.results["a"].verdict == "faster" and both.verdict("a", "base") == "equal"


def test_one_part_is_itself_and_estimates_have_no_samples() -> None:
    alone = contest(1.0, 5, a=8.0)
    assert joined([alone]) is alone
    both = joined([estimated({"base": 2.0, "a": 1.0}, "base", "estimated", 1, "sums"), alone])
    assert not both.samples and both.verdict("a", "base") == "faster"
