"""What the commands do; `optimizer.arguments` only reads their options."""

from __future__ import annotations

import os
import sys
import time
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graphs import load, save
from graphs.dims import evaluate, symbols
from graphs.errors import (
    EgraftError,
    ExecutionFailed,
    InvalidInput,
    InvalidOption,
    NotExecutable,
    UnreadableFile,
    ValidationFailed,
)
from graphs.ir import Graph
from graphs.onnx_io.files import replacing
from graphs.types import TensorType
from graphs.wording import counted

from . import interrupts
from .options import Options, check_threads
from .places import check_place, print_left_out
from .report import sizes_text

if TYPE_CHECKING:
    from runtime import Session

    from .result import Trace

SQLITE = b"SQLite format 3\0"  # how every timing database begins


def optimize_command(model: Path, out: Path, options: Options, *, trace: Path | None, report: Path | None,
                     server: str | None, quiet: bool) -> int:
    """`egraft optimize`."""
    check_places(model, out, options, trace, report)
    if options.buckets:
        from .manifest import is_manifest

        options = options.model_copy(update={"bucket_form": "manifest" if is_manifest(out) else "file"})
    if server is not None:
        from .remote import optimize_remotely

        return optimize_remotely(server, model, out, options, trace, report, quiet)
    from .pipeline import optimize_file
    from .progress import terminal_progress

    with terminal_progress(quiet) as progress:
        result = optimize_file(model, options, progress)
    interrupts.check()
    result.save(out)
    if trace is not None:
        result.trace.save(trace)
    if report is not None:
        save_report(result.report, report)
    if not quiet:
        print(result.summary())
        print_left_out(out)
    if options.strict and result.report["dropped"]:
        raise ValidationFailed(str(model), f"{counted(len(result.report['dropped']), 'rewrite')} failed validation: "
                               "dropped", "see the report; without --strict the rest is kept")
    return 0


def check_places(model: Path, out: Path, options: Options, trace: Path | None, report: Path | None) -> None:
    """Before any work: raise InvalidOption unless all files of a run can be written."""
    if report is not None and report.suffix not in (".json", ".html"):
        raise InvalidOption("--report", f"{report.name!r}", "end the file name with .json or .html")
    for option, place in (("-o", out), ("--trace", trace), ("--report", report)):
        if place is not None:
            check_place(option, place)
    check_database(options.timings)
    _check_distinct(model, out, options, trace, report)


def _check_distinct(model: Path, out: Path, options: Options, trace: Path | None, report: Path | None) -> None:
    """Before any work: no file is written over another one of this run; only the result may replace the model."""
    taken: dict[str, str] = {}
    for option, place in (("-o", out), ("--trace", trace), ("--report", report), ("the model", model),
                          ("--inputs", options.inputs), ("--timings", options.timings)):
        if place is None:
            continue
        other = taken.setdefault(os.path.realpath(place), option)
        if other != option and (other, option) != ("-o", "the model"):
            raise InvalidOption(option, f"{str(place)!r} is also the file of {other}", "give each a file of its own")


def check_database(path: str | Path | None) -> None:
    """Before any work: a file that the user names is no file of another kind, which would be set aside as damaged."""
    if path is None:
        return
    place = Path(path)
    if place.exists() and not place.is_file():
        raise InvalidOption(f"--timings {path}", "it is no regular file", "give the name of a file")
    try:
        with place.open("rb") as head:
            start = head.read(len(SQLITE))
    except OSError:  # a new file, or one that the database says more of
        return
    if start not in (b"", SQLITE):
        raise InvalidOption(f"--timings {path}", "not a timing database",
                            "give a file that egraft wrote, or the name of a new one")


def save_report(report: dict[str, Any], path: Path) -> None:
    """Write a report as JSON or HTML, by the suffix."""
    import json

    from .result import write_text

    if path.suffix == ".html":
        from .report_html import render

        write_text(path, render(report))
    else:
        write_text(path, json.dumps(report, indent=1, ensure_ascii=False) + "\n")


