"""One graph through `optimize`, and the result against the original without our own runtime."""

from __future__ import annotations

import io
import multiprocessing
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

import numpy as np
import onnx
import onnxruntime as ort
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from graphs import load
from graphs.constants import Constant
from graphs.dims import DimLike, evaluate, symbols
from graphs.errors import InferenceError
from graphs.ir import Graph
from graphs.onnx_io import to_model_proto
from graphs.types import TensorType
from optimizer import Result, optimize
from search.trace import same_graph

Arrays = dict[str, np.ndarray]
Run = Callable[[Mapping[str, np.ndarray]], Arrays]
SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0)
EPS = {"float16": 2.0**-10, "float32": 2.0**-23, "float64": 2.0**-52}
NOISE, ULPS = 50.0, 256.0  # an honest rewrite stays far below, a wrong one far above
MOVED = 4


@dataclass
class Outcome:
    """What one graph gave. `fault` is empty where all is well."""

    graph: Graph
    precision: str
    fault: str = ""
    rewritten: bool = False  # a rule of the catalogue fired, normalization alone does not count
    changed: bool = False
    compared: bool = False
    invalid: bool = False
    one_refusal: bool = False  # invalid by the word of ONNX Runtime alone: the reference evaluator was not asked
    replayed: bool = False  # step by step, to the very result
    dropped: str = ""  # what validation did not let pass
    again: list[str] | None = None  # the steps of optimizing the result once more, where that was tried
    rules: list[str] = field(default_factory=list)
    result: Result | None = None


def examine(graph: Graph, precision: str, timings: str, objective: str = "nodes", seed: int = 0,
            again: bool = False, apart: bool = False) -> Outcome:
    """Optimize and check everything that must hold. `again`: the result is optimized once more. `apart`: ONNX Runtime
    is run in other processes, which it may end."""
    outcome = Outcome(graph, precision)
    original = to_model_proto(graph)
    try:
        onnx.checker.check_model(original, full_check=True)
    except onnx.shape_inference.InferenceError:
        outcome.invalid = True  # ONNX takes less than our own inference
        return outcome
    try:
        text = str(graph)
        result = optimize(load(original.SerializeToString()), target="roofline", effort="low", timings=timings,
                          precision=precision, objective=objective)
    except Exception as error:
        if isinstance(error, InferenceError):
            outcome.invalid, outcome.one_refusal = _refused(graph, original, seed, apart)
        outcome.fault = "" if outcome.invalid else f"crash: {type(error).__name__}: {error}"
        return outcome
    outcome.result, outcome.changed = result, bool(result.trace.steps)
    outcome.rules = [step["rule"] for step in result.trace.steps if step.get("kind") != "normalize"]
    outcome.rewritten = bool(outcome.rules) or any(step["rule"] == "optimize-bodies" for step in result.trace.steps)
    if str(graph) != text:
        outcome.fault = "the input was changed"
    unreplayed, outcome.dropped = _replays(result), _dropped(result)
    outcome.replayed = not unreplayed
    outcome.compared, wrong = _results(graph, result, original, precision, seed, apart)
    outcome.fault = outcome.fault or _contract(result, original) or wrong or unreplayed or _warning(result)
    if again and not outcome.fault:
        outcome.fault, outcome.again = _again(result, precision, timings, objective)
    return outcome


def _refused(graph: Graph, original: onnx.ModelProto, seed: int, apart: bool) -> tuple[bool, bool]:
    """Whether ONNX Runtime refuses the original, not for want of a kernel, and the reference evaluator does not run it
    either: the error that egraft reports is the model's own (a type that only becomes known once functions are inlined
    or sizes computed). And whether the latter was not asked, so that the former alone decides."""
    feeds = feeds_of(graph, seed, 3, False)
    ours, other = (_attempt(engine, original, feeds) for engine in (session_apart if apart else session, reference))
    refused = isinstance(ours, str) and not _unsupported(ours) and isinstance(other, str)
    return refused, refused and _unsupported(str(other))


