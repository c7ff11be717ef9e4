"""`/v1/jobs`: take models, tell how they fare, hand out results."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse

from graphs.errors import InvalidModel, InvalidOption
from graphs.sniffing import why_no_model
from graphs.wording import counted
from optimizer.deriving.options import Deriving, check_used

from . import worker
from .errors import InternalError, NotFound, NotReady, QueueFull
from .options import MAX_WAIT, MODELS, flag, number, parameters, read_kind, read_options
from .service import Service, service_of
from .settings import build_digest
from .store import DONE, FAILED, FINISHED, QUEUED, RUNNING, Job, new_id
from .supervisor import kill_group, worker_environment
from .uploads import Upload, receive
from .views import Before, events, job_problem, job_view, require_done, wait_for

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])
ENDINGS = {"optimize": "optimized", "grad": "grad", "train-step": "step"}  # of file names of results
SMALL = 16 << 20  # bytes of a result that the service converts itself
_BINARY = {"schema": {"type": "string", "format": "binary"}}
_BODY: dict[str, Any] = {
    "parameters": parameters(),
    "requestBody": {"required": True, "content": {
        "application/octet-stream": _BINARY, "application/onnx": _BINARY,
        "application/json": {"schema": {"type": "object", "description": "a graph in the JSON form"}},
        "multipart/form-data": {"schema": {"type": "object", "required": ["model"], "properties": {
            "model": {"type": "string", "format": "binary"},
            "inputs": {"type": "string", "format": "binary", "description": "an .npz to measure and validate"}}}}}},
}


# ---------------------------------------------------------------- taking jobs


def new_job(service: Service, upload: Upload, folder: Path, kind: str, options: dict[str, Any], reuse: bool) -> Job:
    """Make an upload a durable job. `folder` holds `upload/` and becomes the job's."""
    check_queue(service, 1)
    job = job_row(service, upload, folder, kind, options, reuse)
    folder.rename(service.store.folder(job.id))
    service.store.add(job)
    service.supervisor.notify()
    return job


def check_queue(service: Service, more: int) -> None:
    """Raise QueueFull where so many more jobs cannot wait."""
    waiting, most = service.store.counts()[QUEUED], service.settings.max_queue
    if waiting + more > most:
        raise QueueFull("job", f"{waiting} jobs wait, {counted(most, 'job')} may, and {more} more came",
                        "send it again later" if more <= most else "start the service with a larger EGRAFT_MAX_QUEUE")


def job_row(service: Service, upload: Upload, folder: Path, kind: str, options: dict[str, Any], reuse: bool) -> Job:
    """The row of a job, not yet in the store; its request is written into `folder`."""
    request = {"kind": kind, "options": options, "timings": service.settings.timings, **upload.mains,
               "memory": service.settings.job_memory, "reuse": reuse}
    canonical = json.dumps([kind, options, upload.digest(), service.settings.timings, build_digest()], sort_keys=True)
    (folder / worker.REQUEST).write_text(json.dumps(request, indent=1), encoding="utf-8")
    return Job(id=new_id(), kind=kind, state=QUEUED, name=" and ".join(
        file for part, file in upload.mains.items() if part != "inputs"), bytes=upload.bytes, request=request,
        key=hashlib.sha256(canonical.encode()).hexdigest(), created=time.time(), attempts=0)


async def take(request: Request, mains: tuple[str, ...],
               read: Callable[[Upload], tuple[str, dict[str, Any]]]) -> tuple[Service, Job, Upload]:
    """Receive an upload and make it a job of the kind and options that `read` finds in it."""
    service = service_of(request)
    folder = service.store.incoming / new_id()
    (folder / worker.UPLOAD).mkdir(parents=True, mode=0o700)
    try:
        upload = await receive(request, folder / worker.UPLOAD, service.settings.max_upload, mains)
        reuse = flag(upload.fields, "reuse", True)
        number(upload.fields, "wait", 0.0, MAX_WAIT)
        kind, options = read(upload)
        await run_in_threadpool(check_models, upload)
        job = await run_in_threadpool(new_job, service, upload, folder, kind, options, reuse)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return service, job, upload


def check_models(upload: Upload) -> None:
    """Raise InvalidModel for a file that cannot be a model, before a job is made of it."""
    for part, file in upload.mains.items():
        reason = None if part == "inputs" else why_no_model(upload.folder / file)
        if reason is not None:
            raise InvalidModel(file, reason, "give an ONNX model, or a graph in the JSON or text form")


def job_options(upload: Upload) -> tuple[str, dict[str, Any]]:
    """The kind and the options that a worker gets: all fields, so that a changed default is another request."""
    kind = read_kind(upload.fields)
    found = read_options(upload.fields, MODELS[kind])
    if isinstance(found, Deriving):
        check_used(found)
    return kind, found.model_dump(mode="json", exclude={"inputs", "timings"})


