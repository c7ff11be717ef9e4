"""Options of `egraft grad` and `egraft train-step`, the same for Python, the command line and REST."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field

from graphs.errors import InvalidOption

from ..options import Options

Factor = Annotated[float, Field(ge=0, lt=1)]
USED_ANYWAY = frozenset({"dims", "inputs", "seed", "threads"})  # options of `optimize` that always count


def _number_or_name(value: object) -> object:
    try:
        number = float(value) if isinstance(value, str | int | float) else None
    except ValueError:
        return value
    if number is not None and not 0 <= number < math.inf:
        raise ValueError("a learning rate is a number from 0 up, or the name of an input")
    return value if number is None else number


class Deriving(Options):
    """What both have in common. The options of `optimize` count where `optimize` is true."""

    loss: str = Field("", description="mse or softmax-cross-entropy of an output, or a value of one element")
    output: str = Field("", description="the value that mse or softmax-cross-entropy is of (default: the first)")
    labels: bool = Field(False, description="softmax-cross-entropy: the target holds int64 labels")
    wrt: list[str] = Field(default_factory=list, description="names or patterns (fc*) of inputs, initializers, values")
    optimize: bool = Field(False, description="superoptimize what was built")


class GradOptions(Deriving):
    """Of `grad`."""

    kind: ClassVar[str] = "grad"

    mode: Literal["reverse", "forward"] = Field("reverse", description="gradients, or tangents of the outputs")


class TrainOptions(Deriving):
    """Of `train-step`. Numbers that are left out are the optimizer's own."""

    kind: ClassVar[str] = "train-step"

    optimizer: Literal["sgd", "momentum", "adam", "adamw", "muon"] = Field("sgd", description="how parameters move")
    freeze: list[str] = Field(default_factory=list, description="names or patterns of parameters that stay")
    lr: Annotated[float | str | None, BeforeValidator(_number_or_name)] = Field(
        None, description="learning rate: a number, or the name of a new input that it is fed to")
    momentum: Factor | None = None
    nesterov: bool | None = None
    beta1: Factor | None = None
    beta2: Factor | None = None
    epsilon: float | None = Field(None, gt=0, allow_inf_nan=False)
    weight_decay: float | None = Field(None, ge=0, allow_inf_nan=False)
    iterations: int = Field(5, ge=1, le=1000, description="steps that the validation takes")


KINDS: dict[str, type[Deriving]] = {model.kind: model for model in (GradOptions, TrainOptions)}


def check_used(options: Deriving) -> None:
    """Raise InvalidOption for an option of `optimize` that would count for nothing."""
    if options.optimize:
        return
    usual = set(Options.model_fields) - USED_ANYWAY
    idle = sorted(name for name in options.model_fields_set & usual
                  if getattr(options, name) != Options.model_fields[name].get_default(call_default_factory=True))
    if idle:
        raise InvalidOption(f"--{idle[0].replace('_', '-')}", "it counts for superoptimizing only",
                            "add --optimize, or leave it out")
