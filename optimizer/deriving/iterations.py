"""A training step taken several times over: what the parameters become in float64, in egraft, in ONNX Runtime, and
with the superoptimized step. The yardstick of a difference is how far the unoptimized step itself, in the model's own
types, gets from float64 on the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from graphs import dims, dtypes
from graphs.errors import EgraftError
from graphs.ir import Graph
from graphs.wording import counted
from runtime import Session
from runtime.training import initial_state, next_state
from runtime.validation.report import FAILED, NOT_VALIDATED, PASSED

from .checks import Runner, narrowed, runners
from .differences import Evaluated, Place

FACTOR, ULPS = 10.0, 8.0  # of the noise of the unoptimized step; of the level of a tensor, for each iteration
BLIND_ULPS = 256.0  # where that noise is not known
WIDE_BYTES = 256 << 20  # of state: beyond, float64 is left out, and the yardstick is the ulps alone
RATE = 1e-3  # for a learning rate that is fed


@dataclass
class Iterations:
    """`losses` by where the step ran; `rows`: the largest difference of any state from `against`, by its level."""

    count: int
    status: str = NOT_VALIDATED
    reason: str = ""
    against: str = "float64"
    losses: dict[str, list[float]] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Passed."""
        return self.status == PASSED

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {**asdict(self), "ok": self.ok, "summary": self.summary()}

    def summary(self) -> str:
        """One line."""
        told = [f"{row['runtime']} {row['difference']:.2g} ({row['of']})" for row in self.rows]
        text = (f"{self.status}: {counted(self.count, 'step')}, states against {self.against}, by their level: "
                f"{', '.join(told)}")
        return text + (f": {self.reason}" if self.reason else "")


Final = dict[str, np.ndarray]


def take(run: Runner, step: Graph, loss: str, feeds: Mapping[str, Any], count: int) -> tuple[Final, list[float]]:
    """(the state after `count` steps on the same feeds, the loss of each)."""
    state: dict[str, Any] = {name: feeds[name] for name in next_state(step)}
    rest = {name: value for name, value in feeds.items() if name not in state}
    losses = []
    for _ in range(count):
        found = run({**rest, **state})
        losses.append(float(np.sum(found[loss])))
        state = {name: found[output] for name, output in next_state(step).items()}
    return state, losses


def start(step: Graph, place: Place) -> dict[str, Any]:
    """Feeds of the first step: parameters and state as they begin, a learning rate that is fed as `RATE`."""
    feeds = {**{name: constant.array for name, constant in step.defaults.items()}, **place.feeds, **initial_state(step)}
    for name in step.inputs:
        type_ = step.type_of(name)
        if name not in feeds and type_ is not None:
            shape = [dims.evaluate(size, place.sizes) or 0 for size in type_.shape or ()]
            fill = 0.0 if name in next_state(step) else RATE
            feeds[name] = np.full(shape, fill, dtypes.numpy_dtype(type_.dtype))
    return narrowed(step, {name: feeds[name] for name in step.inputs})


def check(step: Graph, optimized: Graph | None, loss: str, place: Place, count: int, threads: int) -> Iterations:
    """Take the steps everywhere and compare. Fails where the optimized step strays further than the yardstick."""
    result, feeds = Iterations(count), start(step, place)
    plain, result.losses["egraft:cpu"] = take(Session(step).run, step, loss, feeds, count)
    wide = None
    if sum(value.nbytes for value in plain.values()) <= WIDE_BYTES:
        wide, result.losses["float64"] = take(Evaluated(step, place.seed), step, loss, feeds, count)
    exact = plain if wide is None else wide
    odd = [name for state in (plain, exact) for name, value in state.items()
           if not np.isfinite(np.asarray(value, np.float64)).all()]
    if odd:
        result.reason = f"{odd[0]!r} becomes infinite: give a lower learning rate (--lr) or other inputs (--inputs)"
        return result
    if wide is None:
        result.against = "the unoptimized step in egraft:cpu"
    else:
        result.rows.append(_worst("egraft:cpu", plain, exact))
    for name, make in _others(step, optimized, threads):
        try:
            found, result.losses[name] = take(make(), step, loss, feeds, count)
        except EgraftError:
            raise
        except Exception as error:  # ONNX Runtime's classes differ by release
            result.warnings.append(f"{name} does not run it: {type(error).__name__}: "
                                   f"{' '.join(str(error).split())[:300]}")
            continue
        result.rows.append(_worst(name, found, exact))
        stray = _strayed(found, exact, plain, count * (BLIND_ULPS if wide is None else ULPS))
        if stray:
            result.status, result.reason = FAILED, f"{stray[0]!r} in {name} strays from the unoptimized step"
            return result
    result.status = PASSED
    return result


def _others(step: Graph, optimized: Graph | None, threads: int) -> list[tuple[str, Callable[[], Runner]]]:
    """Where else than in egraft:cpu the step is taken: in ONNX Runtime, and the optimized step in both."""
    found = [(name, make) for name, make in runners(step, threads) if name != "egraft:cpu"]
    if optimized is not None:
        found += [(f"{name}, optimized", make) for name, make in runners(optimized, threads)]
    return found


def _worst(name: str, found: Final, exact: Final) -> dict[str, Any]:
    errors = {key: _rms(_apart(found[key], value)) / (_rms(value) or 1.0) for key, value in exact.items()}
    worst = max(errors, key=lambda key: errors[key])
    return {"runtime": name, "difference": errors[worst], "of": worst}


def _strayed(found: Final, exact: Final, plain: Final, ulps: float) -> list[str]:
    """States that are further from the exact ones than the yardstick allows."""
    bad = []
    for name, value in exact.items():
        kind = plain[name].dtype
        if dtypes.name_of(kind) not in dtypes.FLOATS:
            bad += [name] if not np.array_equal(found[name], plain[name]) else []
            continue
        ulp = float(ml_dtypes.finfo(kind).eps)
        allowed = FACTOR * _rms(_apart(plain[name], value)) + ulps * ulp * (_rms(value) + ulp)
        if not _rms(_apart(found[name], value)) <= allowed:
            bad.append(name)
    return bad


def _apart(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.asarray(a, np.float64) - np.asarray(b, np.float64)


def _rms(value: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(value, dtype=np.float64)))) if np.size(value) else 0.0
