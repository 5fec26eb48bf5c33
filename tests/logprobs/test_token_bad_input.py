"""Bad arguments: an error that names what was given."""

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import pfkit  # noqa: E402
from pfkit import token_log_probs  # noqa: E402

LOGITS, TOKENS = torch.zeros(2, 3, 5), torch.zeros(2, 3, dtype=torch.int64)


@pytest.mark.parametrize(
    ("logits", "tokens", "named"),
    [
        ([[0.0, 1.0]], torch.zeros(1, dtype=torch.int64), "logits.*list"),
        (LOGITS, [[0]], "tokens.*list"),
        (LOGITS.numpy(), TOKENS, "logits.*ndarray"),
        (LOGITS.long(), TOKENS, "logits.*int64"),
        (LOGITS.bool(), TOKENS, "logits.*bool"),
        (LOGITS.to(torch.complex64), TOKENS, "logits.*complex64"),
        (LOGITS.to(torch.float8_e5m2), TOKENS, "logits.*float8"),
        (LOGITS.to_sparse(), TOKENS, "logits.*sparse"),
        (LOGITS, TOKENS.float(), "tokens.*float32"),
        (LOGITS, TOKENS.bool(), "tokens.*bool"),
    ],
)
def test_types(logits, tokens, named):
    with pytest.raises(TypeError, match=named):
        token_log_probs(logits, tokens)


@pytest.mark.parametrize(
    ("shape", "ids"),
    [
        ((2, 3, 5), (2,)),
        ((2, 3, 5), (3, 2)),
        ((2, 3, 5), (2, 4)),
        ((2, 3, 5), (2, 3, 1, 1)),
        ((2, 3, 5), ()),
        ((2, 3, 5), (1, 3)),
        ((5,), (2, 2)),
        ((), ()),
    ],
)
def test_shapes(shape, ids):
    with pytest.raises(ValueError, match="logits"):
        token_log_probs(torch.zeros(shape), torch.zeros(ids, dtype=torch.int64))


@pytest.mark.parametrize("shape", [(3, 0), (0, 0), (0,)])
def test_an_empty_vocabulary(shape):
    with pytest.raises(ValueError, match="vocabulary is empty"):
        token_log_probs(torch.zeros(shape), torch.zeros(shape[:-1], dtype=torch.int64))


@pytest.mark.parametrize("temperature", [0, 0.0, -1.0, math.nan, math.inf, 1e-300, 1e300])
def test_temperatures_out_of_range(temperature):
    with pytest.raises(ValueError, match="temperature"):
        token_log_probs(LOGITS, TOKENS, temperature=temperature)


@pytest.mark.parametrize("temperature", ["1", None, torch.tensor(1.0), 1j])
def test_temperatures_that_are_no_numbers(temperature):
    with pytest.raises(TypeError, match="temperature"):
        token_log_probs(LOGITS, TOKENS, temperature=temperature)


@pytest.mark.parametrize("bad", [5, -1, -101, 1 << 40])
def test_ids_outside_the_vocabulary(bad):
    tokens = TOKENS.clone()
    tokens[1, 2] = bad
    with pytest.raises(ValueError, match=rf"token id {bad} at \(1, 2"):
        token_log_probs(LOGITS, tokens)
    with pytest.raises(ValueError, match="token id -100"):
        token_log_probs(LOGITS, torch.full((2, 3), -100), ignore_index=None)
    assert token_log_probs(LOGITS, tokens, ignore_index=bad)[1, 2] == 0


@pytest.mark.parametrize("ignore_index", [1.0, "pad", True, torch.tensor(1)])
def test_ignored_ids_that_are_no_integers(ignore_index):
    with pytest.raises(TypeError, match="ignore_index"):
        token_log_probs(LOGITS, TOKENS, ignore_index=ignore_index)


@pytest.mark.parametrize("ignore_index", [2**63, -(2**63) - 1])
def test_ignored_ids_beyond_64_bits(ignore_index):
    with pytest.raises(ValueError, match=f"ignore_index must fit 64 bits, got {ignore_index}"):
        token_log_probs(LOGITS, TOKENS, ignore_index=ignore_index)


def test_kernels():
    with pytest.raises(ValueError, match="unknown lse 'fast'.*fuse"):
        token_log_probs(LOGITS, TOKENS, lse="fast")
    with pytest.raises(ValueError, match="unknown lse"):
        token_log_probs(LOGITS, TOKENS, lse=None)
    for name in ("fuse16", "int16"):
        with pytest.raises(ValueError, match=f"{name}.*CUDA"):
            token_log_probs(LOGITS.half(), TOKENS, lse=name)


def test_numbers_of_numpy_are_numbers():
    want = token_log_probs(LOGITS, TOKENS, temperature=0.5, ignore_index=0)
    got = token_log_probs(LOGITS, TOKENS, temperature=np.float32(0.5), ignore_index=np.int64(0))
    assert torch.equal(got, want) and (want == 0).all()


def test_positional_options_are_refused():
    with pytest.raises(TypeError):
        token_log_probs(LOGITS, TOKENS, 1.0)


def test_devices_that_differ():
    with pytest.raises(ValueError, match="tokens are on meta, logits on cpu"):
        token_log_probs(LOGITS, TOKENS.to("meta"))
    assert token_log_probs(LOGITS.to("meta"), TOKENS.to("meta")).shape == (2, 3)


@pytest.mark.gpu
def test_on_the_gpu():
    from pfkit.lse import cuda

    if cuda.missing():
        pytest.skip(cuda.missing())
    logits, tokens = LOGITS.cuda(), TOKENS.cuda()
    with pytest.raises(ValueError, match="tokens are on cpu, logits on cuda"):
        token_log_probs(logits, TOKENS)
    with pytest.raises(TypeError, match="fuse16.*float32"):
        token_log_probs(logits, tokens, lse="fuse16")
    with pytest.raises(ValueError, match="vocabulary is empty"):
        token_log_probs(logits[..., :0], tokens)


def test_without_a_gradient_nothing_is_recorded():
    x = LOGITS.clone().requires_grad_()
    with torch.no_grad():
        assert not token_log_probs(x, TOKENS).requires_grad
    assert token_log_probs(x, TOKENS).requires_grad
    assert not token_log_probs(x.detach(), TOKENS).requires_grad
    with torch.inference_mode():
        assert token_log_probs(x, TOKENS).shape == (2, 3)


def test_the_name_loads_on_first_use():
    assert "token_log_probs" in dir(pfkit) and "token_log_probs" not in pfkit.__all__
