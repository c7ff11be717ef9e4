"""The command line in this process: exit statuses, one line for each error, no file left behind."""

from __future__ import annotations

import errno
import json
import os
import zipfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from graphs import load, save
from graphs.text import parse_graph
from optimizer import Options
from optimizer.batch import optimize_folder
from optimizer.command_line import main

Output = pytest.CaptureFixture[str]
MODEL = """graph "m" opset 18 (x: float32[n, 4]) -> (y) {
  one = constant float32[] 1
  a = Mul(x, one) b = Transpose(a, perm=[1, 0]) y = Transpose(b, perm=[1, 0]) }"""
OTHER = 'graph "m" opset 18 (x: float32[n, 4]) -> (y) { y = Neg(x) }'


@pytest.fixture
def model(tmp_path: Path) -> Path:
    save(parse_graph(MODEL), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def egraft(*words: object) -> int:
    return main([str(word) for word in words])


def optimize(model: object, out: Path, *more: object) -> int:
    return egraft("optimize", model, "-o", out, "--target", "roofline", "--effort", "low", "--timings",
                  out.parent / "timings.db", *more)


def one_line(output: Output, *words: str) -> str:
    """The single line on standard error."""
    found = output.readouterr()
    lines = found.err.strip().splitlines()
    assert len(lines) == 1, found.err
    assert lines[0].startswith("egraft: error[") and "Traceback" not in found.out
    for word in words:
        assert word in lines[0]
    return lines[0]


# ---------------------------------------------------------------- optimize


def test_optimize(model: Path, tmp_path: Path, capsys: Output) -> None:
    out, trace, report = (tmp_path / name for name in ("out.onnx", "trace.json", "report.json"))
    assert optimize(model, out, "--trace", trace, "--report", report) == 0
    assert "roofline" in capsys.readouterr().out
    assert [node.op for node in load(out).nodes] == ["Identity"]
    assert json.loads(report.read_text())["after"]["nodes"] == 1
    assert egraft("trace", trace) == 0
    assert "transpose-transpose" in capsys.readouterr().out
    assert egraft("trace", trace, "--step", 0) == 0
    assert "step 0" in capsys.readouterr().out
    assert egraft("trace", trace, "--why-not", "matmul-add-gemm") == 0
    assert "matmul-add-gemm" in capsys.readouterr().out
    used = json.loads(trace.read_text(encoding="utf-8"))["steps"][0]["rule"]
    assert egraft("trace", trace, "--why-not", used) == 0
    assert "did fire: step 0" in capsys.readouterr().out
    assert egraft("trace", trace, "--why-not", "no-such-rule") == 2
    one_line(capsys, "no-such-rule")
    assert egraft("trace", trace, "--step", 99) == 2
    one_line(capsys, "99")


def test_a_rule_that_matched_and_lost_is_told_apart(tmp_path: Path, capsys: Output) -> None:
    text, trace = tmp_path / "model.txt", tmp_path / "trace.json"
    text.write_text('graph "m" opset 18 (x: float32[n, 4]) -> (y) '
                    "{ k = constant float32[] 8 a = Div(x, k) y = Relu(a) }")
    assert optimize(text, tmp_path / "out.onnx", "--trace", trace) == 0
    capsys.readouterr()
    assert egraft("trace", trace, "--why-not", "div-power-of-two") == 0
    assert "div-power-of-two: 1 time: matched, not chosen (for example at a)" in capsys.readouterr().out
    assert egraft("trace", trace, "--why-not", "neg-neg") == 0
    assert "matched nowhere" in capsys.readouterr().out


def test_version(capsys: Output) -> None:
    assert egraft("--version") == 0
    assert capsys.readouterr().out == f"egraft {version('egraft')}\n"


def test_quiet_html_and_text_form(model: Path, tmp_path: Path, capsys: Output) -> None:
    assert optimize(model, tmp_path / "out.txt", "--report", tmp_path / "report.html", "--quiet") == 0
    assert capsys.readouterr().out == ""
    assert "<html" in (tmp_path / "report.html").read_text()[:500].lower()
    assert parse_graph((tmp_path / "out.txt").read_text()).outputs == ["y"]


def test_the_output_may_be_the_input(model: Path) -> None:
    assert optimize(model, model, "-q") == 0
    assert len(load(model).nodes) == 1


def not_onnx(folder: Path) -> Path:
    path = folder / "bad.onnx"
    path.write_text("this is not a model\n")
    return path


def empty(folder: Path) -> Path:
    path = folder / "bad.onnx"
    path.write_bytes(b"")
    return path


def truncated(folder: Path) -> Path:
    path = folder / "bad.onnx"
    data = (folder / "model.onnx").read_bytes()
    path.write_bytes(data[: len(data) * 2 // 3])
    return path


def cyclic(folder: Path) -> Path:
    found = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        agraph (float[3] x) => (float[3] y) { a = Add(x, b)  b = Neg(a)  y = Relu(b) }""")
    onnx.save(found, folder / "bad.onnx")
    return folder / "bad.onnx"


def missing_weights(folder: Path) -> Path:
    found = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        agraph (float[64] x) => (float[64] y) { y = Add(x, w) }""")
    found.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(64, np.float32), "w"))
    onnx.save(found, folder / "bad.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    (folder / "weights.bin").unlink()
    return folder / "bad.onnx"


def missing(folder: Path) -> Path:
    return folder / "no such file.onnx"


def directory(folder: Path) -> Path:
    (folder / "folder.onnx").mkdir()
    return folder / "folder.onnx"


def ill_typed(folder: Path) -> Path:
    onnx.save(onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        agraph (float[3] x, float[4] z) => (float[3] y) { y = Add(x, z) }"""), folder / "bad.onnx")
    return folder / "bad.onnx"


def undefined_value(folder: Path) -> Path:
    onnx.save(onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        agraph (float[3] x) => (float[3] y) { y = Add(x, nowhere) }"""), folder / "bad.onnx")
    return folder / "bad.onnx"


