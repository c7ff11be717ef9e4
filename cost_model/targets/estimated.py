"""Targets that run nothing here: estimates from peaks, and what a timing database holds."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from graphs.errors import InvalidOption
from graphs.ir import Graph

from .. import protocol
from ..comparison import Comparison, estimated
from ..costs import Cost, NodeSpec
from ..fingerprint import Fingerprint
from ..neighbourhoods import Neighbourhood, from_note, kernels_key
from ..peaks import Peaks, recorded_peaks
from ..sessions import sessions_key
from ..signature import graph_digest
from ..timings import Timings
from .base import NODE_BUDGET, RESOLUTION, Feeds, Overhead, Runner, Target, overhead_from
from .verdicts import from_record, verdict_key


class _Estimating(Target):
    """A target whose comparisons add up what nodes cost."""

    measures = False

    def measure_node(self, spec: NodeSpec, threads: int, timings: Timings, budget: float = NODE_BUDGET) -> Cost:
        """Nothing is measured: 0 seconds, source `roofline`."""
        return Cost(0.0, "roofline", note=f"{self.name} measures nothing")

    def prepare(self, graph: Graph, feeds: Feeds, threads: int = 1) -> Runner:
        """Raises TargetUnavailable: there is nothing to run on."""
        from graphs.errors import TargetUnavailable

        raise TargetUnavailable(
            f"target {self.name}",
            "it only estimates and runs nothing",
            "name a target that runs here: `egraft targets`",
        )

    def compare(
        self,
        graphs: Mapping[str, Graph],
        baseline: str,
        feeds: Feeds,
        *,
        threads: int = 1,
        settings: protocol.Settings | None = None,
        timings: Timings | None = None,
        look: int = 1,
    ) -> Comparison:
        """Sums of node costs at the sizes of the feeds, named as what they are."""
        from ..node_costs import NodeCosts
        from ..sizes import sizes_of_feeds

        own = timings if timings is not None else Timings(":memory:")
        seconds: dict[str, float] = {}
        known: dict[object, NodeCosts] = {}
        for name, graph in graphs.items():
            sizes = sizes_of_feeds(graph, feeds)
            place = (graph.opset, *sorted(sizes.items()))
            if place not in known:
                known[place] = NodeCosts(self, own, sizes, threads=threads, opset=graph.opset)
            seconds[name] = sum(known[place].node_in(graph, node).seconds for node in graph.nodes)
        kind, note = (
            ("recorded", "sums of recorded and estimated node costs")
            if self.database
            else ("estimated", "sums of roofline estimates; nothing was measured")
        )
        return estimated(seconds, baseline, kind, threads, note)  # type: ignore[arg-type]


class Roofline(_Estimating):
    """Estimates only: operations and bytes by this CPU's measured peaks, plus launch overhead."""

    name = "roofline"

    def __init__(self, of: Target) -> None:
        self.of = of

    def available(self) -> str | None:
        """Always there."""
        return None

    @property
    def fingerprint(self) -> Fingerprint:
        """Of the target whose launch overhead is used."""
        return self.of.fingerprint

    @property
    def place(self) -> tuple[str, str] | None:
        """Nowhere: measured times are not looked at."""
        return None

    def overhead(self, threads: int, timings: Timings) -> Overhead:
        """Of the target on this machine."""
        return self.of.overhead(threads, timings)


def require_file(path: str, where: str) -> None:
    """Raise InvalidOption where a timing database that is to be replayed does not exist."""
    if not Path(path).is_file():
        raise InvalidOption(f"{where} {path}", "there is no such file", "name a timing database that was filled on "
                            "the machine with the device")


def has_records(path: str, target: str) -> bool:
    """Does a timing database hold anything of a target? It is only read."""
    database = Timings(path)
    database.writable = False
    return next(iter(database.records(target=target)), None) is not None


