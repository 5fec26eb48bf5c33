"""What many independent runs of a filter say about an exact value, with delta-method standard errors.

The likelihood estimate of a particle filter is unbiased, its logarithm is not: R runs are averaged as
likelihoods,

    A = log mean_r exp(L_r),        se(A) = sd_r(exp(L_r - A)) / sqrt(R).

Filtered moments of one run are ratios of unbiased estimates, so runs are pooled with their likelihoods up to
t as weights, which leaves the bias of one filter with R N particles:

    m = sum_r W_r m_r,              se(m)^2 = sum_r W_r^2 (m_r - m)^2,       W_r = exp(L_rt) / sum exp(L_rt).
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Estimate:
    value: np.ndarray
    se: np.ndarray

    def z(self, exact):
        """Distance from the exact value in standard errors."""
        return (self.value - exact) / self.se


def log_mean_exp(log_likelihoods):
    """Log of the mean likelihood of R runs."""
    values = np.asarray(log_likelihoods)
    top = values.max()
    mean = np.exp(values - top).mean()
    se = np.exp(values - top).std(ddof=1) / mean / np.sqrt(len(values))
    return Estimate(top + np.log(mean), se)


def pooled_moments(log_likelihoods, means, variances):
    """Mean and variance at one time from R runs: arguments (R,), (R, ...), (R, ...)."""
    w = np.exp(log_likelihoods - np.max(log_likelihoods))
    w /= w.sum()
    means, variances = np.asarray(means), np.asarray(variances)
    w = w.reshape(-1, *[1] * (means.ndim - 1))
    mean = (w * means).sum(0)
    mean_se = np.sqrt((w**2 * (means - mean) ** 2).sum(0))
    # second moment about the pooled mean; its derivative in that mean vanishes
    second = variances + (means - mean) ** 2
    variance = (w * second).sum(0)
    variance_se = np.sqrt((w**2 * (second - variance) ** 2).sum(0))
    return Estimate(mean, mean_se), Estimate(variance, variance_se)