def check_options(upload: Upload) -> tuple[str, dict[str, Any]]:
    """The options of a check: those of `optimize` that mean something there."""
    used = {"precision", "rtol", "atol", "dims", "seed"}
    given = read_options([(key, value) for key, value in upload.fields if key != PROVE])
    odd = given.model_fields_set - used
    if odd:
        raise InvalidOption(min(odd), "a check has no such option", f"it takes {', '.join(sorted({*used, PROVE}))}")
    return "check", {**given.model_dump(mode="json", include=used), PROVE: flag(upload.fields, PROVE, False)}


@router.post("", status_code=202, openapi_extra=_BODY, responses={200: {"description": "done within `wait` seconds"}})
async def create_job(request: Request) -> Response:
    """Send a model. The body is an ONNX model or a JSON graph, or multipart with `model` and its external data."""
    service, job, upload = await take(request, ("model",), job_options)
    job = await wait_for(request, service, job, number(upload.fields, "wait", 0.0, MAX_WAIT))
    return answer(service, job)


def answer(service: Service, job: Job) -> Response:
    """200 with a finished job, 202 with one that is not, the problem of one that failed."""
    view = job_view(service, job)
    if job.state == FAILED:
        raise job_problem(job)
    return JSONResponse(view, 200 if job.state in FINISHED else 202, {"Location": view["links"]["self"]})


# ---------------------------------------------------------------- telling about jobs


@router.get("")
def list_jobs(request: Request, limit: Annotated[int, Query(ge=1, le=500)] = 50, before: Before = None,
              state: Literal["queued", "running", "done", "failed", "cancelled"] | None = None,
              kind: Literal["optimize", "grad", "train-step"] | None = None) -> dict[str, Any]:
    """Jobs, the youngest first. `next` is the address of the following page."""
    service = service_of(request)
    rows = service.store.page(limit + 1, before, state, [kind] if kind else MODELS)
    more = f"/v1/jobs?limit={limit}&before={rows[limit - 1].number}" if len(rows) > limit else None
    more = more and "".join([more, f"&state={state}" if state else "", f"&kind={kind}" if kind else ""])
    return {"jobs": [job_view(service, row) for row in rows[:limit]], "next": more}


@router.get("/{job}")
def get_job(request: Request, job: str) -> dict[str, Any]:
    """State, progress and summary of a job."""
    service = service_of(request)
    return job_view(service, service.job(job))


@router.delete("/{job}")
def cancel_job(request: Request, job: str, purge: bool = False) -> dict[str, Any]:
    """Cancel a job; a running worker is killed. With `purge` its files and its row are removed, whatever its state."""
    service = service_of(request)
    row = service.job(job)
    service.supervisor.cancel(row.id)
    view = job_view(service, service.job(job))
    if purge:
        service.store.remove(row.id)
    return view


@router.get("/{job}/events", response_class=StreamingResponse,
            responses={200: {"content": {"text/event-stream": {}}, "description": "server-sent events"}})
async def job_events(request: Request, job: str) -> Response:
    """Server-sent events: `progress`, `state`, and `end` with the finished job."""
    service = service_of(request)
    row = await run_in_threadpool(service.job, job)
    last = request.headers.get("last-event-id", "")
    known = int(last) if last.isascii() and last.isdigit() and len(last) < 10 else 0
    return StreamingResponse(events(request, service, row, known),
                             media_type="text/event-stream", headers={"Cache-Control": "no-store",
                                                                      "X-Accel-Buffering": "no"})


# ---------------------------------------------------------------- results


def result_file(request: Request, name: str, file: str) -> Path:
    """A file of a finished job. Raises NotReady, NotFound, or the job's own problem."""
    service = service_of(request)
    job = service.job(name)
    require_done(job)
    path = service.attempt(job) / worker.RESULT / file
    if job.kind not in MODELS or not path.is_file():
        raise NotFound(f"job {job.id}", f"it has no {file}", "send the model again")
    return path


@router.get("/{job}/model", response_class=FileResponse)
def job_model(request: Request, job: str) -> Response:
    """The model that the job made: ONNX bytes, or a zip archive where its weights are in a file of their own."""
    path = result_file(request, job, worker.MODEL)
    row = service_of(request).job(job)
    stem = f"{Path(row.name).stem}.{ENDINGS[row.kind]}"
    data = [each for each in path.parent.iterdir() if each.name.startswith(path.name + ".")]
    if not data:
        return FileResponse(path, media_type="application/octet-stream", filename=f"{stem}.onnx")
    archive = path.parent.parent / "model.zip"
    if not archive.exists():
        _zip(archive, [path, *data])
    return FileResponse(archive, media_type="application/zip", filename=f"{stem}.zip")


def _zip(archive: Path, files: list[Path]) -> None:
    part = archive.with_name(f"{archive.name}.{new_id()}")
    try:
        with zipfile.ZipFile(part, "w", zipfile.ZIP_STORED) as target:
            for file in files:
                target.write(file, file.name)
        part.replace(archive)
    finally:
        part.unlink(missing_ok=True)


