"""CUDA without a toolkit: compile a kernel at first use (NVRTC), keep its machine code on disk, load it,
launch it.

All that is needed is the driver and what ``pip install torch`` brings: libnvrtc. No nvcc, no CUDA headers, no
Triton. Sources are package data (``pfkit_ext/cuda``); each kernel is compiled by itself, for the device it
runs on, in about 0.3 s, once.

**Cache.** Machine code lies in ``$PFKIT_CACHE_DIR`` or ``~/.cache/pfkit``, under a name that is a digest of
the sources it is made of, the architecture, NVRTC's version and the flags. Files appear by an atomic rename
and carry their own checksum: two processes may compile the same kernel at once, and a damaged file is made
again. Without a writable folder everything still works, compiled anew by each process.

Environment: ``PFKIT_NVRTC`` names a libnvrtc to use; ``PFKIT_CACHE_DIR`` the folder.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import importlib.util
import math
import os
import re
import struct
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pfkit_ext
from pfkit_ext import _cuda

SOURCES = Path(pfkit_ext.__file__).parent / "cuda"
FLAGS = ("--std=c++17", "--fmad=true", "-default-device", "--device-int128")
_MAGIC = b"pfkit-cubin-1\n"
_DIGEST = 32


class CudaUnavailable(RuntimeError):
    """CUDA was asked for and cannot run here; the message says what is missing."""


class CudaError(RuntimeError):
    """The driver or NVRTC reported an error."""


# --- libraries ---


def _load_first(names: list[str]) -> ctypes.CDLL | None:
    for name in names:
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name)
    return None


def _address(library: ctypes.CDLL, name: str) -> int:
    """Of a function, 0 if the library has none of this name."""
    function = getattr(library, name, None)
    return 0 if function is None else ctypes.cast(function, ctypes.c_void_p).value or 0


@cache
def _driver() -> ctypes.CDLL | None:
    return _load_first(["nvcuda.dll"] if sys.platform == "win32" else ["libcuda.so.1", "libcuda.so"])


def _nvrtc_candidates() -> Iterator[Path]:
    """Where a libnvrtc may lie, best first: the wheels torch depends on, torch's own folder, a toolkit."""
    pattern = "nvrtc64_*.dll" if sys.platform == "win32" else "libnvrtc.so*"
    folders = []
    for package in ("nvidia", "torch"):
        spec = importlib.util.find_spec(package)
        for place in (spec.submodule_search_locations or []) if spec else []:
            root = Path(place)
            folders += sorted(root.glob("cu[0-9]*/lib"), reverse=True) + [
                root / "cuda_nvrtc" / "lib",
                root / "lib",
            ]
            folders += [root / "cuda_nvrtc" / "bin"] + sorted(root.glob("cu[0-9]*/bin/x86_64"), reverse=True)
    for home in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"):
        if home:
            folders += [Path(home) / "lib64", Path(home) / "bin"]
    for folder in folders:
        found = [p for p in sorted(folder.glob(pattern)) if "alt" not in p.name and "builtins" not in p.name]
        yield from found[-1:]