def bad_text(folder: Path) -> Path:
    (folder / "bad.txt").write_text('graph "m" opset 18 (x: float32[n, 4]) -> (y) { y = = }')
    return folder / "bad.txt"


def bad_json(folder: Path) -> Path:
    (folder / "bad.json").write_text('{"nodes": 7}')
    return folder / "bad.json"


BAD = [not_onnx, empty, truncated, cyclic, missing_weights, missing, directory, ill_typed, undefined_value, bad_text,
       bad_json]  # fmt: skip


@pytest.mark.parametrize("make", BAD, ids=lambda each: each.__name__)
def test_bad_models(make: Callable[[Path], Path], model: Path, tmp_path: Path, capsys: Output) -> None:
    bad, out = make(tmp_path), tmp_path / "results" / "out.onnx"
    out.parent.mkdir()
    for words in (["optimize", bad, "-o", out, "--target", "roofline"], ["run", bad], ["check", bad, model]):
        assert egraft(*words) == 2, words
        one_line(capsys)
    assert not list(out.parent.iterdir()), "no file is left behind"


@pytest.mark.parametrize("words", [
    ["--target", "moon:cpu"], ["--effort", "much"], ["--precision", "some"], ["--opset", "0"], ["--opset", "999"],
    ["--dim", "n"], ["--dim", "n="], ["--dim", "=3"], ["--dim", "n=a"], ["--dim", "n=1,"], ["--dim", "nobody=3"],
    ["--timeout", "-1"], ["--threads", "0"], ["--disable-rule", "no-such-rule"], ["--keep", "no such node"],
    ["--inputs", "no such file.npz"], ["--report", "report.pdf"], ["--nonsense"], ["--opset", "many"],
    ["--target", "onnxruntime:tpu"], ["--objective", "beauty"], ["--rtol", "-1"],
    ["--dim", "n=²"], ["--dim", "n=" + "9" * 5000], ["--timeout", "inf"], ["--rtol", "inf"], ["--threads", "9" * 20],
], ids=" ".join)  # fmt: skip
def test_impossible_options(words: list[str], model: Path, tmp_path: Path, capsys: Output) -> None:
    (tmp_path / "results").mkdir()
    assert egraft("optimize", model, "-o", tmp_path / "results" / "out.onnx", "--timings", tmp_path / "t.db",
                  *(words if "--target" in words else ["--target", "roofline", *words])) == 2
    one_line(capsys)
    assert not list((tmp_path / "results").iterdir())