def load_feeds(path: Path | None) -> dict[str, np.ndarray] | None:
    """Arrays of an .npz file by name. Raises UnreadableFile and InvalidInput."""
    if path is None:
        return None
    where, arrays = str(path), None
    try:
        with path.open("rb") as file:
            data = np.load(file, allow_pickle=False)
            if isinstance(data, np.lib.npyio.NpzFile):
                arrays = {}
                for name in data.files:
                    where = f"{path}, array {name!r}"
                    arrays[name] = data[name]
                where = str(path)
    except (OSError, ValueError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error, NotImplementedError,
            RuntimeError) as error:  # the last two: a compression that is not known, a password
        if isinstance(error, OSError) and error.errno is not None:
            raise UnreadableFile.of(path, error) from None
        if "allow_pickle" in str(error):
            raise InvalidInput(where, "it holds Python objects (pickled), which are not read: they can run code",
                               "save arrays of numbers or text (array.astype(...)) with numpy.savez") from None
        raise InvalidInput(where, f"not a readable .npz file ({error})", "write it with numpy.savez") from None
    if arrays is None or not all(isinstance(array, np.ndarray) for array in arrays.values()):
        raise InvalidInput(str(path), "not an .npz file of arrays", "write it with numpy.savez")
    return arrays


def check_command(a: Path, b: Path, *, prove: bool, precision: str, inputs: Path | None, rtol: float | None,
                  atol: float | None, dims: dict[str, list[int]], seed: int) -> int:
    """`egraft check`."""
    from runtime.feeds import single_sizes
    from runtime.validation import validate

    from .progress import Clock, terminal_progress
    from .sizing import check_asked

    with terminal_progress() as progress:
        clock = Clock(progress)
        clock.enter("load")
        left, right = load(a), load(b)
        _same_contract(left, right, a, b)
        asked = single_sizes(left, dims)
        check_asked(left, {name: [size] for name, size in asked.items()})
        sizes = {**_stated_sizes(left, right), **asked} or None
        feeds = load_feeds(inputs)
        clock.enter("validate", f"{counted(left.shown_count(), 'node')} against {right.shown_count()}")
        found = validate(left, right, precision, feeds=feeds, seed=seed, sizes=sizes, rtol=rtol, atol=atol)
    print(found.summary())
    if not found.ok:
        return 1
    if not prove:
        return 0
    from .prove import print_proof

    return 0 if print_proof(left, right, precision) else 3


def _stated_sizes(left: Graph, right: Graph) -> dict[str, int]:
    """Sizes of the left graph's symbols that the right one's inputs fix (`--fix-dim`)."""
    found: dict[str, int] = {}
    for name in left.inputs:
        shapes = [type_.shape for graph in (left, right)
                  if isinstance(type_ := graph.declared.get(name), TensorType) and type_.shape is not None]
        if len(shapes) == 2 and len(shapes[0]) == len(shapes[1]):
            found.update((symbol, size) for dim, size in zip(*shapes) if isinstance(size, int)
                         for symbol in symbols(dim) if evaluate(dim, {symbol: size}) == size)
    return found


def _same_contract(left: Graph, right: Graph, a: Path, b: Path) -> None:
    if set(left.inputs) != set(right.inputs):
        odd = [f"only {path} has {', '.join(sorted(extra))}" for path, extra in (
            (a, set(left.inputs) - set(right.inputs)), (b, set(right.inputs) - set(left.inputs))) if extra]
        raise InvalidInput(f"{a} and {b}", f"they differ in their inputs: {'; '.join(odd)}",
                           "compare models with the same input names")
    if list(left.outputs) != list(right.outputs):
        raise InvalidInput(f"{a} and {b}", f"outputs {left.outputs} and {right.outputs}",
                           "compare models with the same outputs in the same order")


def run_command(model: Path, inputs: Path | None, outputs: Path | None, target: str,
                dims: dict[str, list[int]], seed: int, *, fuse: bool = False, timings: Path | None = None) -> int:
    """`egraft run`."""
    from runtime import Session
    from runtime.codegen.c import passed_over
    from runtime.feeds import single_sizes
    from search.fusions import TARGETS

    from .sizing import check_asked

    if fuse and target not in TARGETS:
        raise InvalidOption(f"--target {target}", f"fusions are discovered for {' and '.join(TARGETS)} only",
                            "leave out --fuse")
    if outputs is not None:
        check_place("--outputs", outputs)
    graph = load(model)
    chosen = single_sizes(graph, dims)
    feeds = load_feeds(inputs)
    check_asked(graph, dims if feeds is None else {})
    session = Session(graph, target=target)
    results: dict[str, Any] = {}
    if feeds is None:
        sizes, feeds, results = _drawn_run(session, graph, chosen, seed)
        print(f"random inputs, seed {seed}, sizes {sizes}")
    if fuse:
        session = Session(_fused(graph, feeds, timings, target), target=target)
    if fuse or not results:
        results = session.run(feeds)
    for name, value in results.items():
        print(f"{name}: {_describe(value)}")
    told = session.report.summary() or (passed_over() if fuse and target == TARGETS[0] else "")
    if told:
        print(told)
    if outputs is not None:
        arrays: dict[str, Any] = {name: np.asarray(value) for name, value in results.items()}
        try:
            with replacing(outputs) as file:
                np.savez(file, **arrays)
        except OSError as error:
            raise InvalidOption(f"--outputs {outputs}", f"the file cannot be written ({error.strerror})",
                                "choose another place") from error
    return 0


