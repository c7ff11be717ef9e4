"""What all requests share: settings, store, supervisor, counters."""

from __future__ import annotations

import fcntl
import os
import time
from collections import Counter
from pathlib import Path

from fastapi import FastAPI
from starlette.requests import Request

from graphs.errors import InvalidOption

from .errors import NotFound
from .settings import Settings
from .store import Job, Store
from .supervisor import Supervisor


class Service:
    """One running service over one data folder."""

    store: Store
    supervisor: Supervisor

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.started = time.time()
        self.responses: Counter[tuple[str, int]] = Counter()
        self.opened = False
        self._lock: int | None = None

    def open(self) -> None:
        """Take the data folder, resume its jobs, start working. Raises InvalidOption."""
        data = self.settings.data
        try:
            data.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = os.open(data / "lock", os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.store = Store(data, self.settings.database_url)
        except BlockingIOError:
            raise InvalidOption("--data", f"another service works in {str(data)!r}",
                                "stop it, or give another folder") from None
        except OSError as error:
            raise InvalidOption("--data", f"{str(data)!r} cannot be used ({error.strerror})",
                                "give a folder that can be written") from None
        self.store.sweep()
        self.supervisor = Supervisor(self.store, self.settings)
        self.supervisor.start()
        self.opened = True

    def close(self) -> None:
        """Stop working; what ran waits for the next start."""
        if self.opened:
            self.opened = False
            self.supervisor.stop()
            self.store.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def job(self, name: str) -> Job:
        """A job by its id. Raises NotFound."""
        job = self.store.get(name)
        if job is None:
            raise NotFound(f"job {name[:80]!r}", "there is no such job", "list them with GET /v1/jobs")
        return job

    def attempt(self, job: Job) -> Path:
        """The folder of results of a job."""
        return self.store.folder(job.id) / "attempt"


def service_of(request: Request) -> Service:
    """The service that a request came to."""
    app: FastAPI = request.app
    service = app.state.service
    assert isinstance(service, Service)
    return service
