"""With several threads, threads of what ran before rest before the next thing is timed."""

import hashlib
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from cost_model import protocol, resting
from cost_model.protocol import Settings, compare
from tests.cost_model.fakes import FakeTime

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc tells which threads run")
DATA = bytes(1 << 22)  # hashing it takes milliseconds, without the interpreter's lock


@contextmanager
def working(stop: threading.Event) -> Iterator[threading.Thread]:
    """A thread that computes until `stop`."""
    def work() -> None:
        while not stop.is_set():
            hashlib.sha256(DATA)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield thread
    finally:
        stop.set()
        thread.join()


def test_it_is_waited_for_a_thread_that_ends() -> None:
    stop = threading.Event()
    with working(stop):
        threading.Timer(0.05, stop.set).start()
        waited = resting.wait_until_others_rest(30.0)
        assert waited and stop.is_set()


def test_a_thread_that_goes_on_is_not_waited_for() -> None:
    with working(threading.Event()):
        assert resting.wait_until_others_rest(0.05) is None


@pytest.mark.parametrize("threads", [1, 2])
def test_a_thread_that_still_looks_for_work_takes_no_core_from_the_next(threads: int,
                                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    """As BLAS's do behind a product."""
    seen: list[bool] = []
    long = bytes(1 << 24)

    def product() -> None:
        threading.Thread(target=hashlib.sha256, args=[long]).start()

    def fused() -> None:
        pass

    def sampled(run: protocol.Run, inner: int, clocks: protocol.Clocks) -> protocol.Sample:
        if run is fused:
            seen.append(resting._others_run(str(threading.get_native_id())))
        run()
        return protocol.Sample(1.0, 1.0)

    monkeypatch.setattr(protocol, "take_sample", sampled)
    compare({"product": product, "fused": fused}, "product", threads, Settings(max_rounds=4, min_rounds=4))
    assert any(seen) == (threads == 1)


def test_pauses_are_none_of_the_budget_but_end_it_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a fake clock, which moves by a pause of 0.1 s and by nothing else than a millisecond for each run."""
    fake = FakeTime()

    def pause() -> float:
        fake.now += 0.1
        return 0.1

    monkeypatch.setattr("cost_model.protocol.wait_until_others_rest", pause)
    runs = {"a": fake.runner(1e-3), "b": fake.runner(1e-3)}
    settings = Settings(budget=1.0, min_rounds=20, quick_rounds=20, max_rounds=20)
    found = compare(runs, "a", 2, settings, fake.clocks)
    assert (found.stopped, found.rounds) == ("budget", 5)  # of four pauses each, after two of warming up
    assert compare(runs, "a", 2, replace(settings, budget=10.0), fake.clocks).rounds == 20


def test_a_thread_that_does_not_rest_is_not_waited_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def busy() -> None:
        asked.append(1)

    monkeypatch.setattr("cost_model.protocol.wait_until_others_rest", busy)
    compare({"a": lambda: None, "b": lambda: None}, "a", 2, Settings(max_rounds=4, min_rounds=4))
    assert len(asked) == 1
