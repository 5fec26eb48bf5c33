"""pfkit on the same inputs, through its public names."""

import harness as H
import numpy as np

import pfkit


def filter_(start, log_g, move=lambda x: x, **keywords):
    start = np.asarray(start)
    model = pfkit.from_functions(
        lambda n, rng: start, lambda x, t, rng: move(x), lambda y, x, t: log_g(y, x, t)
    )
    return pfkit.ParticleFilter(model, n_particles=len(start), rng=0, **keywords)


def run(start, observations, log_g, move=lambda x: x, **keywords):
    pf = filter_(start, log_g, move, **keywords)
    flags = []
    for y in observations:
        pf.predict()
        flags.append(pf.update(y).resampled)
    return pf, flags


def state(pf):
    return {
        "log_likelihood": pf.log_likelihood,
        "weights": pf.weights,
        "mean": float(pf.weights @ pf.particles),
        "particles": pf.particles,
    }


def carried():
    table = np.array([[-1.0, -2.0, -3.0], [-2.0, -1.0, -0.5]])
    return run(np.zeros(3), [0, 1], lambda y, x, t: table[t], ess_threshold=0.0)[0].log_likelihood


def reset():
    pf, _ = run(np.arange(4.0), [0.0], lambda y, x, t: np.log([0.7, 0.1, 0.1, 0.1]), ess_threshold=1.0)
    pf.predict()
    return pf.weights


def threshold_follows_n():
    out = []
    for n in (100, 1000):
        g = np.where(np.arange(n) < 0.3 * n, 0.0, -np.inf)
        _, flags = run(np.zeros(n), [0.0, 0.0], lambda y, x, t, g=g: g if t == 0 else np.zeros(len(x)))
        out.append(bool(flags[1]))
    return out


def bounded_support():
    return run(np.arange(3.0), [0.0], lambda y, x, t: np.array([-np.inf, 0.0, 1.0]))[0].log_likelihood


def unchanged():
    lw = np.array([0.0, np.nan, -1.0])
    kept = lw.copy()
    pfkit.log_normalize(lw)
    w = np.array([0.1, 0.2, 0.7])
    kept_w = w.copy()
    pfkit.resample(w, rng=0)
    return bool(np.array_equal(lw, kept, equal_nan=True) and np.array_equal(w, kept_w))


_rng = np.random.default_rng(0)


def systematic(w):
    return pfkit.resample(w, scheme="systematic", rng=_rng)


def residual(w):
    return pfkit.resample(w, scheme="residual", rng=_rng)


CASES = {
    "collapse": lambda: state(run([0.0, 1, 2, 3], [10.5], H.uniform)[0]),
    "collapse_then_good": lambda: state(run([0.0, 1, 2, 3], [10.5, 1.0], H.uniform, on_collapse="keep")[0]),
    "bounded_support": bounded_support,
    "carried_weights": carried,
    "reset_weights": reset,
    "nan_weight": lambda: state(run(np.arange(4.0), [1.0], H.nan_at_two)[0]),
    "outlier": lambda: state(run(np.linspace(-2, 2, 100), [100.0], lambda y, x, t: H.normal(y, x, 0.1))[0]),
    "far_tail": lambda: (
        run(np.zeros(3), [0.0], lambda y, x, t: np.array([-1000.0, -1001.0, -1002.0]))[0].weights
    ),
    "ess_log_weights": lambda: pfkit.log_normalize(np.array([-800.0, -800.6931471805599])).ess,
    "ess_threshold": threshold_follows_n,
    "missing": lambda: state(
        run(H.GRID, [np.nan, 0.3], lambda y, x, t: H.normal(y, x, 0.5), ess_threshold=0.0)[0]
    ),
    "zero_noise": lambda: state(
        run(H.GRID, [0.3, 0.1, 0.2], lambda y, x, t: H.normal(y, x, 0.5), ess_threshold=0.0)[0]
    ),
    "integer_particles": lambda: state(
        run(
            np.array([0, 1, 2]),
            [1, 1],
            lambda y, x, t: H.normal(y, x, 0.5) * t,
            lambda x: x + 0.4,
            ess_threshold=0.0,
        )[0]
    ),
    **H.resampling_cases(systematic, residual),
    "last_u": lambda: pfkit.resample(H.TENTHS, u=H.LAST_U),
    "u_zero": lambda: pfkit.resample([0.0, 0.5, 0.5, 0.0], u=0.0),
    "global_rng": lambda: H.global_state_untouched(
        lambda: run(H.GRID, [0.3, 0.1], lambda y, x, t: H.normal(y, x, 0.5), ess_threshold=1.0)
    ),
    "inputs_kept": unchanged,
}

if __name__ == "__main__":
    H.main("pfkit", CASES, pfkit.__version__)
