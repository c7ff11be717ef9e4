"""Arguments of `egraft timings ...`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="The timing database.")
Database = Annotated[Path | None, typer.Option(
    "--timings", help="the database (default: $EGRAFT_TIMINGS, else the user's cache)")]


@app.command()
def show(
    file: Database = None,
    target: Annotated[str | None, typer.Option(help="only records of this target")] = None,
    key: Annotated[str | None, typer.Option(help="list the records whose key holds this text")] = None,
) -> int:
    """Summary of the timing database."""
    from .timings_command import show_command

    return show_command(file, target, key)


@app.command(name="hash")
def content_hash(file: Database = None) -> int:
    """Content hash of the timing database."""
    from .timings_command import hash_command

    return hash_command(file)


@app.command()
def export(out: Annotated[Path, typer.Argument(help="JSON lines")], file: Database = None) -> int:
    """Write all records as JSON lines."""
    from .timings_command import export_command

    return export_command(out, file)


@app.command(name="import")
def import_lines(sources: Annotated[list[Path], typer.Argument(help="files of JSON lines")],
                 file: Database = None) -> int:
    """Add records that `export` wrote."""
    from .timings_command import import_command

    return import_command(sources, file)


@app.command()
def merge(sources: Annotated[list[Path], typer.Argument(help="other databases")], file: Database = None) -> int:
    """Add the records of other databases."""
    from .timings_command import merge_command

    return merge_command(sources, file)


@app.command()
def prune(
    file: Database = None,
    days: Annotated[float | None, typer.Option(min=0, help="remove records older than this")] = None,
    fingerprint: Annotated[list[str] | None, typer.Option(help="remove records of this device; repeatable")] = None,
    foreign: Annotated[bool, typer.Option("--foreign", help="remove what is never looked up on this machine")] = False,
    max_mib: Annotated[float | None, typer.Option(min=0, help="remove the oldest until the rest takes no more")] = None,
) -> int:
    """Remove records by age, device or size, and damaged rows."""
    from .timings_command import prune_command

    return prune_command(file, days, fingerprint or [], foreign, max_mib)
