"""A result for `egraft:cuda` is validated in a session on the device: emulated, with faults that only sessions show."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cost_model import targets
from cost_model.targets import base
from graphs.errors import ExecutionFailed
from graphs.ir import Graph, is_fused
from graphs.text import parse_graph
from optimizer import Result, optimize
from optimizer.on_device import same_bits
from optimizer.progress import Event
from runtime import Session, run
from runtime.codegen import Kernel, emulation
from runtime.cuda import plan as plans
from runtime.cuda.device import Gemm, Place
from runtime.cuda.emulated import EmulatedDevice
from runtime.feeds import draw
from tests.optimizer.test_recorded_gpu import NORM, EmulatedCuda
from tests.runtime.cuda.wound import Wound

pytestmark = pytest.mark.skipif(emulation.unavailable() is not None, reason=str(emulation.unavailable()))


class Faulty(Wound):
    """Captures, and does what a subclass does wrong while the result is validated, not when candidates are tried."""

    name = "faulty"

    def __init__(self) -> None:
        super().__init__()
        self.captures, self.validating = True, False

    def enter(self, event: Event) -> None:
        self.validating = event.stage == "validate"


class WrongKernel(Faulty):
    """The first number that a fused kernel gives is too large."""

    def launch(self, kernel: Kernel, places: Sequence[Place]) -> None:
        super().launch(kernel, places)
        if self.validating and self._recorded is None and kernel.name == "eg_fused":
            _spoil(_made(kernel, places))


class WrongReplay(Faulty):
    """What was captured spoils what its last fused kernel gave."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[Place] = []  # by what is captured

    def launch(self, kernel: Kernel, places: Sequence[Place]) -> None:
        super().launch(kernel, places)
        if self._recorded is not None and kernel.name == "eg_fused":
            self.made.append(_made(kernel, places))

    def capture(self, queue: Callable[[], None]) -> Callable[[], None] | None:
        self.made = []
        replay = super().capture(queue)
        last = self.made[-1:]
        assert replay is not None

        def wrong() -> None:
            replay()
            for place in last if self.validating else ():
                _spoil(place)

        return wrong


class StaleReplay(Faulty):
    """What was captured with a fused kernel in it leaves out the last launch: the run before has left right values,
    as long as it was of the same inputs."""

    def capture(self, queue: Callable[[], None]) -> Callable[[], None] | None:
        first = len(self.launches)
        replay = super().capture(queue)
        assert replay is not None and len(self.launches) == first

        def stale() -> None:
            if not self.validating or not self.fuses:
                replay()

        return stale

    fuses = False

    def prepare(self, kernels: Sequence[Kernel]) -> None:
        super().prepare(kernels)
        self.fuses = any(each.name == "eg_fused" for each in kernels)

    def forget(self, memory: Any, start: int, size: int) -> None:
        """A GPU does not know what was given up."""


class TooSmall(Faulty):
    """Has no memory for what has a fused kernel, in the words of `CupyDevice`."""

    def prepare(self, kernels: Sequence[Kernel]) -> None:
        super().prepare(kernels)
        if self.validating and any(each.name == "eg_fused" for each in kernels):
            raise ExecutionFailed("egraft:cuda, 4096 bytes of memory", "the GPU's memory is too small: out of memory",
                                  "run smaller inputs, or close other sessions and programs")


class Dying(Faulty):
    """A fused kernel fails, and nothing works any more."""

    dead = False

    def launch(self, kernel: Kernel, places: Sequence[Place]) -> None:
        self.dead |= self.validating and kernel.name == "eg_fused"
        self.synchronize()
        super().launch(kernel, places)

    def synchronize(self) -> None:
        if self.dead:
            raise ExecutionFailed("egraft:cuda, a captured run", "CUDARuntimeError: cudaErrorIllegalAddress",
                                  "report it")
        super().synchronize()

    def gemm(self, gemm: Gemm, a: Place, b: Place, c: Place) -> None:
        self.synchronize()
        super().gemm(gemm, a, b, c)


class Gone(Dying):
    """It is gone before anything is validated."""

    def enter(self, event: Event) -> None:
        super().enter(event)
        self.dead |= self.validating


class GoneInTheRace(Dying):
    """It is gone when whole graphs are timed."""

    racing = False

    def enter(self, event: Event) -> None:
        super().enter(event)
        self.racing = event.stage == "finalists"

    def time(self, queue: Callable[[], None], count: int) -> list[float]:
        self.dead |= self.racing
        self.synchronize()
        return super().time(queue, count)


