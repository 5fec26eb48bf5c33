"""Token log-probabilities: values over shapes, dtypes, strides, temperatures and kernels, CPU and CUDA."""

import math

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import pfkit  # noqa: E402
from pfkit import token_log_probs  # noqa: E402

INF, NAN = math.inf, math.nan
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
SHAPES = [
    *((1, 1), (3, 2), (5, 7), (33, 127), (9, 128), (300, 17), (6, 1000), (3, 1024), (3, 1025), (2, 2047)),
    *((3, 4097), (2, 32000), (2, 50257), (1, 128256), (1, 131073)),
]


def tolerance(want, dtype):
    """1e-12 for float64; else rounding of the result to float32 and 1e-6 for the sum."""
    if dtype == torch.float64:
        return 1e-12 + 1e-14 * want.abs()
    return 1e-6 + 2.0**-23 * want.abs()


def check(got, want, dtype):
    assert got.shape == want.shape
    assert got.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    same = (got.double() == want) | (got.isnan() & want.isnan())
    error = torch.where(same, 0.0, (got.double() - want).abs())
    assert (error <= tolerance(want.nan_to_num(0.0, 0.0, 0.0), dtype)).all(), float(error.max())


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_over_vocabularies(device, exact, normal, ids, dtype, temperature):
    for rows, n in SHAPES:
        x, tokens = normal((rows, n), dtype, device, seed=n), ids((rows,), n, device, ignored=rows > 2)
        got = token_log_probs(x, tokens, temperature=temperature, return_entropy=True, return_lse=True)
        for part, want in zip(got, exact(x, tokens, temperature), strict=True):
            check(part, want, dtype)
        alone = token_log_probs(x, tokens, temperature=temperature)
        check(alone, exact(x, tokens, temperature)[0], dtype)


@pytest.mark.parametrize("k", [0, 1, 2, 8, 40])
@pytest.mark.parametrize("shape", [(10,), (5, 30), (2, 3, 1025), (2, 2, 2, 3000)])
def test_any_rank_and_several_tokens_a_row(device, exact, normal, ids, shape, k):
    x = normal(shape, device=device)
    tokens = ids((*shape[:-1], k), shape[-1], device)
    if k == 8:
        tokens.view(-1, k)[0] = -100
        tokens[..., 3] = -100
    got = token_log_probs(x, tokens, return_entropy=True, return_lse=True)
    for part, want in zip(got, exact(x, tokens), strict=True):
        check(part, want, torch.float32)
    if len(shape) == 1:
        check(token_log_probs(x, tokens.new_tensor(3)), exact(x, tokens.new_tensor([3]))[0][0], x.dtype)


def test_what_is_returned(device, normal, ids):
    x, tokens = normal((4, 9), device=device), ids((4,), 9, device)
    everything = token_log_probs(x, tokens, return_entropy=True, return_lse=True)
    assert isinstance(everything, tuple) and len(everything) == 3
    _, entropy = token_log_probs(x, tokens, return_entropy=True)
    _, value = token_log_probs(x, tokens, return_lse=True)
    assert torch.equal(entropy, everything[1]) and torch.equal(value, everything[2])
    alone = token_log_probs(x, tokens)
    assert isinstance(alone, torch.Tensor) and torch.equal(alone, everything[0])


LAYOUTS = {
    "all but the last position": lambda x: x[:, :-1],
    "odd vocabulary slice": lambda x: x[..., 1:-2],
    "every second row": lambda x: x[::2, 1::3],
    "transposed": lambda x: x.transpose(0, 1),
    "broadcast": lambda x: x[:, :1].expand(-1, 5, -1),
    "vocabulary outermost": lambda x: x.permute(2, 0, 1).contiguous().permute(1, 2, 0),
    "strided vocabulary": lambda x: x[..., ::2],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("n", [50, 3001])
def test_strides_are_followed(device, exact, normal, ids, layout, n):
    for dtype in (torch.float32, torch.bfloat16):
        x = LAYOUTS[layout](normal((3, 4, n), dtype, device))
        before = x.clone()
        tokens = ids(tuple(reversed(x.shape[:-1])), x.shape[-1], device).t()
        got = token_log_probs(x, tokens, return_entropy=True, return_lse=True)
        for part, want in zip(got, exact(x, tokens), strict=True):
            check(part, want, dtype)
        assert torch.equal(x, before)


def test_many_strides(device, exact, normal, ids):
    x = normal((3,) * 7 + (5,), device=device)[(slice(None, None, 2),) * 7]
    tokens = ids(x.shape[:-1], 5, device)
    check(token_log_probs(x, tokens), exact(x, tokens)[0], x.dtype)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8])
