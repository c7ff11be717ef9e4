"""The client of a running service, for `egraft optimize --server URL`; nothing beyond the standard library."""

from __future__ import annotations

import http.client
import json
import os
import secrets
import shutil
import tempfile
import time
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlencode, urlsplit

from graphs.errors import EgraftError, InvalidModel, InvalidOption, MissingData, ValidationFailed
from graphs.onnx_io.files import replacing
from graphs.wording import counted

from .options import SPELLED, Options
from .places import print_left_out
from .progress import Event, Progress, terminal_progress

BLOCK = 1 << 20
POLL_SECONDS = 0.3
ENDED = ("done", "failed", "cancelled")


class ServiceUnreachable(EgraftError):
    """No service answers at the address of `--server`, or the connection broke."""

    code = "service-unreachable"
    title = "The service does not answer"
    http_status = 502


class RemoteError(EgraftError):
    """An error that the service answered, with the code that it has there."""

    code = "remote-error"
    title = "The service answered an error"

    def __init__(self, problem: Mapping[str, Any]) -> None:
        super().__init__(str(problem.get("where", "service")), str(problem.get("found", problem.get("detail", ""))),
                         str(problem.get("fix", "see the log of the service")))
        self.code = str(problem.get("code", "remote-error"))  # type: ignore[misc]
        failed = int(problem.get("status", 400)) >= 500 or self.code == ValidationFailed.code
        self.exit_status = 1 if failed else 2  # type: ignore[misc]


def optimize_remotely(server: str, model: Path, out: Path, options: Options, trace: Path | None, report: Path | None,
                      quiet: bool) -> int:
    """Send a model to a service and write what comes back, as the command (`optimize`, `grad`, ...) does here."""
    from .commands import save_report
    from .deriving.report import summary as derived
    from .report import summary
    from .result import write_text

    client = Client(server)
    with terminal_progress(quiet) as progress:
        job = client.submit(model, options)
        try:
            client.follow(job, progress)
        except KeyboardInterrupt:
            client.ask("DELETE", f"/v1/jobs/{job}")
            raise
    found = client.ask("GET", f"/v1/jobs/{job}/report")
    client.fetch_graph(job, out)
    if trace is not None:
        write_text(trace, json.dumps(client.ask("GET", f"/v1/jobs/{job}/trace"), indent=1, ensure_ascii=False) + "\n")
    if report is not None:
        save_report(found, report)
    if not quiet:
        print(derived(found) if "derivation" in found else summary(found))
        print_left_out(out)
        print(f"page       {client.url}/jobs/{job}")
    if options.strict and found.get("dropped"):
        raise ValidationFailed(str(model), f"{counted(len(found['dropped']), 'rewrite')} failed validation: dropped",
                               "see the report; without --strict the rest is kept")
    return 0