class WrongEngine(Faulty):
    """The first number of a product of the library is too large, whoever asks for it."""

    def gemm(self, gemm: Gemm, a: Place, b: Place, c: Place) -> None:
        super().gemm(gemm, a, b, c)
        if self.validating and self._recorded is None:
            _spoil(c)


class OtherBits(Faulty):
    """The last bit of what a fused kernel gives is another one."""

    def launch(self, kernel: Kernel, places: Sequence[Place]) -> None:
        super().launch(kernel, places)
        if self.validating and self._recorded is None and kernel.name == "eg_fused":
            _values(_made(kernel, places)).view(np.uint32)[...] ^= 1


def _made(kernel: Kernel, places: Sequence[Place]) -> Place:
    return next(place for place, parameter in zip(places, kernel.parameters) if parameter.output)


def _values(place: Place) -> np.ndarray:
    count = int(np.prod(place.shape))
    found: np.ndarray = place.memory.data[place.start : place.start + 4 * count].view(np.float32)
    return found


def _spoil(place: Place) -> None:
    _values(place)[0] += np.float32(0.125)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(base, "reference_work", lambda: base.chain(2))  # the emulation is slow
    yield


def optimized(device: Faulty, monkeypatch: pytest.MonkeyPatch, graph: str = NORM, **settings: Any) -> Result:
    monkeypatch.setitem(targets._table(), "egraft:cuda", EmulatedCuda(device))
    settings = {"dims": {"n": [6]}, **settings}
    return optimize(parse_graph(graph), target="egraft:cuda", effort="low", timings=":memory:", progress=device.enter,
                    **settings)


def agrees(result: Result, device: EmulatedDevice) -> None:
    """What is handed back runs right there, in every run and with other inputs."""
    graph = parse_graph(NORM)
    session = Session(result.graph, target="egraft:cuda", device=device)
    for seed in (5, 5, 5, 6):
        feeds = draw(graph, seed, {"n": 6})
        np.testing.assert_allclose(session.run(feeds)["y"], run(graph, feeds)["y"], rtol=1e-5, atol=1e-6)


def is_kept(graph: Graph) -> bool:
    return any(map(is_fused, graph.nodes))