def test_narrow_ids(device, normal, ids, dtype):
    x, tokens = normal((4, 100), device=device), ids((4,), 100, device)
    assert torch.equal(token_log_probs(x, tokens.to(dtype)), token_log_probs(x, tokens))


def test_many_short_rows(device, exact, normal, ids):
    for rows, n in ((1000, 3), (1000, 100), (1000, 257), (1000, 600), (33001, 1), (33001, 9), (33001, 130)):
        x, tokens = normal((rows, n), device=device), ids((rows,), n, device, ignored=True)
        got = token_log_probs(x, tokens, return_entropy=True, return_lse=True)
        for part, want in zip(got, exact(x, tokens), strict=True):
            check(part, want, x.dtype)


@pytest.mark.parametrize("temperature", [1.0, 0.6, 1e-3, 1e3])
def test_a_common_offset_changes_nothing(device, normal, ids, temperature):
    """https://github.com/sgl-project/sglang/pull/31958: x - lse in float32 loses 2e-3 at an offset of 3e4."""
    x = torch.round(normal((6, 5000), device=device) * 64) / 64  # exact beside 3e4
    tokens = ids((6,), 5000, device)
    plain = token_log_probs(x, tokens, temperature=temperature, return_entropy=True)
    for offset in (3e4, -3e4):
        for a, b in zip(
            token_log_probs(x + offset, tokens, temperature=temperature, return_entropy=True),
            plain,
            strict=True,
        ):
            assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("n", [1000, 32000, 50257, 128256])
def test_sixteen_bits_score_like_their_float32_copy(device, normal, ids, dtype, n):
    """https://github.com/NVIDIA/TransformerEngine/issues/3193 https://github.com/genlm/genlm-backend/pull/66"""
    x, tokens = normal((8, n), dtype, device), ids((8,), n, device)
    half, full = token_log_probs(x, tokens), token_log_probs(x.float(), tokens)
    assert abs(float(half.mean() - full.mean())) <= 1e-6
    if dtype == torch.bfloat16:
        assert torch.equal(half, token_log_probs(x, tokens, lse="fuse"))


@pytest.mark.parametrize("lse", ["int", "int-pairwise", "int16"])
def test_integer_kernels(device, exact, normal, ids, lse):
    if device == "cpu" and lse == "int16":
        pytest.skip("int16 is a CUDA kernel")
    kernel = next(k for k in pfkit.kernels() if k.name == lse and k.device == device)
    for n in (7, 1000, 32000):
        for temperature in (1.0, 0.5):
            x, tokens = normal((5, n), device=device), ids((5,), n, device, ignored=True)
            got = token_log_probs(
                x, tokens, temperature=temperature, return_entropy=True, return_lse=True, lse=lse
            )
            bound = kernel.error_bound(n, "float32")
            for part, want in zip(got, exact(x, tokens, temperature), strict=True):
                assert ((part.double() - want).abs() <= bound + tolerance(want, torch.float32)).all()


def test_sixteen_bit_kernel_name(normal, ids, device):
    if device == "cpu":
        pytest.skip("fuse16 is a CUDA kernel")
    x, tokens = normal((5, 40000), torch.bfloat16, device), ids((5,), 40000, device)
    assert torch.equal(token_log_probs(x, tokens, lse="fuse16"), token_log_probs(x, tokens))


def test_nothing_to_score(device):
    x = torch.empty(0, 4, 9, device=device)
    parts = token_log_probs(x, torch.empty(0, 4, dtype=torch.int64, device=device), return_entropy=True)
    assert [tuple(p.shape) for p in parts] == [(0, 4), (0, 4)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [6, 700, 40000])