def _unsupported(refusal: str) -> bool:
    """Whether a runtime lacks a kernel, or is not to be asked."""
    return "NOT_IMPLEMENTED" in refusal or refusal.startswith("NotImplementedError")


def _dropped(result: Result) -> str:
    if not result.report["dropped"]:
        return ""
    row = result.report["dropped"][0]
    return f"dropped: {row['rule']} because {row['reason']} at {row['where']}: {row['before']} => {row['after']}"


def _warning(result: Result) -> str:
    if result.report["dropped"]:
        return ""  # said already
    # A model that no input runs cannot be validated; everything else that a run complains of is a defect.
    serious = [text for text in result.report["warnings"] if "defect" in text or "unsound" in text or "early" in text]
    return f"warning: {serious[0]}" if serious else ""


def _replays(result: Result) -> str:
    try:
        replayed = result.trace.replay(result.original)
    except Exception as error:
        return f"replay: {type(error).__name__}: {error}"
    if not same_graph(replayed, result.graph):
        return "replay: it leads to another graph"
    regions = [step for step in result.trace.steps if step.get("region")]
    return "replay: the rewrites are one region" if any(step["rule"] == "region" for step in regions) else ""


def _contract(result: Result, original: onnx.ModelProto) -> str:
    """The output file is valid and has the interface of the input, to the letter."""
    try:
        made = to_model_proto(result.graph)
        onnx.checker.check_model(made, full_check=True)
    except Exception as error:
        return f"invalid result: {type(error).__name__}: {error}"
    for kind in ("input", "output"):
        before, after = ([each.SerializeToString(deterministic=True) for each in getattr(model.graph, kind)]
                         for model in (original, made))
        if before != after:
            return f"contract: another {kind}: {getattr(made.graph, kind)} instead of {getattr(original.graph, kind)}"
    if [each.version for each in made.opset_import if each.domain == ""] != [
            each.version for each in original.opset_import if each.domain == ""]:
        return "contract: another opset"
    return ""


def _again(result: Result, precision: str, timings: str, objective: str) -> tuple[str, list[str]]:
    """(what is wrong, the rules of the steps) of optimizing the result with the same options."""
    try:
        second = optimize(result.graph, target="roofline", effort="low", timings=timings, precision=precision,
                          objective=objective)
    except Exception as error:
        return f"crash on its own result: {type(error).__name__}: {error}", []
    found = _dropped(second) or _warning(second) or _replays(second)
    return f"on its own result: {found}" if found else "", [step["rule"] for step in second.trace.steps]


# ---------------------------------------------------------------- running both


def session(model: onnx.ModelProto) -> Run:
    """ONNX Runtime without its own optimizations."""
    if _gives_iteration(model.graph):
        raise NotImplementedError("ONNX Runtime 1.32.0 gives the number of runs for each iteration number")
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    made = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [each.name for each in model.graph.output]
    loses = any(node.op_type in ("GlobalMaxPool", "MaxPool") for node in _nodes(model.graph))

    def run(feeds: Mapping[str, np.ndarray]) -> Arrays:
        if loses and not _all_finite(feeds):
            raise NotImplementedError("ONNX Runtime 1.32.0 gives the lowest number, -3.4e38, for a maximum of NaN")
        return dict(zip(names, made.run(names, dict(feeds))))
    return run


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """All nodes, at any depth."""
    for node in graph.node:
        yield node
        for body in (each.g for each in node.attribute if each.HasField("g")):
            yield from _nodes(body)


def _all_finite(feeds: Mapping[str, np.ndarray]) -> bool:
    return all(np.isfinite(value).all() for value in feeds.values() if value.dtype.kind == "f")


