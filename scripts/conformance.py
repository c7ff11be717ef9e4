"""ONNX's own backend tests through `runtime.onnx_backend`: `python -m scripts.conformance [--write] [KIND...]`.

Runs the node, simple and converted model cases that the installed onnx package ships (no network), prints how many
pass, by operator where any fails, and ends with status 1 where an unexpected one fails or an excluded one passes.
`--write` puts the table into docs/conformance.md.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
from onnx import numpy_helper
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

from runtime import onnx_backend

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
PAGE = Path(__file__).resolve().parents[1] / "docs" / "conformance.md"
# Beginning of a case's name -> why it is not meant to pass.
EXCLUDED = {
    "test_bernoulli": "random numbers: no two runtimes draw the same",
    "test_training_dropout_default": "expects the stream of NumPy's legacy generator",
    "test_training_dropout_mask": "expects the stream of NumPy's legacy generator",
    "test_resize_downsample_scales_linear_align_corners": "ONNX Runtime excludes it too: it wants fractional sizes",
    "test_resize_downsample_scales_cubic_align_corners": "ONNX Runtime excludes it too: it wants fractional sizes",
    "test_attention_4d_causal_fp16_expanded":
        "onnx.reference rounds to float16 inside Softmax: 14 of its 144 weights are not the nearest, all of ours are",
}
PILLOW = "test_image_decoder"  # onnx.reference decodes with Pillow, which is no dependency of egraft


@dataclass
class Tally:
    """Counts by operator, and the failures."""

    passed: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    excluded: Counter[str] = field(default_factory=Counter)
    problems: list[tuple[str, str]] = field(default_factory=list)
    revived: list[str] = field(default_factory=list)  # excluded, and passed
    reasons: dict[str, str] = field(default_factory=dict)


def excluded(name: str) -> str:
    """Why a case is excluded, empty where it must pass."""
    if name.startswith(PILLOW):
        try:
            import PIL  # noqa: F401
        except ImportError:
            return "onnx.reference decodes images with Pillow, which is not installed"
    if name == "test_training_dropout":
        name += "_default"  # the same; the names that go on from it are others
    return next((reason for start, reason in EXCLUDED.items() if name.startswith(start)), "")


def data_sets(test: TestCase, model: onnx.ModelProto) -> Iterator[tuple[list[Any], list[Any]]]:
    """Inputs and expected outputs, as arrays, lists and None."""
    if test.model_dir is None:
        for inputs, outputs in test.data_sets or []:
            yield [_value(each) for each in inputs], [_value(each) for each in outputs]
        return
    for folder in sorted(Path(test.model_dir).glob("test_data_set_*")):
        yield (_read(folder, "input", list(model.graph.input)), _read(folder, "output", list(model.graph.output)))


def _value(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _read(folder: Path, what: str, infos: list[onnx.ValueInfoProto]) -> list[Any]:
    found = []
    for index in range(len(list(folder.glob(f"{what}_*.pb")))):
        data, type_ = (folder / f"{what}_{index}.pb").read_bytes(), infos[index].type
        if type_.HasField("sequence_type"):
            found.append(numpy_helper.to_list(onnx.SequenceProto.FromString(data)))
        elif type_.HasField("optional_type"):
            found.append(numpy_helper.to_optional(onnx.OptionalProto.FromString(data)))
        else:
            found.append(numpy_helper.to_array(onnx.TensorProto.FromString(data)))
    return found


def problem_with(test: TestCase, model: onnx.ModelProto) -> str:
    """What is wrong with our outputs, empty if nothing."""
    try:
        prepared = onnx_backend.prepare(model)
        for inputs, wanted in data_sets(test, model):
            _compare(wanted, list(prepared.run(inputs)), test)
    except Exception as error:  # a test may fail in any way; each is reported
        return " ".join(f"{type(error).__name__}: {error}".split())[:300]
    return ""


def _compare(wanted: list[Any], found: list[Any], test: TestCase) -> None:
    """As the suite compares, sequences item by item: its own recursion asks 0-d tensors for their length."""
    assert len(wanted) == len(found), f"{len(found)} outputs, not {len(wanted)}"
    for right, mine in zip(wanted, found):
        if isinstance(right, list) and isinstance(mine, list):
            _compare(right, mine, test)
        elif right is None or mine is None or isinstance(right, list) or isinstance(mine, list):
            assert right is None and mine is None, f"{type(mine)}, not {type(right)}"
        else:
            Runner.assert_similar_outputs([right], [mine], rtol=test.rtol, atol=test.atol)


def run_kind(kind: str) -> Tally:
    """All cases of a kind."""
    tally = Tally()
    for test in load_model_tests(kind=kind):
        model = test.model if test.model_dir is None else onnx.load(f"{test.model_dir}/model.onnx")
        operator = model.graph.node[0].op_type if kind == "node" else kind
        reason, problem = excluded(test.name), problem_with(test, model)
        if reason:
            tally.excluded[operator] += 1
            tally.reasons[reason] = tally.reasons.get(reason, "") or test.name
            if not problem:
                tally.revived.append(test.name)
        elif problem:
            tally.failed[operator] += 1
            tally.problems.append((test.name, problem))
        else:
            tally.passed[operator] += 1
    return tally


def markdown(tallies: dict[str, Tally]) -> str:
    """The page: totals, what failed, exclusions with reasons, and every operator."""
    lines = ["# Conformance", "", f"The backend tests that onnx {onnx.__version__} ships, run by `make conformance`.",
             "", "| kind | passed | failed | excluded |", "| --- | --- | --- | --- |"]
    lines += [f"| {kind} | {each.passed.total()} | {each.failed.total()} | {each.excluded.total()} |"
              for kind, each in tallies.items()]
    problems = [f"- `{name}`: {text}" for each in tallies.values() for name, text in each.problems]
    lines += ["", "## Failed", "", *(problems or ["None."]), "", "## Excluded", ""]
    reasons = {reason: name for each in tallies.values() for reason, name in each.reasons.items()}
    lines += [f"- {reason} (such as `{name}`)" for reason, name in sorted(reasons.items())]
    lines += ["", "## Node cases by operator", "", "| operator | passed | of |", "| --- | --- | --- |"]
    node = tallies.get("node", Tally())
    for name in sorted({*node.passed, *node.failed, *node.excluded}):
        total = node.passed[name] + node.failed[name] + node.excluded[name]
        lines.append(f"| {name} | {node.passed[name]} | {total} |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kinds", nargs="*", default=list(KINDS))
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    tallies = {kind: run_kind(kind) for kind in options.kinds}
    for kind, each in tallies.items():
        total = each.passed.total() + each.failed.total() + each.excluded.total()
        print(f"{kind}: {each.passed.total()} of {total} passed ({100 * each.passed.total() / total:.2f} %), "
              f"{each.failed.total()} failed, {each.excluded.total()} excluded for a reason")
        for name, text in each.problems:
            print(f"  {name}: {text}")
        for name in each.revived:
            print(f"  {name} passes: take it off the list of exclusions")
    if options.write:
        PAGE.write_text(markdown(tallies), encoding="utf-8")
        print(f"written: {PAGE}")
    return 1 if any(each.problems for each in tallies.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
