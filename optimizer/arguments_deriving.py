"""Arguments of `egraft grad` and `egraft train-step`: their own, and after them those of `egraft optimize`."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from typer.models import OptionInfo

Command = Callable[..., int]
Model = Annotated[Path, typer.Argument(help="an ONNX file, or a graph as .json or .txt", show_default=False)]
Out = Annotated[Path, typer.Option("-o", "--out", help="where to write the result", show_default=False)]
Loss = Annotated[str, typer.Option(
    help="mse or softmax-cross-entropy of an output, or the name of a value of one element")]
Output = Annotated[str, typer.Option(help="the value that mse or softmax-cross-entropy is of (default: the first)")]
Labels = Annotated[bool, typer.Option("--labels", help="softmax-cross-entropy: the target holds int64 labels")]
Optimize = Annotated[bool, typer.Option("--optimize", help="superoptimize it, with the options of egraft optimize")]
ANYWAY = ("model", "out", "report", "server", "quiet", "dim", "inputs", "threads")  # that count without --optimize, too
OWN = ("model", "out", "trace", "report", "server", "quiet")  # parameters of `optimize` that are no `Options`


def grad(
    model: Model,
    out: Out,
    loss: Loss = "",
    wrt: Annotated[list[str] | None, typer.Option(
        help="NAME[,NAME] or patterns: what to differentiate by (default: all parameters); repeatable")] = None,
    mode: Annotated[str, typer.Option(help="reverse: gradients; forward: tangents of the outputs")] = "reverse",
    output: Output = "",
    labels: Labels = False,
    optimize: Optimize = False,
    **usual: Any,
) -> int:
    """Write a model with the gradients of a loss as further outputs, checked against finite differences."""
    own = {"loss": loss, "wrt": wrt or [], "mode": mode, "output": output, "labels": labels, "optimize": optimize}
    return _do("grad", model, out, own, usual)


def train_step(
    model: Model,
    out: Out,
    loss: Loss,
    optimizer: Annotated[str, typer.Option(help="sgd, momentum, adam, adamw or muon")] = "sgd",
    lr: Annotated[str | None, typer.Option(help="learning rate, or the name of a new input that it is fed to")] = None,
    momentum: Annotated[float | None, typer.Option(help="sgd, momentum, muon")] = None,
    nesterov: Annotated[bool | None, typer.Option("--nesterov", help="sgd, momentum, muon")] = None,
    beta1: Annotated[float | None, typer.Option(help="adam, adamw; muon: of the rest")] = None,
    beta2: Annotated[float | None, typer.Option(help="adam, adamw; muon: of the rest")] = None,
    epsilon: Annotated[float | None, typer.Option(help="adam, adamw; muon: of the rest")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="all")] = None,
    wrt: Annotated[list[str] | None, typer.Option(
        help="NAME[,NAME] or patterns: parameters (default: initializers of floats); repeatable")] = None,
    freeze: Annotated[list[str] | None, typer.Option(
        help="NAME[,NAME] or patterns: parameters that stay as they are; repeatable")] = None,
    iterations: Annotated[int, typer.Option(help="steps that the validation takes")] = 5,
    output: Output = "",
    labels: Labels = False,
    optimize: Optimize = False,
    **usual: Any,
) -> int:
    """Write a model's training step: forward pass, gradients and update in one graph; state goes in and comes out."""
    own = {"loss": loss, "optimizer": optimizer, "lr": lr, "momentum": momentum, "nesterov": nesterov, "beta1": beta1,
           "beta2": beta2, "epsilon": epsilon, "weight_decay": weight_decay, "wrt": wrt or [], "freeze": freeze or [],
           "iterations": iterations, "output": output, "labels": labels, "optimize": optimize}
    return _do("train-step", model, out, own, usual)


def add_commands(app: typer.Typer, optimize: Command, values: Callable[[Mapping[str, Any]], dict[str, Any]],
                 make: Callable[[dict[str, Any], Any], Any]) -> None:
    """Put both commands on the command line, with the parameters of the command `optimize`; `values` turns those into
    fields of `Options`, `make` makes options of a model."""
    for name, command in (("grad", grad), ("train-step", train_step)):
        app.command(name=name)(_with_usual(command, optimize, values, make))


def _with_usual(command: Command, optimize: Command, values: Callable[[Mapping[str, Any]], dict[str, Any]],
                make: Callable[[dict[str, Any], Any], Any]) -> Command:
    own = [each for each in inspect.signature(command).parameters.values() if each.kind is not each.VAR_KEYWORD]
    taken = {each.name for each in own}
    more = [each for each in inspect.signature(optimize).parameters.values() if each.name not in taken]

    def whole(**given: Any) -> int:
        usual = {each.name: given.pop(each.name) for each in more}
        rest = {name: usual.pop(name) for name in OWN if name in usual}
        return command(**given, **rest, fields=values(usual), make=make)

    whole.__doc__, whole.__name__ = command.__doc__, command.__name__
    usual_hints = {name: _with_note(name, hint) for name, hint in get_type_hints(optimize, include_extras=True).items()}
    hints = {**usual_hints, **get_type_hints(command, include_extras=True)}
    whole.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [each.replace(annotation=hints[each.name]) for each in (*own, *more)])
    whole.__annotations__ = {each.name: hints[each.name] for each in (*own, *more)}
    return whole


def _with_note(name: str, hint: Any) -> Any:
    """The annotation of an option of `optimize`, whose help says where it counts with --optimize only."""
    described = getattr(hint, "__metadata__", ())
    if name in ANYWAY or not described or not isinstance(described[0], OptionInfo) or not described[0].help:
        return hint
    noted = copy.copy(described[0])
    noted.help = f"with --optimize: {noted.help}"
    return Annotated[hint.__origin__, noted]


def _do(kind: str, model: Path, out: Path, own: Mapping[str, Any], usual: Mapping[str, Any]) -> int:
    from .deriving.commands import derive_command
    from .deriving.options import KINDS

    given = {name: value for name, value in own.items() if value is not None}
    options = usual["make"]({**usual["fields"], **given}, KINDS[kind])
    return derive_command(model, out, options, trace=usual["trace"], report=usual["report"], server=usual["server"],
                          quiet=usual["quiet"])
