"""`/v1/batches`: a zoo at once. Each of its models becomes a job of its own; the batch tells how all of them fare."""

from __future__ import annotations

import asyncio
import json
import math
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from graphs.errors import InvalidOption

from . import splitting, worker
from .errors import BadRequest, InternalError, LimitReached, NotFound, NotReady, Problem, no_room
from .jobs import check_queue, job_options, job_row
from .options import MAX_WAIT, flag, number, parameters
from .service import Service, service_of
from .store import CANCELLED, DONE, FAILED, FINISHED, QUEUED, RUNNING, STATES, Batch, Job, new_id
from .supervisor import kill_group, link_or_copy, worker_environment
from .uploads import ARCHIVE, Upload, receive
from .views import TICK, Before, message, stamp
from .zipping import zip_stream

router = APIRouter(prefix="/v1/batches", tags=["batches"])
_BINARY = {"schema": {"type": "string", "format": "binary"}}
_BODY: dict[str, Any] = {
    "parameters": parameters(),
    "requestBody": {"required": True, "content": {
        "application/zip": _BINARY, "application/x-tar": _BINARY, "application/octet-stream": _BINARY,
        "multipart/form-data": {"schema": {"type": "object", "properties": {
            "model": {"type": "array", "items": {"type": "string", "format": "binary"}, "description":
                      "models under their relative names; other file parts are their external data"},
            "archive": {"type": "string", "format": "binary", "description": "a zip or tar archive of models"}}}}}},
}


# ---------------------------------------------------------------- taking a batch


@router.post("", status_code=202, openapi_extra=_BODY, responses={200: {"description": "done within `wait` seconds"}})
async def create_batch(request: Request) -> Response:
    """Send several models: a zip or tar archive as the body or as the part `archive`, or a multipart with several parts
    `model` and their external data. Each becomes a job with the same options."""
    service = service_of(request)
    folder = service.store.incoming / new_id()
    (folder / worker.UPLOAD).mkdir(parents=True, mode=0o700)
    try:
        upload = await receive(request, folder / worker.UPLOAD, service.settings.max_upload, ())
        if "inputs" in upload.mains:
            raise InvalidOption("inputs", "one file cannot hold the inputs of several models", "leave it out")
        seconds = number(upload.fields, "wait", 0.0, MAX_WAIT)
        batch = await run_in_threadpool(new_batch, service, upload, folder)
    finally:
        await run_in_threadpool(shutil.rmtree, folder, True)
    view = await _wait_for(request, service, batch, seconds)
    return JSONResponse(view, 200 if view["state"] in FINISHED else 202, {"Location": view["links"]["self"]})


def new_batch(service: Service, upload: Upload, folder: Path) -> Batch:
    """Make an upload a durable batch: all its jobs are in the store, or none. `folder` holds `upload/`."""
    (kind, options), reuse = job_options(upload), flag(upload.fields, "reuse", True)
    found = _split(service, upload, folder)
    check_queue(service, len(found["models"]))
    name = next((value for key, value in upload.fields if key == "name" and value), "") or next(
        (file for file, part in upload.parts.items() if part == ARCHIVE and file != ARCHIVE), "")
    name = "".join(letter for letter in name if letter.isprintable())  # PostgreSQL has no NUL
    batch = Batch(id=new_id(), name=name[:200], options=options, bytes=upload.bytes, created=time.time())
    jobs: list[Job] = []
    try:
        for row in found["models"]:
            jobs.append(_member(service, upload, row, {**upload.files, **found["digests"]}, reuse, kind, options))
            jobs[-1].batch = batch.id
        service.store.add_batch(batch, jobs)
    except BaseException:
        for job in jobs:
            shutil.rmtree(service.store.folder(job.id), ignore_errors=True)
        raise
    service.supervisor.notify()
    return batch


