"""particles 0.4: a Feynman-Kac model handed to `SMC`, and the functions of `particles.resampling`."""

import harness as H
import numpy as np
import particles
from particles import resampling as rs


class Model(particles.FeynmanKac):
    """Given particles, moved by a function, weighted by a function of (y, x, t)."""

    def __init__(self, start, observations, log_g, move=lambda x: x):
        super().__init__(len(observations))
        self.start, self.observations, self.log_g, self.move = start, observations, log_g, move

    def M0(self, n):
        return self.start.copy()

    def M(self, t, xp):
        return self.move(xp)

    def logG(self, t, xp, x):
        return self.log_g(self.observations[t], x, t)


def run(start, observations, log_g, move=lambda x: x, threshold=0.5, **keywords):
    start = np.asarray(start)
    fk = Model(start, observations, log_g, move)
    smc = particles.SMC(fk=fk, N=len(start), ESSrmin=threshold, **keywords)
    smc.run()
    return smc


def state(smc):
    return {
        "log_likelihood": smc.logLt,
        "weights": smc.W,
        "mean": float(np.average(np.asarray(smc.X, float), weights=smc.W)),
        "particles": smc.X,
    }


def after_resampling():
    smc = run(
        [0.0, 1, 2, 3], [0.0, 0.0], lambda y, x, t: np.log([0.7, 0.1, 0.1, 0.1]) * (t == 0), threshold=1.0
    )
    return smc.W


def carried():
    table = np.array([[-1.0, -2.0, -3.0], [-2.0, -1.0, -0.5]])
    return run(np.zeros(3), [0, 1], lambda y, x, t: table[t], threshold=0.0).logLt


def with_u(weights, u):
    rs.random.rand = lambda *shape: np.full(shape, u)
    return rs.systematic(weights, len(weights))


def bounded_support():
    return run(np.arange(3.0), [0.0], lambda y, x, t: np.array([-np.inf, 0.0, 1.0])).logLt


def threshold_follows_n():
    """ESS / N = 0.3 must resample at a threshold of 0.5, for N = 100 and then N = 1000."""
    out = []
    for n in (100, 1000):
        g = np.where(np.arange(n) < 0.3 * n, 0.0, -np.inf)
        smc = run(np.zeros(n), [0, 0], lambda y, x, t, g=g: g * (t == 0) if t == 0 else np.zeros(len(x)))
        out.append(bool(smc.summaries.rs_flags[1]))
    return out


def unchanged():
    lw = np.array([0.0, np.nan, -1.0])
    kept = lw.copy()
    rs.Weights(lw=lw)
    return bool(np.array_equal(lw, kept, equal_nan=True))


def systematic(w):
    return rs.systematic(w, len(w))


def residual(w):
    return rs.residual(w, len(w))


CASES = {
    "collapse": lambda: state(run([0.0, 1, 2, 3], [10.5], H.uniform)),
    "collapse_then_good": lambda: state(run([0.0, 1, 2, 3], [10.5, 1.0], H.uniform)),
    "bounded_support": bounded_support,
    "carried_weights": carried,
    "reset_weights": after_resampling,
    "nan_weight": lambda: state(run(np.arange(4.0), [1.0], H.nan_at_two)),
    "outlier": lambda: state(run(np.linspace(-2, 2, 100), [100.0], lambda y, x, t: H.normal(y, x, 0.1))),
    "far_tail": lambda: run(np.zeros(3), [0], lambda y, x, t: np.array([-1000.0, -1001.0, -1002.0])).W,
    "ess_log_weights": lambda: rs.Weights(lw=np.array([-800.0, -800.6931471805599])).ESS,
    "ess_threshold": threshold_follows_n,
    "missing": lambda: state(run(H.GRID, [np.nan, 0.3], lambda y, x, t: H.normal(y, x, 0.5), threshold=0.0)),
    "zero_noise": lambda: state(
        run(H.GRID, [0.3, 0.1, 0.2], lambda y, x, t: H.normal(y, x, 0.5), threshold=0.0)
    ),
    "integer_particles": lambda: state(
        run(np.array([0, 1, 2]), [1, 1], lambda y, x, t: H.normal(y, x, 0.5) * t, lambda x: x + 0.4, 0.0)
    ),
    **H.resampling_cases(systematic, residual),
    "last_u": lambda: with_u(H.TENTHS, H.LAST_U),
    "u_zero": lambda: with_u(np.array([0.0, 0.5, 0.5, 0.0]), 0.0),
    "global_rng": lambda: H.global_state_untouched(
        lambda: run(H.GRID, [0.3, 0.1], lambda y, x, t: H.normal(y, x, 0.5), threshold=1.0)
    ),
    "inputs_kept": unchanged,
}

if __name__ == "__main__":
    H.main("particles", CASES)
