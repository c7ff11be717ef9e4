"""`/healthz`, `/readyz`, `/metrics`: for those who run the service."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter
from sqlalchemy.exc import SQLAlchemyError
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from .service import Service, service_of

router = APIRouter(tags=["operations"])
LEAST_DISK = 64 << 20


@router.get("/healthz")
def healthz() -> dict[str, str]:
    """The process answers."""
    return {"status": "ok", "egraft": version("egraft")}


@router.get("/readyz", responses={503: {"description": "jobs cannot be taken"}})
def readyz(request: Request) -> Response:
    """Jobs can be taken: the store answers, the disk has room, the workers stand by."""
    checks = ready(service_of(request))
    fit = all(value == "ok" for value in checks.values())
    return JSONResponse({"status": "ok" if fit else "unavailable", "checks": checks}, 200 if fit else 503)


def ready(service: Service) -> dict[str, str]:
    """Check -> `ok` or what is wrong."""
    checks: dict[str, str] = {}
    try:
        waiting = service.store.counts()["queued"]
        checks["store"] = "ok"
        checks["queue"] = "ok" if waiting < service.settings.max_queue else f"{waiting} jobs wait"
    except SQLAlchemyError as error:
        checks["store"] = type(error).__name__
    free = shutil.disk_usage(service.settings.data).free
    checks["disk"] = "ok" if free > LEAST_DISK else f"{free} bytes free"
    checks["workers"] = "ok" if service.supervisor.alive else "a worker thread ended"
    return checks


@router.get("/metrics", response_class=PlainTextResponse)
def metrics(request: Request) -> Response:
    """Counters in the text format of Prometheus."""
    return PlainTextResponse("\n".join(metric_lines(service_of(request))) + "\n",
                             media_type="text/plain; version=0.0.4; charset=utf-8")


def metric_lines(service: Service) -> Iterable[str]:
    """All metrics as text lines."""
    supervisor = service.supervisor
    yield from _metric("egraft_jobs", "gauge", "Jobs in the store by state.",
                       {f'state="{state}"': count for state, count in service.store.counts().items()})
    yield from _metric("egraft_jobs_ended_total", "counter", "Jobs that ended since the start.",
                       {f'state="{state}"': count for state, count in sorted(supervisor.ended.items())})
    yield from _metric("egraft_workers_running", "gauge", "Worker processes.", {"": len(supervisor.processes)})
    yield from _metric("egraft_workers", "gauge", "Jobs that may run at the same time.",
                       {"": service.settings.workers})
    yield from _metric("egraft_worker_seconds_total", "counter", "Seconds that workers ran.",
                       {"": round(supervisor.busy_seconds, 3)})
    yield from _metric("egraft_http_responses_total", "counter", "Responses by method and status.",
                       {f'method="{method}",status="{status}"': count
                        for (method, status), count in sorted(service.responses.items())})
    yield from _metric("egraft_uptime_seconds", "gauge", "Seconds since the start.",
                       {"": round(time.time() - service.started, 3)})


def _metric(name: str, kind: str, text: str, values: Mapping[str, Any]) -> Iterable[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"
    for labels, value in values.items():
        yield f"{name}{{{labels}}} {value}" if labels else f"{name} {value}"