def _split(service: Service, upload: Upload, folder: Path) -> dict[str, Any]:
    """What `server.splitting` finds in an upload, in a process with the limits of a worker."""
    if not upload.parts:
        raise BadRequest("body", "it is empty", "send an archive of models, or file parts `model`")
    settings = service.settings
    task = {"parts": upload.parts, "limit": settings.max_upload, "memory": settings.job_memory}
    (folder / splitting.TASK).write_text(json.dumps(task), encoding="utf-8")
    process = subprocess.Popen([sys.executable, "-P", "-m", "server.splitting", str(folder.resolve())], cwd=folder,
                               env=worker_environment(), stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        process.wait(settings.job_seconds)
    except subprocess.TimeoutExpired:
        raise LimitReached("body", f"unpacking it took longer than {settings.job_seconds:g} s",
                           "send a simpler archive") from None
    finally:
        kill_group(process)
    if process.returncode == worker.NO_ROOM:
        raise no_room("body")
    try:
        found = json.loads((folder / splitting.MEMBERS).read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError):
        raise InternalError("body", f"it could not be unpacked (status {process.returncode})",
                            "see the log of the service") from None
    if "problem" in found:
        raise Problem(found["problem"])
    assert isinstance(found, dict)
    return found


def _member(service: Service, upload: Upload, row: dict[str, Any], digests: dict[str, str], reuse: bool,
            kind: str, options: dict[str, Any]) -> Job:
    """One model with its data, as if it had come alone: what was answered to such a job answers it, too."""
    model = Path(row["model"])
    folder = service.store.incoming / new_id()
    own = Upload(folder / worker.UPLOAD, mains={"model": model.name}, fields=upload.fields)
    try:
        for name in (model.name, *row["data"]):
            source, target = upload.folder / model.parent / name, own.folder / name
            target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            link_or_copy(str(source), str(target))
            own.files[name] = digests[(model.parent / name).as_posix()]
            own.bytes += target.stat().st_size
        job = job_row(service, own, folder, kind, options, reuse)
        job.name = row["model"]
        folder.rename(service.store.folder(job.id))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return job


# ---------------------------------------------------------------- telling about batches


def find(service: Service, name: str) -> Batch:
    """A batch by its id. Raises NotFound."""
    batch = service.store.batch(name)
    if batch is None:
        raise NotFound(f"batch {name[:80]!r}", "there is no such batch", "list them with GET /v1/batches")
    return batch


def state_of(jobs: Sequence[Job]) -> str:
    """`queued` until the first job runs, `running` until all have ended; then `cancelled` if one was, `failed` if one
    did, else `done`."""
    states = {job.state for job in jobs}
    if states <= {QUEUED} and states:
        return QUEUED
    if not states <= set(FINISHED):
        return RUNNING
    return next((state for state in (CANCELLED, FAILED) if state in states), DONE)


def batch_view(batch: Batch, jobs: Sequence[Job]) -> dict[str, Any]:
    """A batch for clients, without its models."""
    state, at = state_of(jobs), f"/v1/batches/{batch.id}"
    ended = max((job.finished or 0.0 for job in jobs), default=batch.created)
    counts = Counter(job.state for job in jobs)
    links = {"self": at, "events": f"{at}/events", "page": f"/batches/{batch.id}"}
    if counts[DONE]:
        links["models"] = f"{at}/models"
    return {"id": batch.id, "state": state, "name": batch.name, "bytes": batch.bytes, "created": stamp(batch.created),
            "finished": stamp(ended) if state in FINISHED else None, "options": batch.options,
            "jobs": {each: counts[each] for each in STATES}, "summary": summary(jobs), "links": links}


def whole_view(batch: Batch, jobs: Sequence[Job]) -> dict[str, Any]:
    """A batch for clients, with a row for each of its models."""
    return {**batch_view(batch, jobs), "models": [model_row(job) for job in jobs]}


def model_row(job: Job) -> dict[str, Any]:
    """One model of a batch."""
    links = {"self": f"/v1/jobs/{job.id}", "page": f"/jobs/{job.id}"}
    if job.state == DONE:
        links["model"] = f"/v1/jobs/{job.id}/model"
    return {"model": job.name, "job": job.id, "state": job.state, "answered_by": job.answered_by,
            "summary": job.summary, "problem": job.problem, "links": links}


def summary(jobs: Iterable[Job]) -> dict[str, Any]:
    """What the measured models gained: how many with which verdict, and the geometric mean of their speed-ups."""
    rows = [job.summary for job in jobs if job.state == DONE and job.summary]
    ratios = [row["speed_up"] for row in rows if row.get("speed_up")]
    verdicts = Counter(row["verdict"] for row in rows if row.get("speed_up"))
    return {"measured": len(ratios), **{each: verdicts[each] for each in ("faster", "equal", "slower")},
            "geometric_mean": math.exp(math.fsum(map(math.log, ratios)) / len(ratios)) if ratios else None,
            "nodes_before": sum(row["nodes_before"] for row in rows),
            "nodes_after": sum(row["nodes_after"] for row in rows)}


@router.get("")
def list_batches(request: Request, limit: Annotated[int, Query(ge=1, le=500)] = 50,
                 before: Before = None) -> dict[str, Any]:
    """Batches, the youngest first, without their models. `next` is the address of the following page."""
    store = service_of(request).store
    rows = store.batches(limit + 1, before)
    more = f"/v1/batches?limit={limit}&before={rows[limit - 1].number}" if len(rows) > limit else None
    return {"batches": [batch_view(row, store.members(row.id)) for row in rows[:limit]], "next": more}


@router.get("/{batch}")
def get_batch(request: Request, batch: str) -> dict[str, Any]:
    """State and summary of a batch, and of each of its models."""
    service = service_of(request)
    row = find(service, batch)
    return whole_view(row, service.store.members(row.id))


@router.delete("/{batch}")
def cancel_batch(request: Request, batch: str, purge: bool = False) -> dict[str, Any]:
    """Cancel the jobs of a batch that have not ended. With `purge` all its jobs and files are removed."""
    service = service_of(request)
    row = find(service, batch)
    service.supervisor.cancel_batch(row.id)
    view = whole_view(row, service.store.members(row.id))
    if purge:
        service.store.remove_batch(row.id)
    return view


@router.get("/{batch}/events", response_class=StreamingResponse,
            responses={200: {"content": {"text/event-stream": {}}, "description": "server-sent events"}})
async def batch_events(request: Request, batch: str) -> Response:
    """Server-sent events: `model` for each change of a model's state, and `end` with the batch."""
    service = service_of(request)
    row = await run_in_threadpool(find, service, batch)
    return StreamingResponse(_events(request, service, row), media_type="text/event-stream",
                             headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})


