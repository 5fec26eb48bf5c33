"""Cross-entropy and log-probabilities of a last layer, against float64 torch on the whole logits."""

import math
import re

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch.autograd import forward_ad  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from pfkit.logprobs.linear import linear_cross_entropy, linear_log_probs  # noqa: E402

F = torch.nn.functional
ROWS, HIDDEN, VOCABULARY = 37, 16, 203
SMALL = 24 * ROWS + ROWS * 64 * 8  # scratch for one chunk of 64 float64 columns


def parts(rows=ROWS, hidden=HIDDEN, vocabulary=VOCABULARY, dtype=torch.float64, seed=0):
    """hidden, weight, bias that want gradients; targets, some of them ignored."""
    g = torch.Generator().manual_seed(seed)
    x, w, b = (torch.randn(s, generator=g, dtype=torch.float64) for s in
               ((rows, hidden), (vocabulary, hidden), (vocabulary,)))  # fmt: skip
    t = torch.randint(vocabulary, (rows,), generator=g)
    t[rows // 2 :: 7] = -100
    return *(a.to(dtype).requires_grad_() for a in (x, w, b)), t


def whole(x, w, t, *, bias=None, reduction="mean", label_smoothing=0.0, softcap=None, z_loss=0.0):
    """The same loss from whole logits, in float64."""
    z = x.double() @ w.double().t()
    if bias is not None:
        z = z + bias.double()
    if softcap is not None:
        z = softcap * torch.tanh(z / softcap)
    rows = F.cross_entropy(z, t, reduction="none", label_smoothing=label_smoothing)
    live = t != -100
    rows = rows + torch.where(live, z_loss * torch.logsumexp(z, 1) ** 2, 0)
    return {"none": rows, "sum": rows.sum(), "mean": rows.sum() / live.sum().clamp_min(1)}[reduction]


OPTIONS = [
    {},
    {"reduction": "sum"},
    {"label_smoothing": 0.1},
    {"softcap": 3.0},
    {"z_loss": 1e-2},
    {"reduction": "sum", "label_smoothing": 0.3, "softcap": 5.0, "z_loss": 0.1},
]


@pytest.mark.parametrize("memory", [None, SMALL, 10**7])
@pytest.mark.parametrize("options", OPTIONS)
def test_loss_and_gradients(options, memory):
    x, w, b, t = parts()
    ours = linear_cross_entropy(x, w, t, bias=b, memory=memory, **options)
    want = whole(x, w, t, bias=b, **options)
    assert ours.dtype == torch.float64 and ours.shape == ()
    assert torch.allclose(ours, want, rtol=1e-13, atol=0)
    for a, e in zip(*(torch.autograd.grad(v, (x, w, b)) for v in (ours, want)), strict=True):
        assert torch.allclose(a, e, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("memory", [24 * 5 + 5 * 8 * 8, None])
@pytest.mark.parametrize("options", [{}, {"softcap": 3.0, "z_loss": 0.1, "label_smoothing": 0.2}])
def test_gradcheck(options, memory):
    x, w, b, t = parts(5, 4, 19)
    t[:] = torch.tensor([1, 18, -100, 0, 7])

    def rows(*a):
        return linear_cross_entropy(a[0], a[1], t, bias=a[2], reduction="none", memory=memory, **options)

    assert torch.autograd.gradcheck(rows, (x, w, b))


def test_only_the_gradients_that_are_asked_for():
    x, w, b, t = parts()
    full = torch.autograd.grad(linear_cross_entropy(x, w, t, bias=b), (x, w, b))
    for k, wanted in enumerate((x, w, b)):
        given = [a if a is wanted else a.detach() for a in (x, w, b)]
        loss = linear_cross_entropy(given[0], given[1], t, bias=given[2])
        assert torch.allclose(torch.autograd.grad(loss, wanted)[0], full[k], rtol=1e-12, atol=1e-16)


def test_backward_twice_over_kept_logits_gives_the_same_bits():
    x, w, _, t = parts()
    loss = linear_cross_entropy(x, w, t, memory=10**7)
    first = torch.autograd.grad(loss, (x, w), retain_graph=True)
    again = torch.autograd.grad(loss, (x, w))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_log_probs_are_those_of_the_logits_over_the_temperature():
    x, w, b, t = parts()
    for temperature, softcap in ((1.0, None), (0.7, None), (2.0, 4.0)):
        ours = linear_log_probs(x, w, t, bias=b, temperature=temperature, softcap=softcap)
        z = x @ w.t() + b
        z = z if softcap is None else softcap * torch.tanh(z / softcap)
        want = torch.log_softmax(z / temperature, 1).gather(1, t.clamp_min(0)[:, None])[:, 0]
        want = torch.where(t == -100, 0, want)
        assert ours.shape == t.shape and torch.allclose(ours, want, rtol=1e-12)
        g = torch.randn(ROWS, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        for a, e in zip(*(torch.autograd.grad(v, (x, w, b), g) for v in (ours, want)), strict=True):
            assert torch.allclose(a, e, rtol=1e-10, atol=1e-13)


def test_leading_dimensions_strides_and_integer_types():
    x, w, _, t = parts(24)
    want = linear_cross_entropy(x, w, t, reduction="none")
    t = t.to(torch.int32)
    folded = linear_cross_entropy(x.view(2, 3, 4, HIDDEN), w, t.view(2, 3, 4), reduction="none")
    assert folded.shape == (2, 3, 4) and torch.equal(folded.reshape(-1), want)
    strided = x.detach().t().contiguous().t()
    column_major = w.detach().t().contiguous().t()
    assert torch.allclose(linear_cross_entropy(strided, column_major, t, reduction="none"), want, rtol=1e-13)
    assert linear_cross_entropy(x[0], w, t[0]).shape == ()


def test_nothing_to_count():
    x, w, b, t = parts()
    loss = linear_cross_entropy(x, w, torch.full_like(t, -100), bias=b)
    assert loss.item() == 0
    assert all(not g.any() for g in torch.autograd.grad(loss, (x, w, b)))
    empty = x[:0]
    loss = linear_cross_entropy(empty, w, t[:0])
    assert loss.item() == 0 and not torch.autograd.grad(loss, w)[0].any()
    assert linear_log_probs(empty, w, t[:0]).shape == (0,)


def test_ignored_rows_may_hold_anything():
    x, w, _, t = parts()
    dirty = x.detach().clone()
    dirty[t == -100] = math.nan
    dirty.requires_grad_()
    loss = linear_cross_entropy(dirty, w.detach(), t)
    assert torch.equal(loss, linear_cross_entropy(x, w, t))
    (grad,) = torch.autograd.grad(loss, dirty)
    assert not grad[t == -100].any() and torch.isfinite(grad).all()


def test_a_bias_of_minus_infinity_closes_a_column():
    x, w, b, t = parts()
    open_ = torch.ones(VOCABULARY, dtype=torch.bool)
    open_[150:] = False
    t = torch.where(t >= 0, t % 150, t)
    closed = torch.where(open_, b.detach(), -math.inf)
    ours = linear_cross_entropy(x, w, t, bias=closed)
    want = linear_cross_entropy(x, w[:150], t, bias=b[:150])
    assert torch.allclose(ours, want, rtol=1e-13)
    (grad,) = torch.autograd.grad(ours, w)
    assert not grad[150:].any() and torch.isfinite(grad).all()


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("memory", [None, SMALL, 10**7])
@pytest.mark.parametrize("options", [{}, {"softcap": 3.0, "label_smoothing": 0.1, "z_loss": 0.1}])
def test_ignored_rows_of_nan_leave_every_gradient_alone(options, memory, value):
    x, w, b, t = parts()
    dirty = x.detach().clone()
    dirty[t == -100, 3] = value
    dirty.requires_grad_()
    ours, want = (
        torch.autograd.grad(linear_cross_entropy(h, w, t, bias=b, memory=memory, **options), (h, w, b))
        for h in (dirty, x)
    )
    assert all(torch.allclose(a, e, rtol=1e-12, atol=1e-16) for a, e in zip(ours, want, strict=True))
    assert not torch.isfinite(dirty[t == -100, 3]).any()  # a copy was cleaned, not the input


def test_a_row_of_nan_that_counts_is_not_hidden():
    x, w, _, t = parts()
    dirty = x.detach().clone()
    dirty[int((t != -100).nonzero()[0]), 3] = math.nan
    assert torch.autograd.grad(linear_cross_entropy(dirty, w, t), w)[0].isnan().any()


@pytest.mark.parametrize("memory", [None, SMALL, 10**7])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_a_softcap_does_not_open_a_closed_column(temperature, memory):
    x, w, b, t = parts()
    t = torch.where(t >= 0, t % 150, t)
    closed = torch.where(torch.arange(VOCABULARY) < 150, b.detach(), -math.inf).requires_grad_()
    ours = linear_log_probs(x, w, t, bias=closed, softcap=2.0, temperature=temperature, memory=memory)
    want = linear_log_probs(x, w[:150], t, bias=b[:150], softcap=2.0, temperature=temperature)
    assert torch.allclose(ours, want, rtol=1e-13)
    ours = torch.autograd.grad(ours.sum(), (x, w, closed))
    want = torch.autograd.grad(want.sum(), (x, w, b))
    assert all(torch.allclose(a, e, rtol=1e-11, atol=1e-14) for a, e in zip(ours, want, strict=True))
    assert not ours[1][150:].any() and not ours[2][150:].any()


def test_a_closed_target_has_probability_zero_under_a_softcap():
    x, w, b, t = parts()
    closed = b.detach().clone()
    closed[180] = -math.inf
    t[3] = 180
    rows = linear_log_probs(x, w, t, bias=closed, softcap=2.0)
    assert rows[3] == -math.inf and torch.isfinite(rows).sum() == ROWS - 1
    assert all(torch.isfinite(g).all() for g in torch.autograd.grad(rows.sum(), (x, w)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("logits_dtype", [None, torch.float32])
def test_lower_precisions(dtype, logits_dtype):
    x, w, _, t = parts(dtype=dtype)
    ours = linear_cross_entropy(x, w, t, logits_dtype=logits_dtype)
    assert ours.dtype == torch.float32
    z = x @ w.t() if logits_dtype is None else x.float() @ w.float().t()
    want = F.cross_entropy(z.double(), t)
    assert abs(ours.double() - want) < 2e-6  # of the same logits
    exact = torch.autograd.grad(whole(x, w, t), (x, w))
    theirs = torch.autograd.grad(F.cross_entropy((x @ w.t()).float(), t), (x, w))
    for a, e, other in zip(torch.autograd.grad(ours, (x, w)), exact, theirs, strict=True):
        assert a.dtype == dtype
        size = e.double().norm()
        assert (a.double() - e).norm() / size <= 1.05 * (other.double() - e).norm() / size


def test_the_loss_of_bfloat16_logits_is_that_of_their_float32_copy():
    x, w, _, t = parts(dtype=torch.bfloat16)
    eye = torch.eye(VOCABULARY, dtype=torch.bfloat16)
    logits = (x @ w.t()).detach()
    low = linear_cross_entropy(logits, eye, t)
    high = linear_cross_entropy(logits.float(), eye.float(), t)
    assert abs(low - high) <= 1e-6


def test_a_common_offset_of_the_logits_changes_nothing():
    g = torch.Generator().manual_seed(2)
    logits = (torch.randn(50, 96, generator=g) * 8).round() / 8  # exact under the offset
    t = torch.randint(96, (50,), generator=g)
    eye = torch.eye(96)
    plain, shifted = (linear_log_probs(logits, eye, t, bias=torch.full((96,), c)) for c in (0.0, 3e4))
    assert (plain - shifted).abs().max() <= 1e-6


def test_second_derivatives_are_refused():
    x, w, _, t = parts()
    (grad,) = torch.autograd.grad(linear_cross_entropy(x, w, t), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="second derivatives"):
        grad.sum().backward()


def test_torch_compile_makes_one_graph():
    def f(x, w, t):
        return linear_cross_entropy(x * 2, w, t) + linear_log_probs(x, w, t).mean()

    x, w, _, t = parts(dtype=torch.float32)
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(x, w, t), f(x, w, t))
    for a, e in zip(*(torch.autograd.grad(g(x, w, t), (x, w)) for g in (compiled, f)), strict=True):
        assert torch.allclose(a, e, rtol=1e-5, atol=1e-7)


def test_torch_compile_once_for_many_numbers():
    x, w, t = torch.randn(6, 5), torch.randn(9, 5), torch.arange(6)

    def f(s):
        return linear_cross_entropy(x, w, t, label_smoothing=s / 10, softcap=20 * s, z_loss=s * 1e-4)

    compiled = torch.compile(f, fullgraph=True, backend="aot_eager", dynamic=True)
    for s in (1.0, 0.5, 2.25):
        assert torch.equal(compiled(s), f(s))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_operators_keep_their_contract(dtype):
    x, w, b, t = parts(6, 4, 20, dtype=dtype)
    b = b.detach().to(torch.float64 if dtype == torch.float64 else torch.float32).requires_grad_()
    options = (-100, 0.1, 5.0, 0.5, 1e-3, None, 4000, 2)
    torch.library.opcheck(torch.ops.pfkit.linear_cross_entropy.default, (x, w, t, b, *options))
    _, maximum, total, kept = torch.ops.pfkit.linear_cross_entropy.default(x, w, t, b, *options)
    assert kept.numel()
    given = (torch.ones_like(maximum), x, w, t, b, maximum, total, kept, *options, [True, True, True])
    tests = ("test_schema", "test_faketensor")
    detached = tuple(a.detach() if isinstance(a, torch.Tensor) else a for a in given)
    torch.library.opcheck(torch.ops.pfkit.linear_cross_entropy_backward.default, detached, test_utils=tests)


@pytest.mark.parametrize("wanted", [("x", "w", "b"), ("w",), ("x",), ("b",)])
def test_with_and_without_torchs_dispatcher(wanted):
    class PassOn(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.seen += function.namespace == "pfkit"
            return function(*args, **(kwargs or {}))

    x, w, b, t = parts(dtype=torch.float32)
    given = {k: v.detach().requires_grad_(k in wanted) for k, v in (("x", x), ("w", w), ("b", b))}
    asked = [given[k] for k in wanted]

    def call():
        loss = linear_cross_entropy(given["x"], given["w"], t, bias=given["b"], label_smoothing=0.1)
        return loss.detach(), *torch.autograd.grad(2 * loss, asked)

    with PassOn() as mode:
        through = call()
    assert mode.seen == 2
    assert all(torch.equal(a, e) for a, e in zip(call(), through, strict=True))


def test_autocast_acts_as_on_a_linear_layer():
    x, w, _, t = parts(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = linear_cross_entropy(x, w, t)
        want = F.cross_entropy(F.linear(x, w).float(), t)
    assert abs(ours - want) < 2e-6
    assert torch.autograd.grad(ours, w)[0].dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = linear_cross_entropy(x, w, t, logits_dtype=torch.float32)
    assert abs(ours - F.cross_entropy(x.bfloat16().double() @ w.bfloat16().double().t(), t)) < 2e-6


def test_inputs_are_not_written():
    given = parts()
    before = [a.detach().clone() for a in given]
    linear_cross_entropy(*given[:2], given[3], bias=given[2], memory=10**7).backward()
    assert all(torch.equal(a.detach(), b) for a, b in zip(given, before, strict=True))


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"reduction": "max"}, ValueError, "'max'"),
        ({"label_smoothing": 1.5}, ValueError, "1.5"),
        ({"z_loss": math.nan}, ValueError, "nan"),
        ({"softcap": 0.0}, ValueError, "0.0"),
        ({"softcap": "2"}, TypeError, "softcap .* str"),
        ({"label_smoothing": "0"}, TypeError, "label_smoothing .* str"),
        ({"z_loss": None}, TypeError, "z_loss .* NoneType"),
        ({"ignore_index": None}, TypeError, "ignore_index .* None"),
        ({"ignore_index": 2**70}, ValueError, str(2**70)),
        ({"memory": True}, ValueError, "memory .* True"),
        ({"bias": torch.zeros(VOCABULARY, dtype=torch.complex64)}, TypeError, "bias .*complex64"),
        ({"bias": torch.zeros(VOCABULARY, dtype=torch.int64)}, TypeError, "bias .*int64"),
        ({"targets": torch.zeros(ROWS, dtype=torch.uint64)}, TypeError, "uint64"),
        ({"hidden": torch.eye(ROWS, HIDDEN).to_sparse()}, TypeError, "hidden .*sparse_coo"),
        ({"softcap": 9e-5}, ValueError, "9e-05"),
        ({"softcap": 1e300}, ValueError, r"1e\+300"),
        ({"softcap": math.nan}, ValueError, "nan"),
        ({"logits_dtype": torch.float16}, ValueError, "float16"),
        ({"memory": 100}, ValueError, "memory=100"),
        ({"memory": 1.5}, ValueError, "1.5"),
        ({"hidden": torch.zeros(ROWS, HIDDEN, dtype=torch.int64)}, TypeError, "int64"),
        ({"hidden": [1.0]}, TypeError, "list"),
        ({"weight": torch.zeros(VOCABULARY, HIDDEN)}, TypeError, "float32"),
        ({"weight": torch.zeros(VOCABULARY, 3, dtype=torch.float64)}, ValueError, r"\(203, 3\)"),
        ({"weight": torch.zeros(0, HIDDEN, dtype=torch.float64)}, ValueError, r"\(0, 16\)"),
        ({"targets": torch.zeros(ROWS)}, TypeError, "float32"),
        ({"targets": torch.zeros(3, dtype=torch.int64)}, ValueError, r"\(3,\)"),
        ({"bias": torch.zeros(7)}, ValueError, r"\(7,\)"),
        ({"targets": torch.full((ROWS,), VOCABULARY)}, ValueError, "203"),
        ({"targets": torch.full((ROWS,), -1)}, ValueError, "-1"),
    ],
)
def test_bad_arguments(change, error, text):
    x, w, _, t = parts()
    given = {"hidden": x, "weight": w, "targets": t} | change
    with pytest.raises(error, match=text):
        linear_cross_entropy(**given)


@pytest.mark.parametrize("temperature", [0.0, -1.0, 1e-40, 1e31, math.inf, math.nan])
def test_bad_temperature(temperature):
    x, w, _, t = parts()
    with pytest.raises(ValueError, match=f"temperature .*{re.escape(repr(temperature))}"):
        linear_log_probs(x, w, t, temperature=temperature)


def test_a_temperature_that_is_no_number():
    x, w, _, t = parts()
    with pytest.raises(TypeError, match="temperature .* str"):
        linear_log_probs(x, w, t, temperature="1")


def test_no_meta_tensors():
    x, w, t = (torch.empty(s, device="meta") for s in ((ROWS, HIDDEN), (VOCABULARY, HIDDEN), (ROWS,)))
    with pytest.raises(ValueError, match="meta"):
        linear_cross_entropy(x, w, t.long())


def test_numbers_of_numpy():
    np = pytest.importorskip("numpy")
    x, w, _, t = parts()
    want = linear_cross_entropy(x, w, t, softcap=4.0, memory=SMALL)
    given = {"softcap": np.float32(4), "memory": np.int64(SMALL), "ignore_index": np.int64(-100)}
    assert torch.equal(linear_cross_entropy(x, w, t, **given), want)


def test_transforms_and_forward_mode_are_refused():
    """Without a word forward mode would find no tangent, that is a derivative of zero."""
    x, w, _, t = (a.detach() for a in parts())

    def loss(a):
        return linear_cross_entropy(a, w, t)

    calls = [
        lambda: torch.func.grad(loss)(x),
        lambda: torch.func.jacrev(loss)(x),
        lambda: torch.func.jvp(loss, (x,), (x,)),
        lambda: torch.func.jacfwd(loss)(x),
    ]
    for call in calls:
        with pytest.raises(NotImplementedError, match="forward mode"):
            call()
    with forward_ad.dual_level():
        with pytest.raises(NotImplementedError, match="forward mode"):
            loss(forward_ad.make_dual(x, x))


def test_ignored_targets_give_zero_without_a_sign():
    x, w, _, t = parts()
    got = linear_log_probs(x, w, t)[t == -100]
    assert not got.any() and not torch.signbit(got).any()


@pytest.mark.parametrize("temperature", [1e-30, 1e30])
@pytest.mark.parametrize("softcap", [None, 1e-4, 1e4])
def test_the_ends_of_the_ranges_give_numbers(device, temperature, softcap):
    x, w, b, t = (a.detach().to(device) for a in parts(dtype=torch.float32))
    w.requires_grad_()
    got = linear_log_probs(x, w, t, bias=b, temperature=temperature, softcap=softcap)
    assert torch.isfinite(got).all() and (got <= 0).all()
    if temperature == 1e30:  # every column alike
        assert torch.allclose(got[t != -100], torch.tensor(-math.log(VOCABULARY), device=device), rtol=1e-6)
    assert torch.isfinite(torch.autograd.grad(got.sum(), w)[0]).all()
