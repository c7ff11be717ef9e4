"""Where the models of a folder are worked on: processes of this machine, or a Ray cluster. Both run the same task."""

from __future__ import annotations

import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from graphs.errors import EgraftError, InvalidOption
from graphs.machine import cores_visible
from search.process import ChildProcess, die_with_parent

from .options import Options

Row = dict[str, Any]
Task = tuple[Path, Path, Options]  # the model, where its result goes, how
Engine = Callable[[Sequence[Task], int | None], Iterator[tuple[int, Row]]]


class ProcessDied(EgraftError):
    """The process that worked on a model of a folder ended before it was done: most often memory ran out."""

    code = "process-died"
    title = "The process of a model died"
    exit_status = 1


def failed(error: EgraftError) -> Row:
    """The row of a model that failed."""
    return {"state": "failed", "error": str(error)}


# ---------------------------------------------------------------- processes of this machine


def local(tasks: Sequence[Task], workers: int | None) -> Iterator[tuple[int, Row]]:
    """(Index, row) of each task as it ends. More than one worker at a time (the default) disturbs the measuring.

    A process that dies takes one model with it, and the next model gets a new one.
    """
    children = _Children(workers or 1)
    try:
        with ThreadPoolExecutor(workers or 1) as pool:
            waiting = {pool.submit(children.do, task): index for index, task in enumerate(tasks)}
            try:
                for future in as_completed(waiting):
                    yield waiting[future], future.result()
            except BaseException:  # Ctrl-C: threads that wait for a process are freed by its end
                _give_up(waiting)
                children.kill()
                raise
    finally:
        children.kill()


def _give_up(waiting: dict[Future[Row], int]) -> None:
    for future in waiting:
        future.cancel()


class _Children:
    """A process for each thread that has work."""

    def __init__(self, workers: int) -> None:
        self.threads = max(1, cores_visible() // workers)
        self.mine = threading.local()
        self.all: list[ChildProcess] = []
        self.ended = False

    def do(self, task: Task) -> Row:
        """Have this thread's process do a task."""
        child: ChildProcess | None = getattr(self.mine, "child", None)
        if child is None or not child.usable:
            child = self.mine.child = ChildProcess("optimizer.engines", self.threads)
            self.all.append(child)
            if self.ended:  # killed while this one started
                child.kill()
        try:
            if child.answers():
                child.connection.send_bytes(pickle.dumps(task))
                row = pickle.loads(child.connection.recv_bytes())
                assert isinstance(row, dict)
                return row
        except (EOFError, OSError):
            child.kill()
        return failed(ProcessDied(str(task[0]), f"its process ended with status {child.process.returncode}"
                                  f"{child.last_words()}", "most often memory ran out: give it a larger machine, or a "
                                  "lower effort"))

    def kill(self) -> None:
        """End all processes now."""
        self.ended = True
        for child in self.all:
            child.kill()


def serve(descriptor: int) -> None:
    """Do tasks until the other end closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which kills this one
    die_with_parent()
    from .batch import optimize_one

    connection = Connection(descriptor)
    connection.send_bytes(b"r")
    while True:
        try:
            task: Task = pickle.loads(connection.recv_bytes())
        except EOFError:
            return
        connection.send_bytes(pickle.dumps(optimize_one(*task)))


# ---------------------------------------------------------------- Ray


def on_ray(tasks: Sequence[Task], workers: int | None) -> Iterator[tuple[int, Row]]:
    """(Index, row) of each task as it ends, on the Ray cluster of `RAY_ADDRESS`, or one that is started here.

    Without `workers` one model a machine at a time, so that nothing disturbs the measuring. All machines need egraft
    and the folders under the same names.
    """
    ray = _ray()
    started = not ray.is_initialized()
    if started:
        ray.init(log_to_driver=False, include_dashboard=False)
    try:
        yield from _spread(ray, tasks, workers)
    finally:
        if started:
            ray.shutdown()


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise InvalidOption("--engine ray", "Ray is not installed", "pip install 'egraft[ray]'") from None
    return ray


def _spread(ray: Any, tasks: Sequence[Task], workers: int | None) -> Iterator[tuple[int, Row]]:
    cores = [node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"]]
    cores = [each for each in cores if each >= 1] or [1.0]
    at_once = workers or len(cores)
    # Each task asks for what a machine has, so that it is alone there; for its share where more workers are wanted.
    share = max(1, int(min(cores) * len(cores) // at_once)) if at_once > len(cores) else int(min(cores))
    from .batch import optimize_one

    remote = ray.remote(optimize_one).options(num_cpus=share, max_retries=1, scheduling_strategy="SPREAD")
    waiting: dict[Any, int] = {}
    left = iter(enumerate(tasks))
    while True:
        for index, (model, place, options) in left:
            waiting[remote.remote(model.resolve(), place.resolve(), options)] = index
            if len(waiting) >= at_once:
                break
        if not waiting:
            return
        for done in ray.wait(list(waiting))[0]:
            index = waiting.pop(done)
            try:
                yield index, ray.get(done)
            except ray.exceptions.RayError as error:
                text = str(error).strip().splitlines() or [type(error).__name__]
                yield index, failed(ProcessDied(str(tasks[index][0]), text[0], "see the log of Ray"))


ENGINES: dict[str, Engine] = {"local": local, "ray": on_ray}

if __name__ == "__main__":
    from optimizer.engines import serve as _serve  # the module under its own name, so that pickles agree

    _serve(int(sys.argv[1]))