@pytest.mark.parametrize(("words", "told"), [
    (["--opset", "999"], f"give 7 to {onnx.defs.onnx_opset_version()}"), (["--opset", "6"], "give 7 to"),
    (["--dim", "a=1,b=2"], "--dim once for each name"),
])
def test_what_may_be_given_is_named(words: list[str], told: str, model: Path, tmp_path: Path, capsys: Output) -> None:
    assert egraft("optimize", model, "-o", tmp_path / "out.onnx", "--target", "roofline", *words) == 2
    one_line(capsys, told)


def test_help_says_what_counts_with_optimize_only(capsys: Output) -> None:
    assert egraft("grad", "--help") == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "with --optimize: write at this opset, 7 or newer" in told and "<list[str]> NAME=1,8: sizes" in told


def test_unwritable_places(model: Path, tmp_path: Path, capsys: Output) -> None:
    assert optimize(model, tmp_path / "no such folder" / "out.onnx") == 2
    one_line(capsys)
    (tmp_path / "file").write_text("")
    assert optimize(model, tmp_path / "file" / "out.onnx") == 2
    one_line(capsys)
    (tmp_path / "taken.onnx").mkdir()
    assert optimize(model, tmp_path / "taken.onnx") == 2
    one_line(capsys)
    if os.geteuid() != 0:
        (tmp_path / "locked").mkdir(mode=0o500)
        assert egraft("optimize", model, "-o", tmp_path / "locked" / "out.onnx", "--target", "roofline") == 2
        one_line(capsys)


@pytest.mark.parametrize("option", ["-o", "--trace", "--report"])
def test_what_is_no_regular_file_stays(option: str, model: Path, tmp_path: Path, capsys: Output) -> None:
    os.mkfifo(pipe := tmp_path / "pipe.json")
    places = {"-o": tmp_path / "out.onnx", option: pipe}
    assert egraft("optimize", model, *(word for place in places.items() for word in place)) == 2
    one_line(capsys, "no regular file")
    assert pipe.is_fifo() and not (tmp_path / "out.onnx").exists()


def test_each_file_of_a_run_has_a_name_of_its_own(model: Path, tmp_path: Path, capsys: Output) -> None:
    before, out = model.read_bytes(), tmp_path / "out.json"
    for words in (["--trace", model], ["--trace", out], ["--report", out], ["--timings", out], ["--inputs", out]):
        assert egraft("optimize", model, "-o", out, *words) == 2
        one_line(capsys, str(words[0]), "is also the file of")
    assert model.read_bytes() == before and not out.exists()


def test_damaged_inputs(model: Path, tmp_path: Path, capsys: Output) -> None:
    good, bad = tmp_path / "good.npz", tmp_path / "bad.npz"
    np.savez(good, x=np.ones((2, 4), np.float32))
    whole = good.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 3] ^= 255
    np.save(tmp_path / "plain.npy", np.ones((2, 4), np.float32))
    with zipfile.ZipFile(tmp_path / "text.npz", "w") as archive:
        archive.writestr("x", b"no array")
    for content in (whole[:-30], bytes(flipped), (tmp_path / "plain.npy").read_bytes(),
                    (tmp_path / "text.npz").read_bytes()):
        bad.write_bytes(content)
        assert optimize(model, tmp_path / "out.onnx", "--inputs", bad) == 2
        one_line(capsys, "bad.npz")


