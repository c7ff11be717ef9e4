"""A folder of models, one after the other or several at a time; restartable, with a summary table at the end."""

from __future__ import annotations

import json
import traceback
from pathlib import Path
from typing import Any, TextIO

from graphs.errors import EgraftError, InvalidOption
from graphs.wording import counted

from .engines import ENGINES, failed
from .options import Options
from .pipeline import optimize_file
from .result import write_text


def optimize_folder(folder: Path, out: Path, options: Options, stream: TextIO, engine: str = "local",
                    workers: int | None = None) -> int:
    """Optimize every model below `folder` into the same place below `out`; exit status 1 if one failed.

    A model whose report of the same options and input is already there is not done again. `engine` is a key of
    `optimizer.engines.ENGINES`, which says what `workers` is where it is None. Raises InvalidOption.
    """
    if engine not in ENGINES:
        raise InvalidOption("--engine", repr(engine), f"give {' or '.join(ENGINES)}")
    inside = out.resolve()
    if inside == folder.resolve():
        raise InvalidOption("-o", f"{str(out)!r} is the folder of the models", "give another: this overwrites them")
    models = sorted(path for path in folder.rglob("*") if path.suffix == ".onnx" and path.is_file()
                    and not path.resolve().is_relative_to(inside))  # results of an earlier run are no models
    places = [out / model.relative_to(folder) for model in models]
    known = {index: row for index, (model, place) in enumerate(zip(models, places))
             if (row := _done_before(model, place, options)) is not None}
    todo = [index for index in range(len(models)) if index not in known]
    rows: dict[int, dict[str, Any]] = {}

    def add(index: int, row: dict[str, Any]) -> None:
        rows[index] = {"model": str(models[index].relative_to(folder)), **row}
        stream.write(f"[{len(rows)}/{len(models)}] {_line(rows[index])}\n")
        stream.flush()

    for index, row in known.items():
        add(index, row)
    if todo:
        tasks = [(models[index], places[index], options) for index in todo]
        for number, row in ENGINES[engine](tasks, workers):
            add(todo[number], row)
    ordered = [rows[index] for index in sorted(rows)]
    _table(ordered, stream)
    write_text(out / "summary.json", json.dumps(ordered, indent=1) + "\n") if models else None
    return 1 if any(row["state"] == "failed" for row in ordered) else 0


def _key(model: Path, options: Options) -> dict[str, Any]:
    """What a result depends on, as its report keeps it."""
    return {"options": options.model_dump(), "size": model.stat().st_size, "mtime": model.stat().st_mtime_ns}


def _done_before(model: Path, place: Path, options: Options) -> dict[str, Any] | None:
    known = _known(place.with_suffix(".report.json"), place, _key(model, options))
    return None if known is None else {"state": "done before", **_facts(known)}


def optimize_one(model: Path, place: Path, options: Options) -> dict[str, Any]:
    """Optimize one model of a folder; its row of the summary. This is the task of all engines."""
    try:
        key = _key(model, options)  # of the file that is read now
        place.parent.mkdir(parents=True, exist_ok=True)
        result = optimize_file(model, options)
        result.save(place)
        result.trace.save(place.with_suffix(".trace.json"))
        write_text(place.with_suffix(".report.json"), json.dumps({**result.report, "batch_key": key}, indent=1) + "\n")
    except EgraftError as error:
        return failed(error)
    except Exception as error:  # a defect of egraft must not end the night's batch; the summary and exit status tell
        return {"state": "failed", "error": f"egraft: error[internal]: {model}: {type(error).__name__}: {error}; "
                                            "please report it", "traceback": traceback.format_exc()}
    return {"state": "done", **_facts(result.report)}


def _known(report_path: Path, place: Path, key: dict[str, Any]) -> dict[str, Any] | None:
    if not (report_path.exists() and place.exists()):
        return None
    try:
        report = json.loads(report_path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError):
        return None  # cut off by a crash: do it again
    return report if isinstance(report, dict) and report.get("batch_key") == key else None


def _facts(report: dict[str, Any]) -> dict[str, Any]:
    measured = report["measured"]
    return {"target": report["target"]["name"], "nodes_before": report["before"]["nodes"],
            "nodes_after": report["after"]["nodes"], "speed_up": measured.get("speed_up"),
            "low": measured.get("low"), "high": measured.get("high"), "verdict": measured.get("verdict"),
            "seconds": report["seconds"], "warnings": len(report["warnings"]), "remembered": report.get("remembered")}


def _line(row: dict[str, Any]) -> str:
    if row["state"] == "failed":
        return f"{row['model']}: {row['error']}"
    speed = f"{row['speed_up']:.3f}x [{row['low']:.3f}, {row['high']:.3f}]" if row["speed_up"] else "not measured"
    warnings = f", {counted(row['warnings'], 'warning')} in its report" if row["warnings"] else ""
    return (f"{row['model']}: {row['nodes_before']} -> {counted(row['nodes_after'], 'node')}, {speed}, "
            f"{row['seconds']:.1f} s, {row['state']}{', remembered' if row.get('remembered') else ''}{warnings}")


def _table(rows: list[dict[str, Any]], stream: TextIO) -> None:
    if not rows:
        stream.write("no .onnx file found\n")
        return
    width = max(len(row["model"]) for row in rows)
    stream.write(f"\n{'model':{width}}  before  after  speed-up              seconds\n")
    for row in rows:
        if row["state"] == "failed":
            stream.write(f"{row['model']:{width}}  failed\n")
            continue
        speed = f"{row['speed_up']:.3f} [{row['low']:.3f}, {row['high']:.3f}]" if row["speed_up"] else "-"
        stream.write(f"{row['model']:{width}}  {row['nodes_before']:6}  {row['nodes_after']:5}  {speed:20}  "
                     f"{row['seconds']:7.1f}\n")