class Client:
    """Talks to one service."""

    def __init__(self, url: str, key: str | None = None) -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise InvalidOption(f"--server {url}", "not the address of a service", "write http://HOST:PORT")
        self.url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"
        self.secure, self.host, self.port = parts.scheme == "https", parts.hostname, port
        self.base = parts.path.rstrip("/")
        self.key = key if key is not None else os.environ.get("EGRAFT_API_KEY", "")

    # ------------------------------------------------------------ requests

    def open(self, method: str, path: str, body: Any = None,
             headers: Mapping[str, str] | None = None) -> http.client.HTTPResponse:
        """The response of a request; the error that it tells is raised."""
        kind = http.client.HTTPSConnection if self.secure else http.client.HTTPConnection
        connection = kind(self.host, self.port, timeout=600)  # sends an iterator in chunks where no header says how
        sent = {"Accept": "application/json", **(headers or {})}
        if self.key:
            sent["Authorization"] = f"Bearer {self.key}"
        try:
            connection.request(method, self.base + path, body=body, headers=sent)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the service may have answered before the body was whole: its answer says why
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from None
        try:
            response = connection.getresponse()
            if response.status >= 400:
                raise self._error(response)
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from None
        return response

    def ask(self, method: str, path: str) -> Any:
        """The JSON of a response."""
        with self.open(method, path) as response:
            try:
                return json.loads(response.read())
            except (json.JSONDecodeError, UnicodeDecodeError, OSError, http.client.HTTPException) as error:
                raise self._unreachable(error) from None

    def _unreachable(self, error: Exception) -> ServiceUnreachable:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return ServiceUnreachable(f"--server {self.url}", f"no egraft service answers there ({reason})",
                                  "start one with egraft serve and give the address that it prints")

    def _error(self, response: http.client.HTTPResponse) -> EgraftError:
        try:
            problem = json.loads(response.read())
        except (json.JSONDecodeError, UnicodeDecodeError):
            problem = None
        if not isinstance(problem, dict) or "code" not in problem:
            return ServiceUnreachable(f"--server {self.url}", f"HTTP status {response.status} without a problem "
                                      "document", "give the address of an egraft service")
        return RemoteError(problem)

    # ------------------------------------------------------------ a job

    def submit(self, model: Path, options: Options) -> str:
        """Send a model with its external data; the id of its job."""
        if options.timings is not None:
            raise InvalidOption("--timings", "the service has a timing database of its own", "leave it out")
        if not model.is_file():
            raise InvalidModel(str(model), "there is no such file", "check the path")
        files = [("data", name, model.parent / name) for name in external_files(model)]
        if options.inputs is not None:
            files.append(("inputs", "inputs.npz", Path(options.inputs)))
        for _, name, path in files:
            if not path.is_file():
                raise MissingData(str(model), f"the file {name!r} is missing", "put it beside the model")
        kind = [("kind", options.kind)] if options.kind != Options.kind else []
        query = urlencode([*kind, *query_of(options), ("name", model.name)])
        if not files:
            with model.open("rb") as body:
                job = self._post(query, body, {"Content-Type": "application/octet-stream",
                                               "Content-Length": str(model.stat().st_size)})
        else:
            boundary = secrets.token_hex(16)
            parts = multipart([("model", model.name, model), *files], boundary)
            job = self._post(query, parts, {"Content-Type": f"multipart/form-data; boundary={boundary}"})
        return job

    def _post(self, query: str, body: IO[bytes] | Iterator[bytes], headers: Mapping[str, str]) -> str:
        with self.open("POST", f"/v1/jobs?{query}", body, headers) as response:
            return str(json.loads(response.read())["id"])

    def follow(self, job: str, progress: Progress | None) -> None:
        """Wait until the job has ended; raises the problem of one that failed."""
        while True:
            found = self.ask("GET", f"/v1/jobs/{job}")
            told = found.get("progress")
            if told and progress is not None:
                progress(Event(told["stage"], told["progress"], told["seconds"], told["text"], told["best"]))
            if found["state"] in ENDED:
                break
            time.sleep(POLL_SECONDS)
        if found["state"] == "failed":
            raise RemoteError(found["problem"] or {})
        if found["state"] == "cancelled":
            raise RemoteError({"where": f"job {job}", "found": "it was cancelled", "fix": "send it again",
                               "code": "not-ready"})

    def fetch_graph(self, job: str, out: Path) -> None:
        """Write the result in the form that the suffix of `out` asks for, whole or not at all."""
        from graphs import load, save

        form = {".json": "/graph", ".txt": "/graph?form=text"}.get(out.suffix.lower(), "/model")
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as folder:
            fetched = Path(folder) / "fetched"
            with self.open("GET", f"/v1/jobs/{job}{form}") as response, fetched.open("wb") as file:
                shutil.copyfileobj(response, file, BLOCK)
                zipped = response.headers.get_content_type() == "application/zip"
            if not zipped:
                with fetched.open("rb") as source, replacing(out) as target:
                    shutil.copyfileobj(source, target, BLOCK)
                return
            with zipfile.ZipFile(fetched) as archive:
                archive.extractall(folder)
                main = next(name for name in archive.namelist() if name.endswith(".onnx"))
            save(load(Path(folder) / main), out)


def query_of(options: Options) -> list[tuple[str, str]]:
    """The options that differ from their defaults, as parameters of a request."""
    rows: list[tuple[str, str]] = []
    for name, value in options.model_dump(exclude_defaults=True, exclude={"timings", "inputs"}).items():
        if name in SPELLED:
            rows += [(SPELLED[name], f"{symbol}={','.join(map(str, sizes)) if isinstance(sizes, list) else sizes}")
                     for symbol, sizes in value.items()]
        elif isinstance(value, list):
            rows += [(name, str(item)) for item in value]
        else:
            rows.append((name, str(value).lower() if isinstance(value, bool) else str(value)))
    return rows


def external_files(model: Path) -> list[str]:
    """Relative names of the files that hold a model's external data."""
    import onnx
    from google.protobuf.message import DecodeError

    if model.suffix.lower() in (".json", ".txt"):
        return []
    try:
        proto = onnx.load(str(model), load_external_data=False)
    except DecodeError:
        return []  # the service says what is wrong with it
    found: dict[str, None] = {}
    _walk(proto, found)
    for name in found:
        if not (model.parent / name).resolve().is_relative_to(model.parent.resolve()):
            raise MissingData(str(model), f"the path of its external data, {name!r}, leads outside the model's folder",
                              "put the file beside the model")
    return list(found)


def _walk(message: Any, found: dict[str, None]) -> None:
    """Collect the locations of all tensors below a message."""
    from onnx import TensorProto

    if isinstance(message, TensorProto):
        if message.data_location == TensorProto.EXTERNAL:
            found.update({entry.value: None for entry in message.external_data if entry.key == "location"})
        return
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        for item in value if _is_list(value) else [value]:
            _walk(item, found)


def _is_list(value: Any) -> bool:
    return isinstance(value, Iterable) and not hasattr(value, "ListFields")


def multipart(files: list[tuple[str, str, Path]], boundary: str) -> Iterator[bytes]:
    """The body of a multipart request, block by block."""
    for field, name, path in files:
        yield (f'--{boundary}\r\nContent-Disposition: form-data; name="{field}"; filename="{_quoted(name)}"\r\n'
               "Content-Type: application/octet-stream\r\n\r\n").encode()
        with path.open("rb") as file:
            while block := file.read(BLOCK):
                yield block
        yield b"\r\n"
    yield f"--{boundary}--\r\n".encode()


def _quoted(name: str) -> str:
    return name.replace("\\", "\\\\").replace('"', '\\"')
