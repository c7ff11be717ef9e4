"""A step of a trace as two small drawings, before and after: boxes and lines as plain numbers for a template."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import networkx as nx

MOST_NODES = 24  # of both sides; larger steps are read as text
WIDTH, HEIGHT, GAP_X, GAP_Y = 136, 26, 12, 24
LETTERS = 18  # of a label

_NAME = r"(?:`(?:[^`\\]|\\.)*`|[^\s`=,()\[\]{}]+)"
_NODE = re.compile(rf"\s*(?P<outputs>{_NAME}?(?:, {_NAME}?)*) = (?:opaque )?(?P<op>{_NAME})\((?P<inside>.*)\)\s*",
                   re.DOTALL)
_CONSTANT = re.compile(rf"\s*(?P<name>{_NAME}) = constant (?P<type>\w+(?:\[[^\]]*\])?) .*", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"|`(?:[^`\\]|\\.)*`')


@dataclass
class _Box:
    """Something to draw: a node, a constant, or a value that comes from outside."""

    kind: str
    label: str
    title: str
    reads: list[str] = field(default_factory=list)


def drawing(step: Mapping[str, Any]) -> list[dict[str, Any]]:
    """`before` and `after` as `{"name", "width", "height", "boxes", "lines"}`; empty where a step is too large to draw,
    or its lines are no nodes. A box has `kind` (`value`, `constant`, `node`, or `kept`: a node of both sides), `label`,
    `title`, `x`, `y`; a line `x1`, `y1`, `x2`, `y2`.
    """
    before, after = (_read(step[name]) for name in ("before", "after"))
    if before is None or after is None:
        return []
    boxes = [*before.values(), *after.values()]
    if not 0 < sum(box.kind == "node" for box in boxes) <= MOST_NODES:
        return []
    both = {box.title for box in before.values()} & {box.title for box in after.values()}
    for box in boxes:
        box.kind = "kept" if box.kind == "node" and box.title in both else box.kind
    graphs = [_graph(side) for side in (before, after)]
    if not all(map(nx.is_directed_acyclic_graph, graphs)):  # a region's names need not be those of one graph
        return []
    return [{"name": name, **_place(side, graph)}
            for name, side, graph in zip(("before", "after"), (before, after), graphs)]


def _read(lines: Sequence[str]) -> dict[str, _Box] | None:
    """Output (the first of a node) -> box; None where a line is none of a graph."""
    boxes: dict[str, _Box] = {}
    makers: dict[str, str] = {}
    for line in lines:
        constant, node = _CONSTANT.fullmatch(line), _NODE.fullmatch(line)
        if constant is not None:
            name = _plain(constant["name"])
            boxes[name] = _Box("constant", constant["type"], line[:400])
            makers[name] = name
        elif node is not None:
            outputs = [_plain(each) for each in node["outputs"].split(", ")]
            key = next((name for name in outputs if name), "")
            boxes[key] = _Box("node", _plain(node["op"]), line[:400], list(_inputs(node["inside"])))
            makers.update({name: key for name in outputs if name})
        else:
            return None
    for box in list(boxes.values()):
        for name in box.reads:
            if name not in makers:
                makers[name] = name
                boxes[name] = _Box("value", name, name)
        box.reads = list(dict.fromkeys(makers[name] for name in box.reads))
    return boxes


def _plain(name: str) -> str:
    return re.sub(r"\\(.)", r"\1", name[1:-1]) if name[:1] == "`" else name


def _inputs(inside: str) -> Iterator[str]:
    """The values among the arguments of a node: not the attributes, nor what nested graphs hold."""
    for part in _parts(inside):
        if part and re.fullmatch(_NAME, part):
            yield _plain(part)


def _parts(text: str) -> Iterator[str]:
    """The text between commas that are in no bracket and no string."""
    depth, start, index = 0, 0, 0
    while index < len(text):
        string = _STRING.match(text, index)
        if string is not None:
            index = string.end()
            continue
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(text[index], 0)
        if text[index] == "," and depth == 0:
            yield text[start:index].strip()
            start = index + 1
        index += 1
    yield text[start:].strip()


def _graph(boxes: Mapping[str, _Box]) -> nx.DiGraph:
    """Which box reads which."""
    graph = nx.DiGraph()
    graph.add_nodes_from(boxes)
    graph.add_edges_from((read, name) for name, box in boxes.items() for read in box.reads)
    return graph


def _place(boxes: Mapping[str, _Box], graph: nx.DiGraph) -> dict[str, Any]:
    """Rows by the longest way to an end, ordered so that lines cross little."""
    depth: dict[str, int] = {}
    for name in reversed(list(nx.topological_sort(graph))):  # from the end, so that what is read stands near its reader
        depth[name] = max((depth[reader] + 1 for reader in graph.successors(name)), default=0)
    rows: list[list[str]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for name in boxes:
        rows[len(rows) - 1 - depth[name]].append(name)
    column: dict[str, float] = {}
    widest = max(map(len, rows), default=0)
    for row in rows:
        row.sort(key=lambda name: _middle(graph, name, column))
        column.update({name: index + (widest - len(row)) / 2 for index, name in enumerate(row)})
    at = {name: (column[name] * (WIDTH + GAP_X), level * (HEIGHT + GAP_Y))
          for level, row in enumerate(rows) for name in row}
    lines = [{"x1": at[a][0] + WIDTH / 2, "y1": at[a][1] + HEIGHT, "x2": at[b][0] + WIDTH / 2, "y2": at[b][1]}
             for a, b in graph.edges]
    return {"width": widest * (WIDTH + GAP_X) - GAP_X, "height": len(rows) * (HEIGHT + GAP_Y) - GAP_Y, "lines": lines,
            "boxes": [{"kind": box.kind, "label": _short(box.label), "title": box.title, "x": at[name][0],
                       "y": at[name][1]} for name, box in boxes.items()]}


def _middle(graph: nx.DiGraph, name: str, column: Mapping[str, float]) -> float:
    """The mean column of what a box reads; what reads nothing keeps its place at the end."""
    known = [column[read] for read in graph.predecessors(name) if read in column]
    return sum(known) / len(known) if known else float(len(graph))


def _short(label: str) -> str:
    return label if len(label) <= LETTERS else f"{label[:LETTERS - 1]}…"
