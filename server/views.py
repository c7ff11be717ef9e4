"""Jobs as JSON, and their progress."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from fastapi import Query
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from .errors import NotReady, Problem
from .options import MODELS
from .service import Service
from .store import CANCELLED, DONE, FAILED, FINISHED, Job
from .worker import PROGRESS

TICK = 0.1
Before = Annotated[int | None, Query(ge=0, lt=1 << 31)]  # a number of a row; the databases take no larger one


def stamp(seconds: float | None) -> str | None:
    """A time as ISO 8601, UTC."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def job_view(service: Service, job: Job) -> dict[str, Any]:
    """A job for clients."""
    at = f"/v1/jobs/{job.id}" if job.kind in MODELS else f"/v1/checks/{job.id}"
    links = {"self": at, "events": f"/v1/jobs/{job.id}/events"}
    if job.kind in MODELS:
        links["page"] = f"/jobs/{job.id}"
        if job.batch is not None:
            links["batch"] = f"/v1/batches/{job.batch}"
        if job.state == DONE:
            links.update({name: f"{at}/{name}" for name in ("model", "graph", "trace", "report")})
    return {
        "id": job.id, "batch": job.batch, "kind": job.kind, "state": job.state, "name": job.name, "bytes": job.bytes,
        "created": stamp(job.created), "started": stamp(job.started), "finished": stamp(job.finished),
        "attempts": job.attempts, "answered_by": job.answered_by, "options": job.request["options"],
        "progress": progress(service, job), "summary": job.summary, "problem": job.problem, "links": links,
    }  # fmt: skip


def progress(service: Service, job: Job) -> dict[str, Any] | None:
    """The last thing that the worker told."""
    found = progress_lines(service.attempt(job) / PROGRESS)
    return found[-1] if found else None


def progress_lines(path: Path) -> list[dict[str, Any]]:
    """All that the worker told in this attempt."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return []
    whole = text[: text.rfind("\n") + 1]  # a last line may be half written
    return [json.loads(line) for line in whole.splitlines() if line]


async def wait_for(request: Request, service: Service, job: Job, seconds: float) -> Job:
    """The job when it has ended or the time is over."""
    deadline = time.monotonic() + seconds
    while job.state not in FINISHED and time.monotonic() < deadline and not service.supervisor.stopping.is_set():
        if await request.is_disconnected():
            break
        await asyncio.sleep(TICK)
        job = await run_in_threadpool(service.job, job.id)
    return job


def require_done(job: Job) -> None:
    """Raise NotReady, or the problem of a job that failed."""
    if job.state == FAILED:
        raise job_problem(job)
    if job.state == CANCELLED:
        raise NotReady(f"job {job.id}", "it was cancelled", "send the model again")
    if job.state != DONE:
        raise NotReady(f"job {job.id}", f"it is {job.state}", "follow its events, or send it with ?wait=SECONDS")


def job_problem(job: Job) -> Problem:
    """Why a job failed."""
    return Problem({**(job.problem or {}), "job": job.id, "instance": f"/v1/jobs/{job.id}"})


async def events(request: Request, service: Service, job: Job, skip: int) -> AsyncIterator[str]:
    """Server-sent events: `progress` with what the worker tells, `state` for each change, `end` at last."""
    state, sent, attempt, silent = "", skip, job.attempts, 0.0
    while True:
        job = await run_in_threadpool(service.job, job.id)
        if job.attempts != attempt:
            attempt, sent = job.attempts, 0
        lines = await run_in_threadpool(progress_lines, service.attempt(job) / PROGRESS)
        for index, line in enumerate(lines[sent:], sent + 1):
            yield message("progress", line, index)
        silent = 0.0 if len(lines) > sent or job.state != state else silent + TICK
        sent = max(sent, len(lines))
        if job.state != state:
            state = job.state
            yield message("state", {"state": state, "attempts": job.attempts})
        if state in FINISHED:
            yield message("end", job_view(service, job))
            return
        if service.supervisor.stopping.is_set() or await request.is_disconnected():
            return
        if silent > 10.0:
            silent = 0.0
            yield ": still there\n\n"  # so that proxies keep the connection
        await asyncio.sleep(TICK)


def message(event: str, data: dict[str, Any], index: int | None = None) -> str:
    """One server-sent event."""
    head = f"id: {index}\n" if index is not None else ""
    return f"{head}event: {event}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n"
