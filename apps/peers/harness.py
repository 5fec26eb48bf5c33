"""Run one case of a peer's worker and print one JSON line: what came back, or how it failed.

A worker is a script run by the Python that has that peer installed; it imports the peer, NumPy and this
module, never pfkit. `CASES` maps a case name to a function without arguments that returns plain numbers and
lists; raising `Absent` says that the package has no such feature. Right or wrong is decided by
apps/peers_faults.py, for every package by the same rule.
"""

import importlib.metadata
import json
import sys
import warnings

import numpy as np


class Absent(Exception):
    """The package leaves this to its user."""


def main(package, cases, version=None):
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    if sys.argv[1:] == ["--version"]:
        version = version or importlib.metadata.version(package)
        print(json.dumps({"package": package, "version": version, "numpy": np.__version__}))
        return
    (name,) = sys.argv[1:]
    if name not in cases:
        print(json.dumps({"absent": "no such feature"}))
        return
    try:
        answer = {"value": plain(cases[name]())}
    except Absent as reason:
        answer = {"absent": str(reason)}
    except Exception as error:
        answer = {"error": type(error).__name__, "text": str(error)[:200]}
    print(json.dumps(answer))


def plain(value):
    """NumPy to JSON; infinities and NaN stay, Python's json writes and reads them."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return value.item()
    return value


# inputs that every worker uses

GRID = np.array([-1.0, -0.5, 0.0, 0.5, 1.0])
TENTHS = np.full(10, 0.1)
LAST_U = float(np.nextafter(1.0, 0.0))
BAD_WEIGHTS = {
    "negative": [0.5, -0.1, 0.6],
    "nan": [0.5, float("nan"), 0.5],
    "all zero": [0.0, 0.0, 0.0],
    "infinite": [float("inf"), 1.0, 1.0],
    "empty": [],
}
RESIDUAL_WEIGHTS = np.array([1.9] * 4 + [0.4] * 6) / 10


def normal(y, x, sd):
    return -0.5 * ((y - x) / sd) ** 2 - np.log(sd) - 0.5 * np.log(2 * np.pi)


def uniform(y, x, t=None):
    return np.where(np.abs(y - x) <= 1.0, np.log(0.5), -np.inf)


def nan_at_two(y, x, t=None):
    g = normal(y, x, 1.0)
    g[2] = np.nan
    return g


def float32_weights(seed):
    w = np.random.default_rng(seed).exponential(size=200_000).astype(np.float32)
    return w / w.sum()


def mean_offspring(resample, weights, repeats=4000):
    """Mean number of copies of each particle; `resample` returns indices and draws its own randomness."""
    total = np.zeros(len(weights))
    for _ in range(repeats):
        total += np.bincount(resample(weights), minlength=len(weights))
    return total / repeats


def largest_index(resample):
    """Largest index over 20 float32 weight vectors of 200000."""
    return max(int(np.max(resample(float32_weights(seed)))) for seed in range(20))


def lost_particles(resample, n=1_000_000):
    """Of n equal float32 weights, how many particles get no copy."""
    return int(n - len(np.unique(resample(np.full(n, 1.0 / n, np.float32)))))


def resampling_cases(systematic, residual):
    """The cases that a package with these two functions of the weights can be asked."""
    return {
        "residual_offspring": lambda: mean_offspring(residual, RESIDUAL_WEIGHTS),
        "systematic_offspring": lambda: mean_offspring(systematic, RESIDUAL_WEIGHTS),
        "float32_index": lambda: largest_index(systematic),
        "float32_equal": lambda: lost_particles(systematic),
        "bad_weights": lambda: refusals(systematic),
    }


def refusals(resample):
    """What each kind of bad weights does: the name of the error, or 'accepted'."""
    out = {}
    for name, weights in BAD_WEIGHTS.items():
        try:
            resample(np.array(weights, dtype=float))
            out[name] = "accepted"
        except Exception as error:
            out[name] = type(error).__name__
    return out


def global_state_untouched(run):
    """Whether NumPy's global generator is where it was after `run()`."""
    np.random.seed(0)
    before = np.random.get_state()[1:3]
    run()
    after = np.random.get_state()[1:3]
    return bool(np.array_equal(before[0], after[0]) and before[1] == after[1])