class Recorded(_Estimating):
    """The records of a timing database, as a rule one that was made on another machine."""

    def __init__(self, of: Target, path: str) -> None:
        require_file(path, f"target {of.name} in")
        self.of, self.path = of, path
        self.name = f"{of.name}@{path}"
        self.database = Timings(path)
        self.database.writable = False
        records = [(record.fingerprint, record.kind) for record in self.database.records(target=of.name)]
        found, nodes = Counter(digest for digest, _ in records), Counter(own for own, kind in records if kind == "node")
        if not found:
            raise InvalidOption(
                f"target {self.name}",
                f"{path} {self.database.trouble or f'has no records of {of.name}'}",
                "name a timing database that was filled with this target",
            )
        # Kernels of `egraft:cpu` are filed with their compiler, as if they were another device's.
        self.digest = min(found, key=lambda digest: (-nodes[digest], -found[digest], digest))
        text = self.database.fingerprint_text(self.digest)
        self._fingerprint = Fingerprint.of(json.loads(text)) if text else None
        here = of.available() is None and of.fingerprint.digest == self.digest
        self.origin = "this machine" if here else "another machine"

    def available(self) -> str | None:
        """Always there: the file was read."""
        return None

    @property
    def description(self) -> str:
        """Which device the records are of."""
        return f"records of {self.of.name} on {self._fingerprint or self.digest}"

    @property
    def fingerprint(self) -> Fingerprint:
        """The other machine's."""
        return self._fingerprint or Fingerprint.of({"digest": self.digest})

    @property
    def place(self) -> tuple[str, str] | None:
        """The recorded target on the other machine."""
        return self.of.name, self.digest

    def key(self, spec: NodeSpec, threads: int) -> str:
        """As the recorded target files it."""
        return self.of.key(spec, threads)

    def known_cost(self, spec: NodeSpec) -> Cost | None:
        """As the recorded target knows it."""
        return self.of.known_cost(spec)

    def neighbourhoods(self, graph: Graph, timings: Timings) -> list[Neighbourhood]:
        """As the recorded target found them in this very graph, else none."""
        assert self.database is not None
        record = self.database.peek(kernels_key(graph), self.of.name, self.digest)
        return [] if record is None else from_note(record.note)

    def default_threads(self) -> int:
        """As the target itself: records of a GPU are those of one thread, however many cores are here."""
        return self.of.default_threads()

    def peaks(self, threads: int, timings: Timings) -> Peaks:
        """The recorded ones, else this machine's CPU's."""
        assert self.database is not None
        recorded = recorded_peaks(self.database, threads, self.of.peaks_filed_under)
        return recorded or super().peaks(threads, timings)

    def overhead(self, threads: int, timings: Timings) -> Overhead:
        """The recorded one; without a record the least that counts as a time."""
        assert self.database is not None
        record = self.database.peek(f"overhead threads={threads}", self.of.name, self.digest)
        return overhead_from(record) if record is not None else Overhead(RESOLUTION, RESOLUTION)

    def compare(
        self,
        graphs: Mapping[str, Graph],
        baseline: str,
        feeds: Feeds,
        *,
        threads: int = 1,
        settings: protocol.Settings | None = None,
        timings: Timings | None = None,
        look: int = 1,
    ) -> Comparison:
        """The recorded verdict where these graphs were compared there, else sums of node costs."""
        assert self.database is not None
        digests = {name: graph_digest(graph) for name, graph in graphs.items()}
        key = verdict_key(digests, baseline, feeds, threads, look)
        record = self.database.get(key, self.of.name, self.digest)
        if record is not None:
            return from_record(record, digests, baseline, recorded=True)
        return super().compare(graphs, baseline, feeds, threads=threads, settings=settings, timings=timings)

    def compare_sessions(self, graphs: Mapping[str, Graph], baseline: str, feeds: Feeds, *, threads: int,
                         seconds: float, settings: protocol.Settings, timings: Timings,
                         held: int = 0) -> Comparison | None:
        """The recorded one."""
        assert self.database is not None
        digests = {name: graph_digest(graph) for name, graph in graphs.items()}
        key = sessions_key(digests, baseline, feeds, threads)
        record = self.database.peek(key, self.of.name, self.digest)
        return None if record is None else from_record(record, digests, baseline, recorded=True)
