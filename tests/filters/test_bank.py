"""Banks of filters: each member is the single filter it stands for."""

import copy
import math
import pickle

import numpy as np
import pytest

from pfkit import (
    FilterBank,
    FilterCollapse,
    InvalidWeight,
    LinearGaussian,
    LocalLevel,
    ParticleFilter,
    RangeRobot,
    StochasticVolatility,
    from_functions,
)

T = 20
RNG = np.random.default_rng(5)
Y = np.cumsum(RNG.normal(size=T))
Y[4] = Y[11] = np.nan
FIELDS = ("increment", "ess", "resampled", "n_unique", "mean", "variance")


def walk():
    return from_functions(
        lambda n, rng: rng.normal(size=n),
        lambda x, t, rng: x + rng.normal(size=x.shape),
        lambda y, x, t: -0.5 * (y - x) ** 2,
    )


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("lse", ["fuse", "int"])
@pytest.mark.parametrize(
    "model, y",
    [
        (LocalLevel(1.0, 1.0), Y),
        (
            LinearGaussian(np.eye(2) * 0.9, np.eye(2), np.eye(2), np.eye(2), np.zeros(2), np.eye(2)),
            RNG.normal(size=(T, 2)),
        ),
        (walk(), Y),
    ],
    ids=["compiled", "compiled d=2", "python"],
)
def test_a_bank_of_one_has_the_bits_of_the_single_filter(model, y, lse, dtype):
    bank = FilterBank(model, 300, rng=8, lse=lse, dtype=dtype)
    single = ParticleFilter(model, 300, rng=8, lse=lse, dtype=dtype)
    for part in (y[:7], y[7:]):
        result, expected = bank.run(part), single.run(part)
        for name in FIELDS:
            np.testing.assert_array_equal(getattr(result, name)[0], getattr(expected, name), err_msg=name)
        assert result.log_likelihood[0] == expected.log_likelihood
    for name in ("particles", "weights", "log_weights", "log_likelihood", "ess"):
        np.testing.assert_array_equal(getattr(bank, name)[0], getattr(single, name), err_msg=name)


@pytest.mark.parametrize("chunk", [1, 1500, 3000, 10_000])
def test_calls_for_a_few_filters_and_steps_at_a_time_give_the_bits_of_one_call(chunk, monkeypatch):
    models = [LocalLevel(s, 1.0) for s in (0.3, 0.5, 1.0, 2.0, 4.0)]
    y = np.concatenate([Y[:7], [1e170], Y[7:]])  # a collapse in the middle
    whole = FilterBank(models, 300, rng=2, on_collapse="keep", n_threads=2)
    parts = FilterBank(models, 300, rng=2, on_collapse="keep", n_threads=2)
    for series in (y, Y[:3]):
        expected = whole.run(series)
        with monkeypatch.context() as m:
            m.setattr("pfkit.filters.bank.CHUNK", chunk)
            result = parts.run(series)
        for name in (*FIELDS, "log_likelihood"):
            np.testing.assert_array_equal(getattr(result, name), getattr(expected, name), err_msg=name)
        for name in ("particles", "weights", "log_weights", "log_likelihood", "ess"):
            np.testing.assert_array_equal(getattr(parts, name), getattr(whole, name), err_msg=name)


@pytest.mark.parametrize("lse", ["fuse", "int"])
@pytest.mark.parametrize("seen", [0, 6, 7])
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda b: pickle.loads(pickle.dumps(b))])
def test_copies_go_on_by_themselves(copied, seen, lse):
    models = [LocalLevel(s, 1.0) for s in (0.5, 1.0, 2.0)]
    bank = FilterBank(models, 200, rng=2, lse=lse)
    if seen:
        bank.run(Y[:seen])
    other = copied(bank)
    for pf in other.filters:
        pf.step(3.0)
    other.run(Y)
    again = copied(bank)
    result, expected = again.run(Y[seen:]), bank.run(Y[seen:])
    for name in (*FIELDS, "log_likelihood"):
        np.testing.assert_array_equal(getattr(result, name), getattr(expected, name), err_msg=name)
    for name in ("particles", "weights", "log_weights", "log_likelihood"):
        np.testing.assert_array_equal(getattr(again, name), getattr(bank, name), err_msg=name)
        assert not np.array_equal(getattr(other, name), getattr(bank, name))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_member_shares_no_room_with_its_copy(copied):
    model = LocalLevel(1.0, 0.2)
    whole = FilterBank(model, 100, n_filters=2, rng=4, lse="int", ess_threshold=1.0).filters[0].run(Y)
    bank = FilterBank(model, 100, n_filters=2, rng=4, lse="int", ess_threshold=1.0)
    bank.filters[0].run(Y[:8])
    other = copied(bank)
    other.filters[0].run(Y[:3] + 1.0)  # ends with other integer weights, by which the next step resamples
    rest = bank.filters[0].run(Y[8:])
    np.testing.assert_array_equal(rest.increment, whole.increment[8:])
    np.testing.assert_array_equal(rest.n_unique, whole.n_unique[8:])