class _Nvrtc:
    """The few functions of NVRTC that are used."""

    def __init__(self, library: ctypes.CDLL, path: str) -> None:
        self._lib, self.path = library, path
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check(self._lib.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
        self.version = (major.value, minor.value)

    def _check(self, code: int) -> None:
        if code:
            self._lib.nvrtcGetErrorString.restype = ctypes.c_char_p
            raise CudaError(f"NVRTC ({self.path}): {self._lib.nvrtcGetErrorString(code).decode()}")

    def architectures(self) -> list[int]:
        count = ctypes.c_int()
        self._check(self._lib.nvrtcGetNumSupportedArchs(ctypes.byref(count)))
        values = (ctypes.c_int * count.value)()
        self._check(self._lib.nvrtcGetSupportedArchs(values))
        return list(values)

    def _text(self, program: ctypes.c_void_p, size: str, get: str) -> bytes:
        length = ctypes.c_size_t()
        self._check(getattr(self._lib, size)(program, ctypes.byref(length)))
        buffer = ctypes.create_string_buffer(length.value)
        self._check(getattr(self._lib, get)(program, buffer))
        return buffer.raw

    def compile(self, name: str, headers: dict[str, bytes], options: list[str], binary: bool) -> bytes:
        """Machine code (`binary`) or PTX of source `name` among `headers`."""
        program = ctypes.c_void_p()
        names, texts = list(headers), list(headers.values())
        count = len(names)
        self._check(
            self._lib.nvrtcCreateProgram(
                ctypes.byref(program), headers[name], name.encode(), count, (ctypes.c_char_p * count)(*texts),
                (ctypes.c_char_p * count)(*[n.encode() for n in names]),
            )
        )  # fmt: skip
        try:
            arguments = (ctypes.c_char_p * len(options))(*[o.encode() for o in options])
            code = self._lib.nvrtcCompileProgram(program, len(options), arguments)
            if code:
                log = (
                    self._text(program, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog").rstrip(b"\0").decode()
                )
                raise CudaError(f"NVRTC could not compile {name} with {options}:\n{log}")
            kind = "CUBIN" if binary else "PTX"
            return self._text(program, f"nvrtcGet{kind}Size", f"nvrtcGet{kind}")
        finally:
            self._lib.nvrtcDestroyProgram(ctypes.byref(program))


@cache
def nvrtc() -> _Nvrtc:
    """The NVRTC in use.

    Raises
    ------
    CudaUnavailable
        If none can be loaded.
    """
    chosen = os.environ.get("PFKIT_NVRTC")
    tried = []
    for path in [Path(chosen)] if chosen else _nvrtc_candidates():
        # The builtins library beside it is opened by bare name, so it has to be in the process already.
        for builtins in sorted(path.parent.glob("*nvrtc-builtins*")):
            if "alt" not in builtins.name:
                with contextlib.suppress(OSError):
                    ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
        try:
            return _Nvrtc(ctypes.CDLL(str(path)), str(path))
        except (OSError, CudaError) as error:
            tried.append(f"{path}: {error}")
    library = None if chosen else _load_first(["libnvrtc.so.13", "libnvrtc.so.12"])
    if library is not None:
        return _Nvrtc(library, library._name)
    raise CudaUnavailable(
        "libnvrtc, which compiles the CUDA kernels, was not found: pip install nvidia-cuda-nvrtc, "
        "or set PFKIT_NVRTC" + (f" (tried {'; '.join(tried)})" if tried else "")
    )


@cache
def missing() -> str:
    """What keeps CUDA kernels from running here, in words; empty if nothing does. Does not import torch."""
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed: pip install 'pfkit[cuda]'"
    driver = _driver()
    if driver is None:
        return "no NVIDIA driver (libcuda.so.1) on this machine"
    count = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
        return "the NVIDIA driver sees no GPU"
    try:
        nvrtc()
    except CudaUnavailable as error:
        return str(error)
    return ""


def require() -> None:
    """Raise :class:`CudaUnavailable` with the reason if CUDA kernels cannot run here."""
    if reason := missing():
        raise CudaUnavailable(f"CUDA kernels cannot run here: {reason}")


# --- compiling, with a cache ---


@dataclass(frozen=True)
class DeviceKernel:
    """One kernel to compile: an entry of a source file, at a launch shape.

    `dtype` numbers the element type as the sources do: 0 float32, 1 float64, 2 float16, 3 bfloat16. `blocks`
    is the number of blocks a multiprocessor should hold, `shared` the dynamic shared memory in bytes,
    `define` further macros, separated by spaces. `early`: the entry waits by itself for the kernels ahead of
    it in the stream, so its blocks may be placed while those finish (compute capability 9.0 and up; ignored
    below). `specific`: compiled for this very architecture (sm_90a), as warpgroup products need.
    """

    source: str
    entry: str
    dtype: int
    threads: int
    blocks: int = 1
    cluster: int = 1
    shared: int = 0
    define: str = ""
    early: bool = False
    specific: bool = False

    def options(self) -> list[str]:
        values = {"DTYPE": self.dtype, "ENTRY": self.entry, "THREADS": self.threads, "BLOCKS": self.blocks}
        named = [f"-DPFKIT_{k}={v}" for k, v in (values | {"CLUSTER": self.cluster}).items()]
        return [*named, *[f"-D{macro}" for macro in self.define.split()]]


@cache
def sources_of(name: str) -> dict[str, bytes]:
    """The source file `name` and everything it includes, by name."""
    found: dict[str, bytes] = {}
    wanted = [name]
    while wanted:
        file = wanted.pop()
        if file not in found:
            found[file] = (SOURCES / file).read_bytes()
            wanted += re.findall(r'^\s*#include "([^"]+)"', found[file].decode(), re.MULTILINE)
    return dict(sorted(found.items()))


def cache_folder() -> Path:
    """Where machine code is kept."""
    chosen = os.environ.get("PFKIT_CACHE_DIR")
    if chosen:
        return Path(chosen)
    base = os.environ.get("LOCALAPPDATA") if sys.platform == "win32" else os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "pfkit"


def read_cache(path: Path) -> bytes | None:
    """The machine code in `path`, or None if the file is absent, damaged or cannot be read."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    head, body = data[: len(_MAGIC) + _DIGEST], data[len(_MAGIC) + _DIGEST :]
    if head != _MAGIC + hashlib.sha256(body).digest():
        return None
    return body


def write_cache(path: Path, body: bytes) -> None:
    """Put `body` at `path` in one step, so that no reader sees half a file. A folder that cannot be written
    is no error."""
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=path.stem, suffix=".tmp", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(_MAGIC + hashlib.sha256(body).digest() + body)
        os.replace(temporary, path)
    except OSError:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def compile_kernel(kernel: DeviceKernel, capability: tuple[int, int]) -> bytes:
    """Machine code of `kernel` for a device of this compute capability, from the cache if it is there.

    A device newer than NVRTC gets PTX of the newest architecture NVRTC knows, which the driver translates.
    """
    compiler = nvrtc()
    wanted = 10 * capability[0] + capability[1]
    known = compiler.architectures()
    binary = wanted in known
    suffix = "a" if kernel.specific else ""
    target = f"sm_{wanted}{suffix}" if binary else f"compute_{max(a for a in known if a <= wanted)}"
    options = [f"--gpu-architecture={target}", *FLAGS, *kernel.options()]
    sources = sources_of(kernel.source)
    digest = hashlib.sha256(repr((compiler.version, options, kernel.source)).encode())
    for name, text in sources.items():
        digest.update(name.encode() + b"\0" + text + b"\0")
    path = cache_folder() / f"{digest.hexdigest()}.{'cubin' if binary else 'ptx'}"
    body = read_cache(path)
    if body is None:
        body = compiler.compile(kernel.source, sources, options, binary)
        write_cache(path, body)
    return body


# --- devices ---


class _Config(ctypes.Structure):
    """CUlaunchConfig, without a stream."""

    _fields_ = [
        *((name, ctypes.c_uint) for name in ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")),
        ("shared", ctypes.c_uint), ("stream", ctypes.c_void_p), ("attributes", ctypes.c_void_p),
        ("count", ctypes.c_uint),
    ]  # fmt: skip


class Device:
    """One GPU: its limits, its context, and the kernels loaded on it."""

    def __init__(self, index: int) -> None:
        require()
        driver = _driver()
        assert driver is not None
        self.index = index
        self._driver = driver
        self._functions: dict[DeviceKernel, int] = {}
        self._lock = threading.Lock()
        handle = ctypes.c_int()
        self._check(driver.cuDeviceGet(ctypes.byref(handle), index), "cuDeviceGet")

        def attribute(number: int) -> int:
            value = ctypes.c_int()
            self._check(
                driver.cuDeviceGetAttribute(ctypes.byref(value), number, handle), "cuDeviceGetAttribute"
            )
            return value.value

        self.capability = (attribute(75), attribute(76))
        self.multiprocessors = attribute(16)
        self.shared_memory = attribute(97)  # bytes a block may have, when asked for
        self._context = ctypes.c_void_p()  # the context torch uses too; kept until the process ends
        self._check(
            driver.cuDevicePrimaryCtxRetain(ctypes.byref(self._context), handle), "cuDevicePrimaryCtxRetain"
        )
        _cuda.bind(*(_address(driver, name) for name in ("cuLaunchKernel", "cuLaunchKernelEx")))

    def _check(self, code: int, what: str) -> None:
        if code:
            raise CudaError(f"{what} on CUDA device {self.index}: {describe(code)}")

    @contextlib.contextmanager
    def _current(self) -> Iterator[None]:
        """This device's context current in the calling thread for a while, then the one before again."""
        self._check(self._driver.cuCtxPushCurrent_v2(self._context), "cuCtxPushCurrent")
        try:
            yield
        finally:
            self._driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))

    def make_current(self) -> None:
        """Make this device's context current in the calling thread."""
        self._check(self._driver.cuCtxSetCurrent(self._context), "cuCtxSetCurrent")

    def function(self, kernel: DeviceKernel) -> int:
        """CUfunction of `kernel`, compiled and loaded at first use."""
        found = self._functions.get(kernel)
        if found is not None:
            return found
        code = compile_kernel(kernel, self.capability)
        with self._lock, self._current():
            if kernel not in self._functions:
                module, function = ctypes.c_void_p(), ctypes.c_void_p()
                self._check(self._driver.cuModuleLoadData(ctypes.byref(module), code), f"loading {kernel}")
                self._check(
                    self._driver.cuModuleGetFunction(ctypes.byref(function), module, b"entry"),
                    f"loading {kernel}",
                )
                if kernel.shared:  # with the static part it may pass the default limit: attribute 8 raises it
                    self._check(
                        self._driver.cuFuncSetAttribute(function, 8, kernel.shared), f"loading {kernel}"
                    )
                self._functions[kernel] = function.value or 0
        return self._functions[kernel]

    def resident_blocks(self, kernel: DeviceKernel) -> int:
        """How many blocks of `kernel` the device holds at once, in whole clusters."""
        if kernel.cluster == 1:
            return self.multiprocessors * kernel.blocks
        cluster = (ctypes.c_uint * 18)(4, 0, kernel.cluster, 1, 1)  # CUlaunchAttribute: cluster dimension
        config = _Config(
            kernel.cluster, 1, 1, kernel.threads, 1, 1, kernel.shared, None, ctypes.addressof(cluster), 1
        )
        count, function = ctypes.c_int(), ctypes.c_void_p(self.function(kernel))
        with self._current():
            code = self._driver.cuOccupancyMaxActiveClusters(
                ctypes.byref(count), function, ctypes.byref(config)
            )
        self._check(code, f"occupancy of {kernel}")
        return max(1, count.value) * kernel.cluster

    def launch(self, kernel: DeviceKernel, grid: tuple[int, int], arguments: bytes) -> Any:
        """A callable that launches `kernel`: ``_cuda.Launch``."""
        early = kernel.early and self.capability >= (9, 0)
        return _cuda.Launch(self.function(kernel), grid, kernel.threads, kernel.shared, arguments, early)


