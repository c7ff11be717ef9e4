"""The report: one JSON-able dict with everything that was done and measured, and its short text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from graphs.ir import WRITTEN, Graph, is_fused
from graphs.wording import counted

from .number_text import bytes_text
from .roofline_report import table
from .stepcosts import ESTIMATED

REPORT_VERSION = 1
SHOWN_REFUSED = 6
COMMAND_LINE = {"dim": "--dim NAME=N", "fresh": "--fresh", "inputs": "--inputs"}  # how options are written there
VALUES_NOTE = "guessed; --inputs FILE.npz measures with yours"


def operators(graph: Graph) -> dict[str, int]:
    """Operator -> number of nodes, nested graphs included, most frequent first. A Fused node is one."""
    counts: Counter[str] = Counter()
    waiting = [graph]
    while waiting:
        for node in waiting.pop().nodes:
            counts[f"{node.domain}.{node.op}" if node.domain else node.op] += 1
            waiting += [] if is_fused(node) else node.graphs
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def constant_bytes(graph: Graph) -> int:
    """Bytes of all constants, nested graphs included."""
    return sum(constant.nbytes for each in graph.walk() for constant in each.constants.values())


def describe(graph: Graph) -> dict[str, Any]:
    """Size of a graph: nodes, bytes of constants, operators."""
    counts = operators(graph)
    return {"nodes": sum(counts.values()), "constant_bytes": constant_bytes(graph), "operators": counts}


def of_the_file(graph: Graph) -> dict[str, int]:
    """What the file of a graph holds as it is written, nested graphs included: `file_nodes`, among them
    `file_constants`, Constant nodes, which are constants in a graph. Where there is no ONNX file, the graph's own."""
    written: Any = graph.extras.get(WRITTEN)
    if not isinstance(written, dict):
        return {"file_nodes": graph.shown_count(), "file_constants": 0}
    return {"file_nodes": sum(written.values()), "file_constants": written.get(("", "Constant", ""), 0)}


def summary(report: Mapping[str, Any]) -> str:
    """A few lines for a terminal; the target comes first, and nothing is stated that was not measured."""
    lines = [f"target     {report['target']['name']} ({report['target'].get('device', '')}, "
             f"{counted(report['target'].get('threads', '?'), 'thread')})"]
    before, after = report["before"], report["after"]
    if report["target"].get("sizes"):
        lines.append(f"sizes      {sizes_text(report['target']['sizes'])}{sizes_note(report)}")
    if report["target"].get("values"):
        lines.append(f"values     {sizes_text(report['target']['values'])} ({VALUES_NOTE})")
    lines.append(f"nodes      {before['nodes']} -> {after['nodes']}{nodes_note(report)}")
    lines.append(f"constants  {bytes_text(before['constant_bytes'])} -> {bytes_text(after['constant_bytes'])}")
    lines.append(f"predicted  {_predicted_text(report)}")
    handed_back = report.get("unchanged") and not report.get("fixed") and not report.get("buckets")
    lines += handed_back_lines(report["measured"], report.get("finalists_left_out")) if handed_back else (
        _measured_lines(report.get("measured")))
    for row in report.get("other_sizes", []):
        if row.get("speed_up") is not None and row["name"] == report["chosen"]:
            sizes = ", ".join(f"{name}={size}" for name, size in row["sizes"].items())
            lines.append(f"  at {sizes}: {row['speed_up']:.3f}x [{row['low']:.3f}, {row['high']:.3f}], "
                         f"{row['verdict']}")
    roofline = report.get("roofline")
    if roofline:
        rows = [(name, roofline[name]) for name in ("before", "after")]
        lines += ["roofline", *(f"  {line}" for line in table(rows))]
    lines += [*_fusion_lines(report.get("fusions")), *_special_lines(report)]
    if report.get("memory"):
        lines.append(f"memory     {memory_text(report['memory'])}")
    lines.append(f"validated  {_validated_text(report)}")
    if (report.get("validation") or {}).get("device"):
        lines.append(f"device     {report['validation']['device']['summary']}")
    lines.append(f"trace      {counted(report['steps'], 'step')}")
    if report.get("remembered"):
        lines.append(f"remembered from {report['remembered']}; validated again now (--fresh searches anew)")
    for row in report.get("not_used", [])[:6]:
        lines.append(f"found, {unused_because(row)}: {row['rule']} ({counted(row['places'], 'place')})")
    for warning in report.get("warnings", []):
        lines.append(f"warning    {warning}")
    return "\n".join(lines)


def _predicted_text(report: Mapping[str, Any]) -> str:
    predicted = report.get("predicted")
    if not predicted:
        return f"nothing: {report.get('predicted_note') or 'no search was made'}"
    before, after = predicted["before"], predicted["after"]
    gain = f"{before / after:.3f}x" if after > 0 else "nothing is left to compute"
    source = f": {predicted['source']}" if predicted["source"] else ""
    return f"{_seconds(before)} -> {_seconds(after)}: {gain} (sum of node times{source}{prediction_note(report)})"


