"""Errors that users meet: each has a code, a place, what was found, and how to fix it.

`EgraftError` is the base class. The command line prints `str(error)` as its single line; the REST service
turns the same fields into an RFC 9457 problem document (`problem()`).
"""

from __future__ import annotations

from typing import ClassVar


class EgraftError(Exception):
    """An error with a documented `code`, `where` it is, what was `found`, and a `fix`.

    `exit_status` is what the command line ends with: 2 for bad input or usage, 1 for a result that fails.
    """

    code: ClassVar[str] = "error"
    title: ClassVar[str] = "egraft could not go on"
    exit_status: ClassVar[int] = 2
    http_status: ClassVar[int] = 400

    def __init__(self, where: str, found: str, fix: str) -> None:
        self.where = _one_line(where)
        self.found = _one_line(found)
        self.fix = _one_line(fix)
        super().__init__(where, found, fix)

    def __str__(self) -> str:
        return f"egraft: error[{self.code}]: {self.where}: {self.found}; {self.fix}"

    def problem(self) -> dict[str, str | int]:
        """The RFC 9457 problem document of this error."""
        return {
            "type": f"/docs/errors#{self.code}",
            "title": self.title,
            "status": self.http_status,
            "detail": f"{self.found}; {self.fix}",
            "code": self.code,
            "where": self.where,
            "found": self.found,
            "fix": self.fix,
        }


def _one_line(text: str) -> str:
    return " ".join(str(text).split())


class InvalidModel(EgraftError):
    """The file is not a model, is cut short, or breaks the rules of ONNX (a cycle, a value written twice),
    has no outputs, or nests graphs (If, Loop, Scan) more than 31 deep.

    Example: `egraft: error[invalid-model]: m.onnx: node 'a' needs its own output (cycle a -> b -> a); ...`
    """

    code = "invalid-model"
    title = "The model is not valid"


class MissingData(EgraftError):
    """External data of the model is missing, too short, or lies outside the model's folder."""

    code = "missing-data"
    title = "External data of the model cannot be read"


class InvalidOption(EgraftError):
    """An option or a combination of options is impossible."""

    code = "invalid-option"
    title = "An option is not possible"


class InvalidInput(EgraftError):
    """Feeds do not fit the inputs of the graph (name, dtype, rank or size)."""

    code = "invalid-input"
    title = "An input does not fit the model"


class ParseError(EgraftError):
    """Text or JSON of a graph, rule or dimension that does not parse; `where` holds line and column."""

    code = "parse-error"
    title = "The text does not parse"


class InferenceError(EgraftError):
    """An operator cannot take these input types (the model is ill-typed at this node)."""

    code = "ill-typed"
    title = "An operator does not accept its inputs"


class NotExecutable(EgraftError):
    """A node has no kernel, so the graph cannot be executed as a whole."""

    code = "not-executable"
    title = "The graph cannot be executed"


class ExecutionFailed(EgraftError):
    """A node failed while the graph ran: its inputs have sizes or values that the operator does not take."""

    code = "execution-failed"
    title = "A node failed while the graph ran"


class NotDifferentiable(EgraftError):
    """An operator between an output and what it is differentiated by has no gradient row."""

    code = "not-differentiable"
    title = "The graph cannot be differentiated"


class TargetUnavailable(EgraftError):
    """The target's runtime or device is not there."""

    code = "target-unavailable"
    title = "The target is not available here"


class FrozenMiss(EgraftError):
    """`--frozen` was given and the timing database lacks an entry."""

    code = "frozen-miss"
    title = "The frozen timing database lacks an entry"


class ValidationFailed(EgraftError):
    """A result differs from the original by more than the requested class allows."""

    code = "validation-failed"
    title = "The result failed its validation"
    exit_status = 1
    http_status = 422


class SearchFailed(EgraftError):
    """The saturation process died or was killed; the input is returned unless `--strict`."""

    code = "search-failed"
    title = "The search ended early"
    exit_status = 1
    http_status = 500
