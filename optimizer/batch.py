"""A folder of models, one after the other; restartable, with a summary table at the end."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any, TextIO

from graphs.errors import EgraftError
from graphs.wording import counted

from .options import Options
from .pipeline import optimize_file
from .result import write_text

_log = logging.getLogger(__name__)


def optimize_folder(folder: Path, out: Path, options: Options, stream: TextIO) -> int:
    """Optimize every model below `folder` into the same place below `out`; exit status 1 if one failed.

    A model whose report of the same options and input is already there is not done again.
    """
    models = sorted(path for path in folder.rglob("*") if path.suffix == ".onnx" and path.is_file())
    rows: list[dict[str, Any]] = []
    for index, model in enumerate(models):
        place = out / model.relative_to(folder)
        place.parent.mkdir(parents=True, exist_ok=True)
        row = _one(model, place, options)
        rows.append({"model": str(model.relative_to(folder)), **row})
        stream.write(f"[{index + 1}/{len(models)}] {_line(rows[-1])}\n")
        stream.flush()
    _table(rows, stream)
    write_text(out / "summary.json", json.dumps(rows, indent=1) + "\n") if models else None
    return 1 if any(row["state"] == "failed" for row in rows) else 0


def _one(model: Path, place: Path, options: Options) -> dict[str, Any]:
    report_path = place.with_suffix(".report.json")
    key = {"options": options.model_dump(), "size": model.stat().st_size, "mtime": model.stat().st_mtime_ns}
    known = _known(report_path, place, key)
    if known is not None:
        return {"state": "done before", **_facts(known)}
    try:
        result = optimize_file(model, options)
        result.save(place)
        result.trace.save(place.with_suffix(".trace.json"))
        write_text(report_path, json.dumps({**result.report, "batch_key": key}, indent=1) + "\n")
    except EgraftError as error:
        return {"state": "failed", "error": str(error)}
    except Exception as error:  # a defect of egraft must not end the night's batch; the summary and exit status tell
        _log.exception("%s", model)
        return {"state": "failed", "error": f"egraft: error[internal]: {model}: {type(error).__name__}: {error}; "
                                            "please report it"}
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
            "seconds": report["seconds"], "warnings": len(report["warnings"])}


def _line(row: dict[str, Any]) -> str:
    if row["state"] == "failed":
        return f"{row['model']}: {row['error']}"
    speed = f"{row['speed_up']:.3f}x [{row['low']:.3f}, {row['high']:.3f}]" if row["speed_up"] else "not measured"
    return (f"{row['model']}: {row['nodes_before']} -> {counted(row['nodes_after'], 'node')}, {speed}, "
            f"{row['seconds']:.1f} s, {row['state']}")


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
