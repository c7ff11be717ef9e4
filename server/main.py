"""`egraft serve`: the service on an address, until SIGTERM or SIGINT."""

from __future__ import annotations

import logging
import signal
import socket
import sys
from pathlib import Path
from types import FrameType

import structlog
import uvicorn

from graphs.errors import InvalidOption

from .app import create_app
from .guard import is_loopback
from .service import Service
from .settings import Settings

GRACE_SECONDS = 5


class _Server(uvicorn.Server):
    """Ends event streams and waiting requests as soon as it shall stop; else it would wait for them."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self.service = service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.service.supervisor.stopping.set()
        super().handle_exit(sig, frame)


def serve(host: str = "127.0.0.1", port: int = 8000, data: Path | None = None) -> int:
    """Run the service; prints its address when it listens. Raises InvalidOption."""
    settings = Settings.from_environment(data)
    if not is_loopback(host) and settings.api_key is None:
        raise InvalidOption("--host", f"{host!r} can be reached from other machines, and there is no API key",
                            "set EGRAFT_API_KEY, or serve on 127.0.0.1")
    _log_to_stderr()
    with _listen(host, port) as listener:
        app = create_app(settings)
        service: Service = app.state.service
        service.open()
        at = listener.getsockname()
        shown = f"[{at[0]}]" if ":" in at[0] else at[0]
        print(f"egraft serves at http://{shown}:{at[1]} (data in {settings.data})", flush=True)
        config = uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=GRACE_SECONDS,
                                server_header=False, proxy_headers=False)
        server = _Server(config, service)
        # uvicorn raises the signal that ended it once more at the end: then it meets this handler.
        before = signal.signal(signal.SIGTERM, server.handle_exit)
        try:
            server.run(sockets=[listener])
        except KeyboardInterrupt:
            return 130
        finally:
            service.close()
            signal.signal(signal.SIGTERM, before)
    return 0


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise InvalidOption(f"--host {host} --port {port}", f"the address cannot be used ({error.strerror})",
                            "choose another port; 0 picks a free one") from None
    return listener


def _log_to_stderr() -> None:
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    structlog.configure(
        processors=[structlog.processors.add_log_level, structlog.processors.TimeStamper(fmt="iso"),
                    structlog.processors.format_exc_info, structlog.processors.JSONRenderer(ensure_ascii=False)],
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr))
