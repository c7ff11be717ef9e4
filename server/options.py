"""Options of a request: query parameters or form fields with the names of `optimizer.options.Options`."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, get_origin

from cost_model.targets import find_target
from graphs.errors import InvalidOption
from optimizer.deriving.options import KINDS
from optimizer.options import SPELLED, Options, check_threads

# Parameters of the request that are no options, and other spellings of options (those of the command line).
MODELS: dict[str, type[Options]] = {Options.kind: Options, **KINDS}  # kind of a job -> its options
CONTROLS = {"kind": "optimize (default), grad (a model with gradients) or train-step (a model's training step)",
            "wait": "answer the finished job if it ends within so many seconds",
            "name": "file name of the model, for a body that brings none",
            "reuse": "false: work again even where the store has the answer"}
SPELLINGS = {**{spelled: name for name, spelled in SPELLED.items()}, "disable_rule": "disabled_rules",
             "disabled_rule": "disabled_rules"}
MAX_WAIT = 600.0  # seconds that a request may ask to wait
TABLES_SHOWN = {"dims": "NAME=1,8", "fix_dims": "NAME=1,NAME=128", "buckets": "NAME=32,64"}
# Options that name files of the server, and what to do instead.
NOT_HERE = {"timings": "the service has a timing database of its own; leave it out",
            "inputs": "send the .npz file as the part `inputs` of a multipart body"}


def read_kind(fields: Iterable[tuple[str, str]]) -> str:
    """The kind of job that a request asks for. Raises InvalidOption."""
    kind = control(fields, "kind") or Options.kind
    if kind not in MODELS:
        raise InvalidOption("kind", f"{kind!r}", f"give {', '.join(MODELS)}")
    return kind


def read_options(fields: Iterable[tuple[str, str]], model: type[Options] = Options) -> Options:
    """The options among the parameters of a request. Raises InvalidOption."""
    from optimizer.arguments import make_options, parse_buckets, parse_dims, parse_fixed

    tables = {"dims": parse_dims, "fix_dims": parse_fixed, "buckets": parse_buckets}
    values: dict[str, Any] = {}
    for spelled, text in fields:
        name = spelled.replace("-", "_")
        name = SPELLINGS.get(name, name)
        if name in CONTROLS or not text:
            continue
        if name in NOT_HERE:
            raise InvalidOption(spelled, "the service does not read files by a path that comes with a request",
                                NOT_HERE[name])
        info = model.model_fields.get(name)
        if info is None:
            raise InvalidOption(spelled, "there is no such option", _suggest(name, model))
        if name in tables or get_origin(info.annotation) is list:
            values.setdefault(name, []).append(text)
        elif name in values:
            raise InvalidOption(spelled, "it is given twice", "give it once")
        else:
            values[name] = text
    values |= {name: read(values[name]) for name, read in tables.items() if name in values}
    if "@" in values.get("target", ""):
        raise InvalidOption("target", f"{values['target']!r} names a file of the server",
                            "name a target of /v1/targets")
    options = make_options(values, model)
    assert isinstance(options, model)
    if options.bucket_form != "file":
        raise InvalidOption("bucket_form", "the service answers one file", "leave it out, or run egraft optimize")
    check_threads(options)
    if options.target != "auto":
        find_target(options.target)  # a name that does not exist is told at once; whether it is here the job finds out
    return options


def control(fields: Iterable[tuple[str, str]], name: str) -> str | None:
    """The last value of a parameter that is no option."""
    return next((value for key, value in reversed(list(fields)) if key == name), None)


def flag(fields: Iterable[tuple[str, str]], name: str, default: bool) -> bool:
    """A parameter that is yes or no."""
    text = control(fields, name)
    if text is None:
        return default
    words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    if text.lower() not in words:
        raise InvalidOption(name, f"{text!r}", "give true or false")
    return words[text.lower()]


def number(fields: Iterable[tuple[str, str]], name: str, default: float, most: float) -> float:
    """A parameter that is a number of seconds from 0 to `most`. Raises InvalidOption for any other."""
    text = control(fields, name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= most:
        raise InvalidOption(name, f"{text!r}", f"give a number of seconds, 0 to {most:g}")
    return value


def _suggest(name: str, model: type[Options]) -> str:
    other = next((kind for kind, each in MODELS.items() if name in each.model_fields), None)
    if other is not None:
        return f"it belongs to kind={other}"
    known = [each for each in [*model.model_fields, *CONTROLS] if each not in NOT_HERE]
    close = difflib.get_close_matches(name, known, 1)
    return f"did you mean {close[0]}?" if close else f"the options are {', '.join(known)}"


def parameters() -> list[Mapping[str, Any]]:
    """The query parameters for OpenAPI."""
    rows: list[Mapping[str, Any]] = []
    found: dict[str, Any] = {}
    kinds: dict[str, list[str]] = {}
    for kind, model in MODELS.items():
        for name, row in model.model_json_schema()["properties"].items():
            found.setdefault(name, row)
            kinds.setdefault(name, []).append(kind)
    for name, row in found.items():
        if name in NOT_HERE:
            continue
        shape = {key: value for key, value in row.items() if key not in ("title", "description")}
        only = "" if kinds[name] == list(MODELS) else f"{' and '.join(kinds[name])}: "
        text = only + row.get("description", "")
        spelled = name
        if name in TABLES_SHOWN:
            spelled, shape = SPELLED[name], {"type": "array", "items": {"type": "string"}}
            text = f"{TABLES_SHOWN[name]}: {text}; repeatable"
        rows.append({"name": spelled, "in": "query", "required": False, "schema": shape, "description": text})
    shapes = {"kind": {"type": "string", "enum": list(MODELS), "default": Options.kind},
              "wait": {"type": "number", "minimum": 0, "maximum": MAX_WAIT},
              "reuse": {"type": "boolean", "default": True}}
    for name, text in CONTROLS.items():
        rows.append({"name": name, "in": "query", "required": False, "schema": shapes.get(name, {"type": "string"}),
                     "description": text})
    return rows
