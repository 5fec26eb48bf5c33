"""The CUDA side without a GPU: how rows are cut, the arguments, and that the sources compile."""

import math
import struct

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from pfkit.logprobs import token_plan  # noqa: E402
from pfkit.lse import cuda  # noqa: E402
from pfkit.lse.cuda_plan import layout  # noqa: E402

H200 = dict(
    tokens=1, temperature=1.0, ignore=-100, entropy=False, aligned=True, multiprocessors=132, clusters=True
)


def plan(shape, dtype=0, strides=None, **changes):
    strides = strides or tuple(math.prod(shape[d + 1 :]) for d in range(len(shape)))
    return token_plan.forward(layout(shape, strides, (len(shape) - 1,)), dtype, **(H200 | changes))


@pytest.mark.parametrize(
    ("shape", "dtype", "changes", "entries", "grids"),
    [
        ((1000, 3), 0, {}, ["short_rows<2,1,1,false>"], [(16, 1)]),
        ((1000, 128), 0, {}, ["short_rows<32,1,1,false>"], [(250, 1)]),
        ((1000, 1024), 3, {"entropy": True}, ["short_rows<32,4,1,true>"], [(250, 1)]),
        ((2048, 128256), 0, {}, None, [(2048, 1)]),
        ((16, 32000), 0, {}, ["cluster_rows<512,4,4,false>"], [(64, 1)]),
        ((8, 131072), 3, {}, ["cluster_rows<512,4,8,false>"], [(64, 1)]),
        (
            (8, 131072),
            3,
            {"clusters": False},
            ["long_rows<512,4,false>", "combine<128,false>"],
            [(8, 8), (8, 1)],
        ),
        ((1, 2000001), 0, {}, ["long_rows<512,4,false>", "combine<128,false>"], [(1, 244), (1, 1)]),
    ],
)
def test_how_rows_are_cut(shape, dtype, changes, entries, grids):
    found = plan(shape, dtype, **changes)
    assert [step.grid for step in found.steps] == grids
    if entries:
        assert [step.kernel.entry for step in found.steps] == entries
    assert (found.workspace > 0) == (len(grids) == 2)


def test_parts_of_a_gradient():
    """A warp holds a short row whole, wherever it begins; a long one is cut into parts."""
    for n in (1, 7, 500, 1024, 4097, 50257, 128256, 2000001):
        for dtype, per_vector in ((0, 4), (1, 2), (3, 8)):
            found = token_plan.backward(
                layout((3, n), (n, 1), (1,)),
                dtype,
                tokens=1,
                temperature=1.0,
                ignore=None,
                entropy=False,
                aligned=True,
            )
            step, splits = found.steps[0], struct.unpack_from("q", found.arguments, 11 * 8)[0]
            lanes, v, _ = step.kernel.entry.partition("<")[2].rstrip(">").split(",")
            if int(lanes) <= 32:
                assert int(lanes) * int(v) * per_vector >= n + (n % per_vector > 0) * (per_vector - 1)
                assert splits == 1
                assert step.grid[0] * step.kernel.threads // int(lanes) >= 3
            else:
                assert step.kernel.threads == int(lanes) and step.grid == (3 * splits, 1)


def test_arguments():
    block = plan((4, 6, 50257), strides=(700000, 100000, 1), temperature=0.5, tokens=3).arguments
    fields = struct.unpack("8Q6q2d13q", block)
    assert fields[:8] == (0,) * 8
    assert fields[8:14] == (50257, 24, 3, 1, -100, 1)
    assert fields[14] == pytest.approx(2 / math.log(2)) and fields[15] == 2.0
    assert fields[16] == 2 and fields[17:19] == (4, 6) and fields[23:25] == (700000, 100000)
    double = struct.unpack("8Q6q2d13q", plan((4, 9), 1, temperature=0.5, ignore=None).arguments)
    assert double[14] == 2.0 and double[12:14] == (0, 0)


@pytest.mark.parametrize("dtype", range(4))
def test_sources_compile_without_cuda_headers(dtype, tmp_path, monkeypatch):
    try:
        cuda.nvrtc()
    except cuda.CudaUnavailable as error:
        pytest.skip(str(error))
    monkeypatch.setenv("PFKIT_CACHE_DIR", str(tmp_path))
    for shape in ((9, 100), (1, 2000001)):
        for step in plan(shape, dtype, entropy=True).steps:
            assert cuda.compile_kernel(step.kernel, (9, 0))[:4] == b"\x7fELF"
    back = token_plan.backward(
        layout((3, 5000), (5000, 1), (1,)),
        dtype,
        tokens=1,
        temperature=1.0,
        ignore=None,
        entropy=True,
        aligned=True,
    )
    assert cuda.compile_kernel(back.steps[0].kernel, (8, 0))[:4] == b"\x7fELF"
