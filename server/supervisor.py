"""Starts a worker process for each job that waits, watches it, and writes down how it ended."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog
from sqlalchemy.exc import SQLAlchemyError

from graphs.errors import EgraftError

from . import worker
from .errors import InternalError, LimitReached, WorkerDied, no_room, storage_full
from .settings import Settings
from .store import CANCELLED, DONE, FAILED, FINISHED, Job, Store

log = structlog.get_logger("egraft.server")
LOOK_SECONDS = 0.05


class Supervisor:
    """Worker threads, each with one worker process at a time."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self.store, self.settings = store, settings
        self.stopping = threading.Event()
        self.wake = threading.Condition()
        self.cancelled: set[str] = set()
        self.processes: dict[str, int] = {}  # job -> process id of its worker
        self.ended: dict[str, int] = {}  # state -> jobs of this service
        self.busy_seconds = 0.0
        self.threads = [threading.Thread(target=self._serve, name=f"worker-{index}", daemon=True)
                        for index in range(settings.workers)]

    # ------------------------------------------------------------ from outside

    def start(self) -> None:
        """Take up what a former service left, then work."""
        for job in self.store.running():
            self._again(job, self.settings.attempts, WorkerDied(
                "job", f"the service ended {job.attempts} times while the job ran", "send it again"))
        for thread in self.threads:
            thread.start()

    def stop(self) -> None:
        """Kill running workers; their jobs wait for the next start."""
        self.stopping.set()
        self.notify()
        for thread in self.threads:
            if thread.is_alive():
                thread.join(10.0)

    def notify(self) -> None:
        """There is a new job."""
        with self.wake:
            self.wake.notify_all()

    def cancel(self, job: str) -> bool:
        """Cancel a job that waits or runs; its worker is killed. False if it had ended."""
        if not self.store.finish(job, CANCELLED):
            return False
        self._count(CANCELLED)
        row = self.store.get(job)
        if row is not None and row.started is not None:
            self.cancelled.add(job)
        return True

    def cancel_batch(self, batch: str) -> None:
        """Cancel what waits or runs of a batch."""
        self.ended[CANCELLED] = self.ended.get(CANCELLED, 0) + self.store.cancel_waiting(batch)
        for job in self.store.members(batch):
            if job.state not in FINISHED:
                self.cancel(job.id)

    @property
    def alive(self) -> bool:
        """All threads run."""
        return all(thread.is_alive() for thread in self.threads)

    # ------------------------------------------------------------ one thread

    def _serve(self) -> None:
        spare: subprocess.Popen[bytes] | None = None
        try:
            while not self.stopping.is_set():
                try:
                    spare = spare or stand_by(self.store.scratch)
                    job = self.store.claim()
                    if job is not None:
                        if not self._answered(job):
                            process = spare if spare.poll() is None else stand_by(self.store.scratch)
                            spare = None
                            self._work(job, process)
                        continue
                except Exception:  # the thread must outlive whatever a disk or a database does
                    log.exception("no job could be taken")
                    self.stopping.wait(1.0)
                with self.wake:
                    self.wake.wait(1.0)
        finally:
            if spare is not None:
                kill_group(spare)

    def _answered(self, job: Job) -> bool:
        """True where an earlier job has the answer already."""
        try:
            earlier = self.store.answer(job.key) if job.request.get("reuse", True) else None
            if earlier is None or not answer_from(self.store, earlier, job.id):
                return False
        except (OSError, SQLAlchemyError):
            log.exception("an answer could not be used again", job=job.id)
            return False
        self._insist(job, lambda: self._finish(job, DONE, summary=earlier.summary, answered_by=earlier.id))
        return True

    def _work(self, job: Job, process: subprocess.Popen[bytes]) -> None:
        began = time.monotonic()
        try:
            status, reason = self._run(job, process)
        except OSError as error:
            log.exception("a job could not be started", job=job.id)
            problem = storage_full(error, "job") or InternalError("job", str(error), "see the log of the service")
            self.stopping.wait(1.0)
            self._insist(job, lambda: self._again(job, self.settings.attempts, problem))
        else:
            self._insist(job, lambda: self._settle(job, status, reason))
        self.busy_seconds += time.monotonic() - began

    def _insist(self, job: Job, write_down: Callable[[], None]) -> None:
        """Write down how a job ended, however long the database refuses: else it would run for ever. A service that is
        stopped meanwhile takes the job up at its next start."""
        while True:
            try:
                write_down()
                if self.store.get(job.id) is None:  # removed while it ran, when its worker could still write
                    shutil.rmtree(self.store.folder(job.id), ignore_errors=True)
                return
            except SQLAlchemyError:
                log.exception("how a job ended could not be written down", job=job.id)
                if self.stopping.wait(1.0):
                    return

    def _run(self, job: Job, process: subprocess.Popen[bytes]) -> tuple[int, str]:
        """Hand the job to a worker that stands by: its exit status, and why it was killed if it was."""
        folder = self.store.folder(job.id)
        attempt = folder / worker.ATTEMPT
        self.processes[job.id] = process.pid
        deadline = time.monotonic() + self.settings.job_seconds
        reason = ""
        try:
            shutil.rmtree(attempt, ignore_errors=True)
            (attempt / worker.RESULT).mkdir(parents=True)
            hand_over(process, folder)
            while process.poll() is None:
                if job.id in self.cancelled:
                    reason = "cancelled"
                elif self.stopping.is_set():
                    reason = "stopping"
                elif time.monotonic() > deadline:
                    reason = "time"
                if reason:
                    break
                time.sleep(LOOK_SECONDS)
        finally:
            kill_group(process)
            self.processes.pop(job.id, None)
            self.cancelled.discard(job.id)
        return process.returncode, reason

    def _settle(self, job: Job, status: int, reason: str) -> None:
        outcome = read_outcome(self.store.folder(job.id))
        if reason == "cancelled":
            return
        if outcome is not None:
            self._finish(job, outcome["state"], summary=outcome.get("summary"), problem=outcome.get("problem"))
        elif reason == "stopping":
            self.store.requeue(job.id, forget_attempt=True)
        elif reason == "time":
            self._finish(job, FAILED, problem=LimitReached(
                "job", f"it took longer than {self.settings.job_seconds:g} s", "lower the effort, give a timeout, or "
                "start the service with larger EGRAFT_JOB_SECONDS").problem())
        elif status == worker.NO_ROOM:
            self._finish(job, FAILED, problem=no_room("job").problem())
        else:
            died = WorkerDied("job", f"its process {_how_it_ended(status)} (attempt {job.attempts})", _remedy(status))
            log.warning("worker died", job=job.id, status=status, attempt=job.attempts)
            killed = status in (-signal.SIGKILL, -signal.SIGTERM)
            self._again(job, self.settings.crashes if killed else 1, died)

    def _again(self, job: Job, attempts: int, error: EgraftError) -> None:
        """Let the job wait again, or fail it where it had its attempts."""
        if job.attempts < attempts:
            self.store.requeue(job.id)
            self.notify()
        else:
            self._finish(job, FAILED, problem=error.problem())

    def _finish(self, job: Job, state: str, **values: Any) -> None:
        if self.store.finish(job.id, state, **values):
            self._count(state)
            log.info("job ended", job=job.id, state=state, code=(values.get("problem") or {}).get("code"))

    def _count(self, state: str) -> None:
        self.ended[state] = self.ended.get(state, 0) + 1


