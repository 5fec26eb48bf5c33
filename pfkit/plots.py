"""Pictures: a filter's result over time, and a track in the plane with its particles.

matplotlib is needed only here (`pip install "pfkit[plot]"`) and is imported inside the functions. Every
function returns a `matplotlib.figure.Figure` and shows nothing by itself: `figure.savefig(path)` writes it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

__all__ = ["new_figure", "plot_result", "plot_track"]

INK, REFERENCE, ESTIMATE, CLOUD, BASELINE, ANCHOR = (
    "#22262b",
    "#22262b",
    "#0b7285",
    "#22b8cf",
    "#e8590c",
    "#f2b705",
)


def new_figure(width: float, height: float) -> Any:
    """An empty figure of that size in inches; needs no display.

    Raises ImportError, naming the package to install, where matplotlib is missing.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as missing:
        raise ImportError('plots need matplotlib: pip install "pfkit[plot]"') from missing
    figure = Figure(figsize=(width, height), facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def plot_result(result: Any, *, names: list[str] | None = None, truth: ArrayLike | None = None) -> Any:
    """A `FilterResult` over time: mean and two standard deviations of each coordinate, then the effective
    sample size.

    Parameters
    ----------
    result : FilterResult
        With `mean` and `variance`, (T,) or (T, d), and `ess` (T,).
    names : list of str, optional
        One label a coordinate.
    truth : (T,) or (T, d) array, optional
        Drawn beside the mean.

    Returns
    -------
    matplotlib.figure.Figure
    """
    if getattr(result, "mean", None) is None or getattr(result, "variance", None) is None:
        raise ValueError(
            'plot needs the mean and the variance: run the filter with store=("mean", "variance")'
        )
    mean, variance = (_columns(a) for a in (result.mean, result.variance))
    reference = None if truth is None else _columns(truth)
    d = mean.shape[1]
    labels = names if names is not None else (["state"] if d == 1 else [f"state[{i}]" for i in range(d)])
    if len(labels) != d:
        raise ValueError(f"names must have {d} entries, one a coordinate; got {len(labels)}")
    figure = new_figure(9.0, 1.9 * d + 1.6)
    axes = figure.subplots(d + 1, 1, sharex=True, squeeze=False, height_ratios=[1.0] * d + [0.6])[:, 0]
    steps = np.arange(len(mean))
    for i, ax in enumerate(axes[:-1]):
        sd = np.sqrt(variance[:, i])
        ax.fill_between(
            steps, mean[:, i] - 2 * sd, mean[:, i] + 2 * sd, color=CLOUD, alpha=0.3, lw=0, label="mean ± 2 sd"
        )
        ax.plot(steps, mean[:, i], color=ESTIMATE, lw=1.4)
        if reference is not None:
            ax.plot(steps, reference[:, i], color=REFERENCE, lw=1.0, label="truth")
        ax.set_ylabel(labels[i])
        _clean(ax)
    axes[0].legend(loc="best", frameon=False)
    axes[-1].plot(steps, result.ess, color=ESTIMATE, lw=1.0)
    axes[-1].set_ylim(bottom=0.0)
    axes[-1].set_ylabel("ESS")
    axes[-1].set_xlabel("step")
    _clean(axes[-1])
    return figure


def plot_track(
    estimate: ArrayLike,
    *,
    anchors: ArrayLike | None = None,
    truth: ArrayLike | None = None,
    baseline: ArrayLike | None = None,
    clouds: list[ArrayLike] | None = None,
    split: int | None = None,
    bad: ArrayLike | None = None,
    title: str = "",
    note: str = "",
    bad_label: str = "",
    figure: Any = None,
) -> Any:
    """A track in the plane above its error over time.

    Parameters
    ----------
    estimate : (t, 2 or more) array, m
        The filter's track so far.
    anchors : (n_anchors, 2 or more) array, m, optional
    truth : (T, 2 or more) array, m, optional
        Reference track; NaN rows are skipped. Without it there is no error panel.
    baseline : (T, 2 or more) array, m, optional
        Another track to compare with, drawn as dead reckoning.
    clouds : list of (n, 2 or more) arrays, m, optional
        Particles at some of the steps.
    split : int, optional
        The steps before it, on which parameters were fitted, are shaded in the error panel.
    bad : (T,) bool array, optional
        Steps with a faulty observation, marked in the error panel under the name `bad_label`.
    title, note : str
        Headline, and a second line below it.
    figure : Figure, optional
        Drawn into, after it was cleared; default a new one.
    """
    figure = new_figure(9.6, 8.4) if figure is None else figure
    figure.clear()
    track = np.asarray(estimate, dtype=np.float64)
    if truth is None:
        plane = figure.subplots()
    else:
        plane, below = figure.subplots(2, 1, height_ratios=[4.4, 1.0])
        _error_panel(below, track, np.asarray(truth), baseline, split, bad, bad_label)
    for k, cloud in enumerate(clouds or ()):
        points = np.asarray(cloud)
        points = points[:: max(1, len(points) // 500)]
        first = k == 0  # the widest cloud: larger dots, and the one named in the legend
        size, label = (6.0, "particles") if first else (3.0, None)
        plane.scatter(
            points[:, 0], points[:, 1], s=size, color=CLOUD, alpha=0.45, lw=0, zorder=2, label=label
        )
    if baseline is not None:
        b = np.asarray(baseline)[: len(track)]
        plane.plot(b[:, 0], b[:, 1], color=BASELINE, lw=1.3, ls=(0, (4, 2)), zorder=3, label="dead reckoning")
    if truth is not None:
        g = np.asarray(truth)[: len(track)]
        plane.plot(g[:, 0], g[:, 1], color=REFERENCE, lw=3.2, alpha=0.28, zorder=4, label="reference")
    plane.plot(track[:, 0], track[:, 1], color=ESTIMATE, lw=1.5, zorder=5, label="particle filter")
    plane.plot(*track[-1, :2], "o", color=ESTIMATE, ms=7, mec="white", mew=1.2, zorder=7)
    if anchors is not None:
        a = np.asarray(anchors)
        plane.scatter(
            a[:, 0],
            a[:, 1],
            marker="^",
            s=150,
            color=ANCHOR,
            edgecolor=INK,
            lw=1.0,
            zorder=6,
            label="beacons",
        )
        for j, (x, y) in enumerate(a[:, :2]):
            plane.annotate(str(j), (x, y), (9, 6), textcoords="offset points", color=INK, weight="bold")
    _frame(plane, [track] + [np.asarray(p) for p in (truth, baseline, anchors) if p is not None])
    plane.set_xlabel("x, m")
    plane.set_ylabel("y, m")
    legend = plane.legend(loc="upper left", frameon=False, ncols=2, markerscale=0.8)
    for handle, text in zip(legend.legend_handles, legend.get_texts(), strict=True):
        if text.get_text() == "particles":  # too faint and small to be seen alone
            handle.set_alpha(1.0)
            handle.set_sizes([20.0])
    _clean(plane)
    if title:
        figure.suptitle(title, x=0.055, ha="left", fontsize=15, weight="bold", color=INK)
    if note:
        plane.set_title(note, loc="left", fontsize=10.5, color="#5c6670")
    return figure


def _error_panel(ax, track, truth, baseline, split, bad, bad_label):
    steps = np.arange(len(truth))
    if split:
        ax.axvspan(0, split, color="#eef1f4", lw=0)
        ax.annotate(
            "noise fitted here", (split, 1.0), (-6, -5), xycoords=("data", "axes fraction"),
            textcoords="offset points", ha="right", va="top", color="#5c6670", fontsize=9,
        )  # fmt: skip
    if baseline is not None:
        shown = min(len(baseline), len(track))
        error = np.hypot(*(np.asarray(baseline)[:shown, :2] - truth[:shown, :2]).T)
        ax.plot(steps[:shown], error, color=BASELINE, lw=1.1, ls=(0, (4, 2)))
    error = np.hypot(*(track[:, :2] - truth[: len(track), :2]).T)
    ax.plot(steps[: len(track)], error, color=ESTIMATE, lw=1.4)
    if bad is not None:
        hit = steps[np.asarray(bad, dtype=bool)]
        ax.plot(
            hit,
            np.full(len(hit), -0.06),
            "|",
            color="#c92a2a",
            ms=6,
            mew=1.0,
            transform=_under(ax),
            clip_on=False,
        )
        ax.annotate(
            bad_label, (1.0, 0.0), (0, -26), xycoords="axes fraction", textcoords="offset points", ha="right",
            va="top", color="#c92a2a", fontsize=9,
        )  # fmt: skip
    ax.set_xlim(0, len(truth) - 1)
    ax.set_ylim(bottom=0.0)
    ax.set_ylabel("error, m")
    ax.set_xlabel("step", labelpad=8)
    ax.tick_params(axis="x", pad=9)
    _clean(ax)


def _under(ax):
    """Data coordinates along x, axes fractions along y."""
    return ax.get_xaxis_transform()


def _frame(ax, tracks, margin=0.8):
    """Limits around everything but the particles, so that a wide first cloud does not shrink the track."""
    points = np.vstack([t[:, :2] for t in tracks])
    points = points[np.isfinite(points).all(axis=1)]
    low, high = points.min(axis=0) - margin, points.max(axis=0) + margin
    ax.set_xlim(low[0], high[0])
    ax.set_ylim(low[1], high[1])
    ax.set_aspect("equal")


def _clean(ax):
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        ax.spines[side].set_color("#9aa3ab")
    ax.tick_params(colors="#5c6670")
    ax.grid(color="#e6e9ec", lw=0.6)
    ax.set_axisbelow(True)


def _columns(a: ArrayLike) -> np.ndarray:
    """(T,) or (T, d) as (T, d)."""
    out = np.asarray(a, dtype=np.float64)
    return out[:, None] if out.ndim == 1 else out
