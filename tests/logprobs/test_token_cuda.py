"""What only a GPU shows: one read, no memory, 64-bit offsets, graphs, streams."""

import math

import pytest

from pfkit.lse import cuda

if cuda.missing():
    pytest.skip(cuda.missing(), allow_module_level=True)

import torch  # noqa: E402

from pfkit import token_log_probs  # noqa: E402
from pfkit.logprobs import token_op  # noqa: E402

pytestmark = pytest.mark.gpu


def test_every_way_to_cut_a_row(exact, normal, ids):
    """Short rows, a block a row, clusters of 2 to 8, slices with a combining launch."""
    names = set()
    for rows, n in [
        (1000, 700),
        (3, 3000),
        (300, 40000),
        (200, 40000),
        (100, 70000),
        (40, 70000),
        (1, 2000001),
    ]:
        for dtype in (torch.float32, torch.bfloat16, torch.float64):
            x, tokens = normal((rows, n), dtype, "cuda", seed=n), ids((rows,), n, "cuda", ignored=rows > 1)
            token_op._plans.clear()
            token_op._ready.clear()
            got = token_log_probs(x, tokens, return_entropy=True, return_lse=True)
            assert len(token_op._plans) == 1
            for part, want in zip(got, exact(x, tokens), strict=True):
                slack = 1e-12 if dtype == torch.float64 else 1e-6
                assert ((part.double() - want).abs() <= slack + 2.0**-23 * want.abs()).all()
            names.add(len(next(iter(token_op._plans.values())).steps))
    assert names == {1, 2}


def test_no_memory_but_the_results(normal, ids):
    """https://github.com/volcengine/verl/issues/220: 8192 x 151936 in bfloat16 must add less than 1 MB."""
    x = torch.empty(8192, 151936, dtype=torch.bfloat16, device="cuda")
    for part in x.split(1024):
        part.copy_(normal(part.shape, torch.bfloat16, "cuda"))
    tokens = ids((8192,), 151936, "cuda")
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    log_probs, entropy = token_log_probs(x, tokens, return_entropy=True)
    torch.cuda.synchronize()
    assert torch.cuda.max_memory_allocated() - before < 1 << 20
    for row in (0, 4096, 8191):
        z = torch.log_softmax(x[row].double(), -1)
        assert abs(float(log_probs[row] - z[tokens[row]])) <= 1e-5
        assert abs(float(entropy[row] + (z.exp() * z).sum())) <= 1e-5


def test_more_than_two_to_the_31_logits(normal):
    """https://github.com/huggingface/trl/pull/7266: 16384 x 151936 needs 64-bit offsets, backwards too."""
    rows, n = 16384, 151936
    x = torch.zeros(rows, n, dtype=torch.bfloat16, device="cuda")
    x[-3:] = normal((3, n), torch.bfloat16, "cuda")
    x.requires_grad_()
    tokens = torch.full((rows,), n - 1, device="cuda")
    log_probs = token_log_probs(x, tokens)
    assert (log_probs[:-3] + math.log(n)).abs().max() <= 2e-6
    want = torch.log_softmax(x.detach()[-3:].double(), -1)
    assert (log_probs[-3:] - want[:, -1]).abs().max() <= 1e-5
    log_probs[-3:].sum().backward()
    assert (x.grad[:-3] == 0).all()
    p = want.exp()
    error = (x.grad[-3:, :-1].double() + p[:, :-1]).abs() - 2.0**-8 * p[:, :-1] - 1e-7
    assert (error <= 0).all()


