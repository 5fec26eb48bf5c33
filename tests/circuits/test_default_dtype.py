"""What torch's default dtype is changes nothing: buffers have the dtype of what is written into them."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

FAMILIES = ("categorical", "bernoulli", "gaussian")


@pytest.fixture(params=[torch.bfloat16, torch.float64], ids=str)
def default(request):
    before = torch.get_default_dtype()

    def use():
        torch.set_default_dtype(request.param)

    yield use
    torch.set_default_dtype(before)


def answers(circuit, x):
    with torch.no_grad():
        return [
            circuit.log_prob(x),
            circuit.sample(5, rng=3),
            circuit.sample(5, given=x[0], rng=3),
            *circuit.mpe(x),
        ]


@pytest.mark.parametrize("trees", [1, 2])
@pytest.mark.parametrize("family", FAMILIES)
def test_answers_and_learning_are_the_same(small, rows, default, family, trees, device):
    x, float32 = rows(family), {"dtype": torch.float32, "trees": trees}
    one, other = small(family, **float32).to(device), small(family, **float32).to(device)
    wanted = answers(one, x)
    one.fit(x, epochs=1, batch=4, pseudocount=0.1, rng=1)
    default()
    for found, expected in zip(answers(other, x), wanted, strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found.cpu().numpy(), expected.cpu().numpy())
    other.fit(x, epochs=1, batch=4, pseudocount=0.1, rng=1)
    for found, expected in zip(other.parameters(), one.parameters(), strict=True):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)  # a GPU may add counts in any order
