"""Counts of pairs: the two ways agree, and many categories need no C * C table."""

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from pfkit.circuits import chow_liu, chow_liu_tree, hclt, mutual_information  # noqa: E402
from pfkit.circuits.pairs import joint_dense, joint_sparse, suits_dense  # noqa: E402


@pytest.mark.parametrize("pseudocount", [0.0, 0.01, 2.0])
def test_both_ways_are_the_definition(pseudocount):
    t = torch.from_numpy(np.random.default_rng(0).integers(0, 7, (50, 4)))
    dense, sparse = (joint(t, 7, pseudocount) for joint in (joint_dense, joint_sparse))
    for a in range(4):
        for b in range(a):
            table = np.full((7, 7), pseudocount)
            np.add.at(table, (t[:, a].numpy(), t[:, b].numpy()), 1)
            p = table / table.sum()
            want = float(torch.special.xlogy(torch.from_numpy(p), torch.from_numpy(p)).sum())
            for got in (dense, sparse):
                assert [got[a, b], got[b, a]] == pytest.approx([want, want], rel=1e-12)


def test_sixteen_bit_categories():
    """Two variables that copy each other, and one on its own: I = log 4 = entropy, and 0."""
    value = np.array([0, 300, 40000, 65535])
    x = np.stack([np.repeat(value, 4), np.tile(value, 4), np.repeat(value[::-1], 4)], 1)
    assert not suits_dense(*x.shape, 65536)
    information = mutual_information(x, pseudocount=0.0)
    assert information[0, 2] == pytest.approx(math.log(4), rel=1e-12)
    assert information[0, 1] == pytest.approx(0, abs=1e-12)
    assert (0, 2) in chow_liu_tree(x, pseudocount=0.0)
    assert chow_liu_tree(np.array([[0, 1], [65535, 3]])) == [(0, 1)]


def test_tables_that_no_memory_holds():
    with pytest.raises(ValueError, match="65536 \\* 65536 categories .* 128 GiB"):
        chow_liu(np.array([[0, 1], [65535, 3]]))


@pytest.mark.parametrize(
    "learn", [chow_liu_tree, chow_liu, lambda x, pseudocount: hclt(x, 3, pseudocount=pseudocount)]
)
def test_a_pseudocount_that_overflows(learn):
    with pytest.raises(ValueError, match="pseudocount is too large"):
        learn(np.random.default_rng(0).integers(0, 3, (20, 3)), pseudocount=1e308)
