"""What each part of the search is worth, over the trained models of the development zoo, in ONNX Runtime.

    scripts/ablation.py [--only magika,mtcnn_onet] [--stages normalize,all] [--size 2] [--threads 2] [--write]

For each model five files are made, each by one more part: normalization; the same rules applied one after the other
without an e-graph; an e-graph and the times of single nodes; the times of neighbourhoods; finalists measured whole.
They are made without any size being named, as a user would. Then all are measured in turns, the original twice (A/A),
five times with sessions of their own, with all of ONNX Runtime's optimizations on both sides; equal files of two
stages are measured once. Every row is written as soon as it is known, and a run goes on where the last one ended:
delete the file of rows to begin anew.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from cost_model import protocol
from cost_model.comparison import Comparison, SampleLists, judge
from cost_model.signature import graph_digest
from cost_model.targets.onnxruntime_cpu import session_options
from graphs import load
from graphs.ir import Graph
from optimizer import optimize
from scripts import ablation_page, trained_models
from scripts.bench import ROOT, apart, does_not_run, largest_error

STAGES = ("normalize", "greedy", "nodes", "neighbourhoods", "all")
ORIGINAL, TWIN = "original", "A/A"  # the same file, twice
LOOKS = 5
FLOOR = 0.01  # the smallest relative difference that is called one
ROWS = ROOT / "out" / "ablation" / "rows.jsonl"
Row = dict[str, Any]


def make(name: str, model: Path, stages: list[str], folder: Path, timings: Path, threads: int) -> dict[str, Row]:
    """The file of each stage in `folder`; by stage its number of nodes, seconds, rules used and what is wrong."""
    rows: dict[str, Row] = {}
    for stage in stages:
        start = time.monotonic()
        try:
            result = optimize(model, target="onnxruntime:cpu", threads=threads, timings=str(timings), stages=stage)
        except Exception as error:  # the other stages count all the same; the page names it
            rows[stage] = {"problem": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}
            continue
        result.save(folder / f"{stage}.onnx")
        rows[stage] = {"nodes": result.graph.shown_count(), "digest": graph_digest(result.graph),
                       "seconds": time.monotonic() - start, "chosen": result.report["chosen"],
                       "rules": sum(result.report["rules_used"].values()), "warnings": result.report["warnings"]}
    return rows


def open_session(path: Path, threads: int, optimized: bool = True):  # type: ignore[no-untyped-def]
    """ONNX Runtime."""
    import onnxruntime

    options = session_options(threads)
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def checked(graph: Graph, files: Mapping[str, Path], feeds: Mapping[str, np.ndarray], threads: int,
            rows: Mapping[str, Row]) -> dict[str, str]:
    """What each stage is measured as: stages of equal graphs as the first of them. Fills error and problem of the rows;
    what does not run is left out."""
    reference = open_session(files[ORIGINAL], threads, optimized=False).run(graph.outputs, feeds)
    measured_as, first = {ORIGINAL: ORIGINAL, TWIN: TWIN}, dict[str, str]()
    for stage in (stage for stage in files if stage in rows):
        same = measured_as[stage] = first.setdefault(rows[stage]["digest"], stage)
        try:
            found = open_session(files[same], threads).run(graph.outputs, feeds)
        except Exception as problem:  # whatever ONNX Runtime says about an invalid file
            rows[stage]["problem"] = does_not_run(problem)
            del measured_as[stage]
            continue
        rows[stage]["error"] = largest_error(reference, found)
    return measured_as


def measure(graph: Graph, files: Mapping[str, Path], feeds: Mapping[str, np.ndarray], threads: int,
            seconds: float, names: Iterable[str]) -> Comparison:
    """All files in turns. Where a session's memory lies changes its times by a percent or two for as long as it lives:
    so this is done several times, with sessions of their own, and all rounds count."""
    found: list[Comparison] = []
    for look in range(LOOKS):
        runners: dict[str, Any] = {}
        for name in sorted(names, reverse=bool(look % 2)):
            session = open_session(files[name], threads)
            runners[name] = lambda session=session: session.run(None, feeds)
        # To the end of the budget in any case: a small difference between two stages counts here, too.
        settings = protocol.Settings(budget=seconds / LOOKS, min_rounds=1000, max_rounds=1000, seed=look)
        found.append(protocol.compare(runners, ORIGINAL, threads=threads, settings=settings))
    samples = {name: joined(each.samples[name] for each in found) for name in found[0].samples}
    return judge(ORIGINAL, samples, joined(each.twin for each in found), clock=found[0].clock, threads=threads,
                 inner=found[0].inner, stopped="budget", confidence=found[0].confidence, floor=FLOOR)


def joined(lists: Iterable[SampleLists]) -> SampleLists:
    """The samples of all looks as those of one."""
    rows = list(lists)
    return SampleLists(tuple(chain.from_iterable(each.wall for each in rows)),
                       tuple(chain.from_iterable(each.cpu for each in rows)))


def ablate(name: str, model: Path, stages: list[str], options: argparse.Namespace) -> Row:
    """The row of one model: everything that the page says."""
    trained = trained_models.MODELS[name]
    options.rows.parent.mkdir(parents=True, exist_ok=True)
    graph = load(model)
    feeds = trained.feeds(graph, options.size)
    with tempfile.TemporaryDirectory(prefix="egraft-ablation-") as place:
        folder = Path(place)
        rows = make(name, model, stages, folder, options.rows.with_name("timings.db"), options.threads)
        files = {ORIGINAL: model, TWIN: model,
                 **{stage: folder / f"{stage}.onnx" for stage in stages if "digest" in rows[stage]}}
        measured_as = checked(graph, files, feeds, options.threads, rows)
        comparison = measure(graph, files, feeds, options.threads, options.seconds, set(measured_as.values()))
    return {"model": name, "family": trained.family, "size": options.size, "sizes": dict(trained.sizes(options.size)),
            "threads": options.threads, "nodes": graph.shown_count(), "stages": rows, "load": load_now(),
            "commit": commit(), "measured_as": measured_as, "comparison": comparison.to_dict()}


def load_now() -> float:
    """Processes ready to run, the mean of the last minute."""
    return float(Path("/proc/loadavg").read_text().split()[0]) if Path("/proc/loadavg").exists() else 0.0


def commit() -> str:
    """The commit that is checked out, with + where files differ from it; empty without git."""
    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()

    return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")


def read_rows(path: Path) -> list[Row]:
    """The rows of earlier runs; a last line that was cut off is left out."""
    rows: list[Row] = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            rows.append(json.loads(line))
        except ValueError:
            print(f"{path}: a line that cannot be read was left out", file=sys.stderr)
    return rows


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="What each part of the search is worth, on trained models.")
    parser.add_argument("--models", help="folder of the models (default: of $EGRAFT_ZOO or ~/.cache/egraft-zoo)")
    parser.add_argument("--only", default="", help="comma-separated names")
    parser.add_argument("--stages", default=",".join(STAGES), help=f"comma-separated: {', '.join(STAGES)}")
    parser.add_argument("--size", type=int, choices=(1, 2), default=1, help="which of the two sizes of each model")
    parser.add_argument("--threads", type=int, default=1, help="of ONNX Runtime; with more than 1 wall time counts")
    parser.add_argument("--seconds", type=float, default=20.0, help="measuring time of one model")
    parser.add_argument("--rows", type=Path, default=ROWS, help="JSON lines, kept and continued")
    parser.add_argument("--write", action="store_true", help="write docs/measurements/ablation-DATE.md")
    return parser.parse_args()


def main() -> int:
    """Make, measure, print."""
    options = arguments()
    stages = [stage for stage in STAGES if stage in options.stages.split(",")]
    place = trained_models.folder(options.models)
    names = [name for name in options.only.split(",") if name] or list(trained_models.MODELS)
    missing = [name for name in names if not (place / f"{name}.onnx").exists()]
    if missing:
        print(f"left out, not in {place}: {', '.join(missing)}", file=sys.stderr)

    def wanted(row: Row) -> bool:
        return (row["size"], row["threads"]) == (options.size, options.threads) and set(row["stages"]) == set(stages)

    rows = [row for row in read_rows(options.rows) if wanted(row)]
    done = {row["model"] for row in rows}
    for name in names:
        if name in missing or name in done:
            continue
        print(f"{name} ...", file=sys.stderr, flush=True)
        row = apart(ablate, name, place / f"{name}.onnx", stages, options)
        rows.append(row)
        with options.rows.open("a") as stream:
            stream.write(json.dumps(row) + "\n")
    page = ablation_page.markdown([row for row in rows if row["model"] in names], stages)
    print(page.text)
    if options.write:
        (ROOT / "docs" / "measurements" / page.file_name).write_text(page.text, encoding="utf-8")
    return int(not rows)


if __name__ == "__main__":
    sys.exit(main())
