"""What makes the relaxation of an extraction tight: each choice has a path through it, and a path is a flow.

The program says of each class that it is taken as far as the e-nodes of any one class that read it are. Where several
classes read it, a fractional solution takes a third of each of three ways that all lead through it, and pays for a
third of it. But in a choice, who follows from a class that every choice needs always the same argument of the chosen
e-node comes along one path: one unit of flow, and nothing flows through an e-node that is not chosen. These rows are
implied by integrality, and change no solution; on the extraction of a Swin block they closed a gap of 42 % that
thousands of branches had not.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from .linear import INFINITY, LinearModel
from .saturated import ENode

FEW = 48  # e-nodes among which branching is quicker than a larger program


@dataclass(frozen=True)
class Flow:
    """One unit from the class `source` to classes that are needed anyway, or to e-nodes without arguments.

    `towards`: of e-nodes, by index, the class that they hand it to; `through`: the classes in between; `columns`: of
    their e-nodes, by index.
    """

    source: int
    towards: Mapping[int, int]
    through: Collection[int]
    columns: Mapping[int, int]

    def path(self, choice: Mapping[int, ENode]) -> list[int]:
        """The columns that are 1 for a choice."""
        found: list[int] = []
        cls = self.towards.get(choice[self.source].index)
        while cls is not None and cls in self.through:
            enode = choice[cls]
            if enode.index in self.columns:
                found.append(self.columns[enode.index])
            cls = self.towards.get(enode.index)
        return found


def add_flows(model: LinearModel, usable: Mapping[int, Sequence[ENode]], enode_column: Mapping[int, int],
              needed: Collection[int], price: Mapping[int, float]) -> list[Flow]:
    """Add a flow from each needed class from which several ways lead to the same place.

    `price`: about what each class costs with all below it; the flow takes the dearest argument. Classes that it does
    not name are not chosen for, or cannot be reached.
    """
    return [flow for source in usable if source in needed
            if (flow := _flow(model, usable, enode_column, needed, price, source)) is not None]


def _flow(model: LinearModel, usable: Mapping[int, Sequence[ENode]], enode_column: Mapping[int, int],
          needed: Collection[int], price: Mapping[int, float], source: int) -> Flow | None:
    towards: dict[int, int] = {}
    into: dict[int, list[ENode]] = {}
    stack = [source]
    while stack:
        for enode in usable[stack.pop()]:
            argument = max((child for child in enode.children if child in usable),
                           key=lambda child: price.get(child, 0.0), default=None)
            if argument is None or argument in needed:
                continue
            towards[enode.index] = argument
            if argument not in into:
                stack.append(argument)
            into.setdefault(argument, []).append(enode)
    leading = _leading(into) if sum(len(usable[cls]) for cls in into) > FEW else set()
    # From its source the unit leaves by what is chosen there; where no ways meet below, the program's rows say enough.
    columns = {enode.index: model.column(0.0, 0.0, 1.0, False) for cls in into for enode in usable[cls]
               if towards.get(enode.index) in leading}
    for index, column in columns.items():
        model.row([(column, 1.0), (enode_column[index], -1.0)], -INFINITY, 0.0)
    for cls in leading:
        arriving = [(columns.get(enode.index, enode_column[enode.index]), 1.0) for enode in into[cls]]
        leaving = [(columns.get(enode.index, enode_column[enode.index]), -1.0) for enode in usable[cls]]
        model.row([*arriving, *leaving], -INFINITY, 0.0)
    return Flow(source, towards, into, columns) if leading else None


def _leading(into: Mapping[int, Sequence[ENode]]) -> set[int]:
    """Classes in which ways from several classes meet, and those from which a way leads there."""
    found: set[int] = set()
    stack = [cls for cls, givers in into.items() if len({enode.cls for enode in givers}) > 1]
    while stack:
        cls = stack.pop()
        if cls in into and cls not in found:
            found.add(cls)
            stack += {enode.cls for enode in into[cls]}
    return found
