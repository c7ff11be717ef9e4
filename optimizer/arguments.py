"""The commands and their arguments: `egraft optimize`, `check`, `run`, `trace`, `targets`, `rules`, `zoo`, ..."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer

from graphs.errors import EgraftError, InvalidOption

from .arguments_deriving import add_commands
from .arguments_timings import app as timings_app

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None,
                  help="egraft: a superoptimizer for tensor graphs.")
rules_app = typer.Typer(invoke_without_command=True, subcommand_metavar="[NAME | COMMAND [ARGS]...]",
                        help="List all rules; `egraft rules NAME` shows one, `egraft rules check` checks them.")
app.add_typer(rules_app, name="rules")
app.add_typer(timings_app, name="timings")

DATABASE = "timing database (default: $EGRAFT_TIMINGS, else the user's cache)"


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"egraft {version('egraft')}")
        raise typer.Exit


@app.callback()
def main(version_: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True,
                                                help="print the version")] = False) -> None:
    """egraft: a superoptimizer for tensor graphs."""


Model = Annotated[Path, typer.Argument(help="an ONNX file, or a graph as .json or .txt", show_default=False)]


def parse(words: Sequence[str]) -> int:
    """Read the words of a command line, do the command, and return its exit status."""
    words = list(words)
    if words[:1] == ["rules"] and len(words) > 1 and words[1] not in ("check", "show") and words[1][:1] != "-":
        words.insert(1, "show")  # `egraft rules NAME`
    try:
        command = typer.main.get_command(app)
        _check_once(command, words)
        with _plain_warnings():
            result = command.main(args=words, prog_name="egraft", standalone_mode=False)
        return int(result or 0)
    except EgraftError as error:
        print(error, file=sys.stderr)
        return error.exit_status
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except typer.Exit as stop:
        return stop.exit_code
    except SystemExit as stop:  # the parser ends so where nobody reads on (| head)
        if isinstance(stop.__context__, BrokenPipeError):
            return 0
        raise
    except typer.Abort:
        raise KeyboardInterrupt from None
    except Exception as error:
        if hasattr(error, "format_message"):  # a usage error of the command line parser
            return _usage_error(error)
        raise


def _check_once(command: Any, words: Sequence[str]) -> None:
    """Raise InvalidOption where an option that holds one value is given several: the parser would keep the last one."""
    given = list(words[: words.index("--")] if "--" in words else words)
    while given and given[0] in getattr(command, "commands", {}):
        command = command.commands[given.pop(0)]
    for option in command.params:
        if getattr(option, "multiple", True) or getattr(option, "is_flag", True):
            continue
        count = sum(word in option.opts or (word.startswith("--") and word.partition("=")[0] in option.opts)
                    for word in given)
        if count > 1:
            raise InvalidOption(max(option.opts, key=len), f"it is given {count} times", "give it once")


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """egraft's own warnings (a damaged timing database) in a line, without the line of source that gave them."""
    given = warnings.formatwarning

    def plain(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> str:
        own = issubclass(category, UserWarning)
        return f"egraft: warning: {message}\n" if own else given(message, category, *place, **more)

    warnings.formatwarning = plain
    try:
        yield
    finally:
        warnings.formatwarning = given


def _usage_error(error: Any) -> int:
    """Print an error of the parser in one line that names the help of the command it is about; that help itself where
    nothing was said but `egraft` or `egraft timings`."""
    context = getattr(error, "ctx", None)
    command = "egraft" if context is None else context.command_path
    if context is not None and error.message == context.get_help():
        print(error.message, file=sys.stderr)
        return 2
    print(f"egraft: error[invalid-option]: command line: {' '.join(error.format_message().split()).rstrip('.')}; "
          f"see {command} --help", file=sys.stderr)
    return 2


# ---------------------------------------------------------------- options shared by commands

_SIZE = re.compile("[0-9]{1,12}")


def parse_dims(rows: Sequence[str]) -> dict[str, list[int]]:
    """`["batch=1,8", "seq=128"]` -> `{"batch": [1, 8], "seq": [128]}`."""
    found: dict[str, list[int]] = {}
    for row in rows:
        name, _, text = row.partition("=")
        sizes = text.split(",")
        if not name.strip() or not all(_SIZE.fullmatch(item.strip()) for item in sizes):
            raise InvalidOption(f"--dim {row}", "not of the form NAME=SIZE[,SIZE...]",
                                "write for example --dim batch=1,8, and --dim once for each name")
        found[name.strip()] = [int(item) for item in sizes]
    return found


def parse_fixed(rows: Sequence[str]) -> dict[str, int]:
    """`["batch=1,seq=128"]` or one row for each -> `{"batch": 1, "seq": 128}`."""
    found: dict[str, int] = {}
    for item in (each for row in rows for each in row.split(",")):
        name, _, size = (part.strip() for part in item.partition("="))
        if not name or not _SIZE.fullmatch(size):
            raise InvalidOption(f"--fix-dim {item}", "not of the form NAME=SIZE[,NAME=SIZE...]",
                                "write for example --fix-dim batch=1,seq=128")
        if found.setdefault(name, int(size)) != int(size):
            raise InvalidOption(f"--fix-dim {item}", f"{name} is to be {found[name]}, too", "give one size")
    return found


def parse_buckets(rows: Sequence[str]) -> dict[str, list[int]]:
    """Like `parse_dims`, each size once."""
    try:
        return {name: list(dict.fromkeys(sizes)) for name, sizes in parse_dims(rows).items()}
    except InvalidOption as error:
        raise InvalidOption(error.where.replace("--dim", "--buckets"), error.found,
                            "write for example --buckets seq=32,64,128") from None


def make_options(values: dict[str, Any], model: Any = None, command: str = "") -> Any:
    """An `Options` (or the model given), or InvalidOption naming the first option that is out of range, and the help of
    the command (default: the one that the options are of)."""
    from pydantic import ValidationError

    from .options import Options

    kind = model or Options
    try:
        return kind(**values)
    except ValidationError as error:
        first = error.errors()[0]
        name = "--" + str(first["loc"][0]).replace("_", "-")
        raise InvalidOption(name, f"{first.get('input')!r}: {first['msg']}",
                            f"see egraft {command or kind.kind} --help") from None


def usual_values(given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `Options` from the parameters of the command `optimize`."""
    renamed = {"dims": parse_dims(given["dim"] or []), "fix_dims": parse_fixed(given["fix_dim"] or []),
               "buckets": parse_buckets(given["buckets"] or []), "disabled_rules": given["disable_rule"] or [],
               "keep": given["keep"] or []}
    plain = ("target", "precision", "objective", "effort", "timeout", "opset", "rtol", "atol", "memory_limit",
             "threads", "contrib", "strict", "frozen", "fresh")
    paths = {name: None if given[name] is None else str(given[name]) for name in ("inputs", "timings")}
    return {**{name: given[name] for name in plain}, **renamed, **paths}


@app.command()
def optimize(
    model: Model,
    out: Annotated[Path, typer.Option("-o", "--out", help="where to write the result", show_default=False)],
    target: Annotated[str, typer.Option(help="runtime:device, or auto")] = "auto",
    precision: Annotated[str, typer.Option(help="exact, rounding, finite or approximate")] = "rounding",
    objective: Annotated[str, typer.Option(help="time, nodes or memory")] = "time",
    effort: Annotated[str, typer.Option(help="low, normal or high")] = "normal",
    timeout: Annotated[float | None, typer.Option(help="seconds; then the best that was validated is written")] = None,
    opset: Annotated[int | None, typer.Option(help="write at this opset, 7 or newer (default: the input's)")] = None,
    inputs: Annotated[Path | None, typer.Option(help="an .npz, one array per input, to measure and validate")] = None,
    rtol: Annotated[float | None, typer.Option(help="validate with a plain relative tolerance")] = None,
    atol: Annotated[float | None, typer.Option(help="validate with a plain absolute tolerance")] = None,
    dim: Annotated[list[str] | None, typer.Option(help="NAME=1,8: sizes to measure at; repeatable")] = None,
    fix_dim: Annotated[list[str] | None, typer.Option(
        help="NAME=8[,NAME=128]: make dimensions constant; the result takes no other sizes; repeatable")] = None,
    buckets: Annotated[list[str] | None, typer.Option(
        help="NAME=32,64: specialise for sizes; a guard in the result chooses (-o NAME.manifest.json: files of their "
             "own); repeatable")] = None,
    memory_limit: Annotated[str | None, typer.Option(
        help="BYTES or 50%: recompute values so that no more live at a time")] = None,
    threads: Annotated[int | None, typer.Option(help="threads of the runtime that is measured")] = None,
    disable_rule: Annotated[list[str] | None, typer.Option(help="a rule not to use; repeatable")] = None,
    keep: Annotated[list[str] | None, typer.Option(help="name of a node that must stay; repeatable")] = None,
    contrib: Annotated[bool, typer.Option("--contrib", help="allow contrib operators of ONNX Runtime")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="exit 1 where a step had to be dropped")] = False,
    trace: Annotated[Path | None, typer.Option(help="write the trace there (JSON)")] = None,
    report: Annotated[Path | None, typer.Option(help="write the report there (.json or .html)")] = None,
    timings: Annotated[Path | None, typer.Option(help=DATABASE)] = None,
    frozen: Annotated[bool, typer.Option("--frozen", help="a miss in the timing database is an error")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="search anew, though the result is remembered")] = False,
    server: Annotated[str | None, typer.Option(help="send the job to a running egraft service")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="print nothing but errors")] = False,
) -> int:
    """Optimize a model and write an equivalent, faster one."""
    options = make_options(usual_values(locals()))
    from .commands import optimize_command

    return optimize_command(model, out, options, trace=trace, report=report, server=server, quiet=quiet)


add_commands(app, optimize, usual_values, make_options)


@app.command()
def check(
    a: Model,
    b: Annotated[Path, typer.Argument(help="the other model", show_default=False)],
    prove: Annotated[bool, typer.Option("--prove", help="also join both by rewriting and print the steps")] = False,
    precision: Annotated[str, typer.Option(help="exact, rounding, finite or approximate")] = "rounding",
    inputs: Annotated[Path | None, typer.Option(help="an .npz with one array per input")] = None,
    rtol: Annotated[float | None, typer.Option(help="validate with a plain relative tolerance")] = None,
    atol: Annotated[float | None, typer.Option(help="validate with a plain absolute tolerance")] = None,
    dim: Annotated[list[str] | None, typer.Option(help="NAME=8: size to check at; repeatable")] = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
) -> int:
    """Compare two models by running them; exit status 0 equal, 1 different, 3 with --prove: neither."""
    make_options({"precision": precision, "rtol": rtol, "atol": atol}, command="check")  # refuses what is impossible
    from .commands import check_command

    return check_command(a, b, prove=prove, precision=precision, inputs=inputs, rtol=rtol, atol=atol,
                         dims=parse_dims(dim or []), seed=seed)


@app.command(name="run")
def run_model(
    model: Model,
    inputs: Annotated[Path | None, typer.Option(help="an .npz with one array per input (default: random)")] = None,
    outputs: Annotated[Path | None, typer.Option(help="write the outputs there (.npz)")] = None,
    target: Annotated[str, typer.Option(help="a target of egraft's own runtime")] = "egraft:cpu",
    dim: Annotated[list[str] | None, typer.Option(help="NAME=8: size of random inputs; repeatable")] = None,
    seed: Annotated[int, typer.Option(min=0, help="seed of random inputs")] = 0,
    fuse: Annotated[bool, typer.Option("--fuse", help="find fusions, list them, run with them")] = False,
    timings: Annotated[Path | None, typer.Option(help="the timing database (with --fuse)")] = None,
) -> int:
    """Run a model with egraft's own runtime."""
    from .commands import run_command

    return run_command(model, inputs, outputs, target, parse_dims(dim or []), seed, fuse=fuse, timings=timings)


@app.command()
def trace(
    file: Annotated[Path, typer.Argument(help="a trace written by --trace", show_default=False)],
    step: Annotated[int | None, typer.Option(help="show this step only")] = None,
    why_not: Annotated[str | None, typer.Option(help="why a rule did not fire")] = None,
) -> int:
    """Print the rewrite steps of a trace."""
    from .commands import trace_command

    return trace_command(file, step, why_not)


@app.command()
def bisect(model: Model, precision: Annotated[str, typer.Option()] = "rounding") -> int:
    """Find the smallest trace that still shows a difference."""
    make_options({"precision": precision}, command="bisect")
    from .commands import bisect_command

    return bisect_command(model, precision)


@app.command()
def targets() -> int:
    """List the targets, and what is missing for those that are not available."""
    from .commands import targets_command

    return targets_command()


@app.command()
def bench(
    models: Annotated[list[Path], typer.Argument(help="ONNX files, or graphs as .json or .txt", show_default=False)],
    target: Annotated[str, typer.Option(help="runtime:device, or auto")] = "auto",
    inputs: Annotated[Path | None, typer.Option(help="an .npz with one array per input (default: random)")] = None,
    dim: Annotated[list[str] | None, typer.Option(help="NAME=8,16: sizes to measure at; repeatable")] = None,
    threads: Annotated[int | None, typer.Option(help="threads of the runtime that is measured")] = None,
    seconds: Annotated[float, typer.Option(min=0.01, help="most time for each model")] = 2.0,
    compare: Annotated[bool, typer.Option("--compare", help="also in turns, against the first")] = False,
    json_out: Annotated[Path | None, typer.Option("--json", help="write all samples there")] = None,
    timings: Annotated[Path | None, typer.Option(help=f"{DATABASE}: peaks of the device are kept there")] = None,
) -> int:
    """Measure models on a target: median, spread, samples, load, and the roofline."""
    options = make_options({"target": target, "inputs": None if inputs is None else str(inputs), "threads": threads,
                            "dims": parse_dims(dim or []), "timings": None if timings is None else str(timings)},
                           command="bench")
    from .bench import bench_command

    return bench_command(models, options, seconds, compare, json_out)


@app.command()
def zoo(
    folder: Annotated[Path, typer.Argument(help="a folder of models", show_default=False)],
    out: Annotated[Path, typer.Option("-o", "--out", help="folder of the results", show_default=False)],
    target: Annotated[str, typer.Option()] = "auto",
    effort: Annotated[str, typer.Option()] = "normal",
    engine: Annotated[str, typer.Option(help="local: processes of this machine; ray: a Ray cluster")] = "local",
    workers: Annotated[int | None, typer.Option(
        min=1, help="models at a time; more than one a machine (the default) disturbs the measuring")] = None,
    dim: Annotated[list[str] | None, typer.Option(
        help="NAME=1,8: sizes to measure at; a model without this dimension fails; repeatable")] = None,
    threads: Annotated[int | None, typer.Option(help="threads of the runtime that is measured")] = None,
    timings: Annotated[Path | None, typer.Option(help=DATABASE)] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="search anew, though the results are remembered")] = False,
) -> int:
    """Optimize every model of a folder; a table at the end, restartable."""
    from .commands import zoo_command

    options = make_options({"target": target, "effort": effort, "timings": None if timings is None else str(timings),
                            "dims": parse_dims(dim or []), "threads": threads, "fresh": fresh}, command="zoo")
    return zoo_command(folder, out, options, engine, workers)


