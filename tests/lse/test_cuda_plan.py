"""What can be tested of the CUDA side without a GPU: layouts, plans, compiling, the cache, and what is said
when it is missing.
"""

import importlib.util
import math
import multiprocessing
import sys

import numpy as np
import pytest

import pfkit
from pfkit.lse import cuda, cuda_plan
from pfkit.lse.cuda_plan import layout, merge, reduction

H200 = dict(multiprocessors=132, clusters=True, aligned=True, out_dtype=0)


def plan(lse, shape, strides, dims, dtype=0, **changes):
    return reduction(lse, layout(shape, strides, dims), dtype, **(H200 | changes))


@pytest.mark.parametrize(
    ("pairs", "merged"),
    [
        ([(2, 12), (3, 4), (4, 1)], [(24, 1)]),
        ([(2, 1), (3, 2)], [(2, 1), (3, 2)]),
        ([(5, 7), (1, 3), (7, 1)], [(35, 1)]),
        ([(1, 1)], []),
        ([(4, 0), (3, 0)], [(12, 0)]),
        ([(6, 8), (4, 1)], [(6, 8), (4, 1)]),
    ],
)
def test_runs_of_memory_are_merged(pairs, merged):
    assert merge(pairs) == merged


def walk(pairs):
    offsets = np.zeros(1, np.int64)
    for size, stride in pairs:
        offsets = (offsets[:, None] + np.arange(size) * stride).reshape(-1)
    return offsets


