"""`egraft bisect`: the smallest trace of an optimization that still shows a difference."""

from __future__ import annotations

from pathlib import Path

from graphs.wording import counted

from .context import open_context
from .finalists import Finalist
from .options import Options
from .pipeline import optimize
from .result import step_text
from .validating import check, guilty_step


def bisect_model(model: Path, precision: str) -> int:
    """Optimize, replay the trace step by step, and print the first step after which validation fails.

    Exit status 0 if every prefix holds, 1 with the guilty step otherwise.
    """
    options = Options(precision=precision)  # type: ignore[arg-type]
    result = optimize(model, options)
    context = open_context(result.original, options)
    final = result.trace.replay(result.original)
    if check(result.original, final, context).ok and not result.report["dropped"]:
        print(f"no difference: the result of {counted(len(result.trace.steps), 'step')} holds")
        return 0
    for row in result.report["dropped"]:
        print(f"dropped: {row['rule']} at {', '.join(row['where'][:6])}")
        print("\n".join([*(f"  - {line}" for line in row["before"]), *(f"  + {line}" for line in row["after"])]))
    step = guilty_step(result.original, Finalist("result", final, lambda: result.trace.steps), context)
    if step is not None:
        print(step_text(step))
    return 1
