"""Timers: what they count and when they run. (How long things take is for the benchmarks.)"""

import threading

import numpy as np
import pytest

from pfkit import FilterCollapse, LocalLevel, ParticleFilter, Timers
from pfkit.timing import PHASES, active

Y = np.zeros(20)


def make(**options):
    return ParticleFilter(LocalLevel(1.0, 1.0), 50, rng=0, **{"ess_threshold": 1, **options})


@pytest.mark.parametrize("lse", ["fuse", "int", "numpy"])
def test_phases_calls_and_shares(lse):
    with Timers(every=1) as t:
        assert active() is t
        result = make(lse=lse).run(Y)
    assert active() is None and result.timings is t
    rows = {row.phase: row for row in t.rows()}
    assert tuple(rows) == PHASES
    assert rows["propagate"].calls == rows["likelihood"].calls == rows["lse"].calls == 20
    assert rows["resample"].calls == rows["gather"].calls == 19
    assert sum(row.share for row in rows.values()) == pytest.approx(1)
    assert all(row.ns_per_particle > 0 for row in rows.values())
    table = t.table()
    assert all(phase in table for phase in PHASES) and "total" in table and len(table.splitlines()) == 8


def test_off_by_default():
    t = Timers()
    assert make().run(Y).timings is None
    assert t.rows() == [] and t.total_seconds == 0 and "total" in t.table()


def test_given_timers_win_over_active_ones_and_inner_over_outer():
    own = Timers()
    with Timers() as outer:
        with Timers() as inner:
            make().run(Y)
        make(timers=own).run(Y)
    assert [bool(t.rows()) for t in (outer, inner, own)] == [False, True, True]


def test_online_steps_missing_observations_and_reset():
    with Timers(every=1) as t:
        pf = make()
        pf.step(0.0)
        pf.predict()
        pf.update(None)
    calls = {row.phase: row.calls for row in t.rows()}
    assert calls == {"propagate": 2, "likelihood": 1, "lse": 1, "weights": 1, "resample": 1, "gather": 1}
    t.reset()
    assert t.rows() == []


def test_particles_are_summed_over_filters_of_different_sizes():
    t = Timers()
    t.add("propagate", 300, 10)
    t.add("propagate", 700, 90)
    t.add("custom", 1000, 1)
    t.add("empty", 0, 0)
    rows = t.rows()
    assert [(r.phase, r.calls, r.ns_per_particle, r.share) for r in rows] == [
        ("propagate", 2, 10.0, 0.5),
        ("custom", 1, 1000.0, 0.5),
        ("empty", 1, 0.0, 0.0),
    ]


def test_small_filters_are_sampled_and_large_ones_are_not():
    t = Timers()
    for n in (1000, 20_000, 159_999):
        t.reset()
        turns = [t.turn(n) is t for _ in range(20_000)]
        every = min(-(-160_000 // n), 16)
        assert turns[0] and sum(turns) == t.steps_timed and t.steps == 20_000
        assert sum(turns) == pytest.approx(20_000 / every, rel=0.1)
        # no period of the filter may hide from them or be all they see
        for period in range(2, 8):
            for phase in range(period):
                assert sum(turns[phase::period]) / sum(turns) == pytest.approx(1 / period, abs=0.15)
    t.reset()
    assert all(t.turn(160_000) is t for _ in range(50))
    with Timers() as t:
        make().run(np.zeros(6000))
    assert t.steps == 6000 and t.rows()[0].calls == t.steps_timed < 420
    assert f"{t.steps_timed} of 6000 steps timed" in t.table()


def test_asking_again_for_the_same_step():
    t = Timers(every=3)
    for _ in range(30):
        first = t.turn(10)
        assert t.again() is first
    assert t.steps == 30 and 8 <= t.steps_timed <= 12


@pytest.mark.parametrize("every", [0, -1, 1.5, True, "all"])
def test_every_is_checked(every):
    with pytest.raises(ValueError, match="every"):
        Timers(every)


def test_other_threads_are_not_timed():
    with Timers() as t:
        thread = threading.Thread(target=lambda: make().run(Y))
        thread.start()
        thread.join()
    assert t.rows() == []


def test_timed_and_untimed_runs_have_the_same_bits():
    with Timers():
        a = make().run(Y)
    assert np.array_equal(a.increment, make().run(Y).increment)


def test_the_block_ends_after_an_exception():
    with pytest.raises(KeyError), Timers():
        raise KeyError
    assert active() is None


@pytest.mark.parametrize("every", [None, 1, 7])
def test_turns_at_once_are_the_turns_one_by_one(every):
    for n in (100, 100_000, 10**6):
        a, b = Timers(every), Timers(every)
        for steps in (1, 40, 3, 200):
            chosen = a.turns(n, steps)
            assert chosen.tolist() == [b.turn(n) is not None for _ in range(steps)]
            assert (a.steps, a.steps_timed, a.due) == (b.steps, b.steps_timed, b.due)


def test_steps_that_were_not_made_are_not_counted():
    with Timers(every=1) as t, pytest.raises(FilterCollapse):
        ParticleFilter(LocalLevel(1.0, 1e-3), 50, rng=0).run([0.0, 0.1, 1e170, 0.2])
    assert t.steps == t.steps_timed == 3
    rows = {row.phase: row.calls for row in t.rows()}
    assert rows["propagate"] == rows["likelihood"] == 3