def prediction_note(report: Mapping[str, Any]) -> str:
    """How many of the node times are estimates beside measured ones, and why the predicted gain is another one than the
    measured, where it lies outside of what was measured."""
    predicted, measured = report.get("predicted"), report.get("measured") or {}
    if not predicted:
        return ""
    estimated, note = predicted.get("estimated"), ""  # reports of earlier versions do not count them
    if estimated and any(estimated.values()) and predicted["source"] != ESTIMATED:
        note = f", {estimated['before']} and {counted(estimated['after'], 'node')} only estimated"
    if not predicted["after"] or not measured.get("speed_up"):
        return note
    if measured["low"] <= predicted["before"] / predicted["after"] <= measured["high"]:
        return note
    return f"{note}, each by itself; the whole differs"


def sizes_note(report: Mapping[str, Any], names: Mapping[str, str] = COMMAND_LINE) -> str:
    """Where the sizes of symbolic dimensions come from that the user did not give, and how to give them. `names`: how
    options are written there."""
    options, sizes = report.get("options", {}), report["target"]["sizes"]
    if options.get("inputs"):
        return f" (those of {names['inputs']})"
    guessed = [name for name in sizes if name not in options.get("dims", {})]
    if not guessed:
        return ""
    which = "guessed" if len(guessed) == len(sizes) else f"guessed: {', '.join(guessed)}"
    return f" ({which}; {names['dim']} measures at the size that you use)"


def nodes_note(report: Mapping[str, Any]) -> str:
    """How many nodes the file has, where that is another number."""
    facts = report.get("model", {})
    if facts.get("file_nodes", report["before"]["nodes"]) == report["before"]["nodes"]:
        return ""
    constants = f", {facts['file_constants']} of them Constant" if facts["file_constants"] else ""
    return f" (the file has {facts['file_nodes']}{constants})"


def _validated_text(report: Mapping[str, Any]) -> str:
    validation = report.get("validation")
    if validation:
        return str(validation.get("summary", ""))
    if report.get("unchanged"):
        return "nothing: the input is handed back"
    return "nothing as a whole: the buckets were, one by one" if report.get("buckets") else "nothing"


def _fusion_lines(found: Mapping[str, Any] | None) -> list[str]:
    """How many kernels were tried, and those of the result."""
    if not found:
        return []
    if found["note"]:
        return [f"fusions    none: {found['note']}"]
    counts = found["counts"]
    words = [f"{counts.get('generated', 0)} generated",
             *(f"{counts[name]} {name}" for name in ("impossible", "faulty", "crashed") if counts.get(name)),
             f"{counts.get('measured', 0)} measured now", f"{counts.get('known', 0)} known"]
    lines = [f"fusions    {counted(counts['unique'], 'kind')} ({counted(counts['sets'], 'set')} in the largest graph): "
             f"{', '.join(words)}; {_kernels_text(found)} in the result"]
    if found["chosen"]:
        lines.append("  of one place, nodes and kernel timed in turns; what is predicted sums up nodes timed alone")
    for row in found["chosen"]:
        lines.append(f"  {row['count']} x {row['label']}: {' '.join(row['operators'])}: "
                     f"{_seconds(row['unfused_seconds'])} -> {_seconds(row['fused_seconds'])}")
    refused = found.get("refused", {})
    lines += [f"  not fused in {place}: {reason}" for place, reason in list(refused.items())[:SHOWN_REFUSED]]
    if len(refused) > SHOWN_REFUSED:
        lines.append(f"  and {counted(len(refused) - SHOWN_REFUSED, 'other nested graph')} (the report has all)")
    return lines


def _kernels_text(found: Mapping[str, Any]) -> str:
    """How many kernels are new, and how many the input held as a file that was fused before."""
    new, held = sum(row["count"] for row in found["chosen"]), found.get("held", 0)
    return f"{new} new {'kernel' if new == 1 else 'kernels'} beside {held} that the file already held" if held \
        else counted(new, "kernel")


def _special_lines(report: Mapping[str, Any]) -> list[str]:
    """What was made constant, and which buckets the file has."""
    lines = []
    fixed, buckets = report.get("fixed"), report.get("buckets")
    if fixed:
        found = fixed["against_the_file"]
        against = f", {found['speed_up']:.3f}x of the file that was given, {found['verdict']}" if found else ""
        alone = fixed["against_constant_sizes"]
        if alone.get("speed_up"):
            against += f"; {alone['speed_up']:.3f}x of constant sizes alone, {alone['verdict']}"
        lines.append(f"fixed      {sizes_text(fixed['sizes'])}: the result takes no other sizes{against}")
    for row in buckets["rows"] if buckets else ():
        said = f"{row['speed_up']:.3f}x, {row['verdict']}" if row.get("speed_up") else row.get("note", "")
        lines.append(f"bucket     {sizes_text(row['sizes'])}: {said} against the general graph")
    if buckets:
        used = "files of their own" if buckets.get("form") == "manifest" else "in one file"
        lines.append(f"buckets    {used if buckets['chosen'] else 'not used: ' + buckets['reason']}")
        for row in buckets.get("measured", ()):
            found = row["against_general"]
            lines.append(f"  whole file at {sizes_text(row['sizes'])}: {found['speed_up']:.3f}x "
                         f"[{found['low']:.3f}, {found['high']:.3f}] against the general graph, {found['verdict']}")
    return lines