GUESSING_SECONDS = 20  # no further sizes are tried after that: the user knows them sooner


def _drawn_run(session: Session, graph: Graph, asked: dict[str, int],
               seed: int) -> tuple[dict[str, int], dict[str, Any], dict[str, Any]]:
    """(sizes, feeds, results) at the first plausible sizes that the model runs at; `asked` are given."""
    from runtime.feeds import draw, size_candidates

    first: EgraftError | None = None
    tried: dict[str, int] = {}
    end = time.monotonic() + GUESSING_SECONDS
    for sizes in size_candidates(graph, asked):
        if any(size == 0 and name not in asked for name, size in sizes.items()):
            continue  # runs, and shows nothing
        try:
            feeds = draw(graph, seed, sizes)
            return sizes, feeds, session.run(feeds)
        except EgraftError as error:
            first, tried = (first, tried) if first else (error, sizes)
            if isinstance(error, NotExecutable) or time.monotonic() > end:
                break
    assert first is not None
    if isinstance(first, ExecutionFailed):
        if 0 in asked.values():
            raise InvalidOption(f"--dim {sizes_text(asked)}", f"the model does not run on empty inputs: {first.where}: "
                                f"{first.found}", "give sizes of at least 1") from first
        guessed = ", ".join(name for name in tried if name not in asked)
        raise ExecutionFailed(first.where, f"{first.found} (random inputs{_at(tried)})",
                              "give sizes that it runs at with --dim NAME=SIZE"
                              f"{f' (guessed here: {guessed})' if guessed and asked else ''}, "
                              "or inputs with --inputs FILE.npz") from first
    raise first


def _at(tried: Mapping[str, int]) -> str:
    return f" of sizes {sizes_text(tried)}" if tried else ""


def _fused(graph: Graph, feeds: Mapping[str, Any], timings: Path | None, target: str) -> Graph:
    """The graph with the fusions that are measured to be faster at the sizes of these feeds; lists them."""
    from cost_model.timings import Timings
    from graphs.ir import fused_count
    from graphs.machine import cores_visible
    from runtime.fused_functions import fused_again
    from runtime.session import check_feeds
    from search.fusions import discover

    held = fused_count(fused_again(graph))
    if held:
        print(f"the file already holds {counted(held, 'fused kernel')}: fusions are looked for among its other nodes")
    with Timings(timings) as database:
        found = discover(graph, check_feeds(graph, feeds)[1], database, threads=cores_visible(),
                         target=target)
    print("\n".join(found.lines()))
    return found.graph


def _describe(value: Any) -> str:
    if not isinstance(value, np.ndarray):
        return f"{type(value).__name__} of {len(value)}" if isinstance(value, Sequence) else type(value).__name__
    text = f"{value.dtype}{list(value.shape)}"
    if value.size and value.dtype.kind in "biuf":
        wide = value.astype(np.float64)
        numbers = wide[~np.isnan(wide)]
        if numbers.size:
            text += f" min {numbers.min():.6g} max {numbers.max():.6g} mean {numbers.mean():.6g}"
        text += f", {wide.size - numbers.size} NaN" if numbers.size < wide.size else ""
    return text


def trace_command(file: Path, step: int | None, why_not: str | None) -> int:
    """`egraft trace`."""
    from .result import Trace, step_text

    trace = Trace.load(file)
    if why_not is not None:
        return _why_not(trace, why_not)
    chosen = trace.steps
    if step is not None:
        chosen = [row for row in trace.steps if row["index"] == step]
        if not chosen:
            raise InvalidOption(f"--step {step}", f"the trace has steps 0 to {len(trace.steps) - 1}",
                                "give one of them")
    for row in chosen:
        print(step_text(row))
    if not chosen:
        print("no steps: the input was handed back")
    return 0


