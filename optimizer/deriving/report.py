"""The text of a derivation's report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from graphs.wording import counted

SHOWN = 6


def summary(report: Mapping[str, Any]) -> str:
    """A few lines for a terminal."""
    facts = report["derivation"]
    lines = [f"model      {counted(facts['model']['nodes'], 'node')} -> {facts['nodes']}, opset {facts['opset']}"]
    loss = facts.get("loss")
    if loss:
        of = f": {loss['is']} of {loss['of']!r} against the new input {loss['target']!r} {loss['target_type']}" if (
            "of" in loss) else ""
        lines.append(f"loss       {loss['name']!r} {loss['type']}{of}")
    if "tangents" in facts:
        moves = [f"{row['name']} by {row['input']} {row['type']}" for row in facts["tangents"]]
        lines.append(f"moves      {_few(moves)}")
    lines += _derivatives(facts)
    lines.append(f"validated  {facts['validation']['summary']}")
    for row in facts["validation"].get("own_types", ()):
        lines.append(f"           in {row['runtime']}: {row['difference']:.2g} of the largest element from float64 "
                     f"({row['of']})")
    steps = facts.get("iterations")
    if steps:
        lines.append(f"iterations {steps['summary']}")
        where, losses = next(reversed(steps["losses"].items()))
        lines.append(f"           loss in {where}: {', '.join(f'{loss:.6g}' for loss in losses[:10])}")
    lines += [f"warning    {text}" for text in facts["warnings"]]
    if "target" in report:
        from ..report import summary as optimized

        lines.append(optimized(report))
    return "\n".join(lines)


def _derivatives(facts: Mapping[str, Any]) -> list[str]:
    lines = []
    if facts["kind"] == "train-step":
        rows = facts["state"]
        whole = [f"{row['input']} -> {row['output']}" for row in rows]
        lines.append(f"optimizer  {facts['optimizer']['name']}: {_settings(facts['optimizer'])}")
        lines.append(f"state      {sum(row['is'] == 'parameter' for row in rows)} parameters, "
                     f"{counted(len(rows), 'input')} with a next value: {_few(whole)}")
        if facts["frozen"]:
            lines.append(f"frozen     {_few(facts['frozen'])}")
    else:
        word = "tangents" if "tangents" in facts else "gradients"
        made = [f"{row['output']} {row['type']}" for row in facts["wrt"]]
        lines.append(f"{word:10} {_few(made)}")
    loose = [row["name"] for row in facts["wrt"] if not row["connected"]]
    if loose:
        lines.append(f"zero       the loss does not depend on {_few(loose)}: their gradient is 0")
    zero = [name for name in facts["validation"].get("zero", ()) if name not in loose]
    if zero:
        lines.append(f"zero       the gradient of {_few(zero)} was 0 wherever it was evaluated")
    return lines


def _settings(optimizer: Mapping[str, Any]) -> str:
    """`learning_rate 0.1, momentum 0.9`; those of the parameters that are no matrices (muon) behind a semicolon."""
    whole, apart = [], ""
    for name, value in optimizer.items():
        if isinstance(value, Mapping):
            apart += f"; {name} by adamw: {_settings(value)}"
        elif name not in ("name", "counts"):
            text = " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            whole.append(f"{name} {text}")
    return ", ".join(whole) + apart


def _few(texts: Sequence[str]) -> str:
    return ", ".join(texts[:SHOWN]) + (f" and {len(texts) - SHOWN} more" if len(texts) > SHOWN else "")
