"""How linear cross-entropy is cut: every budget is kept to, every column covered, and more is never worse."""

import itertools

import pytest

from pfkit.logprobs import linear_plan
from pfkit.logprobs.linear_plan import CHUNK_BYTES, ROW_BYTES, WIDEST_BYTES, padded

SIZES = [(1, 8, 1), (3, 16, 7), (40, 64, 1000), (517, 128, 5003), (2048, 512, 32000), (8192, 4096, 128256)]
BUDGETS = [10**5, 10**6, 9 * 10**6, 40 * 10**6, 200 * 10**6, 1 << 30, 3 << 30]


def forward_bytes(plan, size):
    """What forward holds at once."""
    kept = sum(plan.rows * padded(n) * size for _, n in plan.chunks()[: plan.kept])
    rest = plan.height * padded(plan.width) * size if plan.kept * plan.width < plan.vocabulary else 0
    return ROW_BYTES * plan.rows + kept + rest


def backward_bytes(plan, hidden, size, sums):
    """What backward holds at once: two sweeps where there are blocks."""
    chunk = plan.rows * padded(plan.width) * size
    kept = sum(plan.rows * padded(n) * size for _, n in plan.chunks()[: plan.kept])
    whole = 4 * plan.rows * hidden if sums and not plan.block else 0
    second = plan.block * (4 * hidden + padded(plan.block_width) * size)
    return ROW_BYTES * plan.rows + max(kept + chunk + whole, second)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("shape", SIZES)
def test_budgets_are_kept_and_columns_covered(shape, size):
    rows, hidden, vocabulary = shape
    for memory, (gradient, sums) in itertools.product(BUDGETS, [(False, False), (True, False), (True, True)]):
        least = linear_plan.least(*shape, size, gradient=gradient, sums=sums)
        if memory < least:
            with pytest.raises(ValueError, match=f"{least} bytes are the least"):
                linear_plan.make(*shape, size, memory, gradient=gradient, sums=sums)
            continue
        plan = linear_plan.make(*shape, size, memory, gradient=gradient, sums=sums)
        assert forward_bytes(plan, size) <= memory
        if gradient:
            assert plan.height == rows and backward_bytes(plan, hidden, size, sums) <= memory
        covered = [c for first, n in plan.chunks() for c in (first, first + n)]
        assert covered[0] == 0 and covered[-1] == vocabulary and covered[1:-1:2] == covered[2::2]
        assert 1 <= plan.height <= rows and 0 <= plan.kept <= len(plan.chunks())


@pytest.mark.parametrize("shape", SIZES)
def test_the_least_budget_is_enough(shape):
    for size, (gradient, sums) in itertools.product([2, 4], [(False, False), (True, False), (True, True)]):
        least = linear_plan.least(*shape, size, gradient=gradient, sums=sums)
        plan = linear_plan.make(*shape, size, least, gradient=gradient, sums=sums)
        assert forward_bytes(plan, size) <= least
        assert not gradient or backward_bytes(plan, shape[1], size, sums) <= least


def test_chunks_stay_in_the_cache_and_more_memory_keeps_more():
    assert 8192 * linear_plan.make(8192, 4096, 128256, 2).width * 2 <= CHUNK_BYTES
    kept = []
    for memory in (None, 200 * 10**6, 1 << 30, 3 << 30):
        plan = linear_plan.make(8192, 4096, 128256, 2, memory, gradient=True, sums=True)
        assert plan.rows * plan.width * 2 <= WIDEST_BYTES and not plan.block
        kept.append(plan.kept)
    assert kept[0] == 0 and kept == sorted(kept) and kept[-1] == len(plan.chunks())


def test_small_logits_are_kept_by_default():
    plan = linear_plan.make(64, 32, 1000, 4, gradient=True)
    assert plan.width == 1000 and plan.kept == 1
    plan = linear_plan.make(4096, 4096, 32000, 2, gradient=True, sums=True)
    assert plan.kept == len(plan.chunks()) == 2
    assert linear_plan.make(8192, 4096, 32000, 2, gradient=True, sums=True).kept == 0


@pytest.mark.parametrize(("rows", "size"), [(8192, 4), (16384, 2), (16384, 4), (1 << 18, 2)])
def test_chunks_of_many_rows_are_wide_in_backward(rows, size):
    plan = linear_plan.make(rows, 4096, 128256, size, gradient=True, sums=size == 2)
    assert plan.width == linear_plan.BACKWARD_COLUMNS
    assert plan.kept == plan.block == 0
    assert backward_bytes(plan, 4096, size, size == 2) <= plan.memory


def test_a_tight_budget_sums_the_hidden_gradient_in_blocks():
    plan = linear_plan.make(8192, 4096, 128256, 2, 9 * 10**6, gradient=True, sums=True)
    assert 0 < plan.block < 8192 and plan.kept == 0


def test_no_rows():
    assert linear_plan.make(0, 16, 100, 4, gradient=True).chunks() == [(0, 100)]