def _why_not(trace: Trace, name: str) -> int:
    from rules.catalogue import all_rules

    from .fusing import ALONE, RULE
    from .normalize import PASSES

    known = {rule.name for rule in all_rules()} | {named.name for named in PASSES} | {RULE, ALONE}
    steps = [str(row["index"]) for row in trace.steps
             if name in (row["rule"], *(inner["rule"] for inner in row.get("inside", ())))]
    if name not in known and name not in trace.refusals and not steps:
        raise InvalidOption(f"--why-not {name}", "no rule has this name", "egraft rules lists them")
    if steps:
        print(f"{name}: it did fire: step {', '.join(steps)} of this trace")
    found = trace.refusals.get(name, {})
    if not found and not steps:
        print(f"{name}: no set of nodes was looked at: kernels are tried for egraft:cpu and egraft:cuda alone, with "
              "the objective time" if name in (RULE, ALONE) else f"{name}: its pattern matched nowhere")
    for reason, row in found.items():
        print(f"{name}: {counted(row['count'], 'time')}: {reason} (for example at {row['where']})" if row["count"]
              else f"{name}: {reason}")
    return 0


def bisect_command(model: Path, precision: str) -> int:
    """`egraft bisect`."""
    from .bisect import bisect_model

    return bisect_model(model, precision)


def targets_command() -> int:
    """`egraft targets`."""
    from cost_model.targets import all_targets

    for target in all_targets():
        reason = target.available()
        print(f"{target.name:18} {'available' if reason is None else 'missing: ' + reason}")
    return 0


def rules_command(name: str | None) -> int:
    """`egraft rules [NAME]`."""
    from rules.catalogue import all_rules

    rules = all_rules()
    if name is None:
        for rule in rules:
            print(f"{rule.family:14} {rule.exactness:11} {rule.name:34} {rule.meaning}")
        print(counted(len(rules), "rule"))
        return 0
    from .rule_text import describe_rule, other_steps

    found, meaning = next((rule for rule in rules if rule.name == name), None), other_steps().get(name)
    if found is not None:
        print(describe_rule(found))
    elif meaning is not None:
        print(f"{name} (a step of traces, no rule of the search)\n  {meaning}")
    else:
        raise InvalidOption(f"rules {name}", "no rule has this name", "egraft rules lists them")
    return 0


def rules_check_command(names: list[str] | None, instances: int, seed: int) -> int:
    """`egraft rules check`."""
    from rules.catalogue import all_rules
    from rules.check import check_all, runtime_version

    unknown = sorted(set(names or ()) - {rule.name for rule in all_rules()})
    if unknown:
        raise InvalidOption(f"rules check {unknown[0]}", "no rule has this name", "egraft rules lists them")
    version = runtime_version()
    print(f"compared in egraft and in ONNX Runtime {version} (CPU, without its own optimizations)" if version else
          "compared in egraft only: ONNX Runtime is not installed (pip install 'egraft[ort]')")
    reports = check_all(names or None, instances=instances, seed=seed, elsewhere=version is not None)
    bad = 0
    for report in reports:
        print(report.text())
        bad += not report.ok
    print(f"{counted(len(reports) - bad, 'rule')} {'holds' if len(reports) - bad == 1 else 'hold'}, "
          f"{bad} {'does' if bad == 1 else 'do'} not")
    return 1 if bad else 0


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write lines, all or nothing."""
    from .result import write_text

    write_text(path, "".join(line.rstrip("\n") + "\n" for line in lines))


def zoo_command(folder: Path, out: Path, options: Options, engine: str, workers: int | None) -> int:
    """`egraft zoo`."""
    from .batch import optimize_folder

    if not folder.is_dir():
        raise InvalidInput(str(folder), "not a folder", "give a folder of models")
    if any(place.exists() and not place.is_dir() for place in (out, *out.parents)):
        raise InvalidOption("-o", f"{str(out)!r} is no folder", "give the name of a folder")
    check_database(options.timings)
    check_threads(options)
    return optimize_folder(folder, out, options, sys.stdout, engine, workers)


def convert(model: Path, out: Path) -> None:
    """Read one form of a graph and write another."""
    save(load(model), out)
    print_left_out(out)
