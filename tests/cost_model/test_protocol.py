import random

import pytest

from cost_model.comparison import Comparison, SampleLists, estimated, judge
from cost_model.protocol import Reference, Settings, compare, measure_one
from cost_model.statistics import median_interval
from tests.cost_model.fakes import FakeTime


def test_median_interval_is_the_sign_test_turned_round() -> None:
    values = [float(number) for number in range(1, 22)]
    found = median_interval(values, 0.95)
    assert (found.median, found.low, found.high) == (11.0, 6.0, 16.0)
    assert found.confidence == pytest.approx(0.9733, abs=1e-4)
    few = median_interval([1.0, 2.0, 3.0], 0.99)
    assert (few.low, few.high, few.confidence) == (1.0, 3.0, 0.75)  # says how little three samples tell
    assert median_interval([5.0]).confidence == 0.0


def test_median_interval_covers_the_median_as_often_as_it_says() -> None:
    source = random.Random(1)
    inside = 0
    for _ in range(1000):
        found = median_interval([source.expovariate(1.0) for _ in range(15)], 0.9)
        inside += found.low <= 0.6931 <= found.high
    assert inside >= 900


def test_a_sample_lasts_long_enough_for_the_clock() -> None:
    time = FakeTime()
    found = measure_one(time.runner(1e-6), clocks=time.clocks)
    assert found.inner in (200, 201)
    assert found.median == pytest.approx(1e-6)
    assert measure_one(time.runner(1.0), clocks=time.clocks, budget=0.01).inner == 1


def test_agreement_ends_a_measurement_early_and_disagreement_uses_the_budget() -> None:
    time = FakeTime()
    assert len(measure_one(time.runner(1e-3), clocks=time.clocks, budget=1.0).samples) == 7
    noisy = measure_one(time.runner(1e-3, 2e-3, 4e-3), clocks=time.clocks, budget=0.1)
    assert 20 <= len(noisy.samples) <= 60
    assert noisy.spread > 0
    assert len(measure_one(time.runner(10.0, 20.0), clocks=time.clocks, budget=0.1).samples) == 3


def test_a_reference_takes_out_what_slows_the_whole_machine() -> None:
    time = FakeTime()
    reference = Reference(time.runner(1e-4), 1e-4, 2)
    time.speed = 1.7
    found = measure_one(time.runner(5e-4), clocks=time.clocks, reference=reference)
    assert found.raw[0] == pytest.approx(8.5e-4)
    assert found.median == pytest.approx(5e-4)
    assert len(found.references) == len(found.samples) + 1


def test_cpu_time_decides_for_one_thread_unless_it_stands_still() -> None:
    time = FakeTime(cpu_share=0.5)
    one = measure_one(time.runner(1e-3), threads=1, clocks=time.clocks)
    assert (one.clock, one.median) == ("cpu", pytest.approx(5e-4))
    two = measure_one(time.runner(1e-3), threads=2, clocks=time.clocks)
    assert (two.clock, two.median) == ("wall", pytest.approx(1e-3))
    still = FakeTime(cpu_share=0.0)
    assert measure_one(still.runner(1e-3), threads=1, clocks=still.clocks).clock == "wall"


def test_verdicts() -> None:
    time = FakeTime()
    runners = {
        "base": time.runner(1e-3),
        "half": time.runner(5e-4),
        "twice": time.runner(2e-3),
        "same": time.runner(1e-3, 1.001e-3),
    }
    found = compare(runners, "base", clocks=time.clocks)
    assert {name: each.verdict for name, each in found.results.items()} == {
        "base": "equal",
        "half": "faster",
        "twice": "slower",
        "same": "equal",
    }
    assert found.results["half"].ratio == pytest.approx(0.5)
    assert found.results["half"].speed_up == pytest.approx(2.0)
    assert (found.stopped, found.rounds) == ("clear", 15)
    assert found.threshold == found.floor
    assert found.verdict("half", "twice") == "faster" and found.verdict("half", "half") == "equal"


def test_noise_of_the_baseline_raises_what_counts_as_a_difference() -> None:
    time = FakeTime()
    source = random.Random(0)
    noise = [1e-3 * source.uniform(0.8, 1.25) for _ in range(997)]
    runners = {"base": time.runner(*noise), "other": time.runner(*(0.97 * each for each in reversed(noise)))}
    found = compare(runners, "base", clocks=time.clocks, settings=Settings(max_rounds=12))
    assert found.threshold > 0.03
    assert found.results["other"].verdict == "equal"
    assert found.stopped == "rounds"


@pytest.mark.parametrize(("scatter", "gain", "says"), [(2.5, 18.0, True), (2.5, 2.0, False), (1.0, 1.0203, True),
                                                       (1.0, 1.0199, False)])
def test_faster_is_slower_the_other_way_round(scatter: float, gain: float, says: bool) -> None:
    """Also where the machine's noise is 100 % and more: a threshold is a factor."""
    runs = [scatter ** (-1) ** k for k in range(30)]

    def verdict(seconds: float, other: float) -> str:
        base, twin, new = ([seconds * a for a in runs], [seconds * a for a in reversed(runs)],
                           [other * a for a in runs[1:] + runs[:1]])
        lists = {"base": SampleLists(tuple(base), tuple(base)), "new": SampleLists(tuple(new), tuple(new))}
        found = judge("base", lists, SampleLists(tuple(twin), tuple(twin)), clock="cpu", threads=1, inner={},
                      stopped="rounds", confidence=0.99, floor=0.02)
        assert scatter == 1 or found.threshold > 1
        return found.results["new"].verdict

    assert verdict(gain, 1.0) == ("faster" if says else "equal")
    assert verdict(1.0, gain) == ("slower" if says else "equal")
    if scatter == 1:
        estimates = {"base": gain, "new": 1.0}
        assert estimated(estimates, "base", "estimated", 1, "").results["new"].verdict == verdict(gain, 1.0)
        assert estimated(estimates, "new", "estimated", 1, "").results["base"].verdict == verdict(1.0, gain)