@app.command()
def serve(
    host: Annotated[str, typer.Option()] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 picks a free port")] = 8000,
    data: Annotated[Path | None, typer.Option(help="folder of jobs and results")] = None,
) -> int:
    """Start the REST service."""
    from importlib.metadata import entry_points

    # The service is a floor above the command line: it comes as a plug-in, so that no import runs upwards.
    start = entry_points(group="egraft.commands")["serve"].load()
    return int(start(host, port, data) or 0)


@rules_app.callback()
def rules_main(context: typer.Context) -> None:
    """List all rules; `egraft rules NAME` shows one, `egraft rules check` checks them."""
    if context.invoked_subcommand is None:
        from .commands import rules_command

        rules_command(None)


@rules_app.command(name="show")
def rules_show(name: Annotated[str, typer.Argument(help="name of a rule")]) -> int:
    """Show one rule."""
    from .commands import rules_command

    return rules_command(name)


@rules_app.command(name="check")
def rules_check(
    names: Annotated[list[str] | None, typer.Argument(help="rules to check (default: all)")] = None,
    instances: Annotated[int, typer.Option(help="random instances for each rule")] = 30,
    seed: Annotated[int, typer.Option(min=0)] = 0,
) -> int:
    """Check rules on their examples, near misses and random instances; exit status 1 if one is unsound."""
    from .commands import rules_check_command

    return rules_check_command(names, instances, seed)