def memory_text(section: Mapping[str, Any]) -> str:
    """What a memory limit took, in one line."""
    before, after, limit = (bytes_text(section[name]) for name in ("before", "after", "limit"))
    text = f"{before} -> {after} of live values ({'limit' if section['met'] else 'not met: limit'} {limit})"
    if section["recomputed"]:
        text += f"; {counted(section['recomputed'], 'node')} run again"
    for name in ("predicted", "measured"):
        if section[name] is not None:
            text += f", {100 * section[name]:+.0f} % time {name}"
    return text


def sizes_text(sizes: Mapping[str, int]) -> str:
    """`batch=1, seq=128`."""
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


def unused_because(row: Mapping[str, Any]) -> str:
    """Why a rule that fired is not in the result, from the node times of its example."""
    example = row.get("example")
    if example and example["new_seconds"] < example["old_seconds"]:
        return "another rewrite is better here"
    return "does not pay on this target"


def handed_back_lines(measured: Mapping[str, Any], left_out: Mapping[str, str] | None = None) -> list[str]:
    """What was measured where nothing was better than the input, and why the fastest was not taken."""
    others = [row for row in measured.get("others", []) if row["speed_up"] is not None]
    if not others:
        return _measured_lines(measured) if measured.get("speed_up") is None else [
            "measured   nothing: the input is handed back, and nothing else was measured"]
    best = max(others, key=lambda row: row["speed_up"])
    return [f"measured   the input is handed back: of {counted(len(others), 'other graph')} the fastest was "
            f"{best['speed_up']:.3f}x [{best['low']:.3f}, {best['high']:.3f}], {best['verdict']} ({best['name']}; "
            f"{counted(measured['rounds'], 'round')}, noise here {100 * measured['noise']:.1f} %, {measured['kind']})",
            *([f"  {best['name']}: {(left_out or {})[best['name']]}"] if best["name"] in (left_out or {}) else []),
            f"times      {_seconds(measured['before'])}, the median of all rounds"]


def _measured_lines(measured: Mapping[str, Any] | None) -> list[str]:
    if not measured or measured.get("speed_up") is None:
        return [f"measured   nothing: {(measured or {}).get('note') or 'no target to measure on'}"]
    return [f"measured   {measured['speed_up']:.3f}x [{measured['low']:.3f}, {measured['high']:.3f}], "
            f"{measured['verdict']}, {ratio_text(measured)} (noise here {100 * measured['noise']:.1f} %, "
            f"{measured['kind']})",
            f"times      {_seconds(measured['before'])} -> {_seconds(measured['after'])}, {medians_text(measured)}",
            *_against_lines(measured)]


def _against_lines(measured: Mapping[str, Any]) -> list[str]:
    """With what a result for egraft's own runtime was compared: people know their model's time in another one."""
    against = str(measured.get("against", ""))
    own = " on egraft:" in against
    return [f"against    {against}; `egraft bench` measures a file on other runtimes"] if own else []


def ratio_text(measured: Mapping[str, Any]) -> str:
    """What the speed-up is: not the quotient of the two median times. Of few rounds the interval holds for less than
    the usual 99 %, and the text says for what."""
    confidence = measured.get("confidence") or 1.0
    held = "" if confidence >= 0.99 else f", the interval at {100 * confidence:.0f} %"
    of = f"{counted(measured['pairs'], 'pair')} of fresh sessions" if measured.get("pairs") else (
        counted(measured["rounds"], "round"))
    return f"the median ratio of {of}{held}"


def medians_text(measured: Mapping[str, Any]) -> str:
    """What the two times are, and why their quotient is another one where it lies outside the interval."""
    if measured.get("pairs"):
        return "medians of all rounds; each pair of sessions has a ratio of its own"
    quotient = measured["before"] / measured["after"] if measured["after"] else 0.0
    if measured["low"] <= quotient <= measured["high"]:
        return "medians of all rounds"
    return "medians of all rounds: the machine's speed changed meanwhile, which a ratio in one round does not feel"


def _seconds(value: float) -> str:
    """A time in the unit that leaves three digits or more."""
    if value >= 1e-3:
        return f"{value * 1e3:.3f} ms"
    if value >= 1e-6:
        return f"{value * 1e6:.{1 if value >= 1e-5 else 3}f} us"
    return f"{value * 1e9:.{1 if value >= 1e-7 else 3}f} ns" if value > 0 else "0 ns"
