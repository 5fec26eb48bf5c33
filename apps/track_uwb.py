"""Follow a real robot through a building by its odometry and three radio beacons.

    python -m apps.track_uwb                      # prints the table, writes out/track_uwb.png
    python -m apps.track_uwb --lse fuse --seed 3 --particles 5000
    python -m apps.track_uwb --live               # redraws as it runs

The recording (data/tracking/uwb_indoor_mrpt.npz, 343 steps in six minutes) comes with a reference track. The
noise of odometry and ranges is fitted to its first third by maximum likelihood; the errors are those of the
whole run and of the rest, which the fit has not seen. A third of the readings of beacon 0 are wrong by more
than a metre, so a filter with Gaussian ranges loses the robot.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import numpy as np

import pfkit

RECORDING = Path(__file__).resolve().parent.parent / "data" / "tracking" / "uwb_indoor_mrpt.npz"
START = (2.0, 4.0, 0.0)  # m, m, rad: where the robot was put down, as the recording's own configuration says
START_SD = (1.0, 1.0, 0.5)
AREA = ((-1.0, 15.0), (-2.0, 9.0))  # m: for --start unknown, 176 square metres
PARTICLES = {"known": 2000, "unknown": 50_000}  # 20000 lose the robot from an unknown start in 2 of 10 seeds
CLOUD_EVERY = 12  # steps between the particle clouds in the picture
LIVE_EVERY = 3  # steps between two drawings under --live


@dataclass(frozen=True)
class Recording:
    """The robot's run; row t of `inputs` is the motion from t - 1 to t."""

    seconds: float
    inputs: np.ndarray  # (T, 3) m, m, rad
    ranges: np.ndarray  # (T, 3) m, NaN = no reading
    truth: np.ndarray  # (T, 3) m, m, rad; row 0 NaN
    anchors: np.ndarray  # (3, 3) m
    tag_offset: np.ndarray  # (3,) m

    @property
    def fitted(self) -> int:
        """How many steps the noise is fitted on: the first third."""
        return len(self.ranges) // 3


@dataclass
class Track:
    """What a filter said about the run."""

    mean: np.ndarray  # (T, 3)
    ess: np.ndarray  # (T,)
    log_likelihood: float
    clouds: list[np.ndarray] = field(default_factory=list)
    table: str = ""
    seconds: float = 0.0


def load(path: Path = RECORDING) -> Recording:
    """The recording; its odometry, kept as the motion after a reading, moved by one step."""
    with np.load(path) as z:
        inputs = np.vstack([np.zeros((1, 3)), z["odom"][:-1]])
        return Recording(float(z["t"][-1]), inputs, z["ranges"], z["gt_xyphi"], z["anchors"], z["tag_offset"])


def fitted_model(run: Recording, start: str = "known") -> pfkit.RangeRobot:
    """The robot's model, its noise fitted by maximum likelihood to the first third of the run."""
    where = dict(start=START, start_sd=START_SD) if start == "known" else dict(area=AREA)
    model = pfkit.RangeRobot(run.anchors, tag_offset=run.tag_offset, **where)
    return model.calibrated(run.truth[: run.fitted], run.ranges[: run.fitted], run.inputs[: run.fitted])


def make_filter(model, *, lse="int", particles=2000, seed=0) -> pfkit.ParticleFilter:
    return pfkit.ParticleFilter(model, particles, lse=lse, rng=seed)


def follow(pf, run: Recording) -> Track:
    """The whole run in one call."""
    steps = iter(range(len(run.ranges)))
    clouds: list[np.ndarray] = []

    def cloud(x, weights):
        if next(steps) % CLOUD_EVERY == 0:
            clouds.append(sample(x, weights))
        return 0

    with pfkit.Timers() as timers:
        begin = perf_counter()
        result = pf.run(run.ranges, run.inputs, store=("mean", cloud))
        seconds = perf_counter() - begin
    return Track(result.mean, result.ess, result.log_likelihood, clouds, timers.table(), seconds)