def describe(code: int) -> str:
    """The driver's name and text of an error code."""
    driver, parts = _driver(), []
    if driver is not None:
        for get in (driver.cuGetErrorName, driver.cuGetErrorString):
            text = ctypes.c_char_p()
            if not get(code, ctypes.byref(text)) and text.value:
                parts.append(text.value.decode())
    return f"error {code} ({': '.join(parts)})"


_devices: dict[int, Device] = {}
_devices_lock = threading.Lock()


def device(index: int) -> Device:
    """The :class:`Device` of a torch device index.

    Raises
    ------
    CudaUnavailable
        If CUDA kernels cannot run here.
    """
    found = _devices.get(index)
    if found is None:
        with _devices_lock:
            found = _devices.setdefault(index, Device(index)) if index not in _devices else _devices[index]
    return found


def pack_arguments(
    n: int,
    rows: int,
    kept: list[tuple[int, int]],
    reduced: list[tuple[int, int]],
    *,
    splits: int = 1,
    out_dtype: int = 0,
    exact_total: bool = False,
) -> bytes:
    """The argument block of the kernels (``struct Args`` of common.cuh) with null pointers.

    `kept` and `reduced` hold up to six (size, stride) pairs each, outermost first, strides in elements.
    """
    fields = [n, rows, splits, out_dtype, int(exact_total)]
    for pairs in (kept, reduced):
        if len(pairs) > 6:
            raise ValueError(f"at most 6 dimensions fit the kernels, got {len(pairs)}")
        padded = [*pairs, *[(1, 0)] * (6 - len(pairs))]
        fields += [len(pairs), *[size for size, _ in padded], *[stride for _, stride in padded]]
    return struct.pack(f"8Q{len(fields)}q", *[0] * 8, *fields)


