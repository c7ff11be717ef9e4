"""Every error with an example and how to fix it: the page `/docs/errors`, and the file docs/errors.md."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module

# Modules that declare errors besides graphs.errors.
MODULES = ("graphs.zoo.packages", "optimizer.engines", "optimizer.remote")

# code -> (what was found, where and how it reads; what to do)
EXAMPLES: dict[str, tuple[str, str]] = {
    "error": ("egraft: error[error]: m.onnx: something that has no class of its own; ...",
              "Read `found` and `fix`: they say what happened."),
    "invalid-model": (
        "egraft: error[invalid-model]: m.onnx: this is no ONNX model, or it is cut short (truncated); ...",
        "Check that the upload is complete (`onnx.checker.check_model`), and export the model anew if it is not. For a "
        "cycle, or a value that is written twice, `where` names the node."),
    "unreadable-file": (
        "egraft: error[unreadable-file]: m.onnx: the file cannot be read (No such file or directory); check the path",
        "Give the path of a file that is there and that you may read."),
    "missing-data": (
        "egraft: error[missing-data]: m.onnx: tensor 'w': its external data 'm.onnx.data' is missing; put the file "
        "beside the model",
        "Put the file beside the model. Over HTTP send a multipart body: the part `model`, and each file of external "
        "data under the relative name that the model uses: `curl -F model=@m.onnx -F data=@m.onnx.data ...`."),
    "invalid-option": (
        "egraft: error[invalid-option]: --precision: 'fast': Input should be 'exact', 'rounding', 'finite' or "
        "'approximate'; see egraft optimize --help",
        "Give a value that the message names; `egraft optimize --help` and `/docs` list all options."),
    "invalid-input": (
        "egraft: error[invalid-input]: input 'ids': float32 where int64 is expected; ...",
        "Give arrays with the names, dtypes and ranks of the model's inputs (an .npz written by `numpy.savez`)."),
    "parse-error": (
        "egraft: error[parse-error]: line 3, column 7: ...",
        "Correct the text or JSON at that place; docs/architecture.md shows the text form of graphs."),
    "ill-typed": (
        "egraft: error[ill-typed]: node 'add_3' (Add): float32[2, 3] and float32[4] do not broadcast; ...",
        "The model contradicts the ONNX standard at this node: correct it, or export it again. So does a window of "
        "a pool or convolution that is longer than its padded input, where ONNX's formula counts no windows, or a "
        "negative number, and ONNX Runtime may count one: give larger sizes."),
    "not-executable": (
        "egraft: error[not-executable]: node 'x' (my.domain.Foo): there is no kernel for it; ...",
        "Optimize with `--target onnxruntime:cpu`, or take the operator out of the model."),
    "not-differentiable": (
        "egraft: error[not-differentiable]: NonMaxSuppression 'boxes': it has no gradient row (...); ...",
        "Differentiate by values that do not reach the output through this node, or express it by other operators."),
    "execution-failed": (
        "egraft: error[execution-failed]: node 'r' (Reshape): 12 elements do not fit [5, -1]; ...",
        "Give sizes (`--dim batch=2`) or inputs (`--inputs FILE.npz`) that the model can run with. On a GPU: smaller "
        "inputs, or `egraft:cpu`."),
    "target-unavailable": (
        "egraft: error[target-unavailable]: --target: onnxruntime:cuda is not available here (...); ...",
        "`egraft targets` or `GET /v1/targets` says which targets this machine has and why others are missing."),
    "frozen-miss": (
        "egraft: error[frozen-miss]: MatMul ...: the timing database has no record; ...",
        "Run once without `--frozen` to fill the timing database, or import one (`egraft timings import`). Where "
        "the file is not there or damaged, `found` says so: name another one, or start anew by a run without it."),
    "validation-failed": (
        "egraft: error[validation-failed]: m.onnx: 1 rewrite failed validation: dropped; ...",
        "A defect of a rule: please report it. Without `--strict` the other rewrites are kept."),
    "search-failed": (
        "egraft: error[search-failed]: saturation: the search process died (status -9); ...",
        "Lower the effort (`--effort low`), or give the machine more memory."),
    "model-unavailable": (
        "egraft: error[model-unavailable]: zoo model 'magika': it cannot be fetched; ...",
        "Connect to a package index, or use a model that is built: `graphs.zoo.names(trained=False)`."),
    "bad-request": (
        '{"code": "bad-request", "where": "body", "found": "it has no part \'model\'", ...}',
        "Send the bytes of a model as the body, or a multipart body with the file part `model`. File names of parts "
        "are relative and may not lead outside the upload."),
    "unauthorized": (
        '{"code": "unauthorized", "where": "Authorization", "found": "no API key, or a wrong one", ...}',
        "Send `Authorization: Bearer KEY`; `egraft optimize --server` takes the key from EGRAFT_API_KEY. Browsers ask: "
        "any name, the key as password."),
    "forbidden": (
        '{"code": "forbidden", "where": "host \'example.org\'", ...}',
        "A service without an API key answers to this machine only. Start it with EGRAFT_API_KEY, or name further "
        "hosts in EGRAFT_HOSTS."),
    "not-found": (
        '{"code": "not-found", "where": "job \'abc\'", "found": "there is no such job", ...}',
        "`GET /v1/jobs` lists the jobs, `/docs` all addresses."),
    "method-not-allowed": (
        '{"code": "method-not-allowed", "where": "PUT /v1/jobs", ...}',
        "`/docs` says which methods an address knows."),
    "not-ready": (
        '{"code": "not-ready", "where": "job 6a...", "found": "it is running", ...}',
        "Follow `/v1/jobs/ID/events`, or send the job with `?wait=SECONDS`."),
    "too-large": (
        '{"code": "too-large", "where": "body", "found": "more than 2147483648 bytes", ...}',
        "Send a smaller model, or start the service with a larger EGRAFT_MAX_UPLOAD."),
    "invalid-request": (
        '{"code": "invalid-request", "where": "limit", "found": "\'0\': Input should be greater than ...", ...}',
        "Give the parameter a value in its range; see `/docs`."),
    "limit-reached": (
        '{"code": "limit-reached", "where": "job", "found": "it took longer than 3600 s", ...}',
        "Lower the effort or give `timeout`; or start the service with larger EGRAFT_JOB_SECONDS, EGRAFT_JOB_MEMORY."),
    "queue-full": (
        '{"code": "queue-full", "where": "job", "found": "1000 jobs wait", ...}',
        "Send it again later (`Retry-After`), or start the service with a larger EGRAFT_MAX_QUEUE."),
    "storage-full": (
        '{"code": "storage-full", "where": "/v1/jobs", "found": "no room is left on the disk of the service", ...}',
        "Remove jobs that nobody needs (`DELETE /v1/jobs/ID?purge=true`), or give the data folder a larger disk; "
        "`/readyz` tells beforehand."),
    "worker-died": (
        '{"code": "worker-died", "where": "job", "found": "its process was killed by SIGKILL (attempt 2)", ...}',
        "After SIGKILL memory ran out, most often: lower the effort, or use a larger machine. Another signal or status "
        "is a defect: please report it, with `worker.log` in the folder of the job. The service goes on."),
    "internal": (
        '{"code": "internal", "where": "job", "found": "ValueError: ...", ...}',
        "A defect of egraft: please report it, with `worker.log` in the folder of the job."),
    "process-died": (
        "egraft: error[process-died]: zoo/m.onnx: its process ended with status -9; ...",
        "Most often memory ran out (`egraft zoo --workers 1`, a lower effort, a larger machine). The other models of "
        "the folder are done all the same."),
    "remote-error": (
        "egraft: error[remote-error]: service: ...",
        "The service answered an error; its own code stands in place of `remote-error` wherever it gave one."),
    "service-unreachable": (
        "egraft: error[service-unreachable]: --server http://127.0.0.1:8000: no service answers (refused); ...",
        "Start one with `egraft serve`, and give the address that it prints."),
}  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """One error for readers."""

    code: str
    title: str
    text: str
    http_status: int
    exit_status: int
    example: str
    fix: str


def entries() -> Iterator[Entry]:
    """All errors by code; one without an example shows none."""
    for module in MODULES:
        import_module(module)
    from .errors import all_errors

    for each in all_errors():
        example, fix = EXAMPLES.get(each.code, ("", "Read `found` and `fix`."))
        first = (inspect.getdoc(each) or each.title).split("\n\n")[0]
        yield Entry(each.code, each.title, " ".join(first.split()), each.http_status, each.exit_status, example, fix)


HEAD = """# Errors

<!-- Written by `python -m server.error_catalogue > docs/errors.md`; change server/error_catalogue.py instead. -->

An error says where it is, what was found, and how to fix it. The command line prints it as one line on standard
error, `egraft: error[CODE]: where: what was found; how to fix`, without a traceback and without leaving an output
file behind. The service answers the same fields as a problem document (RFC 9457, `application/problem+json`):

```json
{"type": "/docs/errors#CODE", "title": "...", "status": 400, "detail": "found; fix",
 "code": "CODE", "where": "...", "found": "...", "fix": "..."}
```

A running service shows this page at `/docs/errors`, where the `type` of each problem document leads.
"""


def markdown() -> str:
    """The file docs/errors.md."""
    parts = [HEAD]
    for entry in entries():
        parts.append(f"\n## {entry.code}\n\n{entry.title}. {entry.text}\nHTTP status {entry.http_status}, exit status "
                     f"{entry.exit_status}.\n\n```\n{entry.example}\n```\n\n{entry.fix}\n")
    return "".join(parts)


if __name__ == "__main__":
    print(markdown(), end="")
