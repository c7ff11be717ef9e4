"""The validation of `grad`: derivatives against differences, and the same graph in float32 and in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from cost_model.targets import all_targets
from cost_model.targets.onnxruntime_cpu import OnnxRuntimeCpu
from graphs.builder import Builder
from graphs.ir import Graph
from graphs.types import TensorType
from runtime import Session
from runtime.gradients.tape import free_name

from .differences import (
    ALLOWED,
    TRIES,
    Check,
    Evaluated,
    Place,
    Slope,
    Values,
    along_gradients,
    compare,
    direction,
    places,
    verdict,
)

ONNXRUNTIME = "onnxruntime:cpu"
NOISE = 1e-6  # of the largest derivative of all: below, a derivative is rounding in float32
DOUBTFUL = 0.1  # part of its largest element by which a derivative may differ from float64 without a warning
Runner = Callable[[Mapping[str, Any]], dict[str, Any]]


def opened(graph: Graph, names: Sequence[str], tops: Sequence[str]) -> Graph:
    """A copy with the outputs `tops` in which all names are inputs: initializers, with their values as defaults, and
    inner values, of which the node then gives another name."""
    copy = graph.copy()
    taken = copy.names()
    inner = {name for name in names if name not in copy.inputs and name not in copy.constants}
    for node in copy.nodes:
        node.outputs = tuple(free_name(taken, f"{name}_before") if name in inner else name for name in node.outputs)
    for name in names:
        constant = copy.constants.pop(name, None)
        if constant is not None:
            copy.types[name] = copy.declared[name] = constant.type
            copy.defaults[name] = constant
        if name not in copy.inputs:
            copy.inputs.append(name)
    copy.outputs = list(tops)
    return copy


def groups(graph: Graph, names: Sequence[str]) -> list[list[str]]:
    """What can be moved at once: inputs and initializers; an inner value alone, as it lies behind them."""
    outer = [name for name in names if name in graph.inputs or name in graph.constants]
    return [*([outer] if outer else []), *([name] for name in names if name not in outer)]


class Gradients:
    """Of reverse mode: `made` is the graph with `outputs`, name -> its gradient's, of the scalar `height`."""

    def __init__(self, graph: Graph, made: Graph, height: str, outputs: Mapping[str, str]) -> None:
        self.graph, self.made, self.height, self.outputs = graph, made, height, dict(outputs)

    def check(self, seed: int, sizes: dict[str, int] | None,
              given: Mapping[str, Any] | None) -> tuple[Check, list[Place]]:
        """The verdict, and the places at which it was made."""
        whole = self.graph.copy()
        inner = [name for name in self.outputs if name not in whole.inputs and name not in whole.constants]
        whole.outputs = [self.height, *(name for name in inner if name != self.height)]
        found, why = places(whole, self.height, seed, sizes, given)
        if not found:
            return Check(reason=why), []
        rows: list[dict[str, Any]] = []
        zero = set(self.outputs)
        for place in found:
            values = Evaluated(self.made, place.seed)(place.feeds)
            gradients = {name: np.asarray(values[output], np.float64) for name, output in self.outputs.items()}
            zero = {name for name in zero if not gradients[name].any()}
            missing = [name for name in whole.outputs if name not in values]
            values |= Evaluated(whole, place.seed)(place.feeds) if missing else {}
            base = float(np.sum(values[self.height]))
            at = {**{name: constant.array for name, constant in self.graph.constants.items()}, **place.feeds,
                  **{name: values[name] for name in inner}}
            for names in groups(self.graph, list(self.outputs)):
                rows.append(self._row(place, at, {name: gradients[name] for name in names}, base))
        return verdict(rows, [name for name in self.outputs if name in zero]), found

    def _row(self, place: Place, at: Mapping[str, Any], gradients: dict[str, np.ndarray],
             base: float) -> dict[str, Any]:
        """Along one direction of all at once; where that differs, of each alone, to name which it is."""
        error, settled = self._tried(place, at, gradients, base)
        names = list(gradients)
        if settled and error > ALLOWED and len(names) > 1:
            alone = {name: self._tried(place, at, {name: gradients[name]}, base) for name in names}
            names = [name for name, (each, sure) in alone.items() if sure and each > ALLOWED] or names
        return {"difference": error, "settled": settled, "of": names, "sizes": place.sizes, "seed": place.seed}

    def _tried(self, place: Place, at: Mapping[str, Any], gradients: dict[str, np.ndarray],
               base: float) -> tuple[float, bool]:
        graph = opened(self.graph, list(gradients), [self.height])
        run, fixed = Evaluated(graph, place.seed), {name: at[name] for name in graph.inputs}
        for attempt in range(TRIES):
            slope = along_gradients(at, gradients, base, place.seed + 1000 * attempt)
            error, settled = compare(slope, lambda moved: float(np.sum(run({**fixed, **moved})[self.height])), at, base)
            if settled:
                break
        return error, settled


