"""The application: routes, errors, guard, and the service behind them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from . import batches, jobs, operations, pages, problems, reference
from .guard import Guard
from .service import Service
from .settings import Settings

DESCRIPTION = """Send a tensor graph, get an equivalent one that runs faster, with a measured report and a trace of
every rewrite. Errors are problem documents (RFC 9457) with `code`, `where`, `found` and `fix`; see /docs/errors."""


def create_app(data: Path | str | Settings, **settings: Any) -> FastAPI:
    """The application over a data folder; `settings` are fields of `server.settings.Settings`."""
    chosen = data if isinstance(data, Settings) else Settings(Path(data), **settings)
    service = Service(chosen)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        if not service.opened:
            service.open()
        try:
            yield
        finally:
            service.close()

    app = FastAPI(title="egraft", version=version("egraft"), description=DESCRIPTION, lifespan=lifespan,
                  docs_url=None, redoc_url=None, openapi_url="/openapi.json")
    app.state.service = service
    for router in (jobs.router, jobs.checks, batches.router, reference.router, operations.router, pages.router):
        app.include_router(router)
    problems.install(app)
    app.add_middleware(Guard, service=service)
    return app
