"""The series and parameters of the exact anchors, and their published values.

Values are literals where somebody else computed them too (statsmodels, particles,
LowLevelParticleFilters.jl); `test_oracles.py` shows that the oracles here reproduce every one.
"""

from pathlib import Path

import numpy as np

DATA = Path(__file__).resolve().parents[2] / "data" / "timeseries"

NILE = np.loadtxt(DATA / "nile.csv", delimiter=",", skiprows=1)[:, 1]
NILE_GAPS = NILE.copy()
NILE_GAPS[20:40] = NILE_GAPS[60:80] = np.nan
NILE_Q, NILE_R = 1469.1, 15099.0

LG100 = np.loadtxt(DATA / "lg100.txt")
LG100_PRIOR_VAR = 1.0 / (1.0 - 0.9**2)

_rates = np.loadtxt(DATA / "gbpusd_1981_1985.csv", delimiter=",", skiprows=1)[:, 1]
_returns = 100.0 * np.diff(np.log(_rates))
GBPUSD = _returns - _returns.mean()
GBPUSD_PHI, GBPUSD_S, GBPUSD_BETA = 0.9731, 0.1726, 0.6338

NUTRIA = np.loadtxt(DATA / "nutria.txt")
NUTRIA_TAU, NUTRIA_SIGMA_X, NUTRIA_SIGMA_Y = (0.15, 0.12, 0.1), 0.47, 0.39

HMM_START = np.array([0.5, 0.3, 0.2])
HMM_TRANSITION = np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.2, 0.3, 0.5]])
HMM_EMISSION = np.array([[0.9, 0.4, 0.05], [0.1, 0.6, 0.95]])  # [y, state]
HMM_Y = [0, 1, 1, 0, 1]

NILE_EXACT = -640.380541
NILE_GAPS_EXACT = -388.421940
LG100_EXACT = -149.381241203791
LG100_WIDE_EXACT = -161.8458123556  # sigma_y = 1
LG20_WIDE_EXACT = -32.5613817310  # its first 20
GBPUSD_EXACT = -1000.985317
NUTRIA_EXACT = -78.315360
HMM_EXACT = -3.827203785397
