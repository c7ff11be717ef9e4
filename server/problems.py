"""Every error as an RFC 9457 problem document; as a small page for browsers."""

from __future__ import annotations

import structlog
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from graphs.errors import EgraftError

from .errors import (
    BadRequest,
    InternalError,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    Problem,
    QueueFull,
    storage_full,
)
from .pages_render import render_page

log = structlog.get_logger("egraft.server")
MEDIA_TYPE = "application/problem+json"


def problem_response(error: EgraftError, request: Request | None = None) -> Response:
    """The response of an error."""
    document = error.problem()
    status = int(document["status"])
    headers = {"Retry-After": "30"} if isinstance(error, QueueFull) else {}
    if request is not None and not request.url.path.startswith("/v1/") and _is_browser(request):
        return Response(render_page("error.html", problem=document), status, headers, "text/html")
    return JSONResponse(document, status, headers, MEDIA_TYPE)


def _is_browser(request: Request) -> bool:
    return "text/html" in request.headers.get("accept", "")


def install(app: FastAPI) -> None:
    """Register all handlers."""

    @app.exception_handler(EgraftError)
    async def _(request: Request, error: EgraftError) -> Response:
        return problem_response(error, request)

    @app.exception_handler(HTTPException)
    async def _(request: Request, error: HTTPException) -> Response:
        return problem_response(_http_error(request, error), request)

    @app.exception_handler(RequestValidationError)
    async def _(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"][1:]) or "request"
        return problem_response(InvalidRequest(where, f"{first.get('input')!r}: {first['msg']}", "see /docs"), request)

    @app.exception_handler(ClientDisconnect)
    async def _(request: Request, error: ClientDisconnect) -> Response:
        return problem_response(BadRequest("body", "the client went away", "send it again"))

    @app.exception_handler(OSError)
    @app.exception_handler(SQLAlchemyError)
    async def _(request: Request, error: Exception) -> Response:
        full = storage_full(error, request.url.path[:200])
        if full is None:
            raise error  # a defect, or a disk that fails: the handler below
        log.warning("no room left", path=request.url.path)
        return problem_response(full, request)

    @app.exception_handler(Exception)
    async def _(request: Request, error: Exception) -> Response:
        log.error("request failed", path=request.url.path, error=repr(error))
        return problem_response(InternalError(request.url.path, type(error).__name__,
                                              "this is a defect of egraft, see the log of the service"), request)


def _http_error(request: Request, error: HTTPException) -> EgraftError:
    if error.status_code == 404:
        return NotFound(request.url.path[:200], "there is nothing at this address", "see /docs")
    if error.status_code == 405:
        return MethodNotAllowed(f"{request.method} {request.url.path[:200]}", "the address does not know this method",
                                "see /docs")
    return Problem({**BadRequest(request.url.path[:200], str(error.detail), "see /docs").problem(),
                    "status": error.status_code})
