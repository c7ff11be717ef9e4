"""What `egraft grad` and `egraft train-step` do; `optimizer.arguments_deriving` only reads their options."""

from __future__ import annotations

from pathlib import Path

from graphs.errors import InvalidOption

from ..commands import check_places, save_report
from ..places import print_left_out
from ..progress import terminal_progress
from .options import Deriving, check_used
from .report import summary
from .run import derive


def derive_command(model: Path, out: Path, options: Deriving, *, trace: Path | None, report: Path | None,
                   server: str | None, quiet: bool) -> int:
    """Here or on a service: write the graph, and the trace and report where they are asked for."""
    check_used(options)
    check_places(model, out, options, trace, report)
    if trace is not None and not options.optimize:
        raise InvalidOption("--trace", "it counts for superoptimizing only", "add --optimize, or leave it out")
    if server is not None:
        from ..remote import optimize_remotely

        return optimize_remotely(server, model, out, options, trace, report, quiet)
    with terminal_progress(quiet) as progress:
        found = derive(model, options, progress)
    found.save(out)
    if trace is not None:
        found.trace.save(trace)
    if report is not None:
        save_report(found.report, report)
    if not quiet:
        print(summary(found.report))
        print_left_out(out)
    return 0