# --- the rows of pfkit.kernels() ---

#: What runs where a kernel does not, in the order the rules are tried; shown by pfkit.explain().
FALLBACKS = (
    ("complex dtype", "torch's own operations: exp, sum, log"),
    ("integer or boolean dtype", "converted to torch's default dtype first"),
    ("more than 6 separate strides among the kept or reduced dimensions", "a contiguous copy first"),
    ("nothing to reduce", "-inf, no launch"),
    ("a gradient, torch.compile, a subclass or a mode is involved", "the operator pfkit::logsumexp"),
    ("torch.func transforms, forward-mode derivatives", "an autograd.Function around that operator"),
    ("the same within override_torch()", "torch's own operations"),
    ("otherwise", "a direct launch, without torch's dispatcher"),
    ("gradient over dimensions that are not the last ones", "torch's elementwise operations"),
    ("compute capability below 9.0", "no clusters: few long rows in slices, 'int' reads long rows twice"),
    ("device newer than NVRTC", "PTX, which the driver translates at first use"),
)


def fallback_rules() -> str:
    """:data:`FALLBACKS` as text, one rule a line."""
    return "\n".join(f"  {condition}: {what}" for condition, what in FALLBACKS)


def fuse_bound(n: int, dtype: Any) -> float:
    """Bound of ``"fuse"`` on CUDA, nats.

    With u half an ulp of 1 and e the error of one exponential (ex2.approx: 2**-22; float64's exp: 2**-52),
    relative to the sum, so in nats of the logarithm:

    * a term errs by e, and by 2.25 u |t| for its exponent t (difference, constant and product are rounded);
      the mean of max - x under the weights is at most ln n, and the lazy reference adds 2 * 4 nats;
    * a rescaling errs by e + u. A thread's reference moves only by 4 nats or more, so what has been through j
      rescalings is at most n exp(-4 (j - 1)) of the sum: 3 + ln n / 4 of them on average over the mass; 6
      more join threads, blocks and slices;
    * additions: 20 within a batch, batches without loss, 29 to join threads, blocks and slices.
    """
    u, e = (2.0**-53, 2.0**-52) if str(dtype) == "float64" else (2.0**-24, 2.0**-22)
    return e + 2.25 * u * (math.log(n) + 8) + (9 + math.log(n) / 4) * (e + u) + 49 * u