def follow_live(pf, run: Recording, redraw, every: int) -> Track:
    """The same run step by step, as if the readings came in now; calls redraw(track) every few steps."""
    track = Track(np.full_like(run.truth, np.nan), np.zeros(len(run.ranges)), 0.0)
    with pfkit.Timers() as timers:
        begin = perf_counter()
        for t, (u, y) in enumerate(zip(run.inputs, run.ranges, strict=True)):
            pf.predict(u)
            step = pf.update(y)
            track.mean[t], track.ess[t] = pf.mean, step.ess
            track.log_likelihood += step.increment
            if t % CLOUD_EVERY == 0:
                track.clouds.append(sample(pf.particles, pf.weights))
            if t % every == 0 or t == len(run.ranges) - 1:
                redraw(t, track, np.array(pf.particles))
    track.table, track.seconds = timers.table(), perf_counter() - begin
    return track


def sample(x, weights, n: int = 400) -> np.ndarray:
    """At most n particles that show the weighted cloud: every k-th of the cumulative weight."""
    cumulative = np.cumsum(weights)
    points = (np.arange(n) + 0.5) / n * cumulative[-1]
    return np.array(x[np.searchsorted(cumulative, points).clip(max=len(x) - 1), :2])


def rmse(track, truth) -> float:
    """Root mean square distance in the plane, m, over the steps that have a reference."""
    return float(np.sqrt(np.nanmean(np.sum((track[:, :2] - truth[:, :2]) ** 2, axis=1))))


def errors(track, run: Recording) -> tuple[float, float]:
    """RMSE, m, of all steps and of those after the fitted third."""
    return rmse(track, run.truth), rmse(track[run.fitted :], run.truth[run.fitted :])


def report(run: Recording, model, pf, track: Track, baseline) -> str:
    n, read = model.noise, int(np.isfinite(run.ranges).sum())
    bad = np.abs(run.ranges - model.expected_ranges(run.truth)) > 1.0
    mean_ess = track.ess.mean()
    lines = [
        f"recording       {len(run.ranges)} steps in {run.seconds:.0f} s; {read} ranges to "
        f"{len(run.anchors)} beacons, {int(bad.sum())} of them off by more than 1 m",
        f"noise           fitted on steps 0 to {run.fitted - 1} by maximum likelihood:",
        f"                ranges {n.range_sd:.3f} m, {100 * n.outlier_probability:.1f} % outliers",
        f"                odometry {n.translation_sd:.3f} m + {n.translation_sd_per_m:.3f} m per m, "
        f"{n.heading_sd:.4f} rad + {n.heading_sd_per_rad:.3f} rad per rad",
        f'filter          lse="{pf.lse}", {pf.n_particles} particles: {track.seconds:.2f} s, '
        f"{1e3 * track.seconds / len(run.ranges):.2f} ms a step",
        "",
        f"{'position RMSE':<16}{'all steps':>12}{f'after step {run.fitted - 1}':>18}",
    ]
    for name, path in (("dead reckoning", baseline), ("particle filter", track.mean)):
        everywhere, rest = errors(path, run)
        lines.append(f"{name:<16}{everywhere:>10.3f} m{rest:>16.3f} m")
    lines += [
        "",
        f"log-likelihood  {track.log_likelihood:.2f}",
        f"mean ESS        {mean_ess:.0f} of {pf.n_particles} ({100 * mean_ess / pf.n_particles:.0f} %)",
        "",
        track.table,
    ]
    return "\n".join(lines)


def picture(run: Recording, model, pf, track: Track, baseline, *, upto=None, figure=None, cloud=None):
    """The track, drawn so far as step `upto`; a matplotlib figure."""
    shown = len(run.truth) if upto is None else upto + 1
    bad = np.abs(run.ranges - model.expected_ranges(run.truth))[:, 0] > 1.0
    before = model.initial(500, np.random.default_rng(0))  # what the filter knew before the first reading
    all_steps = rmse(track.mean[:shown], run.truth[:shown]) if shown > 1 else float("nan")
    reckoned = rmse(baseline[:shown], run.truth[:shown]) if shown > 1 else float("nan")
    return pfkit.plots.plot_track(
        track.mean[:shown],
        anchors=run.anchors,
        truth=run.truth,
        baseline=baseline,
        clouds=[before, *track.clouds] + ([cloud] if cloud is not None else []),
        split=run.fitted,
        bad=bad,
        bad_label="| beacon 0 reads more than 1 m off",
        title="A real robot, its odometry and three radio beacons",
        note=f'{pf.n_particles} particles, lse="{pf.lse}": position RMSE {all_steps:.3f} m; '
        f"dead reckoning {reckoned:.3f} m",
        figure=figure,
    )


