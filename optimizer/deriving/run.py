"""`grad` and `train_step`: read a model, build the graph that was asked for, validate it, superoptimize it, report."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphs import load, save
from graphs.errors import InvalidOption, NotDifferentiable, ValidationFailed
from graphs.inference import infer
from graphs.ir import Graph
from graphs.machine import cores_visible
from graphs.structure import check_outputs
from runtime.gradients import gradients, jvp
from runtime.training import Optimizer, next_state, training_step
from runtime.training.optimizers import OPTIMIZERS, AdamW, optimizer
from runtime.training.preview import without_training_operators

from ..options import Options, check_threads
from ..progress import Clock, Progress
from ..result import Trace
from . import iterations
from .checks import Gradients, Tangents, in_own_types
from .differences import Check, Place
from .names import chosen, default_output, parameters, reached, warn_of, with_loss
from .options import Deriving, GradOptions, TrainOptions, check_used


@dataclass
class Derived:
    """What `grad` and `train_step` return: the graph, the report (a JSON-able dict, see docs/autodiff.md) and the
    trace, which is empty where nothing was superoptimized."""

    graph: Graph
    report: dict[str, Any]
    trace: Trace

    def save(self, path: str | Path) -> None:
        """Write the graph as ONNX (or .json, .txt), atomically."""
        save(self.graph, path)

    def summary(self) -> str:
        """A few lines for a terminal."""
        from .report import summary

        return summary(self.report)


def grad(model: Graph | str | Path | bytes, options: GradOptions | None = None, *, progress: Progress | None = None,
         **settings: Any) -> Derived:
    """The model with gradients of a loss (or, with `mode="forward"`, tangents) as further outputs.

    `settings` are fields of `GradOptions`: `grad("m.onnx", loss="mse", wrt=["w"])`. Raises InvalidOption for a loss
    or name that does not fit, NotDifferentiable for an operator without a gradient row, ValidationFailed where the
    gradients contradict finite differences.
    """
    return derive(model, _options(GradOptions, options, settings), progress)


def train_step(model: Graph | str | Path | bytes, options: TrainOptions | None = None, *,
               progress: Progress | None = None, **settings: Any) -> Derived:
    """One graph for a training step of the model: forward pass, gradients, update. As `grad` otherwise."""
    return derive(model, _options(TrainOptions, options, settings), progress)


def _options(model: type[Deriving], options: Deriving | None, settings: dict[str, Any]) -> Deriving:
    from ..arguments import make_options

    if options is not None and settings:
        raise InvalidOption("options", "both an options object and single settings", "give one of them")
    found = options if options is not None else make_options(settings, model)
    assert isinstance(found, model)
    return found


def derive(model: Graph | str | Path | bytes, options: Deriving, progress: Progress | None = None) -> Derived:
    """`grad` or `train_step`, as the type of the options says."""
    check_used(options)
    check_threads(options)
    clock = Clock(progress)
    clock.enter("load")
    graph = without_training_operators(model.copy() if isinstance(model, Graph) else load(model))
    check_outputs(graph)
    infer(graph)
    work = _Work(graph, options, clock)
    work.train(options) if isinstance(options, TrainOptions) else work.differentiate(options)
    return work.result()


class _Work:
    """One run."""

    def __init__(self, graph: Graph, options: Deriving, clock: Clock) -> None:
        self.given, self.options, self.clock = graph, options, clock
        self.threads = options.threads or cores_visible()
        self.sizes = {name: sizes[0] for name, sizes in options.dims.items()} or None
        self.feeds = _load_feeds(options)
        self.warnings: list[str] = []
        self.facts: dict[str, Any] = {"kind": options.kind, "warnings": self.warnings}
        self.trace = Trace([], {}, {"name": graph.name, "nodes": graph.shown_count(), "opset": graph.opset})
        self.optimization: dict[str, Any] = {}
        self.made = graph

    # ------------------------------------------------------------ what is built

    def differentiate(self, options: Deriving) -> None:
        """Gradients or tangents, checked."""
        assert isinstance(options, GradOptions)
        self.clock.enter("normalize", "differentiate")
        if options.mode == "forward":
            self._tangents(options)
        else:
            self._gradients(options)
        if options.optimize:
            self.made = self._superoptimized()

    def _gradients(self, options: GradOptions) -> None:
        graph, loss = self._with_loss()
        names = parameters(graph, loss, options)
        self.made = self._built(lambda: gradients(graph, loss, names))
        outputs = dict(zip(names, self.made.outputs[len(graph.outputs):]))
        self.facts["wrt"] = self._rows(graph, loss, outputs)
        check, places = self._checked(Gradients(graph, self.made, loss, outputs))
        self._in_own_types(places, check, list(outputs.values()))

    def _tangents(self, options: GradOptions) -> None:
        graph, tops = self.given, None
        if options.loss:
            graph, loss = self._with_loss()
            tops = [loss]
        if not options.wrt:
            raise InvalidOption("--wrt", "forward mode needs what moves", "name inputs, initializers or inner values")
        names = chosen(graph, options.wrt, "wrt")
        self.made = self._built(lambda: jvp(graph, names, tops))
        inputs = dict(zip(names, self.made.inputs[len(graph.inputs):]))
        found = self.made.outputs[len(graph.outputs):]
        tops = tops or [name for name in graph.outputs if f"tangent_{name}" in found]
        outputs = dict(zip(tops, found))
        if not outputs:
            raise InvalidOption("--mode forward", "no output of the model holds floats", "give --loss NAME")
        types = {name: str(self.made.type_of(name)) for name in (*inputs.values(), *found)}
        self.facts["tangents"] = [{"name": name, "input": inputs[name], "type": types[inputs[name]]} for name in names]
        self.facts["wrt"] = [{"name": top, "output": output, "type": types[output], "connected": True}
                             for top, output in outputs.items()]
        check, places = self._checked(Tangents(graph, self.made, inputs, outputs))
        self._in_own_types(places, check, list(outputs.values()))

    def train(self, options: TrainOptions) -> None:
        """A training step; its gradients checked, and the step itself taken several times."""
        rule = optimizer_of(options)
        self.clock.enter("normalize", "differentiate")
        graph, loss = self._with_loss()
        frozen = set(chosen(graph, options.freeze, "freeze")) if options.freeze else set()
        names = [name for name in parameters(graph, loss, options) if name not in frozen]
        if not names:
            raise InvalidOption("--freeze", "no parameter is left to train", "freeze fewer")
        step = self._built(lambda: training_step(graph, loss, rule, names))
        self.facts |= {"optimizer": {"name": options.optimizer, **_numbers(rule)}, "frozen": sorted(frozen),
                       "state": _state_rows(step, names), "rates": rule.inputs()}
        made = gradients(graph, loss, names)
        outputs = dict(zip(names, made.outputs[len(graph.outputs):]))
        self.facts["wrt"] = self._rows(graph, loss, {name: next_state(step)[name] for name in names})
        _, places = self._checked(Gradients(graph, made, loss, outputs))
        self.made = step
        if options.optimize:
            self.made = self._superoptimized()
        if places:
            self._iterate(step, loss, places[0], options.iterations)

    def _with_loss(self) -> tuple[Graph, str]:
        graph, loss = with_loss(self.given, self.options)
        self.facts["loss"] = {"name": loss, "type": str(graph.type_of(loss)), "is": self.options.loss}
        if graph is not self.given:
            target = graph.inputs[-1]
            self.facts["loss"] |= {"of": self.options.output or default_output(self.given), "target": target,
                                   "target_type": str(graph.type_of(target))}
            self.warnings += warn_of(self.given, self.options)
        return graph, loss

    def _built(self, build: Any) -> Graph:
        try:
            graph = build()
        except NotDifferentiable as error:
            fix = ("name values behind it (--wrt), or for a training step freeze what lies before it (--freeze), or "
                   "express it by other operators")
            raise NotDifferentiable(error.where, error.found, fix) from error
        assert isinstance(graph, Graph)
        return graph

    def _rows(self, graph: Graph, loss: str, outputs: dict[str, str]) -> list[dict[str, Any]]:
        """What is differentiated by; what the loss does not depend on is said."""
        found = reached(graph, [loss])
        return [{"name": name, "output": output, "type": str(graph.type_of(name)), "connected": name in found}
                for name, output in outputs.items()]

    # ------------------------------------------------------------ how it is validated

    def _checked(self, case: Gradients | Tangents) -> tuple[Check, list[Place]]:
        self.clock.enter("validate", "differences")
        check, places = case.check(self.options.seed, self.sizes, self.feeds)
        self.facts["validation"] = check.to_dict()
        if check.status == "failed":
            raise ValidationFailed(str(self.given.name or "model"), f"derivatives differ from finite differences: "
                                   f"{check.summary()}", "this is a defect of egraft, please report it")
        if not check.ok:
            self.warnings.append(f"the derivatives are not validated: {check.reason}")
        return check, places

    def _in_own_types(self, places: Sequence[Place], check: Check, outputs: Sequence[str]) -> None:
        if places:
            rows, warnings = in_own_types(self.made, places[0], outputs, self.threads)
            self.facts["validation"]["own_types"] = rows
            self.warnings += warnings

    def _iterate(self, step: Graph, loss: str, place: Place, count: int) -> None:
        self.clock.enter("validate", "iterations")
        found = iterations.check(step, self.made if self.options.optimize else None, loss, place, count, self.threads)
        self.facts["iterations"] = found.to_dict()
        self.warnings += found.warnings
        if not found.ok:
            self.warnings.append(f"the step is not validated: {found.reason}")
        if found.status == "failed":
            raise ValidationFailed(str(self.given.name or "model"), f"the training step: {found.summary()}",
                                   "this is a defect of egraft, please report it; without --optimize the step is whole")

    def _superoptimized(self) -> Graph:
        from ..pipeline import optimize

        usual = Options(**{name: getattr(self.options, name) for name in Options.model_fields if name != "inputs"})
        found = optimize(self.made, usual, progress=self.clock.callback)
        self.trace, self.optimization = found.trace, found.report
        found.graph.metadata = {**self.made.metadata, **found.graph.metadata}
        return found.graph

    # ------------------------------------------------------------ the end

    def result(self) -> Derived:
        """The graph with its report."""
        self.clock.enter("done")
        self.facts |= {"model": {"name": self.given.name, "nodes": self.given.shown_count(), "opset": self.given.opset},
                       "nodes": self.made.shown_count(), "opset": self.made.opset}
        report = {**self.optimization, "model": self.facts["model"], "derivation": self.facts,
                  "options": self.options.model_dump(mode="json"), "seconds": round(self.clock.seconds, 3)}
        report.setdefault("warnings", [])
        return Derived(self.made, report, self.trace)


def _load_feeds(options: Deriving) -> dict[str, Any] | None:
    from ..commands import load_feeds

    return load_feeds(Path(options.inputs)) if options.inputs is not None else None


def optimizer_of(options: TrainOptions) -> Optimizer:
    """The optimizer with the numbers that were given. Raises InvalidOption for one that it does not have.

    Muon's are of the matrices; the betas and epsilon of AdamW, which moves the rest.
    """
    given: dict[str, Any] = {"learning_rate": options.lr, **{name: getattr(options, name) for name in (
        "momentum", "nesterov", "beta1", "beta2", "epsilon", "weight_decay")}}
    given = {name: value for name, value in given.items() if value is not None}
    rest: dict[str, Any] = {}
    if options.optimizer == "muon":
        rest = {name: given.pop(name) for name in ("beta1", "beta2", "epsilon") if name in given}
        if rest:
            given["others"] = AdamW(**rest)
    kind = OPTIMIZERS["sgd" if options.optimizer == "momentum" else options.optimizer]
    known = {each.name for each in dataclasses.fields(kind) if each.init}
    odd = [name for name in given if name not in known]
    if odd:
        has = [name for name in ("lr", "momentum", "nesterov", "beta1", "beta2", "epsilon", "weight_decay")
               if (name if name != "lr" else "learning_rate") in known]
        raise InvalidOption(f"--{odd[0].replace('_', '-')}", f"{options.optimizer} has no such number",
                            f"it takes {', '.join('--' + name.replace('_', '-') for name in has)}")
    return optimizer(options.optimizer, **given)


def _numbers(rule: Optimizer) -> dict[str, Any]:
    assert dataclasses.is_dataclass(rule) and not isinstance(rule, type)
    found = dataclasses.asdict(rule)
    return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}


def _state_rows(step: Graph, names: Sequence[str]) -> list[dict[str, Any]]:
    """Each input that is handed on: its next value, and whether it has a first value in the file."""
    return [{"input": name, "output": output, "type": str(step.type_of(name)), "first": name in step.defaults,
             "is": "parameter" if name in names else "state"} for name, output in next_state(step).items()]
