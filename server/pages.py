"""Pages for people: the list of jobs, a job with its report and trace, the reference of the API."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import HTMLResponse

from . import worker
from .batches import batch_view, find
from .error_catalogue import entries
from .options import MODELS
from .pages_render import render_page
from .service import Service, service_of
from .store import DONE, FINISHED, RUNNING, Job
from .views import Before, progress

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)
STEPS = 100  # on one page
ROWS = 50


@router.get("/")
def index(request: Request, before: Before = None) -> HTMLResponse:
    """The list of jobs."""
    service = service_of(request)
    rows = service.store.page(ROWS + 1, before, kinds=MODELS)
    return HTMLResponse(render_page("index.html", jobs=[(row, progress(service, row)) for row in rows[:ROWS]],
                                    next=rows[ROWS - 1].number if len(rows) > ROWS else None,
                                    alive=any(row.state not in FINISHED for row in rows)))


@router.get("/batches")
def batches_page(request: Request, before: Before = None) -> HTMLResponse:
    """The list of batches."""
    store = service_of(request).store
    rows = store.batches(ROWS + 1, before)
    views = [batch_view(row, store.members(row.id)) for row in rows[:ROWS]]
    return HTMLResponse(render_page("batches.html", batches=views,
                                    next=rows[ROWS - 1].number if len(rows) > ROWS else None,
                                    alive=any(view["state"] not in FINISHED for view in views)))


@router.get("/batches/{batch}")
def batch_page(request: Request, batch: str) -> HTMLResponse:
    """One batch: a row for each of its models."""
    service = service_of(request)
    row = find(service, batch)
    jobs = service.store.members(row.id)
    running = {job.id: progress(service, job) for job in jobs if job.state == RUNNING}
    view = batch_view(row, jobs)
    return HTMLResponse(render_page("batch.html", batch=view, jobs=[(job, running.get(job.id)) for job in jobs],
                                    alive=view["state"] not in FINISHED))


@router.get("/jobs/{job}")
def job_page(request: Request, job: str, rule: Annotated[str, Query(max_length=200)] = "",
             start: Annotated[int, Query(ge=0)] = 0) -> HTMLResponse:
    """One job."""
    service = service_of(request)
    row = service.job(job)
    report, trace = results(service, row)
    steps = [step for step in trace.get("steps", ()) if rule.lower() in step["rule"].lower()]
    return HTMLResponse(render_page(
        "job.html", job=row, progress=progress(service, row), report=report, rule=rule, start=start, size=STEPS,
        found=len(steps), steps=steps[start:start + STEPS], total=len(trace.get("steps", ())),
        curve=cost_curve(trace.get("steps", ())), refusals=refusal_rows(trace.get("refusals") or {}, rule),
        alive=row.state not in FINISHED))


def results(service: Service, job: Job) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """Report and trace of a job that is done."""
    folder = service.attempt(job) / worker.RESULT
    if job.state != DONE or not (folder / "report.json").is_file():
        return None, {}
    return (json.loads((folder / "report.json").read_text(encoding="utf-8")),
            json.loads((folder / "trace.json").read_text(encoding="utf-8")))


def refusal_rows(refusals: dict[str, Any], rule: str) -> list[tuple[str, str, int, Any]]:
    """Rule, reason, count and a place, for rules that did not fire."""
    return [(name, reason, row["count"], row.get("where", ""))
            for name, reasons in sorted(refusals.items()) if rule.lower() in name.lower()
            for reason, row in reasons.items()][:200]


def cost_curve(steps: Any) -> str:
    """Points of a polyline (600 x 80) of the predicted cost over the steps; empty where costs are not known."""
    costs = [step.get("cost_after") for step in steps]
    first = next((step.get("cost_before") for step in steps if step.get("cost_before") is not None), None)
    known = [first, *costs] if first is not None else costs
    if len(known) < 2 or any(not isinstance(cost, int | float) for cost in known):
        return ""
    most = max(known) or 1.0
    return " ".join(f"{600 * index / (len(known) - 1):.1f},{78 - 74 * cost / most:.1f}"
                    for index, cost in enumerate(known))


@router.get("/docs")
def docs(request: Request) -> HTMLResponse:
    """The API, from its OpenAPI description; nothing is fetched from elsewhere."""
    schema = request.app.openapi()
    calls = [{"method": method.upper(), "path": path, **call}
             for path, methods in schema["paths"].items() for method, call in methods.items()]
    return HTMLResponse(render_page("docs.html", calls=calls, version=schema["info"]["version"]))


@router.get("/docs/errors")
def errors() -> HTMLResponse:
    """All errors, each with an example and how to fix it."""
    return HTMLResponse(render_page("errors.html", entries=list(entries())))
