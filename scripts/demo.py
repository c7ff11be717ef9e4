"""`make demo`: start the service, optimize a 12-layer BERT and a trained model through its REST API, print the reports.

The timing database of the user's cache is used and filled: a second run is faster. `--fresh` starts with an empty one.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from graphs import Graph, load, save, zoo
from graphs.errors import EgraftError
from graphs.wording import counted
from optimizer.options import Options
from optimizer.remote import Client
from optimizer.report import medians_text, ratio_text, unused_because
from runtime.feeds import input_symbols

BUILT, TRAINED = "bert-12", "ppocr-cls"
START_SECONDS = 60.0
WHY_THEY_DIFFER = ("predicted adds up nodes measured alone, measured runs the whole model, where the runtime fuses "
                   "nodes and caches are shared: they may differ")


class Service:
    """`egraft serve` on a free port, with a data folder that lives as long as the demo."""

    def __init__(self, folder: Path, timings: Path | None) -> None:
        environment = dict(os.environ)
        environment.pop("EGRAFT_API_KEY", None)
        if timings is not None:
            environment["EGRAFT_TIMINGS"] = str(timings)
        self.log = folder / "service.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "egraft", "serve", "--port", "0", "--data", str(folder / "data")],
                stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.url = next((word for word in line.split() if word.startswith("http://")), "")
        if not self.url:
            self.stop()
            raise SystemExit(f"the service did not start:\n{self.log.read_text(encoding='utf-8', errors='replace')}")

    def stop(self) -> None:
        """End it gracefully, or after 15 s without grace."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def main(arguments: list[str] | None = None) -> int:
    """Exit status 0 if every model was optimized."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("models", nargs="*", help=f"zoo names or ONNX files (default: {BUILT} {TRAINED})")
    parser.add_argument("--target", default="auto")
    parser.add_argument("--effort", default="normal", choices=["low", "normal", "high"])
    parser.add_argument("--fresh", action="store_true", help="with an empty timing database")
    parser.add_argument("--keep", action="store_true", help="leave the service running until Ctrl-C")
    chosen = parser.parse_args(arguments)
    options = Options(target=chosen.target, effort=chosen.effort)
    with tempfile.TemporaryDirectory(prefix="egraft-demo-") as name:
        folder = Path(name)
        service = Service(folder, folder / "timings.db" if chosen.fresh else None)
        try:
            print(f"service    {service.url}  (data in a temporary folder)\n")
            done = [show(service.url, model, options, folder) for model in chosen.models or [BUILT, TRAINED]]
            end(service, all(done), chosen.keep)
        except KeyboardInterrupt:
            return 130
        finally:
            service.stop()
    return 0 if all(done) else 1


def end(service: Service, fine: bool, keep: bool) -> None:
    """Say how to go on; with `keep` wait for Ctrl-C."""
    print("every model was optimized" if fine else "not every model was optimized: see above")
    if keep:
        print(f"the service goes on at {service.url} until Ctrl-C")
        service.process.wait()
    print("the service of the demo and its pages end now; `.venv/bin/python -m scripts.demo --keep` runs the demo and "
          "keeps them, `make serve` starts a service that stays")


def show(url: str, name: str, options: Options, folder: Path) -> bool:
    """Optimize one model through the service and print what came of it; False if it failed."""
    try:
        path, text = model_file(name, folder)
    except EgraftError as error:
        print(f"{name}: left out, the model is not here: {error}\n")
        return False
    print(f"{name}: {text}, {path.stat().st_size / 1e6:.1f} MB")
    client = Client(url)
    began = time.monotonic()
    try:
        job = client.submit(path, with_dims(options, name, path))
        view = follow(client, job)
    except EgraftError as error:
        print(f"  failed     {error}\n")
        return False
    if view["state"] != "done":
        problem = view["problem"] or {}
        print(f"  {view['state']:10} {problem.get('where')}: {problem.get('found')}; {problem.get('fix')}\n")
        return False
    report = client.ask("GET", f"/v1/jobs/{job}/report")
    print(f"  started    {view['started']}")
    for line in lines(report, view["summary"]):
        print(f"  {line}")
    print(f"  took       {time.monotonic() - began:.1f} s with the upload")
    print(f"  page       {url}/jobs/{job}")
    print(f"  trace      {url}/jobs/{job}#trace  (JSON: {url}/v1/jobs/{job}/trace)\n")
    return True


def model_file(name: str, folder: Path) -> tuple[Path, str]:
    """The ONNX file of a model of the zoo (or the file itself), and what it is."""
    if Path(name).is_file():
        return Path(name), "a file"
    about = zoo.describe(name)
    if about.trained:
        return zoo.fetch(name), f"{about.text} (trained, package {about.package})"
    path = folder / f"{name}.onnx"
    graph: Graph = zoo.build(name)
    save(graph, path)
    return path, about.text


def with_dims(options: Options, name: str, path: Path) -> Options:
    """The options with the sizes at which a model of the zoo is usually measured."""
    if Path(name).is_file():
        return options
    symbols = set(input_symbols(load(path)))
    dims = {symbol: [size] for symbol, size in zoo.describe(name).dims.items() if symbol in symbols}
    return options.model_copy(update={"dims": dims})


# ---------------------------------------------------------------- progress


def follow(client: Client, job: str) -> dict[str, Any]:
    """Follow the events of a job to its end; the finished job."""
    rewritten = sys.stdout.isatty()
    with client.open("GET", f"/v1/jobs/{job}/events") as response:
        for kind, data in events(response):
            if kind == "end":
                if rewritten:
                    print("\r\x1b[K", end="")
                return data
            if kind == "progress":
                bar = ("#" * round(30 * data["progress"])).ljust(30, ".")
                line = f"  [{bar}] {data['seconds']:6.1f} s  {data['stage']} {data['text']}"
                print(f"\r\x1b[K{line}" if rewritten else line, end="" if rewritten else "\n", flush=True)
    found: dict[str, Any] = client.ask("GET", f"/v1/jobs/{job}")
    return found


def events(response: http.client.HTTPResponse) -> Iterator[tuple[str, dict[str, Any]]]:
    """Server-sent events as (kind, data)."""
    kind = ""
    for raw in response:
        line = raw.decode("utf-8").rstrip("\n")
        if line.startswith("event: "):
            kind = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield kind, json.loads(line.removeprefix("data: "))


# ---------------------------------------------------------------- report


def lines(report: dict[str, Any], summary: dict[str, Any]) -> Iterator[str]:
    """What the demo prints of a report."""
    target, measured = report["target"], report.get("measured") or {}
    sizes = ", ".join(f"{name}={size}" for name, size in target["sizes"].items())
    yield (f"target     {target['name']}, {counted(target['threads'], 'thread')}"
           + (f", measured at {sizes}" if sizes else ""))
    yield f"nodes      {report['before']['nodes']} -> {report['after']['nodes']}"
    predicted = report.get("predicted")
    if predicted and predicted["after"]:
        yield (f"predicted  {predicted['before'] / predicted['after']:.3f}x, from node times "
               f"({predicted['before'] * 1e3:.3f} ms -> {predicted['after'] * 1e3:.3f} ms)")
    if measured.get("speed_up") is not None:
        yield (f"measured   {measured['speed_up']:.3f}x [{measured['low']:.3f}, {measured['high']:.3f}], "
               f"{measured['verdict']}, {ratio_text(measured)} (noise here {100 * measured['noise']:.1f} %)")
        yield (f"times      {measured['before'] * 1e3:.3f} ms -> {measured['after'] * 1e3:.3f} ms, "
               f"{medians_text(measured)}")
    else:
        yield f"measured   nothing: {measured.get('note') or 'no target to measure on'}"
    if predicted and measured.get("speed_up") is not None:
        yield f"           {WHY_THEY_DIFFER}"
    yield f"chosen     {chosen(report)}"
    error = summary.get("error")
    if error is not None:
        state = "validated" if summary["valid"] else "NOT VALID"
        yield (f"error      {number(error['error'])} of {number(error['allowed'])} allowed, against {error['against']} "
               f"({state}, {report['validation']['exactness']})")
    else:
        yield "error      none: the input came back" if report["unchanged"] else "error      not validated"
    yield f"trace      {counted(report['steps'], 'step')}: {rules(report['rules_used'])}"
    for row in report.get("not_used", [])[:4]:
        yield f"           found, {unused_because(row)}: {row['rule']} ({counted(row['places'], 'place')})"
    for candidate in report.get("fusion_candidates", [])[:1]:
        yield f"           fusion candidate: {candidate['expression']} ({counted(candidate['count'], 'place')})"
    for warning in report.get("warnings", []):
        yield f"warning    {warning}"
    peak = report["peak_memory_bytes"]
    yield f"seconds    {report['seconds']:.1f}, peak memory {max(peak.values()) / (1 << 20):.0f} MiB"


def chosen(report: dict[str, Any]) -> str:
    """Which finalist won, and how the others fared against the input."""
    others = [row for row in report["finalists"] if row["name"] not in (report["chosen"], "input")]
    told = [f"{row['name']} {row['speed_up']:.3f}x" if row.get("speed_up") else f"{row['name']} (only predicted)"
            for row in others]
    return f"{report['chosen']}" + (f"; the others: {', '.join(told)}" if told else "")


def number(value: object) -> str:
    """A number of three digits; JSON has infinities as text."""
    return f"{value:.3g}" if isinstance(value, int | float) else str(value)


def rules(used: dict[str, int]) -> str:
    """The rules that were used most."""
    rows = sorted(used.items(), key=lambda row: -row[1])
    text = ", ".join(f"{name} {count}" for name, count in rows[:5])
    return text + (f" and {len(rows) - 5} more rules" if len(rows) > 5 else "") if rows else "the input came back"


if __name__ == "__main__":
    sys.exit(main())
