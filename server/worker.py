"""The process of one job: `python -m server.worker PARENT` makes itself ready, then reads the folder of its job from
standard input; there it reads `request.json` and leaves results and `outcome.json`.

Whatever a model does to it (memory, crashes, endless work) stays in this process; the service only reads files.
"""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphs.errors import EgraftError
from graphs.ir import Graph

from .errors import InternalError, LimitReached, storage_full
from .options import MODELS

if TYPE_CHECKING:
    from optimizer.deriving import Derived
    from optimizer.progress import Event, Progress
    from optimizer.result import Result

OUTCOME, REQUEST, PROGRESS, LOG = "outcome.json", "request.json", "progress.jsonl", "worker.log"
NO_ROOM = 74  # exit status of a worker that cannot write its outcome (EX_IOERR)
UPLOAD, RESULT, ATTEMPT, MODEL = "upload", "result", "attempt", "model.onnx"


def main(arguments: list[str]) -> int:
    """Wait for the folder of a job and do it; the outcome is in the file, not in the exit status."""
    _die_with_parent(int(arguments[0]))
    _make_ready()
    line = sys.stdin.readline().strip()
    if not line:
        return 0  # the service has no work any more
    folder = Path(line)
    _log_into(folder / LOG)
    return work(folder)


def _make_ready() -> None:
    """Load what every job needs, and start the search process, before a job is there: it waits seconds less."""
    import optimizer.pipeline  # noqa: F401
    from search.worker import POOL, Worker

    POOL.give(Worker())
    from cost_model.targets import all_targets
    from rules.catalogue import all_rules

    all_rules()
    for target in all_targets():
        target.available()


def _log_into(path: Path) -> None:
    with path.open("ab") as log:
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)


def work(folder: Path) -> int:
    """Do the job of a folder."""
    request = json.loads((folder / REQUEST).read_text(encoding="utf-8"))
    limit_memory(request["memory"])
    try:
        outcome = {"state": "done", "summary": TASKS[request["kind"]](folder, request)}
    except EgraftError as error:
        outcome = {"state": "failed",
                   "problem": _without_folder((storage_full(error, "job") or error).problem(), folder)}
    except MemoryError:
        outcome = {"state": "failed", "problem": _out_of_memory(request["memory"]).problem()}
    except Exception as error:
        with suppress(OSError):  # the log has no room on a full disk
            traceback.print_exc()
        found = storage_full(error, "job") or InternalError(
            "job", f"{type(error).__name__}: {error}",
            "this is a defect of egraft, please report it with the worker.log of the job")
        outcome = {"state": "failed", "problem": _without_folder(found.problem(), folder)}
    return leave(folder / ATTEMPT / OUTCOME, outcome)


def leave(path: Path, outcome: Mapping[str, Any]) -> int:
    """Write what the service reads when this process has ended, whose exit status this returns."""
    try:
        write_json(path, outcome)
    except EgraftError as error:
        if storage_full(error, "job") is None:
            raise
        return NO_ROOM
    return 0


def _out_of_memory(limit: int) -> LimitReached:
    return LimitReached("job", f"it needs more than {limit >> 20} MiB of memory",
                        "lower the effort, or start the service with a larger EGRAFT_JOB_MEMORY")


def _die_with_parent(parent: int) -> None:
    """On Linux: be killed when the service is gone, so that it does not meet its own job after a restart."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def limit_memory(limit: int) -> None:
    """Bound the address space of this process, in bytes."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (wanted, hard))