def test_a_machine_that_slows_down_changes_no_ratio() -> None:
    time = FakeTime()
    fast = time.runner(9e-4)

    def slowing() -> None:
        time.speed *= 1.001
        fast()

    found = compare({"base": time.runner(1e-3), "new": slowing}, "base", clocks=time.clocks)
    assert found.results["new"].verdict == "faster"


def test_what_is_slower_drops_out_and_the_rest_goes_on() -> None:
    time = FakeTime()
    runners = {"base": time.runner(1e-3, 1.1e-3), "slow": time.runner(9e-3), "near": time.runner(1.04e-3, 0.97e-3)}
    found = compare(runners, "base", clocks=time.clocks, settings=Settings(max_rounds=20))
    slow = [each for each in found.samples["slow"].wall if each is not None]
    assert len(slow) < found.rounds == len(found.samples["slow"].wall)
    assert found.results["slow"].verdict == "slower"


def test_the_budget_ends_a_comparison_after_three_rounds_at_least() -> None:
    time = FakeTime()
    found = compare(
        {"base": time.runner(1.0), "new": time.runner(0.5)}, "base", clocks=time.clocks, settings=Settings(budget=0.1)
    )
    assert (found.stopped, found.rounds) == ("budget", 3)
    with pytest.raises(ValueError, match="baseline"):
        compare({"a": time.runner(1.0)}, "b", clocks=time.clocks)


def test_the_same_times_give_the_same_comparison() -> None:
    def once() -> Comparison:
        time = FakeTime()
        runners = {"base": time.runner(1e-3, 1.2e-3, 0.9e-3), "new": time.runner(0.8e-3, 1.1e-3)}
        return compare(runners, "base", clocks=time.clocks, settings=Settings(max_rounds=15, seed=3))

    assert once().to_dict() == once().to_dict()
    assert Comparison.from_dict(once().to_dict()) == once()


def choose(times: dict[str, float], preference: list[str]) -> str:
    time = FakeTime()
    found = compare({name: time.runner(each) for name, each in times.items()}, "base", clocks=time.clocks)
    return found.choose(preference)


def test_the_fastest_is_chosen_and_among_equals_the_simplest() -> None:
    assert choose({"base": 1e-3, "a": 8e-4, "b": 5e-4}, ["base", "a", "b"]) == "b"
    assert choose({"base": 1e-3, "a": 5.01e-4, "b": 5e-4}, ["base", "a", "b"]) == "a"
    assert choose({"base": 1e-3, "a": 1.001e-3, "b": 2e-3}, ["a", "base", "b"]) == "a"  # no faster, but simpler
    assert choose({"base": 1e-3, "a": 1.1e-3, "b": 2e-3}, ["a", "b", "base"]) == "base"
    assert choose({"base": 1e-3, "a": 0.999e-3}, ["base", "a"]) == "base"


def test_estimates_say_that_nothing_was_measured() -> None:
    found = estimated({"base": 2.0, "new": 1.0}, "base", "estimated", 1, "sums")
    assert (found.kind, found.clock, found.rounds) == ("estimated", "none", 0)
    assert found.results["new"].verdict == "faster" and found.results["new"].confidence == 0.0
    assert found.choose(["base", "new"]) == "new"
    assert Comparison.from_dict(found.to_dict()) == found


class OnDevice:
    """A run that a device times: queued in no time, with a flush of a millisecond around each run."""

    def __init__(self, time: FakeTime, seconds: float) -> None:
        self.waits, self.seconds = time.runner(seconds + 1e-3), seconds

    def __call__(self) -> None:
        self.waits()

    def timed(self, count: int) -> list[float]:
        for _ in range(count):
            self.waits()
        return [self.seconds] * count


def test_the_clock_of_a_device_decides_where_there_is_one() -> None:
    time = FakeTime()
    found = measure_one(OnDevice(time, 5e-6), clocks=time.clocks)
    assert (found.clock, found.median, found.inner) == ("device", pytest.approx(5e-6), 20)
    assert found.samples[0].wall == pytest.approx(1.005e-3)
    runners = {"base": OnDevice(time, 2e-5), "new": OnDevice(time, 1e-5)}
    compared = compare(runners, "base", clocks=time.clocks, settings=Settings(max_rounds=20))
    assert compared.clock == "device" and compared.results["new"].ratio == pytest.approx(0.5)
    assert Comparison.from_dict(compared.to_dict()) == compared


def test_intervals_of_thousands_of_values() -> None:
    """The normal approximation of the sign test, n / 2 - z * sqrt(n) / 2, is good there; coefficients are no floats."""
    for count, z in ((1030, 2.5758), (5000, 2.5758)):
        found = median_interval(list(range(count)), 0.99)
        assert found.low == pytest.approx(count / 2 - z * count**0.5 / 2 - 1, abs=2)
        assert found.high == count - 1 - found.low
        assert found.confidence >= 0.99
