"""Which operators of which opset egraft understands: `python -m scripts.opsets_page` writes docs/opsets.md."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx.reference.ops import load_op
from onnx.reference.ops.aionnxml import load_op as load_ml_op

from graphs.canonical import newest_opset, version_at
from graphs.ml_types import DOMAIN
from graphs.operators import schema

OUT = Path(__file__).resolve().parents[1] / "docs" / "opsets.md"
OLDEST = 7
_CONSTANT = "Constant"  # read as a constant, not as a node

_HEAD = f"""# Opsets

Models of opset {OLDEST} to {{newest}} (the newest of onnx {{onnx}}) are read, and written at the opset of the file
or at `--opset N` in the same range. Every operator version that `onnx` knows there is one of two things:

- **understood**: read into one canonical form, whatever the version spells, optimized, and written in the form of
  the opset that is asked for. Where a node has no form at that opset (an attribute that came later), writing says
  which node and why, and no file is left;
- **opaque**: the node stays as it is, nothing is assumed about it beyond the element types of its schema, and what
  stands around it is optimized. It is written at any opset in which the operator has the same version, else
  refused.

A version that `onnx` does not know (a newer opset, an unknown domain) is opaque. `tests/graphs/test_opsets.py` goes
through all versions: none is taken for another. `Constant` is read as a constant. Opsets below {OLDEST} are read
too, where the versions are understood; nothing is promised for them.

{{table}}

Opaque at every opset: {{always}}.

Opaque at some: {{sometimes}}.

Opaque nodes are executed (by `egraft run` and by validation) where `onnx.reference` has the operator: all of the
above {{lacking}}.

## ai.onnx.ml

All operators are opaque: nothing rewrites them. `graphs/ml_types.py` knows the types of their outputs where the
specification fixes them, so that what stands around them is optimized. `onnx.reference` evaluates {{ml}}.
`runtime/ml_reference.py` puts right where it departs from the specification (element types, absent intercepts,
`MAX` of Normalizer), and refuses variants whose scores it computes otherwise than ONNX Runtime: `post_transform` of
regressors and PROBIT, two classes by one score with a transform, two classes by one row of coefficients
(LinearClassifier), and probabilities of an SVM with more than two classes. Such nodes are not executed, and the
report of the validation names them.

## Where runtimes differ

| operator | the specification | ONNX Runtime | egraft |
|---|---|---|---|
| Clip since opset 11, one bound absent | it "defaults to numeric_limits::lowest() / max()"; onnx.reference leaves \
infinity alone | infinity becomes the largest finite number | infinity stays: like onnx.reference. No rule rests on \
either: where a value may be infinite and a bound is absent `clip-in-range` refuses, and no rule about Clip is \
`exact` |
| Clip of opset 6 to 10 | an attribute whose default is the largest finite float32 | infinity becomes that | \
infinity becomes that |
| Relu of -0.0 | open: y = max(0, x) | -0.0 | -0.0 |
| Normalizer with `MAX` | x / max(x) | the same | the same; onnx.reference: x / max(abs(x)) |
"""


def _names(found: list[str]) -> str:
    return ", ".join(found) if found else "none"


def _is_executed(op: str, domain: str) -> bool:
    version = max(each.since_version for each in onnx.defs.get_all_schemas_with_history()
                  if (each.domain, each.name) == (domain, op) and not each.deprecated)
    try:
        load_ml_op(domain, op, version) if domain else load_op(domain, op, version)
    except Exception:  # half a dozen kinds for what it does not have
        return False
    return True


def page() -> str:
    """The text of the page."""
    newest, all_schemas = newest_opset(), onnx.defs.get_all_schemas_with_history()
    names = sorted({each.name for each in all_schemas if each.domain == ""} - {_CONSTANT})
    lines = ["| opset | operators | understood | opaque |", "|---|---|---|---|"]
    opaque_at: dict[str, list[int]] = {}
    there_at: dict[str, list[int]] = {}
    for opset in range(OLDEST, newest + 1):
        there = [name for name in names if schema(name, opset) is not None]
        opaque = [name for name in there if not version_at(name, "", opset)]
        lines.append(f"| {opset} | {len(there)} | {len(there) - len(opaque)} | {len(opaque)} |")
        for name in there:
            there_at.setdefault(name, []).append(opset)
        for name in opaque:
            opaque_at.setdefault(name, []).append(opset)
    always = [name for name, opsets in sorted(opaque_at.items()) if opsets == there_at[name]]
    some = [f"{name} ({opsets[0]}{f' to {opsets[-1]}' if len(opsets) > 1 else ''})"
            for name, opsets in sorted(opaque_at.items()) if name not in always]
    lacking = [name for name in sorted(opaque_at) if not _is_executed(name, "")]
    ml = sorted({each.name for each in all_schemas if each.domain == DOMAIN})
    run = [name for name in ml if _is_executed(name, DOMAIN)]
    missing = [name for name in ml if name not in run]
    return _HEAD.format(newest=newest, onnx=onnx.__version__, table="\n".join(lines), always=_names(always),
                        sometimes=_names(some), lacking=f"but {_names(lacking)}" if lacking else "",
                        ml=_names(run) + (f", not {_names(missing)}" if missing else ""))


if __name__ == "__main__":
    OUT.write_text(page(), encoding="utf-8")