@pytest.mark.parametrize("precision", ["rounding", "exact"])
def test_a_right_result_is_validated_in_a_captured_session(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    result = optimized(Faulty(), monkeypatch, precision=precision)
    assert is_kept(result.graph) and not result.report["warnings"] and not result.report["dropped"]
    found = result.report["validation"]["device"]
    assert (found["status"], found["device"], found["captured"]) == ("passed", "faulty", True), found
    assert found["rounds"] == len(result.report["validation"]["rounds"]) and found["runs"] == 4
    assert ("bit for bit" in found["against"]) == (precision == "exact")
    assert "device     passed on faulty" in result.summary()
    assert result.report["validation"]["ok"]


@pytest.mark.parametrize("kind", [WrongKernel, WrongReplay, StaleReplay])
def test_what_only_a_session_does_wrong_is_found(kind: type[Faulty], monkeypatch: pytest.MonkeyPatch) -> None:
    result = optimized(kind(), monkeypatch)
    dropped = result.report["dropped"]
    assert dropped and {row["rule"] for row in dropped} == {"fuse"}, dropped
    assert all(row["reason"].startswith("on the device (faulty): ") for row in dropped)
    assert any("a result failed validation and was dropped" in text for text in result.report["warnings"])
    device = kind()
    device.validating = True
    agrees(result, device)


def test_one_round_of_given_inputs_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Left over from a run on the same inputs a wrong result looks right: runs on other ones lie between."""
    np.savez(tmp_path / "feeds.npz", **draw(parse_graph(NORM), 7, {"n": 6}))  # type: ignore[arg-type]
    result = optimized(StaleReplay(), monkeypatch, inputs=str(tmp_path / "feeds.npz"), dims={})
    dropped = result.report["dropped"]
    assert dropped and all(row["reason"].startswith("on the device (faulty): ") for row in dropped)
    agrees(result, EmulatedDevice())


def test_memory_that_is_used_twice_at_a_time_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan of a graph with a fused kernel lays what that gives over an input, which somebody still reads."""
    device = Faulty()
    layout = plans.Plan.layout

    def wrong(plan: plans.Plan) -> plans.Layout:
        found = layout(plan)
        fused = [each for each in plan.instructions
                 if isinstance(each, plans.Launch) and each.kernel.name == "eg_fused"]
        if not device.validating or len(plan.instructions) < 3 or not fused:
            return found
        made = fused[0].written[0].storage
        over = next(each.storage for each in plan.inputs.values() if each.storage is not None)
        assert made is not None
        return dataclasses.replace(found, offsets={**found.offsets, made.number: found.offsets[over.number]})

    monkeypatch.setattr(plans.Plan, "layout", wrong)
    graph = NORM.replace("m = MatMul(z, w)\n  y = Relu(m)", "m = MatMul(z, w)\n  k = MatMul(x, w)\n  y = Sub(m, k)")
    result = optimized(device, monkeypatch, graph)
    assert result.report["dropped"] and not is_kept(result.graph)
    assert result.report["dropped"][0]["reason"].startswith("on the device (faulty): ")


def test_other_bits_are_wrong_for_the_class_exact_only(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_kept(optimized(OtherBits(), monkeypatch).graph)
    result = optimized(OtherBits(), monkeypatch, precision="exact")
    assert not is_kept(result.graph) and {row["rule"] for row in result.report["dropped"]} == {"fuse"}


@pytest.mark.parametrize(("kind", "said"), [(TooSmall, "memory is too small"), (Dying, "cudaErrorIllegalAddress")])
def test_a_result_that_the_device_does_not_run_is_not_handed_back(
        kind: type[Faulty], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no rule's fault: nothing is bisected, and the run ends with what does run, or the input."""
    result = optimized(kind(), monkeypatch)
    assert not is_kept(result.graph) and not result.report["dropped"]
    assert any(said in text and "not handed back" in text for text in result.report["warnings"])
    agrees(result, EmulatedDevice(captures=True))


def test_a_device_that_fails_the_input_too_costs_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    result = optimized(Gone(), monkeypatch)
    assert is_kept(result.graph) and result.report["validation"]["ok"]
    found = result.report["validation"]["device"]
    assert found["status"] == "not validated" and "the input itself does not run there" in found["reason"]
    assert any("was not validated on the device" in text for text in result.report["warnings"])
    assert "device     not validated on the device: the input itself does not run" in result.summary()


def test_a_device_that_fails_while_graphs_are_timed_ends_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    result = optimized(GoneInTheRace(), monkeypatch)
    assert any(text.startswith("measuring whole graphs failed: ") for text in result.report["warnings"])
    assert "cudaErrorIllegalAddress" in result.report["measured"]["note"]
    agrees(result, EmulatedDevice())


def test_where_the_input_is_wrong_there_too_a_warning_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    result = optimized(WrongEngine(), monkeypatch)
    assert is_kept(result.graph) and not result.report["dropped"]
    found = result.report["validation"]["device"]
    assert (found["status"], found["against"]) == ("passed", "the original on the device")
    assert any("other outputs than the CPU on the input itself" in text for text in result.report["warnings"])


def test_random_numbers_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = NORM.replace("y = Relu(m)", "d = RandomNormalLike(m)\n  k = Add(m, d)\n  y = Relu(k)")
    result = optimized(Faulty(), monkeypatch, graph)
    found = result.report["validation"]["device"]
    assert found["status"] == "not validated" and "RandomNormalLike" in found["reason"]
    assert not result.report["warnings"]  # nothing went wrong


def test_a_remembered_result_is_validated_there_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = str(tmp_path / "t.db")
    monkeypatch.setitem(targets._table(), "egraft:cuda", EmulatedCuda(Faulty()))
    settings: dict[str, Any] = {"target": "egraft:cuda", "effort": "low", "timings": database, "dims": {"n": [6]}}
    first = optimize(parse_graph(NORM), **settings)
    again = optimize(parse_graph(NORM), **settings)
    assert again.report["remembered"] and first.report["validation"]["device"] == again.report["validation"]["device"]
    device = WrongKernel()
    device.validating = True
    monkeypatch.setitem(targets._table(), "egraft:cuda", EmulatedCuda(device))
    assert not optimize(parse_graph(NORM), **settings).report["remembered"]


@pytest.mark.parametrize(("one", "other", "same"), [
    ([0.0, np.nan], [0.0, -np.nan], True), ([0.0], [-0.0], False), ([complex(1, 0.0)], [complex(1, -0.0)], False),
    ([1], [1], True), ([1.0], [np.nextafter(1.0, 2)], False),
])
def test_bits_of_zeros_count_and_those_of_nan_do_not(one: list[complex], other: list[complex], same: bool) -> None:
    assert same_bits(np.array(one), np.array(other)) == same
    assert same_bits([np.array(one)], [np.array(other)]) == same
