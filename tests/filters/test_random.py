"""Keyed random streams."""

import random

import numpy as np
import pytest

from pfkit.filters.random import INITIAL, RESAMPLE, TRANSITION, Streams, random_bits, seed_key, stream


def test_streams_are_functions_of_key_step_and_purpose():
    key = seed_key(1)
    streams = Streams(key)
    for step, purpose in [(0, INITIAL), (5, TRANSITION), (3, TRANSITION), (5, TRANSITION), (5, RESAMPLE)]:
        a = streams.at(step, purpose)
        a.standard_normal(3)
        a.integers(7, dtype=np.uint32)  # leaves half a word behind
        expected = stream(key, step, purpose)
        again = streams.at(step, purpose)
        assert np.array_equal(again.standard_normal(10), expected.standard_normal(10))
        assert np.array_equal(again.random(5, np.float32), expected.random(5, np.float32))


def test_streams_differ_and_do_not_correlate():
    n = 20000
    draws = [
        stream(seed_key(seed), step, purpose).standard_normal(n)
        for seed in (0, 1)
        for step in (0, 1, 2, 1000)
        for purpose in (INITIAL, TRANSITION, RESAMPLE)
    ]
    correlation = np.corrcoef(draws) - np.eye(len(draws))
    assert np.abs(correlation).max() < 5.5 / np.sqrt(n)


def test_streams_of_one_purpose_may_be_open_with_those_of_another():
    streams = Streams(seed_key(2))
    a, b = streams.at(1, TRANSITION), streams.at(1, RESAMPLE)
    x = a.random(3), b.random(3), a.random(3)
    c = stream(seed_key(2), 1, TRANSITION)
    assert np.array_equal(x[0], c.random(3)) and np.array_equal(x[2], c.random(3))


def test_keys():
    assert np.array_equal(seed_key(3), seed_key(np.random.SeedSequence(3))) and seed_key(3).dtype == np.uint64
    assert not np.array_equal(seed_key(3), seed_key(4))
    assert not np.array_equal(seed_key(None), seed_key(None))
    child = np.random.SeedSequence(3).spawn(1)[0]
    assert not np.array_equal(seed_key(child), seed_key(3))
    assert seed_key(2**200).shape == (2,)
    rng = np.random.default_rng(0)
    assert not np.array_equal(seed_key(rng), seed_key(rng))
    for bad, kind in (
        (-1, ValueError),
        (1.5, TypeError),
        (True, TypeError),
        ("x", TypeError),
        (np.random, TypeError),
    ):
        with pytest.raises(kind, match="rng"):
            seed_key(bad)
    with pytest.raises(ValueError, match="two uint64"):
        Streams(np.zeros(3, np.uint64))


def test_an_int_gives_the_key_that_numpys_seed_sequence_gives():
    rng = random.Random(1)
    seeds = [0, *(2**k + d for k in (1, 31, 32, 63, 64, 95, 96, 127, 128, 129, 300) for d in (-1, 0, 1))]
    seeds += [rng.getrandbits(rng.randint(1, 140)) for _ in range(2000)]
    for seed in seeds:
        expected = np.random.SeedSequence(seed).generate_state(2, np.uint64)
        found = seed_key(seed)
        assert found.dtype == np.uint64 and np.array_equal(found, expected), seed
    assert np.array_equal(seed_key(np.uint64(2**64 - 1)), seed_key(2**64 - 1))


@pytest.mark.parametrize("bits", ["PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"])
def test_random_bits_fill_all_64(bits):
    words = random_bits(np.random.Generator(getattr(np.random, bits)(0)), 4096)
    assert words.dtype == np.uint64 and words.shape == (4096,)
    ones = np.array([np.count_nonzero(words >> np.uint64(k) & np.uint64(1)) for k in range(64)])
    assert np.all(np.abs(ones - 2048) < 5 * 32)