def test_a_graph_replays_on_new_data(exact, normal, ids):
    """https://github.com/linkedin/Liger-Kernel/pull/1292: forward and backward captured, logits changed."""
    for n in (500, 40000, 1000003):
        x, tokens = normal((4, n), device="cuda").requires_grad_(), ids((4,), n, "cuda")
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            token_log_probs(x, tokens, return_entropy=True)[0].sum().backward()
        torch.cuda.current_stream().wait_stream(stream)
        x.grad = None
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            log_probs, entropy = token_log_probs(x, tokens, return_entropy=True)
            (grad,) = torch.autograd.grad(log_probs.sum() + entropy.sum(), x)
        for seed in (1, 2):
            with torch.no_grad():
                x.copy_(normal((4, n), device="cuda", seed=seed))
                tokens.copy_(ids((4,), n, "cuda", seed=seed, ignored=True))
            graph.replay()
            y = x.detach().double().requires_grad_()
            want = exact(y, tokens)
            assert (log_probs - want[0]).abs().max() <= 1e-5 and (entropy - want[1]).abs().max() <= 1e-5
            (want[0].sum() + want[1].sum()).backward()
            assert (grad.double() - y.grad).abs().max() <= 1e-5


def test_another_stream_and_host_thread(normal, ids):
    import threading

    x, tokens = normal((300, 30000), device="cuda"), ids((300,), 30000, "cuda")
    want = token_log_probs(x, tokens)
    found = []

    def work():
        with torch.cuda.stream(torch.cuda.Stream()):
            found.append(token_log_probs(x, tokens))
            torch.cuda.current_stream().synchronize()

    torch.cuda.synchronize()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert torch.equal(found[0], want)


def test_a_call_repeated_without_the_checks_is_the_same_call(normal, ids):
    """The second of equal calls goes straight to the launch; unequal ones do not share it."""
    x, tokens = normal((5, 3000), device="cuda"), ids((5,), 3000, "cuda")
    token_op._ready.clear()
    for options in ({}, {"temperature": 0.5}, {"ignore_index": int(tokens[1])}, {"return_lse": True}):
        first = token_log_probs(x, tokens, **options)
        known = len(token_op._ready)
        again = token_log_probs(x, tokens, **options)
        assert len(token_op._ready) == known
        for a, b in zip(first, again, strict=True):
            assert torch.equal(a, b)
    assert len(token_op._ready) == 4
    pairs = token_log_probs(x, tokens[:, None].expand(-1, 2))
    assert torch.equal(pairs[:, 0], token_log_probs(x, tokens)) and pairs.shape == (5, 2)
    assert torch.equal(token_log_probs(x, tokens[:, None]), token_log_probs(x, tokens)[:, None])
    with pytest.raises(TypeError, match="ignore_index"):
        token_log_probs(x, tokens, ignore_index=[1])
    y = x.clone().requires_grad_()
    assert token_log_probs(y, tokens).requires_grad
    with torch.no_grad():
        assert torch.equal(token_log_probs(y, tokens), token_log_probs(x, tokens))


def test_validation_is_asked_for(normal):
    x = normal((3, 40), device="cuda")
    for bad in (40, -1, 1 << 40):
        tokens = torch.tensor([1, bad, 2], device="cuda")
        log_probs = token_log_probs(x, tokens)
        assert log_probs[1].isnan() and torch.isfinite(log_probs[[0, 2]]).all()
        with pytest.raises(ValueError, match=f"{bad}"):
            token_log_probs(x, tokens, validate=True)
    assert token_log_probs(x, torch.tensor([1, -100, 2], device="cuda"), validate=True)[1] == 0


def test_both_devices_agree(normal, ids):
    for n in (100, 3000, 50257):
        x, tokens = normal((7, n)).requires_grad_(), ids((7,), n, ignored=True)
        y = x.detach().cuda().requires_grad_()
        here = token_log_probs(x, tokens, return_entropy=True, return_lse=True)
        there = token_log_probs(y, tokens.cuda(), return_entropy=True, return_lse=True)
        for a, b in zip(here, there, strict=True):
            assert (a - b.cpu()).abs().max() <= 4e-6
        sum(a.sum() for a in here).backward()
        sum(b.sum() for b in there).backward()
        assert (x.grad - y.grad.cpu()).abs().max() <= 2e-6


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_device_that_is_not_current(exact, normal, ids):
    x, tokens = normal((4, 30000), device="cuda:1"), ids((4,), 30000, "cuda:1")
    assert (token_log_probs(x, tokens) - exact(x, tokens)[0]).abs().max() <= 1e-5