def test_minus_infinity_among_the_logits(device, exact, normal, ids, dtype, n):
    """https://github.com/huggingface/trl/pull/7266: entropy NaN for 0 * -inf."""
    x = normal((4, n), dtype, device)
    x[0, 1:] = -INF
    x[1, n // 2 :] = -INF
    x[2, ::2] = -INF
    tokens = torch.tensor([0, n - 1, 1, 0], device=device)
    log_probs, entropy, value = token_log_probs(x, tokens, return_entropy=True, return_lse=True)
    want = exact(x, tokens)
    assert log_probs[0] == 0 and entropy[0] == 0 and log_probs[1] == -INF
    check(log_probs, want[0], dtype)
    p = torch.softmax(x.double(), -1)
    check(entropy, -torch.special.xlogy(p, p).sum(-1), dtype)
    check(value, want[2], dtype)


@pytest.mark.parametrize("n", [5, 900, 40000, 300000])
def test_rows_without_mass_and_rows_that_are_broken(device, n):
    x = torch.zeros(4, n, device=device)
    x[0] = -INF
    x[1, n - 1] = INF
    x[2, n // 2] = NAN
    tokens = torch.tensor([1, 2, 0, 0], device=device)
    log_probs, entropy, value = token_log_probs(x, tokens, return_entropy=True, return_lse=True)
    assert log_probs[0] == -INF and entropy[0] == 0 and value[0] == -INF
    assert log_probs[1].isnan() and entropy[1].isnan() and value[1] == INF
    assert log_probs[2].isnan() and entropy[2].isnan() and value[2].isnan()
    assert abs(float(log_probs[3]) + math.log(n)) <= 2e-6 and abs(float(entropy[3]) - math.log(n)) <= 3e-6
    skipped = token_log_probs(x, torch.full((4,), -100, device=device), return_entropy=True, return_lse=True)
    assert all((part == 0).all() for part in skipped)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_finite_logit_at_every_tile_boundary(device, dtype):
    """https://github.com/Dao-AILab/flash-attention/issues/1930: NaN where a whole tile is -inf."""
    n = 100000
    edges = sorted(
        {p + d for p in (0, 1, *(2**j for j in range(1, 17)), 50000, n) for d in (-1, 0, 1) if 0 <= p + d < n}
    )
    at = torch.tensor(edges, device=device)
    x = torch.full((len(edges), n), -INF, dtype=dtype, device=device)
    x[torch.arange(len(edges), device=device), at] = 10.0
    log_probs, entropy, value = token_log_probs(x, at, return_entropy=True, return_lse=True)
    assert (log_probs == 0).all() and (entropy == 0).all() and (value == 10).all()


@pytest.mark.parametrize("level", [-6e4, 1e14, -1e14, 3e38, -3e38])
def test_large_logits(device, level):
    """https://github.com/flashinfer-ai/flashinfer/issues/4401 https://github.com/pytorch/pytorch/issues/163932"""
    n = 30000
    x = torch.full((3, n), level, device=device)
    x[1, : n // 2] = -abs(level)
    log_probs, entropy, _ = token_log_probs(
        x, torch.full((3,), n - 1, device=device), return_entropy=True, return_lse=True
    )
    half = math.log(n if level < 0 else n // 2)
    for row, want in ((0, math.log(n)), (1, half), (2, math.log(n))):
        assert abs(float(log_probs[row]) + want) <= 2e-6 and abs(float(entropy[row]) - want) <= 3e-6


def test_extreme_temperatures(device):
    x = torch.tensor([[1.0, 3.0, 2.0, -INF]], device=device)
    tokens = torch.tensor([[0, 1, 2, 3]], device=device)
    hot, entropy = token_log_probs(x, tokens, temperature=1e30, return_entropy=True)
    assert torch.allclose(hot[0, :3], torch.full((3,), -math.log(3.0), device=device)) and hot[0, 3] == -INF
    assert abs(float(entropy) - math.log(3.0)) <= 1e-6
    cold, entropy = token_log_probs(x, tokens, temperature=1e-30, return_entropy=True)
    assert cold[0, 1] == 0 and (cold[0, [0, 2]] <= -1e29).all() and cold[0, 3] == -INF and entropy == 0


def test_equal_calls_give_equal_bits(device, normal, ids):
    for shape in ((64, 32000), (3, 262144), (500, 300)):
        x, tokens = normal(shape, device=device), ids(shape[:1], shape[1], device)
        once = token_log_probs(x, tokens, return_entropy=True, return_lse=True)
        for _ in range(3):
            again = token_log_probs(x, tokens, return_entropy=True, return_lse=True)
            assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))


@pytest.mark.parametrize("k", [None, 1, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_the_shapes_of_selective_log_softmax(device, normal, ids, dtype, k):
    """4 x 32 x 1024, K of 1 and 8, as TRL tests its own, which in half precision gives log_softmax's bits."""
    x = normal((4, 32, 1024), dtype, device)
    tokens = ids((4, 32) if k is None else (4, 32, k), 1024, device)
    got = token_log_probs(x, tokens)
    want = (
        torch.log_softmax(x, -1).gather(-1, tokens[..., None] if k is None else tokens).reshape(tokens.shape)
    )
    error = (got.to(dtype).double() - want.double()).abs()
    theirs = 1e-13 if dtype == torch.float64 else 4e-6  # torch's own arithmetic, before it rounds
    assert (error <= theirs + 2 * torch.finfo(dtype).eps * want.double().abs()).all()
