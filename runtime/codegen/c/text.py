"""The text of one kernel: loops over rows, and inside of them one walk over the columns for each phase.

Rows are the loops that reductions do not run over. A reduction is known when a walk over the columns is done; what
depends on it is computed in the next walk. A value that several walks need is kept in a row buffer where computing it
again costs more than reading it. Without reductions there are no rows and one walk. Sizes and strides are parameters:
only which strides are 0 (nothing to add, a value for all columns) and which innermost ones are 1 to 3 is in the text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from .. import address
from ..functions import device_functions
from ..reduction import FOLDS
from ..scalar import Scalar
from .lowering import Address, Item, Lowering
from .views import Coordinate, NotFusable

_OPERAND = re.compile(r"\ba(\d+)\b")
_CHEAP = 2  # instructions: what costs more to compute than this is kept for later walks
_SHORT = (2, 3)  # strides
_STARTS = {"sum": "ReduceSum", "product": "ReduceProd", "larger": "ReduceMax", "smaller": "ReduceMin"}
_COMBINED = {"sum": "{0} + {1}", "product": "{0} * {1}", "larger": "eg_max({0}, {1})", "smaller": "eg_min({0}, {1})"}
_CLAUSES = {"sum": "+", "product": "*"}
_PIECES = "cdefghijCDEFGHIJ"  # names of the loops of each piece: r is that of rows, others begin names of values
_ROW, _OUTER, _INNER = 0, 1, 2  # where an item is computed: once for a row, outside of the innermost loop, inside
BUFFER = ""  # the tensor of a pointer to a row buffer
FAULT = "!"  # that of a pointer to a number which is 0 as long as every index lies on its axis


@dataclass
class Written:
    """A kernel's text with what it is called with. `pointers` are (tensor, first element); those of BUFFER are (BUFFER,
    elements of a row). `split` is the place in `sizes` of a loop that threads may share, `shares` what each pointer
    moves with it (elements). `text` is `helpers` (functions), then the `body` in a function."""

    text: str = ""
    sizes: dict[str, int] = field(default_factory=dict)
    pointers: list[tuple[str, int]] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=list)
    split: int | None = None
    shares: dict[int, int] = field(default_factory=dict)
    helpers: tuple[str, ...] = ()
    body: tuple[str, ...] = ()


class Writer:
    """Writes one kernel for pieces that have their row loops in common."""

    def __init__(self, name: str, pieces: Sequence[Lowering], rows: tuple[int, ...] | None = None,
                 whole: Lowering | None = None, buffers: bool = True) -> None:
        """`rows` are the loops outside of the walks, if not the usual ones. `whole` has all trips of the loops, where
        the kernel is one for a part of them. Without `buffers` later walks compute again what they need."""
        self.whole, self.buffers = whole, buffers
        self.name, self.made, self.helpers = name, Written(), dict[str, str]()
        self.lines: list[str] = []
        self.pointers: dict[Address, int] = {}
        self._fault = -1
        first = pieces[0]
        if rows is None:
            rows = row_loops(first, len(pieces) > 1)
        self.pieces = [_Piece(self, piece, index, rows) for index, piece in enumerate(pieces)]
        self.depth = 0
        self._collapse_rows(first, rows)
        for piece in self.pieces:
            piece.write()
        self.made.text = self._text()

    def _collapse_rows(self, piece: Lowering, rows: tuple[int, ...]) -> None:
        every = list(self.pointers)
        strides = [tuple(dict(each.place.terms).get(loop, 0) for loop in rows) for each in every]
        sizes, collapsed = address.collapse([piece.trips[loop] for loop in rows], strides)
        for axis, size in enumerate(sizes):
            self.line(f"EG_OVER(r{axis}, {self.size(f'nr{axis}', size)})")
        self.depth, self.row_sizes = len(sizes), sizes
        for each, steps in zip(every, collapsed):
            number = self.pointers[each]
            terms = [f"r{axis} * {self.size(f's{number}r{axis}', step)}" for axis, step in enumerate(steps) if step]
            if steps:
                self.share("nr0", number, steps[0])
            self.line(f"const eg_index b{number} = {' + '.join(terms) or '0'};")

    def line(self, text: str) -> None:
        """One more line."""
        self.lines.append(text)

    def size(self, name: str, value: int) -> str:
        """A parameter that is an integer."""
        assert self.made.sizes.setdefault(name, value) == value
        return name

    def share(self, size: str, pointer: int, stride: int) -> None:
        """Threads may share a loop of `size` trips, in which a pointer moves by `stride` elements."""
        self.made.split = list(self.made.sizes).index(size)
        self.made.shares[pointer] = stride

    def pointer(self, where: Address, dtype: str) -> int:
        """The number of the pointer to an element."""
        if where not in self.pointers:
            self.pointers[where] = self._new_pointer(where.tensor, where.place.start, dtype)
        return self.pointers[where]

    def buffer(self, dtype: str, elements: int) -> int:
        """The number of a pointer to room for a row."""
        return self._new_pointer(BUFFER, elements, dtype)

    def fault(self) -> int:
        """The number of the pointer to FAULT."""
        if self._fault < 0:
            self._fault = self._new_pointer(FAULT, 0, "int64")
        return self._fault

    def _new_pointer(self, tensor: str, start: int, dtype: str) -> int:
        self.made.pointers.append((tensor, start))
        self.made.dtypes.append(dtype)
        return len(self.made.pointers) - 1

    def help(self, item: Item) -> None:
        """Let the functions that an expression calls stand above the kernel."""
        if item.kind != "op":
            return
        for text in device_functions(item.text, Scalar.of(item.helper)):
            name = text.partition("(")[0]
            if self.helpers.setdefault(name.split()[-1], text) != text:
                raise NotFusable(f"{name.split()[-1]} of two element types")

    def _text(self) -> str:
        head = []
        for number, ((tensor, _), dtype) in enumerate(zip(self.made.pointers, self.made.dtypes)):
            scalar = Scalar.of(dtype)
            head.append(f"EG_POINTER({scalar.storage if tensor else scalar.compute}, p{number}, {number})")
        sizes = [f"EG_SIZE({name}, {place})" for place, name in enumerate(self.made.sizes)]
        self.made.helpers = tuple(self.helpers.values())
        self.made.body = (*self.lines, *["EG_END"] * self.depth)
        return "\n".join([*self.made.helpers, f"EG_KERNEL({self.name}) {{", *head, *sizes, *self.made.body, "}", ""])


def row_loops(piece: Lowering, joined: bool) -> tuple[int, ...]:
    """The loops of a piece outside of its walks. Pieces that are `joined` differ in their last loop only."""
    if piece.columns is not None:
        return tuple(loop for loop in piece.domain.loops if loop not in piece.columns)
    return piece.domain.loops[:-1] if joined else ()


class _Piece:
    """The walks of one piece."""

    def __init__(self, writer: Writer, lowered: Lowering, index: int, rows: tuple[int, ...]) -> None:
        self.writer, self.lowered, self.items = writer, lowered, lowered.items
        self.prefix = _PIECES[index]
        every = {*lowered.domain.loops, *(lowered.columns or ())}
        order = [*lowered.domain.loops, *(loop for loop in lowered.columns or () if loop not in lowered.domain.loops)]
        self.columns = tuple(loop for loop in order if loop in every - set(rows))
        self.stores = [(item, Address(name, self._place_of(name))) for name, item in
                       zip(lowered.values.graph.outputs, lowered.results)]
        self.needed = lowered.needed()
        loads = [item.address for number, item in enumerate(self.items) if number in self.needed and item.address]
        addresses = list(dict.fromkeys([*loads, *(where for _, where in self.stores)]))
        dtypes = {**lowered.values.dtypes}
        strides = [tuple(dict(each.place.terms).get(loop, 0) for loop in self.columns) for each in addresses]
        self.trips, collapsed = address.collapse([lowered.trips[loop] for loop in self.columns], strides)
        self.steps = dict(zip(addresses, collapsed))
        for each in addresses:
            self._refuse_outside(each)
            writer.pointer(each, dtypes[each.tensor])
        self.names: dict[int, str] = {}
        self.where: list[int] = []
        for number in range(len(self.items)):
            self.where.append(self._where(number))
        self.level = self._levels()
        self.buffers: dict[int, int] = {}
        self.kept: set[int] = set()  # what lies in a buffer by now

    def _refuse_outside(self, where: Address) -> None:
        """No kernel reads or writes outside of a tensor, whatever mistake made it do so."""
        values, trips = self.lowered.values, (self.writer.whole or self.lowered).trips
        strides = values.strides[where.tensor]
        if where.tensor in values.graph.outputs:
            strides = address.contiguous(values.shapes[where.tensor])
        least, end = address.extent(values.shapes[where.tensor], strides)
        low, high = address.extent([trips[loop] for loop, _ in where.place.terms],
                                   [factor for _, factor in where.place.terms])
        if where.place.start + low < least or where.place.start + high > end:
            raise NotFusable(f"an element outside of {where.tensor!r}: a defect of the kernel generator")

    def _place_of(self, name: str) -> Coordinate:
        return Lowering.place(self.lowered.stored(name), address.contiguous(self.lowered.shape(name)))

    def _class_of(self, where: Address) -> int:
        steps = self.steps[where]
        if not any(steps):
            return _ROW
        return _INNER if steps[-1] else _OUTER

    def _where(self, number: int) -> int:
        item = self.items[number]
        if item.kind not in ("op", "index", "load") or number not in self.needed:
            return _ROW
        own = _ROW if item.address is None else self._class_of(item.address)
        return max([own, *(self.where[each] for each in item.args)])

    def _levels(self) -> list[int]:
        """After how many walks each item can be computed."""
        found: list[int] = []
        for item in self.items:
            level = max((found[each] for each in item.args), default=0)
            found.append(level + (item.kind == "fold"))
        return found

    # Writing

    def write(self) -> None:
        """All walks. The names of the last one's columns are gone afterwards."""
        self.writer.line("{")
        for number in sorted(self.needed):
            self.writer.help(self.items[number])
        alone = len(self.writer.pieces) == 1
        if alone and not self.writer.depth and self.lowered.columns is None and self.trips:
            for where, steps in self.steps.items():
                self._size(0)
                self.writer.share(f"n{self.prefix}0", self.writer.pointers[where], steps[0])
        last = max(self.level[item] for item, _ in self.stores)
        walks = []
        for level in range(last + 1):
            folds = [number for number in sorted(self.needed) if self.items[number].kind == "fold"
                     and self.level[number] == level + 1]
            stores = [(item, where) for item, where in self.stores if level == last and self._class_of(where) != _ROW]
            walks.append((folds, stores))
        if self.writer.buffers:
            self._choose_buffers(walks)
        for level, (folds, stores) in enumerate(walks):
            if folds or stores:
                self._walk(level, folds, stores)
        for item, where in self.stores:
            if self._class_of(where) == _ROW:
                self._scalar(item)
                self._store(item, where, "EG_PUT_ONCE")
        self.writer.line("}")

    def _choose_buffers(self, walks: Sequence[tuple[list[int], list[tuple[int, Address]]]]) -> None:
        done: set[int] = set()
        for folds, stores in walks:
            now: set[int] = set()
            stack = [*(self.items[each].args[0] for each in folds), *(item for item, _ in stores)]
            while stack:
                number = stack.pop()
                if number in now or self.where[number] != _INNER or number in self.buffers:
                    continue
                if number in done and self._cost(number) > _CHEAP:
                    self.buffers[number] = -1
                    continue
                now.add(number)
                stack.extend(self.items[number].args)
            done |= now
        elements = 1
        for size in self.trips:
            elements *= size
        for number in self.buffers:
            self.buffers[number] = self.writer.buffer(self.items[number].dtype, elements)

    def _cost(self, number: int) -> int:
        if self.where[number] != _INNER:
            return 0
        return self.items[number].cost + sum(1 if each in self.buffers else self._cost(each)
                                             for each in self.items[number].args)

    def _walk(self, level: int, folds: list[int], stores: list[tuple[int, Address]]) -> None:
        line = self.writer.line
        roots = [*(self.items[each].args[0] for each in folds), *(item for item, _ in stores)]
        for number in roots:
            self._scalars_of(number, _ROW, set())
        for number in folds:
            line(f"{self._type(number)} t{number} = {self._start(number)};")
        loops = self._outer_loops()
        inner, blocked = self._inner_loop(), bool(folds) and len(self.trips) <= 1
        size = self._size(len(self.trips) - 1)
        if blocked:
            line(f"EG_BLOCKS({inner}, {size})")
        for number in folds:
            line(f"{self._type(number)} s{number} = {self._start(number)};")
            if self._marks_nan(number):
                line(f"int f{number} = 0;")
        saved = dict(self.names)
        for number in roots:
            self._scalars_of(number, _OUTER, set())
        clauses = " ".join(self._clause(number) for number in folds)
        line(f"EG_BLOCK_INNER({inner}, {clauses})" if blocked else f"EG_INNER({inner}, {size}, {clauses})")
        inside = dict(self.names)
        for number in folds:
            value = self._element(self.items[number].args[0])
            if self._marks_nan(number):
                sign = ">" if self.items[number].text == "larger" else "<"
                line(f"s{number} = s{number} {sign} {value} ? s{number} : {value};")
                line(f"f{number} |= {value} != {value};")
            else:
                line(f"s{number} = {self._combined(number, f's{number}', value)};")
        for item, where in stores:
            self._element(item)
            self._store(item, where)
        line("EG_INNER_END")
        self.names = inside
        for number in folds:
            found = f"f{number} ? EG_NAN : s{number}" if self._marks_nan(number) else f"s{number}"
            line(f"t{number} = {self._combined(number, f't{number}', found)};")
        for _ in range(blocked + len(loops)):
            line("EG_END")
        for number in folds:
            line(f"EG_TOTAL({self.items[number].text}, {self._type(number)}, t{number})")
        self.names = saved
        self.kept |= set(self.buffers) & self._reached(roots)
        for number in folds:
            self.names[number] = f"t{number}"

    def _reached(self, roots: Sequence[int]) -> set[int]:
        found: set[int] = set()
        stack = list(roots)
        while stack:
            number = stack.pop()
            if number not in found and self.where[number] == _INNER:
                found.add(number)
                if number not in self.kept:
                    stack.extend(self.items[number].args)
        return found

    def _outer_loops(self) -> list[str]:
        names = [f"{self.prefix}{axis}" for axis in range(len(self.trips) - 1)]
        for axis, name in enumerate(names):
            self.writer.line(f"EG_OVER({name}, {self._size(axis)})")
        return names

    def _inner_loop(self) -> str:
        return f"{self.prefix}{max(len(self.trips) - 1, 0)}"

    def _size(self, axis: int) -> str:
        if axis < 0:
            return "1"
        return self.writer.size(f"n{self.prefix}{axis}", self.trips[axis])

    def _type(self, number: int) -> str:
        return Scalar.of(self.items[number].dtype).compute

    def _start(self, number: int) -> str:
        item = self.items[number]
        return FOLDS[_STARTS[item.text]](Scalar.of(item.dtype), 1).start

    def _marks_nan(self, number: int) -> bool:
        """Extremes of float: machines have instructions for them that lose NaN, so that these are looked for apart."""
        item = self.items[number]
        return item.text not in _CLAUSES and Scalar.of(item.dtype).compute == "float"

    def _clause(self, number: int) -> str:
        item, plain = self.items[number], {"larger": "max", "smaller": "min"}
        if item.text in _CLAUSES:
            how = _CLAUSES[item.text]
        elif self._marks_nan(number):
            return f"reduction({plain[item.text]}:s{number}) reduction(|:f{number})"
        else:
            how = f"eg_{item.text}" if Scalar.of(item.dtype).is_float else plain[item.text]
        return f"reduction({how}:s{number})"

    def _combined(self, number: int, a: str, b: str) -> str:
        return _COMBINED[self.items[number].text].format(a, b)

    # Values

    def _scalar(self, number: int) -> None:
        self._scalars_of(number, _ROW, set())

    def _scalars_of(self, number: int, where: int, seen: set[int]) -> None:
        """Compute what an item needs of what is computed once for a row, or outside of the innermost loop."""
        if number in seen:
            return
        seen.add(number)
        if self.where[number] <= where:
            self._element(number)
            return
        if number not in self.kept:
            for each in self.items[number].args:
                self._scalars_of(each, where, seen)

    def _element(self, number: int) -> str:
        """The name of an item's value, written where it is not known yet."""
        if number in self.names:
            return self.names[number]
        item, scalar = self.items[number], Scalar.of(self.items[number].dtype)
        if item.kind == "literal":
            return f"({item.text})" if item.text.startswith("-") else item.text
        if item.kind == "index":
            value, own = self._element(item.args[0]), self.lowered.indices.index(number)
            size = self.writer.size(f"m{self.prefix}{own}", int(item.text))
            self.writer.line(f"EG_INDEX(v{number}, {value}, {size}, p{self.writer.fault()})")
            self.names[number] = f"v{number}"
            return self.names[number]
        inside = self.where[number] == _INNER
        if number in self.kept:
            text = f"EG_KEPT(p{self.buffers[number]}, {self._column()})"
        elif item.address is not None:
            places = {~loop: self._element(each) for each, (loop, _) in zip(item.args, item.address.place.terms)}
            text = scalar.load(f"p{self.writer.pointers[item.address]}", self._offset(item.address, places))
        elif item.kind == "count":
            text = f"({scalar.compute})({' * '.join(self._size(axis) for axis in range(len(self.trips))) or '1'})"
        else:
            values = [self._element(each) for each in item.args]
            text = _OPERAND.sub(lambda found: values[int(found.group(1))], item.text)
            if scalar.is_integer and scalar.bits < 32:
                text = f"({scalar.storage})({text})"
        name = f"v{number}"
        self.writer.line(f"const {scalar.compute} {name} = {text};")
        if inside and number in self.buffers and number not in self.kept:
            self.writer.line(f"EG_KEPT(p{self.buffers[number]}, {self._column()}) = {name};")
        self.names[number] = name
        return name

    def _column(self) -> str:
        """The place of a column in its row: that in the loops outside, trips of the innermost one, the place in it."""
        text = ""
        for axis in range(len(self.trips) - 1):
            loop = f"{self.prefix}{axis}"
            text = f"({text}) * {self._size(axis)} + {loop}" if text else loop
        return f"{text or '0'}, {self._size(len(self.trips) - 1)}, {self._inner_loop()}"

    def _offset(self, where: Address, places: Mapping[int, str] = MappingProxyType({})) -> str:
        """`places` are the names of the indices."""
        number, terms = self.writer.pointers[where], []
        for axis, step in enumerate(self.steps[where]):
            loop = f"{self.prefix}{axis}"
            name = f"s{number}{loop}"
            if not step:
                continue
            if step == 1 and axis == len(self.trips) - 1:
                terms.append(loop)
                continue
            if step in _SHORT and axis == len(self.trips) - 1:  # known, loads of neighbours are shared and shuffled
                terms.append(f"{loop} * {step}")
                continue
            terms.append(f"{loop} * {self.writer.size(name, step)}")
        for own, factor in where.place.terms:
            if own < 0:
                terms.append(f"{places[~own]} * {self.writer.size(f's{number}x{~own}', factor)}")
        return " + ".join([f"b{number}", *terms])

    def _store(self, item: int, where: Address, how: str = "EG_PUT") -> None:
        value = Scalar.of(self.items[item].dtype).stored(self._element(item))
        self.writer.line(f"{how}(p{self.writer.pointers[where]}, {self._offset(where)}, {value});")