async def _events(request: Request, service: Service, batch: Batch) -> AsyncIterator[str]:
    known: dict[str, str] = {}
    pulse: object = None
    silent = 0.0
    while True:
        before, pulse = pulse, await run_in_threadpool(service.store.pulse, batch.id)
        silent = silent + TICK if pulse == before else 0.0
        if pulse != before:
            jobs = await run_in_threadpool(service.store.members, batch.id)
            for job in jobs:
                if known.get(job.id) != job.state:
                    known[job.id] = job.state
                    yield message("model", model_row(job))
            if state_of(jobs) in FINISHED:
                yield message("end", batch_view(batch, jobs))
                return
        if service.supervisor.stopping.is_set() or await request.is_disconnected():
            return
        if silent > 10.0:
            silent = 0.0
            yield ": still there\n\n"
        await asyncio.sleep(TICK)


async def _wait_for(request: Request, service: Service, batch: Batch, seconds: float) -> dict[str, Any]:
    """The batch when it has ended or the time is over."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not service.supervisor.stopping.is_set():
        states = {row[0] for row in await run_in_threadpool(service.store.pulse, batch.id)}
        if states <= set(FINISHED) or await request.is_disconnected():
            break
        await asyncio.sleep(TICK)
    return whole_view(batch, await run_in_threadpool(service.store.members, batch.id))


@router.get("/{batch}/models", response_class=StreamingResponse,
            responses={200: {"content": {"application/zip": {}}, "description": "a zip archive"}})
def batch_models(request: Request, batch: str) -> Response:
    """All results as one zip archive: each model and its report under the name that it came with, and `summary.json`.
    Of a batch that has not ended, what is done so far."""
    service = service_of(request)
    row = find(service, batch)
    jobs = service.store.members(row.id)
    if not any(job.state == DONE for job in jobs):
        raise NotReady(f"batch {row.id}", "none of its models is done", "follow its events")
    table = json.dumps(whole_view(row, jobs), indent=1, ensure_ascii=False) + "\n"
    files = [*_result_files(service, jobs), ("summary.json", table.encode())]
    return StreamingResponse(zip_stream(files), media_type="application/zip",
                             headers={"Content-Disposition": f'attachment; filename="{row.id}.zip"'})


def _result_files(service: Service, jobs: Iterable[Job]) -> list[tuple[str, Path | bytes]]:
    """Name in the archive -> file, of all jobs that are done. A model with external data, whose name it holds, becomes
    a folder: `NAME.onnx/model.onnx` beside its data."""
    found: list[tuple[str, Path | bytes]] = []
    for job in jobs:
        if job.state != DONE:
            continue
        results = service.attempt(job) / worker.RESULT
        name = job.name if job.name.lower().endswith(splitting.MODEL_SUFFIX) else job.name + splitting.MODEL_SUFFIX
        data = sorted(each for each in results.iterdir() if each.name.startswith(worker.MODEL + "."))
        found += [(f"{name}/{each.name}" if data else name, each) for each in (results / worker.MODEL, *data)]
        found.append((f"{name}.report.json", results / "report.json"))
    return found
