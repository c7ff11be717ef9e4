"""Runs one case of the shared packs through the Python API and judges it with the packs' own judge."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from pathlib import Path
from types import ModuleType

from graphs.errors import EgraftError
from optimizer import optimize

SHARED = Path(os.environ.get("EGRAFT_SHARED", Path(__file__).resolve().parents[3] / "shared"))
LISTS = Path(__file__).parent


def runner() -> ModuleType:
    """The packs' own `run_cases.py`."""
    spec = importlib.util.spec_from_file_location("run_cases", SHARED / "cases" / "run_cases.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cases(pack: str) -> list[Path]:
    """Folders of the cases of a pack, in order; none where the packs are not there."""
    folder = SHARED / pack / "pack"
    return sorted(path.parent for path in folder.glob("*/case.json")) if folder.is_dir() else []


def expected_failures(pack: str) -> dict[str, str]:
    """Case id -> why it fails, from the list that only shrinks."""
    rows: dict[str, str] = {}
    for line in (LISTS / f"expected_failures_{pack}.txt").read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            name, _, why = line.partition(" ")
            rows[name] = why.strip()
    return rows


def run_case(folder: Path, work: Path, timings: Path) -> tuple[str, str]:
    """(`ok` | `WRONG` | `CRASH`, why). A crash is an error on a valid model."""
    case = json.loads((folder / "case.json").read_text(encoding="utf-8"))
    if not (folder / case["model"]).exists():
        return "ok", "its model file of several GB is built apart"
    inside = work / "in"
    inside.mkdir()
    for name in [case["model"], *case.get("files", [])]:
        shutil.copyfile(folder / name, inside / name)
    for name, where in case.get("place", {}).items():
        shutil.copyfile(folder / name, os.path.normpath(inside / where))
    out_folder = inside
    if case.get("other_folder"):
        out_folder = work / "result"
        out_folder.mkdir()
    model, out = inside / case["model"], out_folder / case.get("out", "optimized.onnx")
    before = model.read_bytes()
    try:
        optimize(model, timings=str(timings)).save(out)
    except EgraftError as error:
        return _judge_error(case, error, out)
    if case["must"] == "error":
        return "WRONG", "no error was reported"
    if model.read_bytes() != before:
        return "WRONG", "the input was changed"
    return _judge_result(folder, case, model, out, timings)


def _judge_error(case: dict, error: EgraftError, out: Path) -> tuple[str, str]:
    line = str(error)
    if case["must"] != "error":
        return "CRASH", line
    if out.exists():
        return "WRONG", "an output file was written besides the error"
    for group in case["words"]:
        if not any(word.lower() in line.lower() for word in group):
            return "WRONG", f"the message names none of {group}: {line}"
    return "ok", ""


def _judge_result(folder: Path, case: dict, model: Path, out: Path, timings: Path) -> tuple[str, str]:
    if case.get("max_bytes"):
        keep = {case["model"], *case.get("files", [])} if out.parent == model.parent else set()
        size = sum(path.stat().st_size for path in out.parent.iterdir() if path.is_file() and path.name not in keep)
        if size > case["max_bytes"]:
            return "WRONG", f"{size} bytes written, allowed {case['max_bytes']}"
    why = runner().judge(str(folder), str(model), str(out))
    if why:
        return "WRONG", why
    if case.get("twice"):
        again = out.with_name("again.onnx")
        optimize(out, timings=str(timings)).save(again)
        why = runner().judge(str(folder), str(model), str(again))
        if why:
            return "WRONG", f"on its own output: {why}"
    if case["must"] == "deterministic":
        first = out.read_bytes()
        for _ in range(2):
            optimize(model, timings=str(timings)).save(out)
            if out.read_bytes() != first:
                return "WRONG", "another file on a repeated run"
    return "ok", ""
