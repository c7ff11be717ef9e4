"""Errors that only the service has; like all others they carry code, where, found, fix (`graphs.errors`)."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Any

from sqlalchemy.exc import OperationalError

from graphs.errors import EgraftError


class BadRequest(EgraftError):
    """The request itself cannot be read: no body, a broken multipart, a part with an impossible name."""

    code = "bad-request"
    title = "The request cannot be read"


class Unauthorized(EgraftError):
    """The service has an API key, and the request did not bring it."""

    code = "unauthorized"
    title = "The API key is missing or wrong"
    http_status = 401


class Forbidden(EgraftError):
    """A service without an API key was called under a foreign host name, or by a page of another site."""

    code = "forbidden"
    title = "The request comes from elsewhere"
    http_status = 403


class NotFound(EgraftError):
    """No such job, step, rule or address."""

    code = "not-found"
    title = "There is nothing at this address"
    http_status = 404


class MethodNotAllowed(EgraftError):
    """The address does not know this method."""

    code = "method-not-allowed"
    title = "The address does not know this method"
    http_status = 405


class NotReady(EgraftError):
    """The result is asked for before the job is done, or the job was cancelled."""

    code = "not-ready"
    title = "The job has no result"
    http_status = 409


class TooLarge(EgraftError):
    """The upload is larger than the service takes."""

    code = "too-large"
    title = "The upload is too large"
    http_status = 413


class InvalidRequest(EgraftError):
    """A parameter of the address is out of range."""

    code = "invalid-request"
    title = "A parameter of the request is not possible"
    http_status = 422


class LimitReached(EgraftError):
    """The job needs more memory or time than the service gives to one job."""

    code = "limit-reached"
    title = "The job reached a limit of the service"
    http_status = 422


class QueueFull(EgraftError):
    """Too many jobs wait."""

    code = "queue-full"
    title = "Too many jobs wait"
    http_status = 503


class StorageFull(EgraftError):
    """The disk of the service (or its database) has no room for an upload or a result."""

    code = "storage-full"
    title = "The service has no room left"
    exit_status = 1
    http_status = 507


class WorkerDied(EgraftError):
    """The worker process of the job was killed or crashed."""

    code = "worker-died"
    title = "The worker of the job died"
    exit_status = 1
    http_status = 500


class InternalError(EgraftError):
    """A defect of egraft."""

    code = "internal"
    title = "egraft failed"
    exit_status = 1
    http_status = 500


class Problem(EgraftError):
    """A problem document that was stored, as an error again."""

    def __init__(self, document: dict[str, Any]) -> None:
        super().__init__(str(document.get("where", "job")), str(document.get("found", "it failed")),
                         str(document.get("fix", "see the log of the service")))
        self.document = document

    def problem(self) -> dict[str, str | int]:
        """The document as it was stored."""
        return self.document


def storage_full(error: BaseException | None, where: str) -> StorageFull | None:
    """The error to tell where it comes of a full disk, also if another one was made of it; None elsewhere."""
    while error is not None:
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        if full or (isinstance(error, OperationalError) and "disk is full" in str(error)):
            return no_room(where)
        error = error.__cause__ or error.__context__
    return None


def no_room(where: str) -> StorageFull:
    """The error of a full disk."""
    return StorageFull(where, "no room is left on the disk of the service",
                       "remove old jobs (DELETE /v1/jobs/ID?purge=true), or give it a larger disk")


def all_errors() -> Iterator[type[EgraftError]]:
    """Every error class that users can meet, by code."""
    def below(parent: type[EgraftError]) -> Iterator[type[EgraftError]]:
        for child in parent.__subclasses__():
            yield child
            yield from below(child)

    found: dict[str, type[EgraftError]] = {EgraftError.code: EgraftError}
    for each in below(EgraftError):
        if each is not Problem:
            found.setdefault(each.code, each)
    yield from (found[code] for code in sorted(found))