def pairwise_bound(n: int, dtype: Any) -> float:
    """Bound of ``"int-pairwise"`` on CUDA, nats.

    A pair errs by at most 0.0056 octaves and never magnifies the errors of its operands, whose shares are its
    slopes; so the levels of a tree add: 6 for a batch of a thread, 10 for the threads, 8 for the slices of a
    long row. The batches of a thread follow each other, b = n / 2048 + 1 of them: a pair whose operands are
    less than 10 octaves apart also errs by at most 0.129 times the smaller one's share, and those shares
    cannot add to more than 1; others err by 1.3e-4. Over other strides the batches are a tree as well, of
    fewer than log2 n + 4 levels in all, which is less than that. Moving a distance to another reference
    rounds it to 2**-17 octaves.
    """
    b = n // 2048 + 1
    batches = min(b * 0.0056, 0.129 + b * 1.3e-4) + (b + 40) * 2.0**-16
    levels = 16 if n < 1 << 14 else 24
    return math.log(2.0) * (levels * 0.0056 + batches + 64 * 3 * 2.0**-24)


def tenth_bound(n: int, dtype: Any) -> float:
    """Bound of ``"int16"``, nats: as :func:`pairwise_bound`, with terms rounded to 1/64 octave, and the tree
    of a batch (6 levels) too.
    """
    return pairwise_bound(n, dtype) + math.log(2.0) * (7 / 128 - 6 * 0.0056)


def kernel_rows() -> list[Any]:
    """The CUDA rows of :func:`pfkit.kernels`. Does not import torch."""
    from .kernels import Kernel, int_bound

    every, reason = ("float32", "float64", "float16", "bfloat16"), missing()
    common: dict[str, Any] = dict(device="cuda", available=not reason, reason=reason)
    return [
        Kernel(
            name="fuse",
            dtypes=every,
            order_free=False,
            doc="single read of memory, (max, sum) in registers, exact to rounding; the default",
            bound=fuse_bound,
            **common,
        ),
        Kernel(
            name="int",
            dtypes=every,
            order_free=True,
            doc="integer weights and sums: the bits of the CPU kernel",
            bound=int_bound,
            **common,
        ),
        Kernel(
            name="int-pairwise",
            dtypes=every,
            order_free=False,
            doc="pairwise Q16.16 recurrence in base 2 with the CPU kernel's table, in one read",
            bound=pairwise_bound,
            **common,
        ),
        Kernel(
            name="fuse16",
            dtypes=("float16", "bfloat16"),
            order_free=False,
            doc="'fuse' on 16-bit input: float32 state, half the bytes",
            bound=fuse_bound,
            **common,
        ),
        Kernel(
            name="int16",
            dtypes=every,
            order_free=False,
            doc="pairwise with terms in Q10.6, batches joined in Q16.16",
            bound=tenth_bound,
            **common,
        ),
    ]
