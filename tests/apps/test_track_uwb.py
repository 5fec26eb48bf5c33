"""The robot demo: position errors, the fit, the report, the picture, the command line."""

import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

import pfkit
from apps import track_uwb

KERNELS = ("fuse", "int", "int-pairwise")
LARGEST_RMSE = 0.20  # m, of all steps; dead reckoning is off by 0.76 m


@pytest.fixture(scope="module")
def run():
    return track_uwb.load()


@pytest.fixture(scope="module")
def model(run):
    return track_uwb.fitted_model(run)


def follow(run, model, **options):
    return track_uwb.follow(track_uwb.make_filter(model, **options), run)


@pytest.mark.parametrize("lse", KERNELS)
def test_the_robot_is_followed(run, model, lse):
    track = follow(run, model, lse=lse, seed=0)
    everywhere, rest = track_uwb.errors(track.mean, run)
    assert everywhere <= LARGEST_RMSE and rest <= LARGEST_RMSE
    assert np.isfinite(track.log_likelihood) and np.isfinite(track.mean).all()
    assert 1.0 <= track.ess.min() and track.ess.max() <= 2000.0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("lse", KERNELS)
def test_the_robot_is_followed_from_every_seed(run, model, lse, seed):
    track = follow(run, model, lse=lse, seed=seed)
    assert track_uwb.errors(track.mean, run)[0] <= LARGEST_RMSE


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_the_robot_is_found_from_an_unknown_start(run, seed):
    pf = track_uwb.make_filter(track_uwb.fitted_model(run, "unknown"), particles=50_000, seed=seed)
    assert track_uwb.errors(track_uwb.follow(pf, run).mean, run)[0] <= LARGEST_RMSE


def test_dead_reckoning_drifts(run, model):
    everywhere, _ = track_uwb.errors(model.dead_reckoning(run.inputs, track_uwb.START), run)
    assert 0.7 < everywhere < 0.9


def test_heading_error_is_small_across_the_turns(run, model):
    """The heading passes +-pi several times; its estimate is a circular mean and follows it all the same."""
    assert np.nanmax(run.truth[:, 2]) > 3.0 and np.nanmin(run.truth[:, 2]) < -3.0
    track = follow(run, model, seed=1)
    away = np.angle(np.exp(1j * (track.mean[20:, 2] - run.truth[20:, 2])))
    assert np.sqrt(np.mean(away**2)) < 0.15


def test_the_fit_sees_only_the_first_third(run, model):
    spoiled = replace(run, ranges=run.ranges.copy(), truth=run.truth.copy(), inputs=run.inputs.copy())
    for a in (spoiled.ranges, spoiled.truth, spoiled.inputs):
        a[run.fitted :] += 100.0
    assert track_uwb.fitted_model(spoiled).noise == model.noise
    assert model.noise != pfkit.RangeRobot(run.anchors, tag_offset=run.tag_offset).noise


def test_gaussian_ranges_lose_the_robot_but_stay_finite(run, model):
    """Without the outlier part the filter is wrong by metres, yet it never says NaN."""
    noise = replace(model.noise, range_sd=0.17, outlier_probability=0.0)
    gaussian = pfkit.RangeRobot(
        run.anchors,
        tag_offset=run.tag_offset,
        start=track_uwb.START,
        start_sd=track_uwb.START_SD,
        noise=noise,
    )
    track = follow(run, gaussian, seed=0)
    assert not np.isnan(track.log_likelihood) and np.isfinite(track.mean).all()
    assert track_uwb.errors(track.mean, run)[0] > 3 * LARGEST_RMSE


def test_the_mixture_that_serves_without_a_fit(run):
    noise = pfkit.RangeRobotNoise(range_sd=0.17, outlier_probability=0.05, max_range=20.0)
    given = pfkit.RangeRobot(run.anchors, tag_offset=run.tag_offset, start=track_uwb.START, noise=noise)
    assert track_uwb.errors(follow(run, given, seed=0).mean, run)[0] <= LARGEST_RMSE


def test_step_by_step_is_the_same_run(run, model):
    at_once = follow(run, model, seed=4, particles=300)
    seen = []
    live = track_uwb.follow_live(
        track_uwb.make_filter(model, seed=4, particles=300),
        run,
        lambda t, track, cloud: seen.append(t),
        every=50,
    )
    assert np.array_equal(live.mean, at_once.mean)
    assert live.log_likelihood == at_once.log_likelihood
    assert all(np.array_equal(a, b) for a, b in zip(live.clouds, at_once.clouds, strict=True))
    assert seen == [0, 50, 100, 150, 200, 250, 300, 342]


def test_command_prints_the_table_and_writes_the_picture(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    out = tmp_path / "new" / "track.png"
    assert track_uwb.main(["--particles", "500", "--seed", "2", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    everywhere, rest = map(float, re.search(r"particle filter\s+([\d.]+) m\s+([\d.]+) m", said).groups())
    assert 0.0 < everywhere <= LARGEST_RMSE and 0.0 < rest <= LARGEST_RMSE
    for words in ("dead reckoning", "log-likelihood", "mean ESS", "fitted on steps 0 to 113", "ns/particle"):
        assert words in said
    for phase in ("propagate", "likelihood", "lse", "resample", "gather"):
        assert re.search(rf"^{phase}\s+\d+\s+[\d.]+", said, re.M)
    assert out.read_bytes().startswith(b"\x89PNG")


def test_live_without_a_display_rewrites_the_picture(tmp_path, capsys, monkeypatch):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    monkeypatch.setattr(track_uwb, "LIVE_EVERY", 120)
    out = tmp_path / "live.png"
    assert track_uwb.main(["--live", "--particles", "200", "--out", str(out)]) == 0
    assert "no display" in capsys.readouterr().err
    assert out.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("flags", [[], ["--live"]])
def test_without_matplotlib_it_still_runs_and_says_what_is_missing(tmp_path, capsys, monkeypatch, flags):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for name in [m for m in sys.modules if m.startswith("matplotlib.")]:
        monkeypatch.delitem(sys.modules, name)
    out = tmp_path / "track.png"
    assert track_uwb.main(["--particles", "200", "--out", str(out), *flags]) == 0
    captured = capsys.readouterr()
    assert "particle filter" in captured.out and 'pip install "pfkit[plot]"' in captured.out + captured.err
    assert not out.exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--lse", "nonsense"], "nonsense"),
        (["--particles", "0"], "n_particles must be >= 1"),
        (["--start", "moon"], "invalid choice"),
    ],
)
def test_bad_flags_are_refused_in_words(flags, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        track_uwb.main(flags)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_a_lost_robot_is_said_in_words(monkeypatch, capsys, tmp_path):
    class Blind(pfkit.RangeRobot):
        def log_likelihood(self, y, x, t):
            return np.full(len(x), -np.inf if t == 7 else 0.0)

    run = track_uwb.load()
    model = Blind(run.anchors, tag_offset=run.tag_offset)
    monkeypatch.setattr(track_uwb, "fitted_model", lambda run, start: model)
    out = tmp_path / "track.png"
    assert track_uwb.main(["--particles", "50", "--out", str(out)]) == 1
    assert "lost the robot: step 7" in capsys.readouterr().err
    assert not out.exists()


def test_help_names_every_flag():
    done = subprocess.run(
        [sys.executable, "-m", "apps.track_uwb", "--help"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0
    for flag in ("--lse", "--particles", "--seed", "--start", "--out", "--live"):
        assert flag in done.stdout
