"""Extraction with nodes that cost another amount together."""

from __future__ import annotations

from rules.catalogue import all_rules
from search import ENode, Saturated, saturate
from search.build import placed
from search.extract import Selection, exact, incumbent
from search.tiles import Tile, merged, saved, tile_of
from tests.search.samples import SOUND, graph_of

# t_add_constants makes one Add of the two.
TEXT = """graph opset 17 (x: float32[4, 4]) -> (y) {
  a = Add(x, c)
  y = Add(a, d)
  c = constant float32[4, 4] [[1, 2, 3, 4], [5, 6, 7, 8], [1, 2, 3, 4], [5, 6, 7, 8]]
  d = constant float32[4, 4] [[4, 3, 2, 1], [8, 7, 6, 5], [4, 3, 2, 1], [8, 7, 6, 5]]
}"""
SHARED = TEXT.replace("-> (y)", "-> (y, z)").replace("y = Add", "z = Neg(a)\n  y = Add")


def each_ten(enode: ENode) -> float:
    return 10.0 if enode.kind == "op" else 0.0


def both(found: Saturated, saving: float) -> list[Tile]:
    adds = [enode for enode in incumbent(found, each_ten).choice.values() if enode.op == "Add"]
    first, second = sorted(adds, key=lambda enode: enode.origin or 0)
    return [tile_of([first, second], saving)]


def ops(found: Saturated, selection: Selection) -> list[str]:
    """Operators that run: what constants are computed from is folded."""
    return [enode.op for enode in selection.choice.values() if enode.kind == "op" and enode.cls not in found.constant]


def test_nodes_that_are_cheaper_together_than_what_replaces_them_stay() -> None:
    found = saturate(graph_of(TEXT), SOUND)
    alone = exact(found, each_ten, byte_cost=0.0)
    assert ops(found, alone) == ["Add"] and alone.cost == 10.0
    together = exact(found, each_ten, byte_cost=0.0, tiles=both(found, 15.0))
    assert ops(found, together) == ["Add", "Add"] and together.cost == 5.0
    assert together.gap is not None and together.gap < 1e-6
    little = exact(found, each_ten, byte_cost=0.0, tiles=both(found, 5.0))
    assert ops(found, little) == ["Add"] and little.cost == 10.0


def test_a_tile_counts_only_where_nothing_else_reads_what_is_inside() -> None:
    graph = graph_of(SHARED)
    found = saturate(graph, SOUND)
    tiles = both(found, 15.0)
    given = incumbent(found, each_ten, tiles=tiles)
    assert given.cost == 30.0 and saved(given.choice, found.outputs, tiles) == 0.0
    assert exact(found, each_ten, byte_cost=0.0, tiles=tiles).cost == 30.0


def test_what_costs_together_is_charged_and_avoided() -> None:
    found = saturate(graph_of(TEXT), SOUND)

    def one_is_dear(enode: ENode) -> float:
        return each_ten(enode) * (2.5 if enode.op == "Add" and enode.origin is None else 1.0)

    assert ops(found, exact(found, one_is_dear, byte_cost=0.0)) == ["Add", "Add"]
    selection = exact(found, one_is_dear, byte_cost=0.0, tiles=both(found, -8.0))
    assert ops(found, selection) == ["Add"] and selection.cost == 25.0
    assert incumbent(found, one_is_dear, tiles=both(found, -8.0)).cost == 28.0


def test_of_tiles_that_share_a_node_one_counts() -> None:
    found = saturate(graph_of(TEXT), SOUND)
    tile, = both(found, 15.0)
    single = Tile(frozenset([min(tile.enodes)]), frozenset(), 6.0)
    given = incumbent(found, each_ten)
    assert saved(given.choice, found.outputs, [tile, single]) == 15.0
    assert exact(found, each_ten, byte_cost=0.0, tiles=[single, tile]).cost == 5.0


def test_each_node_of_a_built_graph_is_an_e_node() -> None:
    graph = graph_of(SHARED)
    found = saturate(graph, SOUND)
    built, enodes = placed(graph, found, exact(found, each_ten))
    assert [enode.op for enode in enodes if enode is not None] == [node.op for node in built.nodes]


def test_a_value_that_leaves_a_tile_may_be_read_by_others() -> None:
    found = saturate(graph_of(SHARED), SOUND)
    (inside,) = both(found, 15.0)
    adds = [enode for enode in incumbent(found, each_ten).choice.values() if enode.op == "Add"]
    first, second = sorted(adds, key=lambda enode: enode.origin or 0)
    leaving = tile_of([first, second], 15.0, leaving=[first.cls])
    assert leaving.enodes == inside.enodes and not leaving.inner and merged([inside, leaving]) == [leaving, inside]
    given = incumbent(found, each_ten, tiles=[leaving])
    assert given.cost == 15.0 and saved(given.choice, found.outputs, [leaving]) == 15.0
    assert exact(found, each_ten, byte_cost=0.0, tiles=[leaving]).cost == 15.0


def test_what_costs_together_gives_way_to_what_is_dearer_alone() -> None:
    """A Sum reads what the Add reads and takes longer; with what follows the Add takes longer still."""
    found = saturate(graph_of("""graph opset 17 (x: float32[2, 3, 4], z: float32[2, 3, 4]) -> (y) {
      g = constant float32[4] [1, 2, 3, 4]
      a = Add(x, z)
      y = LayerNormalization(a, g)
    }"""), [rule for rule in all_rules() if rule.name in ("sum-before-layer-norm", "sum-of-two")])

    def cost(enode: ENode) -> float:
        return 11.0 if enode.op == "Sum" else each_ten(enode)

    by_op = {enode.op: enode for enode in incumbent(found, cost).choice.values()}
    tile = tile_of([by_op["Add"], by_op["LayerNormalization"]], -5.0)
    assert sorted(ops(found, exact(found, cost))) == ["Add", "LayerNormalization"]
    dear = exact(found, cost, byte_cost=0.0, tiles=[tile])
    assert sorted(ops(found, dear)) == ["LayerNormalization", "Sum"] and dear.cost == 21.0
