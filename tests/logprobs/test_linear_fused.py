"""The kernels that fold products, or make gradients of them, while they are in registers: by themselves,
against float64, at sizes no tile divides.
"""

import pytest

from pfkit.lse import cuda

if cuda.missing():
    pytest.skip(cuda.missing(), allow_module_level=True)

import torch  # noqa: E402

from pfkit.logprobs import linear_fused as fused  # noqa: E402
from pfkit.logprobs.linear_terms import Terms  # noqa: E402

pytestmark = pytest.mark.gpu
# rows, hidden, vocabulary: one tile; as many steps as the ring has stages; a last step, a last tile and last
# rows that are not whole; more row tiles than a group holds; a single step.
SIZES = [(256, 64, 256), (256, 256, 512), (517, 200, 5003), (2125, 136, 3001), (4500, 64, 2049)]
IGNORED, TOO_LARGE = 7, 11  # rows


@pytest.fixture(autouse=True)
def on_hopper():
    x = torch.empty(256, 64, device="cuda", dtype=torch.bfloat16)
    if not fused.applies(x, x, Terms()):
        pytest.skip("needs compute capability 9.0")


def problem(dtype, rows, hidden, vocabulary, rising=False):
    g = torch.Generator(device="cuda").manual_seed(1)
    x = torch.randn(rows, hidden, device="cuda", generator=g).to(dtype)
    w = torch.randn(vocabulary, hidden, device="cuda", generator=g) * 0.3
    if rising:  # later tiles bring larger logits
        w *= torch.linspace(0.01, 3, vocabulary, device="cuda")[:, None]
    t = torch.randint(vocabulary, (rows,), device="cuda", generator=g)
    t[IGNORED], t[TOO_LARGE], t[0] = -100, vocabulary, vocabulary - 1
    return x, w.to(dtype), t


def folded(x, w, t, terms):
    rows = x.shape[0]
    loss, maximum, total = (torch.full((rows,), 9.0, device="cuda") for _ in range(3))
    slots = torch.full((2 * fused.clusters(0) * rows,), 9.0, device="cuda")
    stream = torch.cuda.current_stream().cuda_stream
    fused.forward(x, w, t, terms, loss, maximum, total, slots, slots, 0, fused.TILE, stream)
    return loss, maximum, total


def room_of(x, w):
    """A product errs by a few 2**-24 of the sum of its terms' magnitudes; what follows adds 2e-6."""
    return 2e-6 + 4e-7 * float((x.double().abs() @ w.double().abs().t()).max())


def same_bits(some, others):
    return all(torch.equal(a.nan_to_num(5.0), b.nan_to_num(5.0)) for a, b in zip(some, others, strict=True))


@pytest.mark.parametrize("rising", [False, True])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_losses(dtype, size, rising):
    x, w, t = problem(dtype, *size, rising=rising)
    z = 1e-3
    loss, maximum, total = folded(x, w, t, Terms(z=z, vocabulary=size[2]))
    y = x.double() @ w.double().t()
    lse = torch.logsumexp(y, 1)
    want = lse - y.gather(1, t.clamp(0, size[2] - 1)[:, None])[:, 0] + z * lse**2
    room = room_of(x, w)
    assert float((maximum.double() + total.double().log() - lse).abs().max()) < room
    live = torch.ones_like(t, dtype=torch.bool)
    live[IGNORED] = live[TOO_LARGE] = False
    assert float((loss - want).abs()[live].max()) < room * (1 + 2 * z * float(lse.abs().max()))
    assert loss[IGNORED] == 0 and loss[TOO_LARGE].isnan()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients(dtype, size):
    x, w, t = problem(dtype, *size)
    rows, _, vocabulary = size
    y = x.double() @ w.double().t()
    maximum = y.max(1).values.float()
    total = torch.exp(y - maximum.double()[:, None]).sum(1).float()
    outer = torch.randn(rows, device="cuda", generator=torch.Generator(device="cuda").manual_seed(2))
    room = torch.full((rows + 1, -(-vocabulary // 8) * 8), 7.0, device="cuda", dtype=dtype)
    stream, half = torch.cuda.current_stream().cuda_stream, vocabulary // 2 // 8 * 8
    for first, last in ((0, half), (half, vocabulary)):  # the second chunk's columns start anywhere in a tile
        fused.gradient(
            x, w[first:last], room[:rows, first:last], first, t, maximum, total, outer,
            Terms(vocabulary=vocabulary), stream,
        )  # fmt: skip
    weights = torch.exp(y - maximum.double()[:, None]) / total.double()[:, None]
    want = weights - torch.nn.functional.one_hot(t.clamp(0, vocabulary - 1), vocabulary)
    want *= outer.double()[:, None]
    want[IGNORED] = 0
    got = room[:rows, :vocabulary].double()
    assert got[TOO_LARGE].isnan().all() and (room[rows] == 7).all()
    got[TOO_LARGE] = want[TOO_LARGE]
    unit, smallest = (2.0**-8, 0.0) if dtype == torch.bfloat16 else (2.0**-11, 2.0**-24)
    allowed = 1.001 * unit * want.abs() + room_of(x, w) * weights * outer.double().abs()[:, None] + smallest
    assert bool(((got - want).abs() <= allowed).all())


def test_equal_calls_give_equal_bits():
    x, w, t = problem(torch.bfloat16, 2125, 136, 30001)
    terms = Terms(vocabulary=30001)
    runs = [folded(x, w, t, terms) for _ in range(4)]
    assert all(same_bits(runs[0], other) for other in runs[1:])


def test_rows_inside_wider_ones():
    x, w, t = problem(torch.float16, 300, 128, 1000)
    wide_x, wide_w = (torch.full((n, 264), 3.0, device="cuda").half() for n in (300, 1000))
    wide_x[:, 8:136], wide_w[:, 16:144] = x, w
    terms = Terms(vocabulary=1000)
    inside, alone = folded(wide_x[:, 8:136], wide_w[:, 16:144], t, terms), folded(x, w, t, terms)
    assert same_bits(inside, alone)