class Tangents:
    """Of forward mode: `made` takes `inputs`, name -> its tangent's, and has `outputs`, name -> its tangent's."""

    def __init__(self, graph: Graph, made: Graph, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> None:
        self.graph, self.made, self.inputs, self.outputs = graph, made, dict(inputs), dict(outputs)

    def check(self, seed: int, sizes: dict[str, int] | None,
              given: Mapping[str, Any] | None) -> tuple[Check, list[Place]]:
        """The verdict, and the places (with the tangents that were fed)."""
        tops = list(self.outputs)
        whole = opened(self.graph, list(self.inputs), tops)
        found, why = places(whole, tops[0], seed, sizes, given)
        if not found:
            return Check(reason=why), []
        rows = []
        for place in found:
            moves = {name: direction(name, np.asarray(place.feeds[name]), seed) for name in self.inputs}
            place.feeds = {**place.feeds, **{self.inputs[name]: move for name, move in moves.items()}}
            values = Evaluated(self.made, place.seed)(place.feeds)
            weights = {top: np.random.default_rng((seed, k)).standard_normal(np.shape(values[top]))
                       for k, top in enumerate(tops)}
            tangents = {top: np.asarray(values[self.outputs[top]], np.float64) for top in tops}
            predicted = sum(float(np.vdot(weights[top], tangents[top])) for top in tops)
            size = float(np.sqrt(sum(float(np.vdot(each, each)) for each in tangents.values())))

            def height(moved: Values, place: Place = place, weights: Values = weights) -> float:
                feeds = {name: value for name, value in place.feeds.items() if name in whole.inputs}
                found = Evaluated(whole, place.seed)({**feeds, **moved})
                return sum(float(np.vdot(weights[top], found[top])) for top in tops)

            base = float(np.sqrt(sum(float(np.vdot(values[top], values[top])) for top in tops)))
            error, settled = compare(Slope(moves, predicted, size), height, place.feeds, base)
            rows.append({"difference": error, "settled": settled, "of": tops, "sizes": place.sizes, "seed": place.seed})
        return verdict(rows, []), found


# ---------------------------------------------------------------- in the model's own types


def in_own_types(made: Graph, place: Place, outputs: Sequence[str],
                 threads: int) -> tuple[list[dict[str, Any]], list[str]]:
    """How far the derivatives lie from those in float64, in egraft and in ONNX Runtime: rows, and warnings."""
    wide = Evaluated(made, place.seed)(place.feeds)
    feeds = narrowed(made, place.feeds)
    levels = {name: float(np.max(np.abs(wide[name]), initial=0.0)) for name in outputs}
    least = NOISE * max(levels.values())  # what is 0 but for rounding has no level to measure by
    rows, warnings = [], []
    for where, make in runners(made, threads):
        try:
            values = make()(feeds)
        except Exception as error:  # ONNX Runtime's classes differ by release; the file stays right without it
            warnings.append(f"{where} does not run it: {type(error).__name__}: {' '.join(str(error).split())[:300]}")
            continue
        errors = {name: relative(values[name], wide[name], max(levels[name], 1e-30)) for name in outputs
                  if levels[name] >= least}
        worst = max(errors, key=lambda name: errors[name] if np.isfinite(errors[name]) else np.inf)
        rows.append({"runtime": where, "difference": errors[worst], "of": worst})
        if not np.isfinite(errors[worst]):
            warnings.append(f"{worst!r} is not finite in {where}, as it is in float64")
        elif errors[worst] > DOUBTFUL:
            warnings.append(f"{worst!r} in {where} is {errors[worst]:.2g} of its largest element from float64")
    return rows, warnings


def relative(value: Any, exact: Any, level: float) -> float:
    """The largest difference, by a level."""
    return float(np.max(np.abs(np.asarray(value, np.float64) - np.asarray(exact, np.float64)), initial=0.0)) / level


def narrowed(graph: Graph, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """The feeds that the graph takes, in the types that it declares."""
    b, found = Builder.continuing(graph.copy()), {}
    for name in graph.inputs:
        if name in feeds:
            type_ = b.scope.lookup(name)[0]
            numbers = isinstance(type_, TensorType) and isinstance(feeds[name], np.ndarray)
            found[name] = _as(feeds[name], type_.dtype) if numbers and isinstance(type_, TensorType) else feeds[name]
    return found


def _as(value: np.ndarray, dtype: str) -> np.ndarray:
    from graphs.dtypes import is_float, numpy_dtype

    return value.astype(numpy_dtype(dtype)) if is_float(dtype) else value


def runners(graph: Graph, threads: int) -> list[tuple[str, Callable[[], Runner]]]:
    """The runtimes that are here: name, and what prepares the graph for one."""
    found: list[tuple[str, Callable[[], Runner]]] = [("egraft:cpu", lambda: Session(graph).run)]
    target = next((each for each in all_targets() if each.name == ONNXRUNTIME), None)
    if isinstance(target, OnnxRuntimeCpu) and target.available() is None:
        found.append((ONNXRUNTIME, lambda: onnxruntime_runner(target, graph, threads)))
    return found


def onnxruntime_runner(target: OnnxRuntimeCpu, graph: Graph, threads: int) -> Runner:
    """ONNX Runtime's session of a graph, with inputs that have defaults fed as well."""
    session = target.session(graph, threads)
    taken = {each.name for each in (*session.get_inputs(), *session.get_overridable_initializers())}

    def run(feeds: Mapping[str, Any]) -> dict[str, Any]:
        found = session.run(graph.outputs, {name: value for name, value in feeds.items() if name in taken})
        return dict(zip(graph.outputs, found))

    return run
