"""Who may call: an API key where one is set; without one only this machine, under its own names."""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from graphs.errors import EgraftError

from .errors import Forbidden, Unauthorized
from .problems import problem_response
from .service import Service

OPEN = ("/healthz", "/readyz")
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


class Guard:
    """ASGI middleware: checks each request, counts each response."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app, self.service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        method = scope["method"] if scope["method"] in METHODS else "other"

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.service.responses[method, message["status"]] += 1
                message["headers"] = [*message["headers"], (b"x-content-type-options", b"nosniff")]
            await send(message)

        error = self.refusal(scope)
        if error is None:
            await self.app(scope, receive, counted)
            return
        response = problem_response(error, Request(scope))
        if isinstance(error, Unauthorized):
            response.headers["WWW-Authenticate"] = 'Basic realm="egraft: any name, the API key as password"'
        await response(scope, receive, counted)

    def refusal(self, scope: Scope) -> EgraftError | None:
        """Why a request is not let in; None if it is."""
        headers = Headers(scope=scope)
        key = self.service.settings.api_key
        if key is None:
            host = _host(headers.get("host", ""))
            if not is_loopback(host) and host not in self.service.settings.hosts:
                return Forbidden(f"host {host[:80]!r}", "a service without an API key answers to this machine only",
                                 "call it as 127.0.0.1 or localhost, or set EGRAFT_API_KEY")
        elif scope["path"] not in OPEN and not hmac.compare_digest(_key(headers).encode(), key.encode()):
            return Unauthorized("Authorization", "no API key, or a wrong one",
                                "send the header `Authorization: Bearer KEY`")
        origin = headers.get("origin")
        if origin and origin != "null" and _netloc(origin) != headers.get("host", ""):
            return Forbidden(f"origin {origin[:80]!r}", "pages of other sites may not call the service",
                             "call it from a program, or from its own pages")
        return None


def _host(header: str) -> str:
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:  # half an IPv6 address
        return ""


def _netloc(origin: str) -> str:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


def is_loopback(host: str) -> bool:
    """True for names and addresses of this machine itself."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _key(headers: Headers) -> str:
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(value, validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return ""
    return headers.get("x-api-key", "")