class Skew(LocalLevel):
    """Its first particles take NumPy's own generator too, and leave it in the middle of a word."""

    def initial(self, n, rng):
        return rng.gamma(2.0, size=n) + rng.normal(size=n) + rng.integers(0, 9, n, dtype=np.uint32)


def test_first_particles_of_members_come_from_their_own_streams():
    bank = FilterBank(Skew(1.0, 1.0), 31, n_filters=4, rng=3)
    alone = []
    for member in bank.filters:
        alone.append(ParticleFilter(Skew(1.0, 1.0), 31))
        alone[-1]._streams = type(member._streams)(member._streams.key)
    bank.run(Y)
    np.testing.assert_array_equal([pf.run(Y).log_likelihood for pf in alone], bank.log_likelihood)


@pytest.mark.parametrize("lse", ["fuse", "int"])
def test_every_member_is_the_filter_of_its_key(lse):
    models = [LocalLevel(s, 1.0) for s in (0.5, 1.0, 2.0)]
    bank = FilterBank(models, 257, rng=2, lse=lse)
    alone = [ParticleFilter(m, 257, rng=0, lse=lse) for m in models]
    for pf, member in zip(alone, bank.filters, strict=True):
        pf._streams = type(pf._streams)(member._streams.key)
    result = bank.run(Y)
    for b, pf in enumerate(alone):
        expected = pf.run(Y)
        for name in FIELDS:
            np.testing.assert_array_equal(getattr(result[b], name), getattr(expected, name))
            np.testing.assert_array_equal(getattr(result, name)[b], getattr(expected, name))


def test_threads_and_order_of_calls_change_nothing():
    models = [StochasticVolatility(m, 0.9, 0.3) for m in np.linspace(-1, 1, 7)]
    y = RNG.normal(size=T)
    base = FilterBank(models, 600, rng=4).run(y)
    for threads in (2, 3, 8):
        other = FilterBank(models, 600, rng=4, n_threads=threads).run(y)
        np.testing.assert_array_equal(other.increment, base.increment)
        np.testing.assert_array_equal(other.mean, base.mean)
    stepped = FilterBank(models, 600, rng=4)
    steps = [stepped.step(v) for v in y]
    np.testing.assert_array_equal(np.array([s.increment for s in steps]).T, base.increment)
    assert steps[3].ess.shape == (7,)


def test_a_series_each():
    y = np.stack([Y, 2 * Y, -Y])
    bank = FilterBank(LocalLevel(1.0, 1.0), 200, n_filters=3, rng=1)
    result = bank.run(y, each=True)
    for b in range(3):
        again = FilterBank(LocalLevel(1.0, 1.0), 200, n_filters=3, rng=1).run(y[b])
        np.testing.assert_array_equal(result.increment[b], again.increment[b])
    ragged = FilterBank(LocalLevel(1.0, 1.0), 200, n_filters=2, rng=1)
    with pytest.raises(ValueError, match="different lengths"):
        ragged.run([Y, Y[:9]], each=True)


def test_replicates_are_unbiased():
    """Mean likelihood over 400 members is the exact one: y_0 = 1.5 under N(0, 1 + 1)."""
    bank = FilterBank(LocalLevel(1.0, 1.0), 50, n_filters=400, rng=6)
    z = np.exp(bank.run([1.5]).log_likelihood - (-0.5 * 1.5**2 / 2 - 0.5 * math.log(4 * math.pi)))
    assert abs(z.mean() - 1) < 4.5 * z.std(ddof=1) / math.sqrt(400)
    assert len(np.unique(z)) == 400


def test_inputs_and_angles():
    model = RangeRobot([[0.0, 0.0], [5.0, 0.0], [0.0, 5.0]], start=(1, 1, 0))
    y, u = np.abs(RNG.normal(3, 1, size=(T, 3))), RNG.normal(size=(T, 3)) * 0.1
    for store in ((), ("mean", "variance")):
        result = FilterBank(model, 100, n_filters=2, rng=1).run(y, u, store=store)
        expected = ParticleFilter(model, 100, rng=1).run(y, u, store=store)
        np.testing.assert_array_equal(result.increment[0], expected.increment)
        if store:
            np.testing.assert_array_equal(result.mean[0], expected.mean)