@router.get("/{job}/graph", response_class=FileResponse)
def job_graph(request: Request, job: str, form: Literal["json", "text"] = "json") -> Response:
    """The graph that the job made, in the JSON form, or in the text form (weights as digests)."""
    path = result_file(request, job, worker.MODEL)
    target = path.parent.parent / ("graph.json" if form == "json" else "graph.txt")
    if not target.exists():
        size = sum(each.stat().st_size for each in path.parent.iterdir())
        if size <= SMALL:
            worker.convert(path, target)
        else:
            _convert(path, target, service_of(request).settings.job_seconds)
    return FileResponse(target, media_type="application/json" if form == "json" else "text/plain; charset=utf-8")


def _convert(source: Path, target: Path, seconds: float) -> None:
    process = subprocess.Popen([sys.executable, "-P", "-m", "server.worker", "--convert", str(source.resolve()),
                                str(target.resolve())], env=worker_environment(), cwd=target.parent,
                               stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        pass  # the status below tells
    finally:
        kill_group(process)
    if process.returncode != 0 or not target.exists():
        raise InternalError("graph", f"the graph could not be written (status {process.returncode})",
                            "fetch the model instead")


@router.get("/{job}/trace", response_class=FileResponse)
def job_trace(request: Request, job: str) -> Response:
    """The trace: every rewrite with its place, before and after."""
    path = result_file(request, job, "trace.json")
    return FileResponse(path, media_type="application/json", filename=f"{job}.trace.json",
                        content_disposition_type="inline")


@router.get("/{job}/trace/{step}")
def job_step(request: Request, job: str, step: int) -> dict[str, Any]:
    """One step of the trace."""
    steps = json.loads(result_file(request, job, "trace.json").read_text(encoding="utf-8"))["steps"]
    if not 0 <= step < len(steps):
        found = f"the steps are 0 to {len(steps) - 1}" if steps else "the trace is empty: the input was handed back"
        raise NotFound(f"step {step}", found, "see the trace")
    found_step = steps[step]
    assert isinstance(found_step, dict)
    return found_step


@router.get("/{job}/report")
def job_report(request: Request, job: str, form: Literal["json", "html"] = "json") -> Response:
    """The report, as JSON or as a self-contained page."""
    path = result_file(request, job, "report.json")
    if form == "json":
        return FileResponse(path, media_type="application/json", filename=f"{job}.report.json",
                            content_disposition_type="inline")
    from optimizer.report_html import render

    from .pages_render import NAMES

    return Response(render(json.loads(path.read_text(encoding="utf-8")), NAMES), media_type="text/html")


# ---------------------------------------------------------------- checks

checks = APIRouter(prefix="/v1/checks", tags=["checks"])
PROVE = "prove"
_CHECK = ("precision", "rtol", "atol", "dim", "seed", "wait", "reuse")  # those of the parameters that a check takes
_TWO: dict[str, Any] = {
    "parameters": [*(row for row in parameters() if row["name"] in _CHECK),
                   {"name": PROVE, "in": "query", "required": False, "schema": {"type": "boolean", "default": False},
                    "description": "also join both by rewriting: `result.proof` holds the steps"}],
    "requestBody": {"required": True, "content": {"multipart/form-data": {"schema": {
        "type": "object", "required": ["a", "b"], "properties": {
            "a": {"type": "string", "format": "binary"}, "b": {"type": "string", "format": "binary"},
            "inputs": {"type": "string", "format": "binary"}}}}}}}


@checks.post("", openapi_extra=_TWO, responses={202: {"description": "not done within `wait` seconds"}})
async def create_check(request: Request) -> Response:
    """Are two models (multipart parts `a` and `b`) equal? Waits 60 s unless `wait` says otherwise."""
    service, job, upload = await take(request, ("a", "b"), check_options)
    job = await wait_for(request, service, job, number(upload.fields, "wait", 60.0, MAX_WAIT))
    if job.state in (QUEUED, RUNNING):
        return answer(service, job)
    return check_answer(service, job)


@checks.get("/{job}")
def get_check(request: Request, job: str) -> Response:
    """A check: its state, and what was found when it is done."""
    service = service_of(request)
    row = service.job(job)
    if row.kind != "check":
        raise NotFound(f"check {job[:80]!r}", "there is no such check", "send one with POST /v1/checks")
    return check_answer(service, row) if row.state in FINISHED else JSONResponse(job_view(service, row))


def check_answer(service: Service, job: Job) -> Response:
    """The verdict."""
    if job.state == FAILED:
        raise job_problem(job)
    if job.state != DONE:
        raise NotReady(f"check {job.id}", f"it was {job.state}", "send the models again")
    found = json.loads((service.attempt(job) / worker.RESULT / "report.json").read_text(encoding="utf-8"))
    return JSONResponse({**job_view(service, job), "result": found})