def _without_folder(problem: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The problem without the paths of the server in it."""
    upload = f"{folder / UPLOAD}{os.sep}"
    return {key: value.replace(upload, "").replace(str(folder), "the job") if isinstance(value, str) else value
            for key, value in problem.items()}


# ---------------------------------------------------------------- optimize, grad, train-step


def _make(folder: Path, request: Mapping[str, Any]) -> dict[str, Any]:
    from optimizer.deriving import Deriving, derive
    from optimizer.pipeline import optimize_file

    measures = request["options"].get("optimize", True)
    options = MODELS[request["kind"]](
        **request["options"], timings=request["timings"] if measures else None,
        inputs=str(folder / UPLOAD / request["inputs"]) if request.get("inputs") else None)
    with _telling(folder) as tell:
        model = folder / UPLOAD / request["model"]
        result: Result | Derived = derive(model, options, tell) if isinstance(options, Deriving) else (
            optimize_file(model, options, tell))
    results = folder / ATTEMPT / RESULT
    report = {**result.report, "options": {**result.report.get("options", {}), "inputs": request.get("inputs"),
                                           "timings": None}}
    result.save(results / MODEL)
    write_json(results / "report.json", report)
    write_json(results / "trace.json", result.trace.to_dict())
    return summary(report)


@contextmanager
def _telling(folder: Path) -> Iterator[Progress]:
    """What writes the stages of a job where the service reads them."""
    with (folder / ATTEMPT / PROGRESS).open("a", encoding="utf-8") as lines:
        behind = 0.0

        def tell(event: Event) -> None:
            nonlocal behind
            behind = max(behind, event.share)  # a bar never runs backwards
            lines.write(json.dumps(plain({**event.to_dict(), "progress": behind})) + "\n")
            lines.flush()

        yield tell


def summary(report: Mapping[str, Any]) -> dict[str, Any]:
    """What the list of jobs says about a result."""
    facts, found = report.get("derivation"), _of_optimize(report) if "target" in report else {}
    if facts is None:
        return found
    checks = [facts[name] for name in ("validation", "iterations") if name in facts]
    return {**found, "nodes_before": facts["model"]["nodes"], "nodes_after": facts["nodes"],
            "loss": facts.get("loss", {}).get("name"), "valid": all(check["ok"] for check in checks),
            "difference": facts["validation"]["difference"], "warnings": found.get("warnings", 0) + len(
                facts["warnings"]), "seconds": report["seconds"]}


def _of_optimize(report: Mapping[str, Any]) -> dict[str, Any]:
    measured = report.get("measured") or {}
    predicted = report.get("predicted")
    validation = report.get("validation") or {}
    outputs = validation.get("outputs") or []
    worst = max(outputs, key=lambda row: _number(row.get("ratio")), default=None)
    return {
        "target": report["target"]["name"],
        "nodes_before": report["before"]["nodes"],
        "nodes_after": report["after"]["nodes"],
        "unchanged": report.get("unchanged"),
        "predicted_speed_up": predicted["before"] / predicted["after"] if predicted and predicted["after"] else None,
        **{key: measured.get(key) for key in ("speed_up", "low", "high", "verdict", "note")},
        "valid": validation.get("ok"),
        "error": None if worst is None else {key: worst.get(key) for key in ("name", "error", "allowed", "against")},
        "steps": report["steps"],
        "warnings": len(report.get("warnings", ())),
        "seconds": report["seconds"],
        "remembered": report.get("remembered"),
    }


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float | str) else 0.0  # infinities come as text


# ---------------------------------------------------------------- check, graph


def _check(folder: Path, request: Mapping[str, Any]) -> dict[str, Any]:
    from optimizer.progress import Event

    began = time.monotonic()
    with _telling(folder) as tell:
        return _compare(folder, request, lambda stage, share: tell(Event(stage, share, time.monotonic() - began)))


def _compare(folder: Path, request: Mapping[str, Any],
             enter: Callable[[str, float], None]) -> dict[str, Any]:
    from graphs import load
    from optimizer.commands import load_feeds
    from runtime.feeds import single_sizes
    from runtime.validation import validate

    enter("load", 0.02)
    left, right = (load(folder / UPLOAD / request[part]) for part in ("a", "b"))
    feeds = load_feeds(folder / UPLOAD / request["inputs"]) if request.get("inputs") else None
    options = request["options"]
    sizes = single_sizes(left, options.get("dims", {})) or None
    enter("validate", 0.1)
    found = validate(left, right, options.get("precision", "rounding"), feeds=feeds, seed=options.get("seed", 0),
                     sizes=sizes, rtol=options.get("rtol"), atol=options.get("atol"))
    report = found.to_dict()
    if found.ok and options.get("prove"):
        enter("prove", 0.5)
    proof = _proof(left, right, options) if found.ok and options.get("prove") else {}
    write_json(folder / ATTEMPT / RESULT / "report.json", {**report, **proof})
    enter("done", 1.0)
    return {"equal": found.ok, "status": found.status, "text": found.summary(),
            **({"proved": proof["proof"]["joined"]} if proof else {})}


def _proof(left: Graph, right: Graph, options: Mapping[str, Any]) -> dict[str, Any]:
    from optimizer.prove import find_proof

    return {"proof": find_proof(left, right, options.get("precision", "rounding"))}


TASKS = {**dict.fromkeys(MODELS, _make), "check": _check}


def convert(source: Path, target: Path) -> int:
    """Write a model in another form (its own process: a graph in JSON may take gigabytes)."""
    from graphs import load, save

    save(load(source), target)
    return 0


# ---------------------------------------------------------------- JSON


def plain(value: Any) -> Any:
    """The value with what JSON lacks (NaN, infinities) as text."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def write_json(path: Path, value: Any) -> None:
    """Write JSON so that the file is there whole or not at all."""
    from optimizer.result import write_text

    write_text(path, json.dumps(plain(value), ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1] == "--convert":
        sys.exit(convert(Path(sys.argv[2]), Path(sys.argv[3])))
    sys.exit(main(sys.argv[1:]))