def test_one_collapse_leaves_the_others_alone():
    y = np.stack([Y, Y])
    y[1, 5] = y[1, 9] = 1e170
    bank = FilterBank(LocalLevel(1.0, 1.0), 300, n_filters=2, rng=1, on_collapse="keep")
    result = bank.run(y, each=True)
    clean = FilterBank(LocalLevel(1.0, 1.0), 300, n_filters=2, rng=1).run(Y)
    np.testing.assert_array_equal(result.increment[0], clean.increment[0])
    np.testing.assert_array_equal(result.increment[1, :5], clean.increment[1, :5])
    assert np.isneginf(result.increment[1, [5, 9]]).all() and np.isfinite(result.increment[1, 6:9]).all()
    single = ParticleFilter(LocalLevel(1.0, 1.0), 300, rng=0, on_collapse="keep")
    single._streams = type(single._streams)(bank.filters[1]._streams.key)
    expected = single.run(y[1])
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(result[1], name), getattr(expected, name), err_msg=name)
    more, expected = bank.run(Y[12:]), single.run(Y[12:])
    np.testing.assert_array_equal(more.increment[1], expected.increment)


def test_failures_name_the_filter():
    y = np.stack([Y, Y])
    y[1, 5] = 1e170
    with pytest.raises(FilterCollapse) as caught:
        FilterBank(LocalLevel(1.0, 1.0), 300, n_filters=2, rng=1).run(y, each=True)
    assert caught.value.filter == 1 and caught.value.step == 5
    bad = from_functions(lambda n, rng: rng.normal(size=n), lambda x, t, rng: x, lambda y, x, t: x * np.nan)
    with pytest.raises(InvalidWeight) as invalid:
        FilterBank([walk(), bad], 20, rng=1).run(Y)
    assert invalid.value.filter == 1


@pytest.mark.parametrize(
    "make, error",
    [
        (lambda: FilterBank([], 10), ValueError),
        (lambda: FilterBank([walk()], 10, n_filters=2), ValueError),
        (lambda: FilterBank(walk(), 10, n_filters=0), ValueError),
        (lambda: FilterBank(walk(), 10, n_filters=1.5), TypeError),
        (lambda: FilterBank(walk(), 0), ValueError),
        (lambda: FilterBank("model", 10), TypeError),
        (lambda: FilterBank(walk(), 10, lse="exact"), ValueError),
        (lambda: FilterBank(walk(), 10, n_filters=3).run([Y, Y], each=True), ValueError),
    ],
)
def test_bad_arguments(make, error):
    with pytest.raises(error):
        make()


def test_mixed_models_go_one_by_one():
    models = [LocalLevel(1.0, 1.0), walk(), StochasticVolatility(0.0, 0.9, 0.3)]
    result = FilterBank(models, 100, rng=1).run(Y)
    assert result.increment.shape == (3, T) and np.isfinite(result.log_likelihood).all()
    np.testing.assert_array_equal(result[0].increment, ParticleFilter(models[0], 100, rng=1).run(Y).increment)


def test_models_of_different_dimensions_are_refused_at_once():
    flat, deep = (
        LinearGaussian(1.0, 1.0, 1.0, 1.0, 0.0, 1.0),
        LinearGaussian(np.eye(2), np.eye(2), np.eye(2), np.eye(2), np.zeros(2), np.eye(2)),
    )
    for models in (
        [flat, deep],
        [deep, deep, flat],
        [LocalLevel(1, 1), LinearGaussian([[1.0]], [[1.0]], [[1.0]], [[1.0]], [0.0], [[1.0]])],
    ):
        with pytest.raises(ValueError, match="must have the same state_dim"):
            FilterBank(models, 10)


@pytest.mark.parametrize("model", [LocalLevel(1.0, 1.0), walk()])
def test_results_are_made_when_asked_for_and_travel(model):
    result = FilterBank(model, 50, n_filters=3, rng=1).run(Y)
    assert result[-1] is result[2] is result.results[2]
    with pytest.raises(IndexError):
        result[3]
    assert result.log_likelihood.tolist() == [r.log_likelihood for r in result.results]
    if isinstance(model, LocalLevel):
        again = pickle.loads(pickle.dumps(result))
        np.testing.assert_array_equal(again.mean, result.mean)
        np.testing.assert_array_equal(again.log_likelihood, result.log_likelihood)
    assert len(FilterBank(model, 50, n_filters=2, rng=1).run(Y[:0]).log_likelihood) == 2
