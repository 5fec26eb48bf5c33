"""Gaussian inputs: moments averaged over mini-batches, and data that their dtype cannot hold."""

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from pfkit.circuits import EM, Circuit, InputLayer, RegionGraph, hclt  # noqa: E402
from pfkit.circuits.gaussian import merged, moments_of  # noqa: E402


def single(mean, sd=1.0, dtype=torch.float64):
    """One Gaussian: a batch's expected counts do not depend on the parameters."""
    inputs = InputLayer([0], "gaussian", mean=torch.tensor([[mean]], dtype=dtype), sd=[[sd]])
    return Circuit(RegionGraph(1, (0,), (), ((0,),)), inputs, [], torch.ones((1, 1), dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_mean_of_constant_data_stays(dtype):
    circuit = single(11.0, dtype=dtype)
    em, x = EM(circuit), np.ones((10, 1))
    for size in (0.5, 0.5, 0.1, 0.9):
        em.accumulate(x)
        em.step(size)
        assert circuit.inputs.mean.item() == 1.0
        assert circuit.inputs.sd.item() == pytest.approx(1e-3)


def test_a_plain_average_over_batches_is_maximum_likelihood():
    """Steps 1, 1/2, 1/3, ... weigh all batches alike: mean and sd of all rows, wherever the start was."""
    x = np.random.default_rng(0).normal(3.0, 1.0, (5000, 1)) + np.arange(5000)[:, None] / 1000
    circuit = single(-40.0, 7.0)
    em = EM(circuit)
    for t in range(5):
        em.accumulate(x[1000 * t : 1000 * (t + 1)])
        em.step(1 / (t + 1))
    assert circuit.inputs.mean.item() == pytest.approx(x.mean(), rel=1e-12)
    assert circuit.inputs.sd.item() == pytest.approx(x.std(), rel=1e-12)


@pytest.mark.parametrize("step", [(0.5, 0.01), (0.1, 0.1)])
def test_mini_batches_reach_the_full_batch(step):
    """Both within the standard error of the rows that count in the running average (5 sigma)."""
    x = np.random.default_rng(0).normal(3.0, 1.0, (5000, 1))
    full, batches = (hclt(x, 1, family="gaussian", rng=0) for _ in range(2))
    full.fit(x, batch=None, epochs=3, pseudocount=0.0)
    batches.fit(x, batch=1000, epochs=5, step=step, pseudocount=0.0, rng=0)
    assert full.inputs.mean.item() == pytest.approx(x.mean(), abs=1e-5)
    assert full.inputs.sd.item() == pytest.approx(x.std(), abs=1e-5)
    # the average is of at least 1000 rows
    assert batches.inputs.mean.item() == pytest.approx(x.mean(), abs=5 * x.std() / math.sqrt(1000))
    assert batches.inputs.sd.item() == pytest.approx(x.std(), abs=5 * x.std() / math.sqrt(2000))


def test_mini_batches_of_a_mixture_reach_what_the_full_batch_reaches():
    random = np.random.default_rng(1)
    x = np.where(random.random((4000, 1)) < 0.4, -20.0, 15.0) + random.normal(size=(4000, 3))
    scores = []
    for batch in (None, 400):
        circuit = hclt(x, 2, family="gaussian", rng=1)
        circuit.fit(x, batch=batch, epochs=10, pseudocount=0.0, rng=0)
        with torch.no_grad():
            scores.append(float(circuit.log_prob(x).mean()))
    truth = 0.4 * math.log(0.4) + 0.6 * math.log(0.6) - 1.5 * math.log(2 * math.pi * math.e)
    assert scores[0] == pytest.approx(truth, abs=0.1)
    assert scores[1] == pytest.approx(scores[0], abs=0.01)


def test_merged_moments_are_those_of_all_rows():
    x = torch.from_numpy(np.random.default_rng(2).normal(100.0, 3.0, 60))

    def of(part, about):
        d = part - about
        return torch.stack((torch.tensor(1.0).double(), d.mean(), (d * d).mean()))[None, None]

    centre = torch.full((1, 1), 90.0, dtype=torch.float64)
    got = merged(moments_of(of(x[:40], 90.0), centre), moments_of(of(x[40:], 90.0), centre), 1 / 3)
    assert got[0, 0].tolist() == pytest.approx([1.0, float(x.mean()), float(x.var(correction=0))], rel=1e-12)
    nothing = moments_of(torch.zeros(1, 1, 3).double(), centre)
    assert nothing[0, 0].tolist() == [0.0, 90.0, 0.0]
    assert merged(nothing, nothing, 0.5)[0, 0].tolist() == [0.0, 90.0, 0.0]


def normal(shape=(100, 3)):
    return np.random.default_rng(0).normal(size=shape)


@pytest.mark.parametrize(
    "x, message",
    [
        (1e8 + normal(), "float32: subtract an offset"),
        (np.round(1e8 + 3 * normal()).astype(np.int64), "float32: subtract an offset"),
        (1e30 * normal(), "too large for squares in float32"),
        (1e-30 * normal(), "too small for squares in float32"),
    ],
)
def test_data_that_float32_cannot_hold(x, message):
    with pytest.raises(ValueError, match=message):
        hclt(x, 3, family="gaussian")
    with pytest.raises(ValueError, match=message):
        hclt(normal(), 3, family="gaussian").fit(x)


def test_float64_learns_what_float32_cannot_hold():
    """The same rows with and without a large offset: the same likelihoods."""
    x = normal((300, 3))
    scores = []
    for offset in (0.0, 1e8):
        circuit = hclt(x + offset, 2, family="gaussian", rng=0, dtype=torch.float64)
        scores.append(circuit.fit(x + offset, epochs=3, batch=100, rng=0).train[-1])
    assert scores[1] == pytest.approx(scores[0], abs=1e-5)
    assert scores[0] < -3


def test_the_first_wrong_column_is_named():
    x = normal()
    x[:, 1] += 1e8
    with pytest.raises(ValueError, match=r"x\[:, 1\].*standard deviation 1, magnitudes up to 1e\+08"):
        hclt(x, 3, family="gaussian")


def test_a_spread_below_min_sd():
    x = 1e-9 * normal()
    circuit = hclt(x, 3, family="gaussian", rng=0)
    with pytest.raises(ValueError, match=r"varies by less than min_sd=0.001"):
        circuit.fit(x)
    circuit.fit(x, epochs=5, min_sd=1e-12, rng=0)
    unit = hclt(normal(), 3, family="gaussian", rng=0)
    unit.fit(normal(), epochs=5, min_sd=1e-3, rng=0)
    with torch.no_grad():
        scale = circuit.log_prob(x).mean() + 3 * math.log(1e-9)
        assert float(scale) == pytest.approx(float(unit.log_prob(normal()).mean()), abs=1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_columns_constant_up_to_rounding_are_no_error(dtype):
    x = normal()
    x[:, 0] = 0.1
    x[:, 1] = 1 / (1 + np.exp(-x[:, 2])) + 1 / (1 + np.exp(x[:, 2]))  # 1, give or take an ulp
    circuit = hclt(x, 2, family="gaussian", rng=0, dtype=dtype)
    circuit.fit(x, epochs=2)
    assert torch.isfinite(circuit.log_prob(x)).all()


def test_learning_starts_from_the_spread_of_coarse_data():
    x = torch.from_numpy(100 + 3 * normal((500, 2))).to(torch.bfloat16)  # in steps of a half
    circuit = hclt(x, 2, family="gaussian", rng=0)
    want = x.double().std(0, correction=0).tolist()
    assert circuit.inputs.sd[:, 0].tolist() == pytest.approx(want, rel=1e-6)
    circuit.fit(x, epochs=5, rng=0)
    assert circuit.inputs.sd.detach().min() > 0.5


def test_missing_entries_do_not_count_as_spread():
    x = 5.0 + normal()
    circuit = hclt(x, 2, family="gaussian", rng=0)
    x[::3, 0] = np.nan
    x[:, 1] = np.nan
    circuit.fit(x, epochs=2)
    assert all(torch.isfinite(p).all() for p in circuit.parameters())


def test_an_overflowing_variance_is_not_written():
    circuit = single(0.0, dtype=torch.float32)
    em = EM(circuit)
    em.accumulate(np.array([[1.5e19], [-1.5e19]]))  # each square is a float32, their sum is not
    with pytest.raises(ValueError, match="overflows float32"):
        em.step()
    assert circuit.inputs.mean.item() == 0.0 and circuit.inputs.sd.item() == 1.0
    assert circuit.root_weight.item() == 1.0
    with pytest.raises(ValueError, match="too large for squares in float64"):
        hclt(1e300 * normal(), 3, family="gaussian", dtype=torch.float64)
