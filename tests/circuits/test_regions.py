"""Numbering, order and checks of the regions of a circuit."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

from pfkit.circuits.regions import RegionGraph, padded, rooted, tree_centre, tree_regions  # noqa: E402

EDGES = [(0, 1), (1, 2), (1, 3), (3, 4), (3, 5)]


def test_a_tree_hung_from_its_root():
    graph, numbers = tree_regions(6, [(EDGES, 3)])
    # variable 1 has two leaves below it: one level; 3 is the root, over leaves 4 and 5 and region 6
    assert graph.input_variables == (0, 1, 2, 3, 4, 5)
    assert graph.levels == (((1, 0, 2),),)
    assert graph.root == ((3, 6, 4, 5),)
    assert numbers == [{1: 6}]
    assert graph.n_regions == 7


def test_levels_and_fan_in_are_in_order():
    chain_and_star = [(0, 1), (1, 2), (2, 3), (2, 4), (2, 5), (0, 6), (6, 7), (6, 8), (8, 9)]
    graph, _ = tree_regions(10, [(chain_and_star, 0)])
    first = len(graph.input_variables)
    for level in graph.levels:
        assert [len(p) for p in level] == sorted((len(p) for p in level), reverse=True)
        assert all(c < first for p in level for c in p)
        first += len(level)
    used = [c for level in (*graph.levels, graph.root) for p in level for c in p]
    assert sorted(used) == list(range(graph.n_regions))  # a tree: every region has one parent


def test_a_mixture_of_trees_has_inputs_of_its_own_for_each():
    graph, numbers = tree_regions(3, [([(0, 1), (1, 2)], 0), ([(0, 1), (1, 2)], 1)])
    assert graph.input_variables == (0, 1, 2, 0, 1, 2)
    assert graph.root == ((4, 3, 5), (0, 6))  # the product of more children first
    assert numbers == [{1: 6}, {}]


def test_one_variable():
    graph, _ = tree_regions(1, [([], 0)])
    assert graph.root == ((0,),) and graph.levels == ()


def test_padding():
    assert padded(((1, 2, 3), (4,))).tolist() == [[1, 2, 3], [4, -1, -1]]


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((2, (0, 2), (), ((0, 1),)), "variable 2"),
        ((2, (0, 0, 1), (), ((0, 1, 2),)), "share the variables"),
        ((2, (0, 1), (), ((0,),)), "misses the variables"),
        ((10**12, (0, 2), (), ((0, 1),)), r"misses the variables \[1, 3, 4, 5, 6, 7, 8, 9, 10, 11\]$"),
        ((2, (0, 1), (), ()), "no product"),
        ((2, (0, 1), ((),), ((0, 1),)), "empty"),
        ((2, (0, 1), (((3,),),), ((0, 1),)), "not computed yet"),
        ((2, (0, 1), (((),),), ((0, 1),)), "without children"),
        ((3, (0, 1, 2), (((0,), (1, 2)),), ((3, 4),)), "falling number"),
        ((2, (0, 1, 0, 1), (((2, 3),),), ((4,), (0, 1))), "root products are not in order"),
    ],
)
def test_what_is_no_circuit_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        RegionGraph(*arguments)


def test_other_sequences_become_tuples():
    graph = RegionGraph(np.int64(3), [0, 1, 2], [[[1, 2]]], np.array([[0, 3]]))
    assert graph == RegionGraph(3, (0, 1, 2), (((1, 2),),), ((0, 3),))
    assert type(graph.n_variables) is int and isinstance(graph.levels[0][0], tuple)


@pytest.mark.parametrize(
    "arguments",
    [
        (2.0, (0, 1), (), ((0, 1),)),
        ("2", (0, 1), (), ((0, 1),)),
        (2, (0.0, 1), (), ((0, 1),)),
        (2, None, (), ((0, 1),)),
        (2, (0, 1), (0,), ((0, 1),)),
        (2, (0, 1), (), (0, 1)),
        (2, (0, 1), (), ((0.0, 1.0),)),
    ],
)
def test_what_is_no_number_is_refused(arguments):
    with pytest.raises(TypeError, match="made of integers"):
        RegionGraph(*arguments)


@pytest.mark.parametrize(
    "n_variables, trees, error, message",
    [
        (3.0, [([(0, 1), (1, 2)], 0)], TypeError, "n_variables must be an integer, got 3.0"),
        (0, [([], 0)], ValueError, "n_variables must be >= 1"),
        (3, [], ValueError, "no product"),
        (3, [7], TypeError, "pairs .*got 7"),
        (3, "ab", TypeError, "pairs .*got 'a'"),
        (3, [([(0.0, 1), (1, 2)], 0)], TypeError, "edges must be pairs"),
        (3, [([(0, 1), (1, 2)], 3)], ValueError, "root must be a variable"),
    ],
)
def test_bad_trees(n_variables, trees, error, message):
    with pytest.raises(error, match=message):
        tree_regions(n_variables, trees)


@pytest.mark.parametrize(
    "edges", [[(0, 1)], [(0, 1), (0, 1)], [(0, 1), (1, 2), (2, 0)], [(0, 1), (1, 3)], [(0, 0), (1, 2)]]
)
def test_what_is_no_spanning_tree_is_refused(edges):
    with pytest.raises(ValueError, match="spanning tree|no edge"):
        rooted(3, edges, 0)


def test_root_out_of_range():
    with pytest.raises(ValueError, match="root must be a variable"):
        rooted(2, [(0, 1)], 2)


def test_centre_gives_the_fewest_levels():
    random = np.random.default_rng(0)
    for _ in range(20):
        n = int(random.integers(2, 30))
        edges = [(v, int(random.integers(v))) for v in range(1, n)]
        depth = {r: len(tree_regions(n, [(edges, r)])[0].levels) for r in range(n)}
        assert depth[tree_centre(n, edges)] == min(depth.values())