@pytest.mark.parametrize("content", [
    '{"egraft_trace": 1}', '{"egraft_trace": 1, "steps": [1], "refusals": {}, "model": {}}', "[" * 100_000,
    '{"egraft_trace": 1, "steps": [{"index": 0}], "refusals": {}, "model": {}}', "9" * 10_000, "[1]",
    '{"egraft_trace": 1, "steps": [], "refusals": {"a": 3}, "model": {}}',
], ids=range(7))
def test_damaged_traces(content: str, tmp_path: Path, capsys: Output) -> None:
    (tmp_path / "t.json").write_text(content)
    assert egraft("trace", tmp_path / "t.json") == 2
    one_line(capsys, "trace")


@pytest.mark.parametrize("words", [["--timings"], ["--target", "onnxruntime:cpu@"]], ids=" ".join)
def test_a_file_that_is_no_database_stays(words: list[str], model: Path, tmp_path: Path, capsys: Output) -> None:
    (tmp_path / "own").mkdir()
    own = tmp_path / "own" / "notes.txt"
    own.write_text("not a database\n" * 100)
    given = [*words, own] if words == ["--timings"] else [words[0], f"{words[1]}{own}"]
    assert egraft("optimize", model, "-o", tmp_path / "out.onnx", *given) == 2
    one_line(capsys, "notes.txt")
    assert egraft("timings", "show", "--timings", own) == 2
    assert [each.name for each in own.parent.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("option", ["--trace", "--report"])
def test_unwritable_reports(option: str, model: Path, tmp_path: Path, capsys: Output) -> None:
    assert optimize(model, tmp_path / "out.onnx", option, tmp_path / "no such folder" / "file.json") == 2
    one_line(capsys)
    assert not (tmp_path / "out.onnx").exists()


def test_an_output_that_is_there_survives_an_error(model: Path, tmp_path: Path, capsys: Output) -> None:
    out = tmp_path / "out.onnx"
    out.write_bytes(b"earlier")
    assert optimize(not_onnx(tmp_path), out) == 2
    assert out.read_bytes() == b"earlier"


def test_inputs_that_do_not_fit(model: Path, tmp_path: Path, capsys: Output) -> None:
    for name, arrays in (("wrong", {"z": np.ones(3)}), ("shape", {"x": np.ones((2, 5), np.float32)}),
                         ("dtype", {"x": np.ones((2, 4), np.int64)})):
        np.savez(tmp_path / f"{name}.npz", **arrays)  # type: ignore[arg-type]
        for words in (["run", model], ["check", model, model]):
            assert egraft(*words, "--inputs", tmp_path / f"{name}.npz") == 2, name
            one_line(capsys)
        assert optimize(model, tmp_path / "out.onnx", "--inputs", tmp_path / f"{name}.npz") == 2, name
        one_line(capsys)


# ---------------------------------------------------------------- the other commands


def files(folder: Path, **texts: str) -> dict[str, Path]:
    for name, text in texts.items():
        save(parse_graph(text), folder / f"{name}.onnx")
    return {name: folder / f"{name}.onnx" for name in texts}


def test_check(model: Path, tmp_path: Path, capsys: Output) -> None:
    found = files(tmp_path, other=OTHER)
    assert egraft("check", model, model) == 0
    assert egraft("check", model, found["other"]) == 1
    assert egraft("check", model, model, "--prove") == 0
    assert "proved equal" in capsys.readouterr().out


def test_check_proves_a_rewrite(model: Path, tmp_path: Path, capsys: Output) -> None:
    optimize(model, tmp_path / "out.onnx")
    capsys.readouterr()
    assert egraft("check", model, tmp_path / "out.onnx", "--prove") == 0
    assert "transpose-transpose" in capsys.readouterr().out


def test_check_neither_proved_nor_refuted(tmp_path: Path) -> None:
    a = 'graph "m" opset 18 (x: float32[4]) -> (y) { y = Sinh(x) }'
    b = """graph "m" opset 18 (x: float32[4]) -> (y) { h = constant float32[] 0.5
        e = Exp(x) k = Neg(x) f = Exp(k) p = Sub(e, f) y = Mul(p, h) }"""
    found = files(tmp_path, a=a, b=b)
    assert egraft("check", found["a"], found["b"], "--prove", "--rtol", "1e-3", "--atol", "1e-3") == 3


def test_check_of_models_with_other_interfaces(model: Path, tmp_path: Path, capsys: Output) -> None:
    found = files(tmp_path, other=OTHER.replace("-> (y)", "-> (z)").replace("y =", "z ="))
    assert egraft("check", model, found["other"]) == 2
    one_line(capsys)


def test_run(model: Path, tmp_path: Path, capsys: Output) -> None:
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    np.savez(tmp_path / "in.npz", x=x)
    assert egraft("run", model, "--inputs", tmp_path / "in.npz", "--outputs", tmp_path / "out.npz") == 0
    assert "float32[2, 4]" in capsys.readouterr().out
    with np.load(tmp_path / "out.npz") as found:
        np.testing.assert_array_equal(found["y"], x)
    assert egraft("run", model, "--dim", "n=5") == 0
    assert "[5, 4]" in capsys.readouterr().out
    assert egraft("run", model, "--target", "moon:cpu") == 2
    one_line(capsys)


def test_rules(capsys: Output) -> None:
    assert egraft("rules") == 0
    assert "neg-neg" in capsys.readouterr().out
    assert egraft("rules", "neg-neg") == 0
    assert "refuses" in capsys.readouterr().out
    assert egraft("rules", "no-such-rule") == 2
    one_line(capsys, "no-such-rule")
    assert egraft("rules", "check", "neg-neg", "--instances", "2") == 0
    assert "1 rule holds" in capsys.readouterr().out
    assert egraft("rules", "check", "no-such-rule") == 2
    one_line(capsys, "no-such-rule")


def test_targets(capsys: Output) -> None:
    assert egraft("targets") == 0
    out = capsys.readouterr().out
    assert "egraft:cpu" in out and "roofline" in out and "available" in out


def test_a_reader_that_goes_away_is_no_error(capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr("optimizer.commands.rules_command", gone)
    assert egraft("rules") == 0


@pytest.mark.parametrize("words", [
    ["rules", ""], ["bisect", "MODEL", "--precision", "some"], ["check", "MODEL", "MODEL", "--rtol", "nan"],
    ["check", "MODEL", "MODEL", "--atol", "-1"], ["check", "MODEL", "MODEL", "--seed", "-1"],
    ["zoo", "FOLDER", "-o", "MODEL"], ["run", "MODEL", "--outputs", "FOLDER/none/x.npz"],
    ["timings", "import", "MODEL", "--timings", "FOLDER/t.db"],
    ["timings", "export", "FOLDER", "--timings", "FOLDER/t.db"],
], ids=" ".join)  # fmt: skip
def test_impossible_words(words: list[str], model: Path, tmp_path: Path, capsys: Output) -> None:
    given = [word.replace("MODEL", str(model)).replace("FOLDER", str(tmp_path)) for word in words]
    assert egraft(*given) == 2
    one_line(capsys)


def test_bisect(model: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("optimizer.bisect.Options", lambda **values: Options(
        **{**values, "target": "roofline", "timings": str(tmp_path / "t.db")}))
    assert egraft("bisect", model) == 0
    assert "no difference" in capsys.readouterr().out


# ---------------------------------------------------------------- a folder of models

def test_zoo(tmp_path: Path, capsys: Output) -> None:
    folder, out = tmp_path / "models", tmp_path / "results"
    (folder / "deep").mkdir(parents=True)
    files(folder, first=MODEL, second=OTHER)
    files(folder / "deep", third=MODEL)
    (folder / "broken.onnx").write_text("broken")
    (folder / "notes.txt").write_text("not a model")
    words = ["zoo", folder, "-o", out, "--target", "roofline", "--effort", "low", "--timings", tmp_path / "t.db"]
    assert egraft(*words) == 1
    text = capsys.readouterr().out
    assert "broken.onnx" in text and "[4/4]" in text
    assert (out / "deep" / "third.onnx").exists() and not (out / "broken.onnx").exists()
    rows = json.loads((out / "summary.json").read_text())
    assert [row["state"] for row in rows] == ["failed", "done", "done", "done"]

    stamp = (out / "first.onnx").stat().st_mtime_ns
    (folder / "broken.onnx").unlink()
    (out / "second.report.json").write_text('{"cut off')  # as a crash would leave it
    assert egraft(*words) == 0
    rows = json.loads((out / "summary.json").read_text())
    assert [row["state"] for row in rows] == ["done before", "done before", "done"]
    assert (out / "first.onnx").stat().st_mtime_ns == stamp
    assert egraft("zoo", tmp_path / "nowhere", "-o", out) == 2


def test_zoo_with_other_options_starts_again(tmp_path: Path) -> None:
    files(tmp_path, first=MODEL)
    states: list[Any] = []
    for precision in ("rounding", "rounding", "exact"):
        options = Options(target="roofline", effort="low", precision=precision, timings=str(tmp_path / "t.db"))  # type: ignore[arg-type]
        with (tmp_path / "log").open("w") as stream:
            assert optimize_folder(tmp_path, tmp_path / "out", options, stream) == 0
        states.append([row["state"] for row in json.loads((tmp_path / "out" / "summary.json").read_text())])
    assert states[0][0] == "done" and "done before" in states[1] and "done before" not in states[2][:1]


def test_a_service_that_does_not_answer(model: Path, tmp_path: Path, capsys: Output) -> None:
    assert optimize(model, tmp_path / "out.onnx", "--server", "http://127.0.0.1:9") == 2
    one_line(capsys)
    assert optimize(model, tmp_path / "out.onnx", "--server", "nonsense") == 2
    one_line(capsys)
    assert not (tmp_path / "out.onnx").exists()


def test_frozen_without_records(model: Path, tmp_path: Path, capsys: Output) -> None:
    assert egraft("optimize", model, "-o", tmp_path / "out.onnx", "--target", "onnxruntime:cpu", "--frozen",
                  "--timings", tmp_path / "empty.db") == 2
    one_line(capsys, "frozen-miss")
    assert not (tmp_path / "out.onnx").exists()


def test_a_database_that_is_none_is_an_error_or_a_miss(model: Path, tmp_path: Path, capsys: Output) -> None:
    (tmp_path / "t.db").write_text("not a database\n" * 100)
    status = egraft("optimize", model, "-o", tmp_path / "out.onnx", "--target", "roofline", "--timings",
                    tmp_path / "t.db")
    assert status in (0, 2)
    assert "Traceback" not in capsys.readouterr().err


def test_a_timeout_gives_the_best_so_far(model: Path, tmp_path: Path) -> None:
    assert optimize(model, tmp_path / "out.onnx", "--timeout", "0.001", "-q") == 0
    assert load(tmp_path / "out.onnx").outputs == ["y"]


def test_strict(tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """A result whose validation fails is dropped with its rule; with --strict that is exit status 1."""
    import optimizer.validating as validating
    from runtime.validation import Validation, validate

    def fussy(original: Any, optimized: Any, *rest: Any, **more: Any) -> Validation:
        found = validate(original, optimized, *rest, **more)
        if not any(node.op == "Neg" for node in optimized.nodes):
            found.status, found.reason = "failed", "made up"
        return found

    monkeypatch.setattr(validating, "validate", fussy)
    model = files(tmp_path, negative=OTHER.replace("y = Neg(x)", "a = Neg(x) b = Neg(a) y = Exp(b)"))["negative"]
    assert optimize(model, tmp_path / "out.onnx", "--report", tmp_path / "report.json") == 0
    dropped = json.loads((tmp_path / "report.json").read_text())["dropped"]
    assert dropped[0]["rule"] == "neg-neg" and dropped[0]["reason"] == "made up"
    assert "warning" in capsys.readouterr().out
    assert optimize(model, tmp_path / "again.onnx", "--strict") == 1
    one_line(capsys, "validation-failed")
