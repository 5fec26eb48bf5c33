"""Pictures draw what they were given, and say what is missing."""

import subprocess
import sys

import numpy as np
import pytest

import pfkit

pytest.importorskip("matplotlib")


class TwoCoordinates(pfkit.StateSpaceModel):
    state_dim = 2

    def initial(self, n, rng):
        return rng.normal(size=(n, 2))

    def transition(self, x, t, rng):
        return x + rng.normal(size=x.shape)

    def log_likelihood(self, y, x, t):
        return -0.5 * np.sum((x - y) ** 2, axis=1)


def curves(axes):
    return {line.get_color(): line.get_xydata() for line in axes.get_lines()}


def test_result_of_a_scalar_state():
    model = pfkit.LocalLevel(1.0, 1.0)
    result = pfkit.ParticleFilter(model, 200, lse="int", rng=1).run([0.1, None, 0.4, 0.2])
    figure = result.plot()
    state, ess = figure.axes
    assert np.array_equal(curves(state)[pfkit.plots.ESTIMATE][:, 1], result.mean)
    assert np.array_equal(curves(ess)[pfkit.plots.ESTIMATE][:, 1], result.ess)
    band = state.collections[0].get_paths()[0].vertices[:, 1]
    assert band.max() == pytest.approx((result.mean + 2 * np.sqrt(result.variance)).max())
    assert band.min() == pytest.approx((result.mean - 2 * np.sqrt(result.variance)).min())


def test_result_of_a_vector_state_with_names_and_truth():
    result = pfkit.ParticleFilter(TwoCoordinates(), 100, lse="int", rng=1).run(np.zeros((5, 2)))
    truth = np.arange(10.0).reshape(5, 2)
    figure = result.plot(names=["east", "north"], truth=truth)
    assert [ax.get_ylabel() for ax in figure.axes] == ["east", "north", "ESS"]
    for k in range(2):
        assert np.array_equal(curves(figure.axes[k])[pfkit.plots.REFERENCE][:, 1], truth[:, k])
    with pytest.raises(ValueError, match="names must have 2 entries"):
        result.plot(names=["east"])


def test_result_without_moments_is_refused():
    result = pfkit.ParticleFilter(TwoCoordinates(), 100, lse="int", rng=1).run(np.zeros((5, 2)), store=())
    with pytest.raises(ValueError, match="store="):
        result.plot()


def test_track_draws_errors_against_the_truth(tmp_path):
    truth = np.column_stack([np.arange(6.0), np.zeros(6)])
    truth[0] = np.nan
    estimate = truth + [0.3, 0.4]
    figure = pfkit.plots.plot_track(
        estimate[:4],
        truth=truth,
        baseline=truth + [0.0, 2.0],
        anchors=[[0.0, 1.0, 2.0]],
        clouds=[np.zeros((7, 3))],
        split=2,
        bad=[True, False, False, False, True, False],
        bad_label="bad",
        title="title",
        note="note",
    )
    plane, below = figure.axes
    assert np.array_equal(curves(plane)[pfkit.plots.BASELINE], (truth + [0.0, 2.0])[:4], equal_nan=True)
    error = curves(below)[pfkit.plots.ESTIMATE]
    assert error[1:] == pytest.approx(np.array([[1, 0.5], [2, 0.5], [3, 0.5]]))
    assert {text.get_text() for text in plane.get_legend().get_texts()} == {
        "particles",
        "dead reckoning",
        "reference",
        "particle filter",
        "beacons",
    }
    assert list(below.get_lines()[-1].get_xdata()) == [0, 4]
    figure.savefig(tmp_path / "track.png", dpi=50)
    again = pfkit.plots.plot_track(estimate, figure=figure)
    assert again is figure and len(figure.axes) == 1


def test_importing_pfkit_does_not_import_matplotlib():
    code = "import pfkit, sys; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_without_matplotlib_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for name in [m for m in sys.modules if m.startswith("matplotlib.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ImportError, match=r"pfkit\[plot\]"):
        pfkit.plots.new_figure(3.0, 3.0)