def _loops(graph: onnx.GraphProto) -> Iterator[tuple[onnx.GraphProto, int]]:
    """(body, number of states) of each Loop, at any depth."""
    for node in _nodes(graph):
        if node.op_type == "Loop":
            yield from ((each.g, max(0, len(node.input) - 2)) for each in node.attribute if each.HasField("g"))


def _gives_iteration(graph: onnx.GraphProto) -> bool:
    """Whether a Loop gives its iteration number, as a state or a scan output, without a node between."""
    return any(each.name == body.input[0].name for body, _ in _loops(graph) for each in body.output)


def session_apart(model: onnx.ModelProto) -> Run:
    """`session` in a process of its own; RuntimeError where ONNX Runtime ends that."""
    def run(feeds: Mapping[str, np.ndarray]) -> Arrays:
        ours, theirs = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.get_context("fork").Process(target=_answer, args=(theirs, model, feeds))
        process.start()
        theirs.close()
        try:
            found: Arrays | str = ours.recv()
        except EOFError:
            process.join()
            found = f"it ended the process with status {process.exitcode}"
        process.join()
        if isinstance(found, str):
            raise RuntimeError(found)
        return found
    return run


def _answer(connection: Connection, model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> None:
    connection.send(_attempt(session, model, feeds))


class GlobalMaxPool(OpRun):
    """The reference evaluator of onnx 1.23.2 reduces the axes rank - 2 and rank - 1, right for rank 4 alone. Its
    GlobalAveragePool reduces all axes from 2 on, as the specification says."""

    op_domain = ""

    def _run(self, x: np.ndarray) -> tuple[np.ndarray]:
        if x.ndim != 4:
            raise NotImplementedError("the reference evaluator takes the maximum of other axes at ranks other than 4")
        return (x.max(axis=(2, 3), keepdims=True),)


def reference(model: onnx.ModelProto) -> Run:
    """The reference evaluator of ONNX."""
    if any(each.name == "epsilon" and each.f == 0 for node in model.graph.node for each in node.attribute):
        raise NotImplementedError("the reference evaluator takes the default for 0")
    opset = next((each.version for each in model.opset_import if each.domain in ("", "ai.onnx")), 1)
    if opset < 14 and any(node.op_type == "BatchNormalization" for node in model.graph.node):
        raise NotImplementedError("the reference evaluator mixes the mean of the batch into that of the model")
    if any(len(each.type.tensor_type.shape.dim) != 1
           for body, states in _loops(model.graph) for each in body.output[1 + states:]):
        raise NotImplementedError("the reference evaluator stacks scan outputs of a Loop right at rank 1 alone")
    made = ReferenceEvaluator(_all_named(model), new_ops=[GlobalMaxPool])
    names = [each.name for each in model.graph.output]
    loses = any(node.op_type in ("AveragePool", "Resize") for node in model.graph.node)

    def run(feeds: Mapping[str, np.ndarray]) -> Arrays:
        if loses and not _all_finite(feeds):
            raise NotImplementedError("the reference evaluator leaves NaN out of averages and resizes infinities")
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return {name: np.asarray(value) for name, value in zip(names, made.run(None, dict(feeds)))}
    return run


def _all_named(model: onnx.ModelProto) -> onnx.ModelProto:
    """Outputs without names get some: the reference evaluator gives such values to whoever leaves an input out."""
    named = onnx.ModelProto()
    named.CopyFrom(model)
    for place, node in enumerate(_nodes(named.graph)):
        node.output[:] = [name or f"unnamed {place} {number}" for number, name in enumerate(node.output)]
    return named


def feeds_of(graph: Graph, seed: int, size: int, special: bool) -> Arrays:
    """Ordinary numbers; with `special`, NaN, infinities and signed zeros among them."""
    rng = np.random.default_rng((seed, size, special))
    feeds: Arrays = {}
    for name in graph.inputs:
        dtype, dims = _type(graph, name)
        feeds[name] = _array(rng, dtype, tuple(_size(dim, size) for dim in dims), special)
    return feeds


def _type(graph: Graph, name: str) -> tuple[str, Sequence[DimLike]]:
    type_ = graph.types[name]
    assert isinstance(type_, TensorType) and type_.shape is not None
    return type_.dtype, type_.shape


def _size(dim: DimLike, size: int) -> int:
    """Sizes of symbols: neighbours differ."""
    if isinstance(dim, int):
        return dim
    found = evaluate(dim, {name: size + (size > 1) * (sum(map(ord, name)) % 2) for name in symbols(dim)})
    assert found is not None
    return found


def _array(rng: np.random.Generator, dtype: str, shape: Sequence[int], special: bool) -> np.ndarray:
    if dtype == "bool":
        return np.asarray(rng.random(shape) < 0.5)
    if dtype.startswith("int"):
        return np.asarray(rng.integers(-4, 9, shape)).astype(dtype)
    if dtype.startswith("uint"):
        return np.asarray(rng.integers(0, 256, shape)).astype(dtype)
    array = np.asarray(rng.standard_normal(shape) * 1.5)
    if special:
        array = np.where(rng.random(shape) < 0.15, rng.choice(SPECIAL, shape), array)
    return array.astype(dtype)


def _results(graph: Graph, result: Result, original: onnx.ModelProto, precision: str, seed: int,
             apart: bool) -> tuple[bool, str]:
    """(whether something was compared, what is wrong)."""
    made = to_model_proto(result.graph)
    compared = False
    symbolic = any(symbols(dim) for name in graph.inputs for dim in _type(graph, name)[1])
    sizes = [(3, False), *[(3, True)] * (precision != "finite"), (1, False), *[(6, False)] * symbolic]
    for size, special in sizes:
        feeds = feeds_of(graph, seed, size, special)
        faults: list[str] = []
        second = near = False  # without a second opinion, bits that rounding explains are let pass
        for engine in (session_apart if apart else session, reference):
            before = _attempt(engine, original, feeds)
            if isinstance(before, str):
                continue  # this engine cannot run the original
            after = _attempt(engine, made, feeds)
            if isinstance(after, str):
                if _unsupported(after) or engine is reference:
                    continue  # a kernel is missing for a type
                faults.append(f"{engine.__name__} refuses the result: {after[:300]}")
                break
            compared, second = True, engine is reference
            found = differences(graph, before, after, feeds, precision, engine)
            if precision == "exact" and found and engine is not reference:
                near = not differences(graph, before, after, feeds, "rounding", engine)
            if not found:
                faults = []  # bits may differ between two forms of one kernel; a second opinion decides
                break
            faults.append(f"{engine.__name__}, size {size}{', special values' * special}: {found}")
        if faults and (second or not near):
            return compared, "wrong: " + " | ".join(faults)
    return compared, ""


def _attempt(engine: Callable[[onnx.ModelProto], Run], model: onnx.ModelProto,
             feeds: Mapping[str, np.ndarray]) -> Arrays | str:
    try:
        return engine(model)(feeds)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


# ---------------------------------------------------------------- comparing


def differences(graph: Graph, before: Arrays, after: Arrays, feeds: Mapping[str, np.ndarray], precision: str,
                engine: Callable[[onnx.ModelProto], Run]) -> str:
    """The first output that differs by more than the precision allows."""
    suspicious = [name for name in graph.outputs if _bits(before[name]) != _bits(after[name])]
    if not suspicious:
        return ""
    if precision == "exact":
        return _text(suspicious[0], before, after)
    for name in suspicious:
        a, b = before[name], after[name]
        if a.shape != b.shape or a.dtype != b.dtype or a.dtype.kind not in "f":
            return _text(name, before, after)
    moved = [_attempt(engine, to_model_proto(nudged(graph, seed)), nudged_feeds(feeds, seed))
             for seed in range(MOVED)]
    others = [each for each in moved if not isinstance(each, str)]
    return next((_text(name, before, after) for name in suspicious
                 if not _near(before[name], after[name], [each[name] for each in others], precision)), "")


def _near(a: np.ndarray, b: np.ndarray, moved: Sequence[np.ndarray], precision: str) -> bool:
    """As near as the original is to itself when everything moves by one ulp, NaN and infinities in place."""
    eps = EPS[a.dtype.name]
    with np.errstate(all="ignore"):
        wide, other = a.astype(np.float64), b.astype(np.float64)
        runs = [each.astype(np.float64) for each in moved if each.shape == a.shape]
        steady = np.all([_classes(each) == _classes(wide) for each in runs], axis=0) if runs else np.ones(a.shape, bool)
        finite = np.where(np.isfinite(wide), np.abs(wide), np.where(np.isfinite(other), np.abs(other), 0))
        largest = float(np.finfo(a.dtype).max)
        steady &= finite < min(largest / 16, largest**0.9)  # overflow inside is allowed
        if precision == "finite":
            steady &= np.isfinite(wide)
        if np.any((_classes(wide) != _classes(other)) & steady):
            return False
        usable = np.isfinite(wide) & np.isfinite(other) & steady
        if not usable.any():
            return True
        noise = np.max([np.zeros(a.shape), *(np.where(usable, np.abs(each - wide), 0) for each in runs)], axis=0)
        level = float(np.sqrt(np.mean(np.square(noise[usable]))))
        size = np.maximum(np.abs(wide), float(np.sqrt(np.mean(np.square(wide[usable])))))
        allowed = NOISE * np.maximum(noise, level) + ULPS * eps * size + float(np.finfo(a.dtype).tiny)
        return bool(np.all(np.abs(wide - other)[usable] <= allowed[usable]))


def _classes(array: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(array), 3, np.where(np.isinf(array), np.sign(array), 0))


def nudged(graph: Graph, seed: int) -> Graph:
    """The graph with its float constants moved by an ulp or so."""
    new = graph.copy()
    rng = np.random.default_rng((seed, 5))
    new.constants = {name: Constant.of(_nudge(rng, each.array)) if each.dtype in EPS else each
                     for name, each in new.constants.items()}
    return new


def nudged_feeds(feeds: Mapping[str, np.ndarray], seed: int) -> Arrays:
    """Inputs moved by an ulp or so."""
    rng = np.random.default_rng((seed, 6))
    return {name: _nudge(rng, each) if each.dtype.name in EPS else each for name, each in feeds.items()}


def _nudge(rng: np.random.Generator, array: np.ndarray) -> np.ndarray:
    step = rng.integers(-1, 2, array.shape) * EPS[array.dtype.name]
    with np.errstate(all="ignore"):
        return np.asarray(array.astype(np.float64) * (1 + step)).astype(array.dtype)


def _bits(value: np.ndarray) -> tuple[object, ...]:
    """Type, shape and bits, with one kind of NaN."""
    array = np.ascontiguousarray(value)
    if array.dtype.kind == "f":
        array = np.where(array != array, np.full((), np.nan, array.dtype), array)
    return array.dtype, np.shape(value), array.tobytes()


def _text(name: str, before: Arrays, after: Arrays) -> str:
    a, b = before[name], after[name]
    stream = io.StringIO()
    with np.printoptions(threshold=20, precision=9):
        stream.write(f"output {name} {b.dtype}{list(b.shape)} instead of {a.dtype}{list(a.shape)}: ")
        if a.shape == b.shape and a.size:
            with np.errstate(all="ignore"):
                differ = np.atleast_1d((a != b) & ~((a != a) & (b != b)) | (np.signbit(a) != np.signbit(b)) & (a == a)
                                       if a.dtype.kind == "f" else a != b)
            stream.write(f"{np.atleast_1d(b)[differ]} instead of {np.atleast_1d(a)[differ]}")
    return stream.getvalue()
