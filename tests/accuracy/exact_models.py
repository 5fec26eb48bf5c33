"""Every model with an exact answer: its pfkit form, its data, its oracle, and N with sd(log L) < 0.5."""

import functools
from dataclasses import dataclass

import numpy as np

from pfkit.filters import ParticleFilter
from pfkit.models import LinearGaussian, LocalLevel, StateSpaceModel, StochasticVolatility, ThetaLogistic

from . import anchors as A
from . import oracles


@dataclass(frozen=True)
class Exact:
    name: str
    model: StateSpaceModel
    y: np.ndarray
    n_particles: int
    log_likelihood: float
    means: np.ndarray  # (T,) or (T, d)
    variances: np.ndarray


class Hmm(StateSpaceModel):
    """Three states as particles 0, 1, 2: a bootstrap filter on a finite space."""

    def initial(self, n, rng):
        return rng.choice(3, size=n, p=A.HMM_START)

    def transition(self, x, t, rng):
        below = np.cumsum(A.HMM_TRANSITION, axis=1)[:, :2]
        return (rng.random(len(x))[:, None] > below[x.astype(int)]).sum(axis=1)

    def log_likelihood(self, y, x, t):
        return np.log(A.HMM_EMISSION[int(y)])[x.astype(int)]


def linear(name, model, y, n_particles, *matrices):
    exact = oracles.kalman(y, *matrices)
    means, variances = exact["means"], np.array([np.diag(c) for c in exact["covs"]])
    if model.state_dim is None:
        means, variances = means[:, 0], variances[:, 0]
    return Exact(name, model, y, n_particles, exact["log_likelihood"], means, variances)


def nile(y, name):
    model = LocalLevel(np.sqrt(A.NILE_Q), np.sqrt(A.NILE_R), 1000.0, 1000.0)
    return linear(name, model, y, 2000, 1.0, A.NILE_Q, 1.0, A.NILE_R, 1000.0, 1e6)


LG100_MATRICES = (0.9, 1.0, 1.0, 0.04, 0.0, A.LG100_PRIOR_VAR)


def lg100():
    return linear("lg100", LinearGaussian(*LG100_MATRICES), A.LG100, 10_000, *LG100_MATRICES)


def lg100_column():
    """Particles (n, 1), observations (1,); the first 30 steps."""
    f, q, h, r, m0, p0 = LG100_MATRICES
    model = LinearGaussian([[f]], [[q]], [[h]], [[r]], [m0], [[p0]])
    return linear("lg100-column", model, A.LG100[:30, None], 10_000, *LG100_MATRICES)


def four_dimensional():
    """Position and velocity in the plane, positions observed, some components missing."""
    F = np.eye(4) + 0.5 * np.eye(4, k=2)
    axis = 0.2 * np.array([[0.5**3 / 3, 0.5**2 / 2], [0.5**2 / 2, 0.5]])
    Q, H, R = np.kron(axis, np.eye(2)), np.eye(2, 4), np.array([[0.5, 0.2], [0.2, 0.4]])
    m0, p0 = np.array([1.0, -1.0, 0.5, 0.0]), np.diag([1.0, 1.0, 0.5, 0.5])
    g = np.random.default_rng(2024)
    x, y = g.multivariate_normal(m0, p0), np.empty((30, 2))
    for t in range(30):
        if t:
            x = g.multivariate_normal(F @ x, Q)
        y[t] = g.multivariate_normal(H @ x, R)
    y[g.random(y.shape) < 0.1] = np.nan
    y[11] = np.nan
    return linear("lg4", LinearGaussian(F, Q, H, R, m0, p0), y, 4000, F, Q, H, R, m0, p0)


def volatility():
    exact = oracles.stochastic_volatility_grid(A.GBPUSD, A.GBPUSD_PHI, A.GBPUSD_S, A.GBPUSD_BETA, 501)
    mu = 2.0 * np.log(A.GBPUSD_BETA)
    model = StochasticVolatility(mu, A.GBPUSD_PHI, A.GBPUSD_S)
    means = exact["means"] + mu  # the oracle's state is centred
    return Exact("volatility", model, A.GBPUSD, 1500, exact["log_likelihood"], means, exact["variances"])


def theta_logistic(column=False):
    exact = oracles.theta_logistic_grid(A.NUTRIA, A.NUTRIA_TAU, A.NUTRIA_SIGMA_X, A.NUTRIA_SIGMA_Y, 401)
    model = ThetaLogistic(*A.NUTRIA_TAU, A.NUTRIA_SIGMA_X, A.NUTRIA_SIGMA_Y, state_dim=1 if column else None)
    shape = (-1, 1) if column else (-1,)
    means, variances = exact["means"].reshape(shape), exact["variances"].reshape(shape)
    name = "theta-logistic-column" if column else "theta-logistic"
    return Exact(name, model, A.NUTRIA, 1000, exact["log_likelihood"], means, variances)


def hmm():
    log_likelihood, filtered = oracles.hmm(A.HMM_Y, A.HMM_START, A.HMM_TRANSITION, A.HMM_EMISSION)
    means = filtered @ np.arange(3)
    variances = filtered @ np.arange(3) ** 2 - means**2
    return Exact("hmm", Hmm(), np.array(A.HMM_Y, float), 500, log_likelihood, means, variances)


BUILDERS = {
    "nile": lambda: nile(A.NILE, "nile"),
    "nile-gaps": lambda: nile(A.NILE_GAPS, "nile-gaps"),
    "lg100": lg100,
    "lg100-column": lg100_column,
    "lg4": four_dimensional,
    "volatility": volatility,
    "theta-logistic": theta_logistic,
    "theta-logistic-column": lambda: theta_logistic(column=True),
    "hmm": hmm,
}


@functools.cache
def exact(name):
    return BUILDERS[name]()


class Uncompiled(StateSpaceModel):
    """A model's Python methods alone, whatever it offers in compiled form."""

    def __init__(self, model):
        self.initial, self.transition = model.initial, model.transition
        self.log_likelihood, self.state_dim = model.log_likelihood, model.state_dim


@functools.lru_cache(maxsize=4)
def runs(name, lse, seeds, compiled=True):
    """Increments, means and variances of one bootstrap run a seed: (R, T), (R, T, ...), (R, T, ...)."""
    case = exact(name)
    model = case.model if compiled else Uncompiled(case.model)
    results = [ParticleFilter(model, case.n_particles, lse=lse, rng=seed).run(case.y) for seed in seeds]
    return tuple(np.array([getattr(r, key) for r in results]) for key in ("increment", "mean", "variance"))
