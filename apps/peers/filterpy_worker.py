"""filterpy 2.0: resampling functions only; the filter itself is left to the user."""

import harness as H
import numpy as np
from filterpy.monte_carlo import residual_resample, systematic_resample


def with_u(weights, u):
    import filterpy.monte_carlo.resampling as module

    module.random = lambda *a: u
    return systematic_resample(weights)


def unchanged():
    w = np.array([0.1, 0.2, 0.7])
    kept = w.copy()
    systematic_resample(w)
    residual_resample(w)
    return bool(np.array_equal(w, kept))


CASES = {
    **H.resampling_cases(systematic_resample, residual_resample),
    "last_u": lambda: with_u(H.TENTHS, H.LAST_U),
    "u_zero": lambda: with_u(np.array([0.0, 0.5, 0.5, 0.0]), 0.0),
    "global_rng": lambda: H.global_state_untouched(lambda: systematic_resample(H.TENTHS)),
    "inputs_kept": unchanged,
}

if __name__ == "__main__":
    H.main("filterpy", CASES)