@pytest.mark.parametrize("seed", range(20))
def test_a_layout_visits_the_elements_of_every_result(seed):
    rng = np.random.default_rng(seed)
    ndim = int(rng.integers(1, 6))
    base = np.arange(4**ndim).reshape((4,) * ndim)
    view = base.transpose(rng.permutation(ndim))
    cuts = [slice(int(rng.integers(0, 2)), None, int(rng.integers(1, 3))) for _ in range(ndim)]
    view = view[tuple(cuts)]
    dims = tuple(sorted(rng.choice(ndim, int(rng.integers(1, ndim + 1)), replace=False).tolist()))
    start = view.reshape(-1)[0]
    found = layout(view.shape, tuple(s // view.itemsize for s in view.strides), dims)
    rows = view.transpose(*[d for d in range(ndim) if d not in dims], *dims).reshape(found.rows, found.n)
    offsets = start + walk(found.kept)[:, None] + walk(found.reduced)[None]
    assert np.array_equal(np.sort(offsets, 1), np.sort(rows, 1))


SHAPES = [
    *((512, 20000), (512, 32000), (512, 49149), (512, 64000), (512, 196000), (512, 393000), (512, 400000)),
    *((1, 1), (3, 7), (512, 128), (512, 1024), (512, 8192), (512, 128256), (512, 256000), (1, 262144)),
    *((8, 128256), (1, 10**8), (10**6, 3), (70000, 100), (5, 3000), (100, 50000), (2, 10**6)),
]


@pytest.mark.parametrize("clusters", [True, False])
@pytest.mark.parametrize("dtype", range(4))
@pytest.mark.parametrize("lse", ["fuse", "int", "int-pairwise", "int16"])
def test_plans_of_rows_cover_them_within_the_limits_of_a_launch(lse, dtype, clusters):
    for rows, n in SHAPES:
        found = plan(lse, (rows, n), (n, 1), (1,), dtype, clusters=clusters)
        vectors = math.ceil(n / (16 // cuda_plan.BYTES[dtype]))
        for step in found.steps:
            kernel = step.kernel
            assert 32 <= kernel.threads <= 1024 and kernel.threads * kernel.blocks <= 2048
            assert 0 < step.grid[0] < 2**31 and 0 < step.grid[1] < 65536
            assert clusters or kernel.cluster == 1
            assert step.grid[0] % kernel.cluster == 0
        name, _, numbers = found.steps[0].kernel.entry.partition("<")
        values = [int(v) for v in numbers.rstrip(">").split(",") if v]
        if name == "short_rows":
            assert values[0] * values[1] >= vectors
        if name == "held_rows":
            assert math.prod(values) >= vectors
        if name == "resident_rows":  # slices of up to chunks * THREADS * V vectors, whatever the alignment
            threads, per_lane, stages, blocks = values
            slice_ = math.ceil((vectors + 1) / blocks)
            assert math.ceil(slice_ / (threads * per_lane)) <= stages
            assert found.steps[0].resident and kernel.shared * kernel.blocks <= 216 << 10
        assert (found.workspace > 0) == (len(found.steps) > 1)


@pytest.mark.parametrize("dtype", range(4))
@pytest.mark.parametrize("lse", ["fuse", "int", "int-pairwise", "int16"])
def test_plans_of_columns_use_the_whole_device(lse, dtype):
    for terms, results in ((10**6, 8), (10**6, 1), (5000, 300), (100, 10**5), (20, 3)):
        found = plan(lse, (terms, results + 1), (results + 1, 1), (0,), dtype)
        blocks, splits = found.steps[0].grid
        assert blocks * splits >= min(132, terms * results // 4096)
        assert 0 < blocks < 2**31 and 0 < splits < 65536
        assert (found.workspace > 0) == (splits > 1) == (len(found.steps) > 1)


def test_the_float_bound_hardly_grows_with_the_number_of_terms():
    bounds = [cuda.fuse_bound(n, "float32") for n in (1, 1000, 128256, 10**9)]
    assert bounds == sorted(bounds) and bounds[2] < 1e-5 and bounds[3] < 1.2e-5
    assert cuda.fuse_bound(10**9, "float64") < 2e-14


def test_rows_are_held_in_shared_memory_where_a_block_has_enough():
    def first(**changes):
        return plan("int", (512, 32000), (32000, 1), (1,), **changes).steps[0]

    assert first().resident and first().kernel.shared == 196608
    for smaller in (dict(shared_memory=99 << 10), dict(clusters=False)):
        assert not first(**smaller).resident and first(**smaller).kernel.shared == 0


def test_a_plan_names_one_argument_block():
    found = plan("fuse", (4, 5, 6), (30, 6, 1), (0, 2))
    words = np.frombuffer(found.arguments, np.int64)
    assert words[8:11].tolist() == [24, 5, 1]  # terms, rows, splits
    with pytest.raises(ValueError, match="6 dimensions"):
        cuda.pack_arguments(1, 1, [(2, 3)] * 7, [(1, 1)])


def test_an_odd_start_leaves_room_for_the_elements_before_it():
    even, odd = (
        plan("fuse", (4, 128), (128, 1), (1,), aligned=a).steps[0].kernel.entry for a in (True, False)
    )
    assert even == "short_rows<32,1,1>" and odd == "short_rows<32,2,1>"


def test_a_kernels_sources_are_what_it_includes():
    names = list(cuda.sources_of("intlse.cu"))
    assert names == sorted(names)
    assert {"intlse.cu", "common.cuh", "integer.cuh", "log2_table.cuh"} <= set(names)
    assert "fuselse.cu" not in names and set(cuda.sources_of("common.cuh")) == {"common.cuh", "ptx.cuh"}


class TestCompiling:
    @pytest.fixture(autouse=True)
    def nvrtc_and_folder(self, tmp_path, monkeypatch):
        try:
            cuda.nvrtc()
        except cuda.CudaUnavailable as error:
            pytest.skip(str(error))
        monkeypatch.setenv("PFKIT_CACHE_DIR", str(tmp_path))
        self.folder = tmp_path

    kernel = cuda.DeviceKernel("fuselse.cu", "short_rows<32,1,1>", 0, 128, 4)

    @pytest.mark.parametrize("dtype", range(4))
    def test_every_source_compiles_without_cuda_headers(self, dtype):
        for lse, shape in (
            ("fuse", (2, 5000)),
            ("int", (2, 5000)),
            ("int-pairwise", (2, 5000)),
            ("int16", (2, 50)),
        ):
            (step,) = plan(lse, shape, (shape[1], 1), (1,), dtype).steps
            assert cuda.compile_kernel(step.kernel, (9, 0))[:4] == b"\x7fELF"

    @pytest.mark.parametrize("capability", [(7, 5), (8, 0), (8, 9)])
    def test_older_devices(self, capability):
        assert cuda.compile_kernel(self.kernel, capability)[:4] == b"\x7fELF"

    def test_a_device_newer_than_nvrtc_gets_ptx(self):
        assert b".target" in cuda.compile_kernel(self.kernel, (99, 0))

    def test_the_cache_is_used_and_heals_itself(self, monkeypatch):
        code = cuda.compile_kernel(self.kernel, (9, 0))
        (path,) = self.folder.glob("*.cubin")
        calls = []
        compiler = cuda.nvrtc()
        original = type(compiler).compile
        monkeypatch.setattr(type(compiler), "compile", lambda *a: calls.append(1) or original(*a))
        assert cuda.compile_kernel(self.kernel, (9, 0)) == code and not calls
        whole = path.read_bytes()
        for damaged in (
            whole[:-7],
            b"",
            whole[:100] + bytes([whole[100] ^ 1]) + whole[101:],
            b"other" + whole,
        ):
            path.write_bytes(damaged)
            assert cuda.read_cache(path) is None
            assert cuda.compile_kernel(self.kernel, (9, 0)) == code
            assert path.read_bytes() == whole
        assert len(calls) == 4
        assert list(self.folder.iterdir()) == [path]

    def test_another_flag_is_another_file(self):
        cuda.compile_kernel(self.kernel, (9, 0))
        cuda.compile_kernel(cuda.DeviceKernel("fuselse.cu", "short_rows<32,1,1>", 1, 128, 4), (9, 0))
        assert len(list(self.folder.glob("*.cubin"))) == 2

    def test_a_folder_that_cannot_be_made_is_no_error(self, monkeypatch):
        (self.folder / "file").write_text("")
        monkeypatch.setenv("PFKIT_CACHE_DIR", str(self.folder / "file" / "below"))
        assert cuda.compile_kernel(self.kernel, (9, 0))[:4] == b"\x7fELF"

    def test_errors_show_the_compilers_words(self):
        with pytest.raises(cuda.CudaError, match="no_such_kernel"):
            cuda.compile_kernel(cuda.DeviceKernel("fuselse.cu", "no_such_kernel", 0, 128), (9, 0))


def _write_and_read(folder, name, body, results):
    path = cuda.Path(folder) / name
    good = True
    for _ in range(200):
        cuda.write_cache(path, body)
        found = cuda.read_cache(path)
        good = good and found is not None and len(set(found)) == 1
    results.put(good)


def test_processes_that_write_one_file_never_read_half_of_it(tmp_path):
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    results = context.Queue()
    arguments = [(str(tmp_path), "kernel", bytes([k]) * 50_000, results) for k in range(4)]
    workers = [context.Process(target=_write_and_read, args=a) for a in arguments]
    for worker in workers:
        worker.start()
    assert all(results.get(timeout=60) for _ in workers)
    for worker in workers:
        worker.join()


needs_no_gpu = pytest.mark.skipif(not cuda.missing(), reason="CUDA works here")


@needs_no_gpu
def test_without_a_gpu_the_error_says_what_is_missing():
    with pytest.raises(cuda.CudaUnavailable, match=r"torch is not installed|NVIDIA|libnvrtc"):
        cuda.device(0)
    rows = [k for k in pfkit.kernels() if k.device == "cuda"]
    assert {k.name for k in rows} == {"fuse", "int", "int-pairwise", "fuse16", "int16"}
    assert all(not k.available and k.reason for k in rows)
    assert rows[0].reason in pfkit.explain("fuse", "cuda")


@needs_no_gpu
def test_each_cause_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    cuda.missing.cache_clear()
    try:
        assert "torch is not installed" in cuda.missing()
    finally:
        cuda.missing.cache_clear()
    monkeypatch.setenv("PFKIT_NVRTC", "/nowhere/libnvrtc.so")
    cuda.nvrtc.cache_clear()
    try:
        with pytest.raises(cuda.CudaUnavailable, match="libnvrtc"):
            cuda.nvrtc()
    finally:
        cuda.nvrtc.cache_clear()


def test_explain_shows_the_rules():
    text = pfkit.explain("fuse")
    assert all(condition in text and what in text for condition, what in cuda.FALLBACKS)
