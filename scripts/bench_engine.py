"""Measure whole models in egraft's engine beside ONNX Runtime: `python -m scripts.bench_engine [MODEL ...]`.

Models are those of the zoo (`graphs.zoo`) and of the development zoo (`scripts.trained_models`), float32. In the
engine (`egraft:cpu`, no kernels of other libraries but BLAS) every node is in the largest set that a kernel can be
made for, unmeasured; with `--timings FILE` it runs what `egraft optimize --target egraft:cpu` makes of the model with
that timing database. Each engine has a process of its own, which sleeps while another runs; one run of each makes a
round. Ratios are of wall time within a round, medians with quartiles: how many times as long ONNX Runtime (all
optimizations, spinning off) or the ONNX reference evaluator takes. Prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from statistics import median, quantiles
from typing import Any

import numpy as np

from graphs.onnx_io import proto_bytes
from optimizer import optimize
from runtime import Session
from scripts.bench_memory import in_largest_sets, model_of
from scripts.bench_page import table

USUAL = ("bert-2", "bert-12", "llama-block", "gpt-small", "resnet18", "resnet50")
ENGINES = ("egraft", "onnxruntime", "reference")
HEAD = ("model", "inputs", "threads", "egraft ms", "onnxruntime ms", "ONNX Runtime / egraft", "reference / egraft",
        "rounds")


def runner(engine: str, name: str, threads: int, timings: str) -> Callable[[], Any]:
    """A function that runs the model once."""
    graph, sizes, feeds = model_of(name)
    if engine == "egraft":
        if timings:
            made = optimize(graph, target="egraft:cpu", threads=threads, timings=timings,
                            dims={key: [size] for key, size in sizes.items()}).graph
        else:
            made = in_largest_sets(graph, sizes)
        session = Session(made, threads=threads)
        return lambda: session.run(feeds)
    model = proto_bytes(graph)
    if engine == "onnxruntime":
        import onnxruntime

        from cost_model.targets.onnxruntime_cpu import session_options

        peer = onnxruntime.InferenceSession(model, session_options(threads), providers=["CPUExecutionProvider"])
        return lambda: peer.run(None, feeds)
    import onnx
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(onnx.load_model_from_string(model))
    return lambda: evaluator.run(None, feeds)


def serve(connection: Connection, engine: str, name: str, threads: int, timings: str) -> None:
    """Answer each message with the seconds of one run, until there is none."""
    run = runner(engine, name, threads, timings)
    for _ in range(1 if engine == "reference" else 3):  # the first counts memory, the second notes what runs as one
        run()
    connection.send(0.0)
    while connection.recv():
        start = time.perf_counter()
        run()
        connection.send(time.perf_counter() - start)


def measured(name: str, threads: int, seconds: float, reference: bool, timings: str) -> list[object]:
    """A line of the table."""
    context = multiprocessing.get_context("spawn")
    ends: dict[str, Connection] = {}
    for engine in ENGINES if reference else ENGINES[:2]:
        ours, theirs = context.Pipe()
        context.Process(target=serve, args=(theirs, engine, name, threads, timings)).start()
        ends[engine] = ours
    for end in ends.values():
        end.recv()
    times: dict[str, list[float]] = {engine: [] for engine in ends}
    start = time.monotonic()
    while time.monotonic() - start < seconds or len(times["egraft"]) < 5:
        for engine, end in ends.items():
            if engine == "reference" and len(times[engine]) >= 3:
                continue  # it takes seconds, and tens of times as long
            end.send(True)
            times[engine].append(end.recv())
    for end in ends.values():
        end.send(False)
    mine = times["egraft"]
    slow = f"{median(times['reference']) / median(mine):.0f}" if reference else "-"
    return [name, _inputs(name), threads, f"{median(mine) * 1e3:.2f}", f"{median(times['onnxruntime']) * 1e3:.2f}",
            _ratio(times["onnxruntime"], mine), slow, len(mine)]


def _inputs(name: str) -> str:
    """The shapes of what a model is given, each once."""
    shapes = ("x".join(map(str, np.shape(each))) for each in model_of(name)[2].values())
    return ", ".join(dict.fromkeys(shape for shape in shapes if shape))


def _ratio(theirs: Sequence[float], mine: Sequence[float]) -> str:
    ratios = [a / b for a, b in zip(theirs, mine)]
    low, middle, high = quantiles(ratios, n=4)
    return f"{middle:.2f} [{low:.2f}, {high:.2f}]"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "20")  # of the engines' processes, as the command has it
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", default=USUAL)
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--seconds", type=float, default=10.0, help="for each model and number of threads")
    parser.add_argument("--reference", action="store_true", help="beside the ONNX reference evaluator, too")
    parser.add_argument("--timings", default="", metavar="FILE", help="optimize the models, with this database")
    given = parser.parse_args(arguments)
    lines = []
    for name in given.models:
        for threads in map(int, given.threads.split(",")):
            lines.append(measured(name, threads, given.seconds, given.reference, given.timings))
            print(*lines[-1], sep=" | ", flush=True)
    print(f"\n{table(HEAD, lines)}\n\nload of the machine at the end: {os.getloadavg()[0]:.1f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