def stand_by(folder: Path) -> subprocess.Popen[bytes]:
    """Start a worker process that makes itself ready for a job."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "server.worker", str(os.getpid())], cwd=folder, env=worker_environment(),
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)


def hand_over(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Tell a worker its job; one that died meanwhile is seen by its status."""
    assert process.stdin is not None
    try:
        process.stdin.write(f"{folder.resolve()}\n".encode())
        process.stdin.close()
    except BrokenPipeError:
        log.warning("a worker died before its job", status=process.poll())


def worker_environment() -> dict[str, str]:
    """The environment of workers: this very egraft, no module from the folder they stand in, no secrets."""
    root = str(Path(__file__).resolve().parents[1])
    path = os.pathsep.join(dict.fromkeys([root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]))
    hidden = ("EGRAFT_API_KEY", "EGRAFT_DATABASE_URL")
    kept = {name: value for name, value in os.environ.items() if name not in hidden}
    return {**kept, "PYTHONPATH": path, "PYTHONSAFEPATH": "1", "RAYON_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process started in a session of its own with everything that it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        process.kill()
    if process.stdin is not None:
        process.stdin.close()
    process.wait()


def read_outcome(folder: Path) -> dict[str, Any] | None:
    """How the worker says that it ended; None if it did not come to that."""
    try:
        found = json.loads((folder / worker.ATTEMPT / worker.OUTCOME).read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError):
        return None
    return found if isinstance(found, dict) else None


def answer_from(store: Store, earlier: Job, job: str) -> bool:
    """Give a job the results of an earlier one (the same files, not copies); False where they are gone."""
    source, target = store.folder(earlier.id) / worker.ATTEMPT, store.folder(job) / worker.ATTEMPT
    if not (source / worker.OUTCOME).is_file():
        return False
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, copy_function=link_or_copy)
    return True


def link_or_copy(source: str, target: str) -> None:
    """The same file under a second name, or a copy of it."""
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copy2(source, target)


def _remedy(status: int) -> str:
    """What to do about it: nothing but SIGKILL comes of too little memory."""
    if status == -signal.SIGKILL:
        return "most often memory ran out: send it again with a lower effort, or to a larger machine"
    if status == -signal.SIGTERM:
        return "somebody ended it: send it again"
    return "this is a defect of egraft or of a library that it uses: please report it with the worker.log of the job"


def _how_it_ended(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"