class Window:
    """Redraws while the filter runs: in a window if there is a display, else by writing the picture anew."""

    def __init__(self, run, model, pf, baseline, out: Path):
        self.parts, self.out = (run, model, pf), out
        self.baseline = baseline
        import matplotlib.pyplot as plt

        self.plt = plt
        interactive = {name.lower() for name in _interactive_backends()}
        self.on_screen = plt.get_backend().lower() in interactive
        self.figure = plt.figure(figsize=(9.6, 8.4), layout="constrained")
        if self.on_screen:
            plt.show(block=False)
        else:
            out.parent.mkdir(parents=True, exist_ok=True)
            print(f"no display: watch {out}, it is rewritten as the filter runs", file=sys.stderr)

    def __call__(self, t: int, track: Track, cloud) -> None:
        run, model, pf = self.parts
        picture(run, model, pf, track, self.baseline, upto=t, figure=self.figure, cloud=cloud)
        if self.on_screen:
            self.figure.canvas.draw_idle()
            self.plt.pause(0.001)
        else:
            self.figure.savefig(self.out, dpi=80)


def _interactive_backends():
    from matplotlib.backends import BackendFilter, backend_registry

    return backend_registry.list_builtin(BackendFilter.INTERACTIVE)


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m apps.track_uwb",
        description="Follow a real robot by odometry and three noisy radio ranges; print its errors beside "
        "dead reckoning and where the time went, and draw the track.",
    )
    add = p.add_argument
    lse = "log-sum-exp kernel: int, fuse, int-pairwise, or a baseline numpy, scipy, torch (default: int)"
    add("--lse", default="int", help=lse)
    particles = "number of particles (default: 2000, and 50000 for an unknown start)"
    add("--particles", type=int, metavar="N", help=particles)
    add("--seed", type=int, default=0, help="seed of the filter's random streams (default: 0)")
    start = (
        "known: within about a metre (default); unknown: anywhere in 176 square metres, facing anywhere, "
        "which takes many particles"
    )
    add("--start", choices=("known", "unknown"), default="known", help=start)
    out = "where the picture goes (default: out/track_uwb.png)"
    add("--out", type=Path, default=Path("out/track_uwb.png"), metavar="PNG", help=out)
    add("--live", action="store_true", help="redraw while the filter runs (needs matplotlib)")
    return p


def main(argv: list[str] | None = None) -> int:
    arguments = parser()
    args = arguments.parse_args(argv)
    run = load()
    model = fitted_model(run, args.start)
    baseline = model.dead_reckoning(run.inputs, START)
    particles = args.particles if args.particles is not None else PARTICLES[args.start]
    try:
        pf = make_filter(model, lse=args.lse, particles=particles, seed=args.seed)
    except (TypeError, ValueError) as wrong:
        arguments.error(str(wrong))
    try:
        window = Window(run, model, pf, baseline, args.out) if args.live else None
    except ImportError:
        window = None
        print('--live needs matplotlib: pip install "pfkit[plot]"; running without', file=sys.stderr)
    try:
        track = follow(pf, run) if window is None else follow_live(pf, run, window, LIVE_EVERY)
    except pfkit.FilterCollapse as lost:
        print(f"the filter lost the robot: {lost}", file=sys.stderr)
        return 1
    print(report(run, model, pf, track, baseline))
    try:
        figure = picture(run, model, pf, track, baseline)
    except ImportError as missing:
        print(f"\nno picture: {missing}")
        return 0
    args.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(args.out, dpi=110)
    print(f"\npicture         {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
