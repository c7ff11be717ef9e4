"""Errors that users meet: each has a code, a place, what was found, and how to fix it.

`EgraftError` is the base class. The command line prints `str(error)` as its single line; the REST service
turns the same fields into an RFC 9457 problem document (`problem()`).
"""

from __future__ import annotations

import os
import re
from typing import ClassVar

_OPTION = re.compile(r"(?<![\w-])--([a-z][a-z-]*)")
_PLACE = re.compile(r"--(?P<name>[a-z][a-z-]*)(?: (?P<value>.*))?")
_HELP = re.compile(r"see `?egraft [a-z -]*--help`?")


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
        """The RFC 9457 problem document of this error: options have the names of request fields there, `fix_dim` for
        `--fix-dim`, and `where` is such a name alone."""
        where, found = self.where, self.found
        option = _PLACE.fullmatch(where)
        if option is not None:
            where, found = option["name"].replace("-", "_"), f"{option['value']}: {found}" if option["value"] else found
        found, fix = _in_a_request(found), _in_a_request(self.fix)
        return {
            "type": f"/docs/errors#{self.code}",
            "title": self.title,
            "status": self.http_status,
            "detail": f"{found}; {fix}",
            "code": self.code,
            "where": where,
            "found": found,
            "fix": fix,
        }


def _in_a_request(text: str) -> str:
    """A text for the command line, for those who send requests."""
    return _OPTION.sub(lambda found: found[1].replace("-", "_"), _HELP.sub("see /docs", text))


def _one_line(text: str) -> str:
    return " ".join(str(text).split())


class InvalidModel(EgraftError):
    """The file is not a model, is cut short, or breaks the rules of ONNX (a cycle, a value written twice),
    has no outputs, nests graphs (If, Loop, Scan) more than 31 deep, or calls functions more than 100 deep.

    Example: `egraft: error[invalid-model]: m.onnx: node 'a' needs its own output (cycle a -> b -> a); ...`
    """

    code = "invalid-model"
    title = "The model is not valid"


class UnreadableFile(EgraftError):
    """A file that was named is not there, is a folder, or may not be read."""

    code = "unreadable-file"
    title = "A file cannot be read"

    @classmethod
    def of(cls, path: str | os.PathLike[str], error: OSError) -> UnreadableFile:
        """The error of a file that could not be opened or read."""
        return cls(str(path), f"the file cannot be read ({error.strerror or type(error).__name__})", "check the path")


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
    """A node failed while the graph ran: its inputs have sizes or values that the operator does not take, or a
    GPU has too little memory for it or reported an error."""

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
