"""The child process: takes jobs from a socket, saturates, sends plain tables back. Started by `search.worker`."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import os
import pickle
import resource
import signal
import sys
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

from graphs.constants import Constant
from rules.declare import Rule

from .budget import Budget, Folding
from .process import die_with_parent
from .saturation import Outcome, Saturation
from .terms import Tables
from .values import Contents


@dataclass(frozen=True, slots=True)
class RuleName:
    """Where a rule is found: module, its file where the module cannot be imported by name, and the rule's name."""

    module: str
    path: str
    name: str


@dataclass
class Job:
    """One saturation."""

    tables: Tables
    rules: list[RuleName]
    budget: Budget
    folding: Folding | None = None  # compute constants and merge those of equal content
    stored: dict[int, Constant] = field(default_factory=dict)  # leaf index -> a constant that may be computed with


OBJECTS = 50_000  # made before Python looks for garbage
CHECKPOINT_SECONDS = 2.0
_found: dict[RuleName, Rule] = {}


def find_rules(names: list[RuleName]) -> list[Rule]:
    """The rules of these names."""
    for name in names:
        if name not in _found:
            _collect(name)
    missing = [name.name for name in names if name not in _found]
    if missing:
        raise LookupError(f"the search process finds no rule {', '.join(missing)}")
    return [_found[name] for name in names]


def _collect(wanted: RuleName) -> None:
    try:
        module = importlib.import_module(wanted.module)
    except ImportError:
        spec = importlib.util.spec_from_file_location(wanted.module, wanted.path)
        if spec is None or spec.loader is None:
            raise
        module = importlib.util.module_from_spec(spec)
        sys.modules[wanted.module] = module
        spec.loader.exec_module(module)
    for value in vars(module).values():
        for item in value if isinstance(value, list | tuple) else [value]:
            if isinstance(item, Rule):
                _found.setdefault(RuleName(item.guard.__module__, wanted.path, item.name), item)
                _found.setdefault(RuleName(wanted.module, wanted.path, item.name), item)
    if wanted not in _found:
        from rules.catalogue import all_rules

        for rule in all_rules():
            if rule.name == wanted.name:
                _found[wanted] = rule


def perform(job: Job, connection: Connection) -> Outcome:
    """Saturate, with a checkpoint over the connection every now and then."""
    last = time.perf_counter()

    def checkpoint(outcome: Outcome) -> None:
        nonlocal last
        if time.perf_counter() - last > CHECKPOINT_SECONDS:
            outcome.classes = list(saturation.snapshot.classes)
            connection.send_bytes(b"c" + pickle.dumps(outcome, pickle.HIGHEST_PROTOCOL))
            last = time.perf_counter()

    rules = find_rules(job.rules)
    exact = all(rule.exactness == "exact" for rule in rules)
    contents = None if job.folding is None else Contents(job.tables, job.stored, job.folding, exact)
    saturation = Saturation(job.tables, rules, job.budget, checkpoint, contents)
    return saturation.run()


def _limit_memory(budget: Budget) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = budget.memory if hard == resource.RLIM_INFINITY else min(budget.memory, hard)
    resource.setrlimit(resource.RLIMIT_AS, (wanted, hard))


def serve(descriptor: int) -> None:
    """Answer jobs until the other end closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()
    from . import egraph as _egraph  # noqa: F401  egglog is imported while the process waits for its first job

    gc.freeze()  # modules stay: looking through them for garbage again and again takes a tenth of the time
    gc.set_threshold(OBJECTS, *gc.get_threshold()[1:])
    connection = Connection(descriptor)
    connection.send_bytes(b"r")
    while True:
        try:
            job: Job = pickle.loads(connection.recv_bytes())
        except EOFError:
            return
        _limit_memory(job.budget)
        try:
            answer = b"d" + pickle.dumps(perform(job, connection), pickle.HIGHEST_PROTOCOL)
        except BaseException as error:  # PanicException of egglog is no Exception; MemoryError ends here too
            connection.send_bytes(b"e" + f"{type(error).__name__}: {error}".encode())
            os._exit(1)  # an e-graph that panicked must not be used again, nor what it left behind
        connection.send_bytes(answer)


def path_of(rule: Rule) -> str:
    """The file of a rule's module."""
    return str(Path(rule.guard.__code__.co_filename))


if __name__ == "__main__":
    from search.child import serve as _serve  # the module under its own name, so that pickles agree

    _serve(int(sys.argv[1]))
