"""Exact answers computed outside the package, in plain NumPy and SciPy.

Nothing here imports pfkit. Every function uses pfkit's time convention: x_0 ~ prior, then y_0 is observed.

- `kalman`: linear-Gaussian models of any dimension, written as textbook covariance recursions (not the form
  that `pfkit.filters.kalman` uses), with gaps.
- `grid_filter`: any scalar model, by quadrature on a fixed grid (the midpoint rule converges faster than any
  power of the spacing for smooth densities that vanish at both ends).
- `hmm`: a finite state space, exactly.
"""

import numpy as np
from scipy import stats


def kalman(y, F, Q, H, R, m0, P0):
    """Log-likelihood, filtered means (T, d) and covariances (T, d, d), smoothed means and covariances.

    `y` is (T, p); a NaN removes that component at that time.
    """
    y = np.asarray(y, float)
    F, Q, H, R, P0 = (np.atleast_2d(np.asarray(a, float)) for a in (F, Q, H, R, P0))
    m0 = np.atleast_1d(np.asarray(m0, float))
    y = y.reshape(len(y), -1)
    T, d = len(y), len(m0)
    increments = np.zeros(T)
    means, covs = np.zeros((T, d)), np.zeros((T, d, d))
    predicted_means, predicted_covs = np.zeros((T, d)), np.zeros((T, d, d))
    m, P = m0, P0
    for t in range(T):
        if t > 0:
            m, P = F @ m, F @ P @ F.T + Q
        predicted_means[t], predicted_covs[t] = m, P
        seen = ~np.isnan(y[t])
        if seen.any():
            h, r = H[seen], R[np.ix_(seen, seen)]
            S = h @ P @ h.T + r
            increments[t] = stats.multivariate_normal(h @ m, S).logpdf(y[t, seen])
            # Information form of the update needs P invertible; the gain form does not.
            K = P @ h.T @ np.linalg.inv(S)
            m, P = m + K @ (y[t, seen] - h @ m), P - K @ S @ K.T
        means[t], covs[t] = m, P
    smoothed_means, smoothed_covs = means.copy(), covs.copy()
    for t in range(T - 2, -1, -1):
        J = covs[t] @ F.T @ np.linalg.pinv(predicted_covs[t + 1])
        smoothed_means[t] = means[t] + J @ (smoothed_means[t + 1] - predicted_means[t + 1])
        smoothed_covs[t] = covs[t] + J @ (smoothed_covs[t + 1] - predicted_covs[t + 1]) @ J.T
    return {
        "log_likelihood": increments.sum(),
        "increments": increments,
        "means": means,
        "covs": covs,
        "smoothed_means": smoothed_means,
        "smoothed_covs": smoothed_covs,
    }


def kalman_joint(y, F, Q, H, R, m0, P0):
    """The same answers from one big Gaussian over all states: O((T d)^3), no recursion to get wrong."""
    y = np.asarray(y, float).reshape(len(y), -1)
    F, Q, H, R, P0 = (np.atleast_2d(np.asarray(a, float)) for a in (F, Q, H, R, P0))
    m0 = np.atleast_1d(np.asarray(m0, float))
    T, d = len(y), len(m0)
    A = np.eye(T * d)  # A x = innovations
    for t in range(1, T):
        A[t * d : (t + 1) * d, (t - 1) * d : t * d] = -F
    noise = np.zeros((T * d, T * d))
    noise[:d, :d] = P0
    for t in range(1, T):
        noise[t * d : (t + 1) * d, t * d : (t + 1) * d] = Q
    drive = np.zeros(T * d)
    drive[:d] = m0
    inverse = np.linalg.inv(A)
    mean, cov = inverse @ drive, inverse @ noise @ inverse.T
    seen = ~np.isnan(y.ravel())
    big_h, big_r = np.kron(np.eye(T), H)[seen], np.kron(np.eye(T), R)[np.ix_(seen, seen)]
    S = big_h @ cov @ big_h.T + big_r
    residual = y.ravel()[seen] - big_h @ mean
    gain = np.linalg.solve(S, big_h @ cov).T
    log_likelihood = stats.multivariate_normal(np.zeros(len(S)), S).logpdf(residual)
    return log_likelihood, (mean + gain @ residual).reshape(T, d), cov - gain @ S @ gain.T


def grid_filter(y, grid, prior_pdf, transition_mean, transition_sd, log_g):
    """Exact scalar filter by quadrature.

    `transition_mean(grid)` is the mean of x_t given x_{t-1} on the grid; `log_g(y_t, grid)` the observation
    log-density. Returns the log-likelihood, filtered means, filtered variances, each over time.
    """
    h = grid[1] - grid[0]
    centre = transition_mean(grid)
    kernel = stats.norm.pdf(grid[:, None], centre[None, :], transition_sd) * h
    density = prior_pdf(grid)
    increments, means, variances = [], [], []
    for t, obs in enumerate(y):
        if t > 0:
            density = kernel @ density
        if not np.isnan(obs):
            lg = log_g(obs, grid)
            top = lg.max()
            density = density * np.exp(lg - top)
            mass = density.sum() * h
            increments.append(top + np.log(mass))
            density = density / mass
        else:
            increments.append(0.0)
        m = (density * grid).sum() * h
        means.append(m)
        variances.append((density * (grid - m) ** 2).sum() * h)
    return {
        "log_likelihood": float(np.sum(increments)),
        "increments": np.array(increments),
        "means": np.array(means),
        "variances": np.array(variances),
    }


def stochastic_volatility_grid(y, phi, s, beta, n=1001, half_width=9.0):
    """x_0 ~ N(0, s^2/(1-phi^2)), x_t = phi x_{t-1} + s e, y ~ N(0, beta^2 exp(x))."""
    sd = s / np.sqrt(1 - phi**2)
    grid = np.linspace(-half_width * sd, half_width * sd, n)
    return grid_filter(
        y,
        grid,
        lambda x: stats.norm.pdf(x, 0, sd),
        lambda x: phi * x,
        s,
        lambda obs, x: stats.norm.logpdf(obs, 0, beta * np.exp(x / 2)),
    )


def theta_logistic_grid(y, tau, sigma_x, sigma_y, n=801, low=-8.0, high=8.0):
    """x_0 ~ N(0, 1), x = x + tau0 - tau1 exp(tau2 x) + sigma_x e, y ~ N(x, sigma_y^2)."""
    grid = np.linspace(low, high, n)
    return grid_filter(
        y,
        grid,
        lambda x: stats.norm.pdf(x, 0, 1),
        lambda x: x + tau[0] - tau[1] * np.exp(tau[2] * x),
        sigma_x,
        lambda obs, x: stats.norm.logpdf(obs, x, sigma_y),
    )


def hmm(y, start, transition, emission):
    """Log-likelihood and filtered probabilities (T, k); `emission[y, k]` is p(y | state k)."""
    p, total, filtered = np.asarray(start, float), 0.0, []
    for t, obs in enumerate(y):
        if t > 0:
            p = p @ transition
        p = p * emission[obs]
        total += np.log(p.sum())
        p = p / p.sum()
        filtered.append(p)
    return total, np.array(filtered)
