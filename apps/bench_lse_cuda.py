"""Log-sum-exp on the GPU: speed beside torch and the memory's own speed, error, and where the time goes.

    python -m apps.bench_lse --device cuda [TABLE...] [--json FILE]

Each word is one table; none of them means all:

    speed       speedups of each kernel over torch.logsumexp, N = 32 .. 256000 at B = 512
    vocabulary  (512, 128256) against eager, torch.compile, JAX (XLA) and a single-read Triton kernel
    error       p95 and largest error by input distribution, in ulps of max(|max|, |log sum|, 1)
    split       GPU time split into the memory's floor and the rest, for each kernel
    reduced     16-bit input and Q10.6 terms: speed and error
    robust      what the order-free kernel costs over "fuse", by N
    backward    value and gradient, against torch
    few         few long rows
    call        wall clock of a call, host side included
    traffic     bytes read from memory, by Nsight Compute where it is installed

Kernel times are replays of CUDA graphs of 48 launches or more over inputs that together are far larger than
the L2 cache; the contenders of a line take turns, after a warm-up that brings the clocks up, and medians of 9
rounds are shown. Launches of ours in a row overlap their starts (programmatic dependent launch), the read
floor's too. The read floor is a kernel of ours that reads the same bytes and does nothing with them.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .devices import no_cuda

L2_BYTES = 64 << 20
SIZES = (32, 128, 512, 1024, 2048, 4096, 8192, 16384, 32000, 64000, 128256, 256000)
OURS = ("fuse", "int", "int-pairwise", "int16")


def rotating(rows: int, n: int, dtype: Any, scale: float = 1.0) -> list[Any]:
    """Inputs that together are several times the L2 cache."""
    import torch

    size = rows * n * torch.empty(0, dtype=dtype).element_size()
    count = max(2, min(1000, -(-4 * L2_BYTES // size)))
    return [(torch.randn(rows, n, device="cuda") * scale).to(dtype) for _ in range(count)]


def captured(calls: list[Callable[[], Any]]) -> Any:
    """A CUDA graph of these calls in a row."""
    import torch

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls[:3]:
            call()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for call in calls:
            call()
    return graph


def graph_times(
    contenders: dict[str, list[Callable[[], Any]]], warm: float = 0.05, rounds: int = 9
) -> dict[str, float]:
    """Median microseconds of one call of each contender.

    Each is one CUDA graph of at least 48 calls, and they take turns.
    """
    import torch

    calls = {name: given * max(1, -(-48 // len(given))) for name, given in contenders.items()}
    graphs = {name: captured(given) for name, given in calls.items()}
    start = time.perf_counter()
    while time.perf_counter() - start < warm:
        for graph in graphs.values():
            graph.replay()
        torch.cuda.synchronize()
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(rounds):
        for name, graph in graphs.items():
            a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            a.record()
            graph.replay()
            b.record()
            b.synchronize()
            times[name].append(a.elapsed_time(b) * 1e3 / len(calls[name]))
    return {name: statistics.median(taken) for name, taken in times.items()}


def graph_time(calls: list[Callable[[], Any]], warm: float = 0.05) -> float:
    """Median microseconds of one call, all of them in one CUDA graph."""
    return graph_times({"": calls}, warm)[""]


def wall_time(call: Callable[[], Any], count: int = 2000) -> float:
    """Median over five batches of the microseconds of one call as the host sees it."""
    import torch

    for _ in range(200):
        call()
    batches = []
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(count // 5):
            call()
        batches.append((time.perf_counter() - start) / (count // 5) * 1e6)
    return statistics.median(batches)


def over(inputs: list[Any], f: Callable[[Any], Any]) -> list[Callable[[], Any]]:
    return [lambda x=x: f(x) for x in inputs]


def ours(lse: str) -> Callable[[Any], Any]:
    import pfkit

    return lambda x: pfkit.logsumexp(x, -1, lse=lse)


def eager(x: Any) -> Any:
    import torch

    return torch.logsumexp(x, -1)


def read_only(inputs: list[Any], weigh: bool = False) -> list[Callable[[], Any]]:
    """Launches that read every byte, or (`weigh`) do the arithmetic of "int" for as many terms, and nothing
    else.
    """
    import torch

    from pfkit.lse import cuda, torch_op

    rows, n = inputs[0].shape
    out = torch.empty(rows, device="cuda")
    batch = 4 if n * inputs[0].element_size() <= 1 << 16 else 8
    entry, threads, blocks = ("weigh_rows<512>", 512, 4) if weigh else (f"read_rows<256,{batch}>", 256, 4)
    dtype = torch_op._NUMBER[inputs[0].dtype]
    kernel = cuda.DeviceKernel("floor.cu", entry, dtype, threads, blocks, early=True)
    arguments = cuda.pack_arguments(n, rows, [(rows, n)], [(n, 1)])
    launch = cuda.device(torch.cuda.current_device()).launch(kernel, (rows, 1), arguments)
    index = torch.cuda.current_device()
    return over(
        inputs, lambda x: launch(torch._C._cuda_getCurrentRawStream(index), x.data_ptr(), out.data_ptr())
    )


def large_read() -> float:
    """Bytes a second of reading a gigabyte, the memory's own speed."""
    import torch

    inputs = rotating(2048, 128256, torch.float32)
    return inputs[0].numel() * 4 / graph_time(read_only(inputs)) * 1e6


def table(title: str, header: list[str], rows: list[list[Any]]) -> None:
    print(f"\n{title}")
    cells = [header] + [[f"{c:.2f}" if isinstance(c, float) else str(c) for c in row] for row in rows]
    widths = [max(len(row[k]) for row in cells) for k in range(len(header))]
    for row in cells:
        print("  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)), flush=True)


def speed(found: dict[str, Any]) -> None:
    import torch

    rows = []
    for n in SIZES:
        inputs = rotating(512, n, torch.float32)
        contenders = {"eager": over(inputs, eager), "read": read_only(inputs)}
        times = graph_times(contenders | {lse: over(inputs, ours(lse)) for lse in OURS})
        rate = 512 * n * 4 / times["fuse"] / 1e6
        rows.append([n, times["eager"], *(times[k] for k in OURS), *(times["eager"] / times[k] for k in OURS),
                     times["read"], rate, 100 * times["read"] / times["fuse"]])  # fmt: skip
        found[str(n)] = times
    header = ["N", "eager us", *(f"{k} us" for k in OURS), *(f"x {k}" for k in OURS)]
    table("(512, N) float32, graph time", [*header, "read us", "fuse TB/s", "% of same read"], rows)


def triton_rows() -> Callable[[Any], Any] | None:
    """A single-read kernel of the usual kind: one program a row, blocks of 4096, running maximum and sum."""
    try:
        import torch
        import triton
        import triton.language as tl
    except ImportError:
        return None

    @triton.jit
    def kernel(source, out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        row = tl.program_id(0).to(tl.int64)
        at = tl.arange(0, BLOCK)
        m = tl.full((BLOCK,), -3.0e38, tl.float32)
        s = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, n, BLOCK):
            x = tl.load(source + row * n + start + at, mask=start + at < n, other=float("-inf")).to(
                tl.float32
            )
            larger = tl.maximum(m, x)
            s = s * tl.exp(m - larger) + tl.exp(x - larger)
            m = larger
        top = tl.max(m, 0)
        tl.store(out + row, top + tl.log(tl.sum(s * tl.exp(m - top), 0)))

    def run(x: Any) -> Any:
        out = torch.empty(x.shape[0], device=x.device)
        kernel[(x.shape[0],)](x, out, x.shape[1], BLOCK=4096, num_warps=8)
        return out

    return run


XLA = """
import os, statistics, sys, time
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
import jax
n = int(sys.argv[1])
keys = jax.random.split(jax.random.key(0), 4)
inputs = [jax.random.normal(k, (512, n), jax.numpy.float32) for k in keys]
f = jax.jit(lambda x: jax.nn.logsumexp(x, axis=1))
times = []
for _ in range(5):
    for _ in range(2):
        f(inputs[0]).block_until_ready()
    start = time.perf_counter()
    results = [f(inputs[k % 4]) for k in range(200)]
    results[-1].block_until_ready()
    times.append((time.perf_counter() - start) / 200 * 1e6)
print(statistics.median(times))
"""


def jax_time(n: int) -> float | None:
    """Microseconds of jax.nn.logsumexp under jit, wall clock over a queue of calls on rotating inputs.

    In a process of its own: with JAX loaded in this one, a later capture of a graph has been invalidated.
    """
    if importlib.util.find_spec("jax") is None:
        return None
    done = subprocess.run([sys.executable, "-c", XLA, str(n)], capture_output=True, text=True)
    return float(done.stdout) if not done.returncode else None


def vocabulary(found: dict[str, Any]) -> None:
    import torch

    n = 128256
    inputs = rotating(512, n, torch.float32)
    inputs += rotating(512, n, torch.float32)
    compiled = torch.compile(eager, dynamic=False)
    compiled(inputs[0])
    contenders = {"eager": over(inputs, eager), "torch.compile": over(inputs, compiled)}
    contenders["amax"] = over(inputs, lambda x: torch.amax(x, -1))
    if (single := triton_rows()) is not None:
        contenders["Triton, single read"] = over(inputs, single)
    contenders |= {f"pfkit {lse}": over(inputs, ours(lse)) for lse in OURS}
    times = graph_times(contenders | {"read only": read_only(inputs)})
    if (xla := jax_time(n)) is not None:
        times["JAX (wall clock)"] = xla
    fastest, size = large_read(), 512 * n * 4
    exact = torch.logsumexp(inputs[0].double(), 1)
    errors = {f"pfkit {k}": float((ours(k)(inputs[0]).double() - exact).abs().max()) for k in OURS}
    errors["eager"] = float((eager(inputs[0]).double() - exact).abs().max())
    compiled_us = times["torch.compile"]
    rows = [[k, t, size / t / 1e6, 100 * size / t * 1e6 / fastest, times["eager"] / t, compiled_us / t,
             f"{errors[k]:.1e}" if k in errors else "-"] for k, t in times.items()]  # fmt: skip
    header = [
        "(512, 128256) float32",
        "us",
        "TB/s of one read",
        "% of large read",
        "x eager",
        "x compile",
        "max error",
    ]
    table(f"large read {fastest / 1e12:.3f} TB/s", header, rows)
    found |= {"times": times, "large_read": fastest, "errors": errors}


def distributions(rows: int, n: int) -> dict[str, Any]:
    import torch

    x = torch.randn(rows, n, device="cuda")
    return {
        "normal": x,
        "normal x 30": x * 30,
        "normal + 1000": x + 1000,
        "uniform [-1, 0]": -torch.rand(rows, n, device="cuda"),
        "exponential tail": torch.log(torch.rand(rows, n, device="cuda")) * 10,
        "equal": torch.zeros(rows, n, device="cuda"),
        "one dominates": x.scatter(1, torch.randint(n, (rows, 1), device="cuda"), 60.0),
    }


def error(found: dict[str, Any]) -> None:
    import torch

    rows = []
    for n in (4, 128, 4096, 128256):
        for name, x in distributions(2048 if n < 100000 else 256, n).items():
            exact = torch.logsumexp(x.double(), 1)
            m = x.amax(1).double()
            size = torch.maximum(torch.maximum(m.abs(), (exact - m).abs()), torch.ones_like(m))
            ulp = 2.0 ** (torch.floor(torch.log2(size)) - 23)
            line: list[Any] = [n, name]
            for f in (eager, ours("fuse")):
                e = (f(x).double() - exact).abs() / ulp
                line += [float(e.quantile(0.95)), float(e.max())]
            for lse in ("int", "int-pairwise", "int16"):
                line.append(f"{float((ours(lse)(x).double() - exact).abs().max()):.1e}")
            rows.append(line)
            found[f"{n} {name}"] = line[2:]
    header = [
        "N",
        "input",
        "torch p95",
        "torch max",
        "fuse p95",
        "fuse max",
        "int nats",
        "pairwise nats",
        "int16 nats",
    ]
    table("error in ulps (torch, fuse) and in nats, float32 against float64", header, rows)


def split(found: dict[str, Any]) -> None:
    import torch

    fastest = large_read()
    rows = []
    for dtype in (torch.float32, torch.float16):
        inputs = rotating(512, 128256, dtype)
        size = inputs[0].numel() * inputs[0].element_size()
        floor = size / fastest * 1e6
        contenders = {
            "read": read_only(inputs),
            "weigh": read_only(inputs, weigh=True),
            "eager": over(inputs, eager),
        }
        times = graph_times(contenders | {k: over(inputs, ours(k)) for k in OURS})
        read, weigh = times.pop("read"), times.pop("weigh")
        for name, t in times.items():
            rows.append([str(dtype)[6:], name, t, floor, 100 * floor / t, read, t - read,
                         weigh if name == "int" else "-"])  # fmt: skip
            found[f"{dtype} {name}"] = {"us": t, "floor": floor, "read": read}
    header = [
        "input",
        "kernel",
        "us",
        "HBM floor us",
        "% floor",
        "read kernel us",
        "compute us",
        "int arithmetic us",
    ]
    table(f"(512, 128256): one read at {fastest / 1e12:.3f} TB/s, and the rest", header, rows)


def reduced(found: dict[str, Any]) -> None:
    import torch

    from pfkit.lse.torch_op import logsumexp_tensor

    full = rotating(512, 128256, torch.float32)
    fastest, rows = large_read(), []
    for dtype in (torch.float16, torch.bfloat16):
        inputs = [x.to(dtype) for x in (*full, *rotating(512, 128256, torch.float32))]
        exact = torch.logsumexp(inputs[0].double(), 1)
        base = {"eager": over(full, eager), "fuse": over(full, ours("fuse")), "read": read_only(inputs)}
        times = graph_times(base | {k: over(inputs, ours(k)) for k in ("fuse16", "int16", "int")})
        found[str(dtype)] = times
        for lse in ("fuse16", "int16", "int"):
            t = times[lse]
            kept = logsumexp_tensor(inputs[0], 1, lse=lse, dtype=torch.float32).double()
            rounded = ours(lse)(inputs[0]).double()
            rows.append([str(dtype)[6:], lse, t, times["eager"] / t, times["fuse"] / t,
                         100 * 512 * 128256 * 2 / t * 1e6 / fastest, 100 * times["read"] / t,
                         f"{float((kept - exact).abs().max()):.1e}",
                         f"{float((rounded - exact).abs().mean()):.1e}"])  # fmt: skip
    header = [
        "input",
        "kernel",
        "us",
        "x eager f32",
        "x fuse f32",
        "% large read",
        "% of same read",
        "max err f32 out",
        "mean err 16 out",
    ]
    table("16-bit input at (512, 128256)", header, rows)


def robust(found: dict[str, Any]) -> None:
    import torch

    rows = []
    for n in (128, 1024, 8192, 32000, 128256, 256000):
        inputs = rotating(512, n, torch.float32)
        times = graph_times({
            "fuse": over(inputs, ours("fuse")), "int": over(inputs, ours("int")),
            "arithmetic": read_only(inputs, weigh=True),
        })  # fmt: skip
        floor = times["arithmetic"] if n >= 8192 else float("nan")
        rows.append([n, times["fuse"], times["int"], times["int"] / times["fuse"], floor])
        found[str(n)] = times
    table(
        "order-free over fuse, (512, N) float32",
        ["N", "fuse us", "int us", "ratio", "int arithmetic us"],
        rows,
    )


def backward(found: dict[str, Any]) -> None:
    import torch

    rows = []
    for rows_, n in ((512, 128), (512, 8192), (512, 128256)):
        inputs = rotating(rows_, n, torch.float32)
        grad = torch.ones(rows_, device="cuda")

        def both(f: Callable[[Any], Any], x: Any, g: Any = grad) -> Any:
            x = x.requires_grad_()
            return torch.autograd.grad(f(x), x, g)

        times = graph_times({k: over(inputs, lambda x, f=f: both(f, x)) for k, f in
                             {"eager": eager, "fuse": ours("fuse"), "int": ours("int")}.items()})  # fmt: skip
        rows.append([f"({rows_}, {n})", *times.values(), times["eager"] / times["fuse"]])
        found[str(n)] = times
    table("value and gradient, graph time", ["shape", "eager us", "fuse us", "int us", "x fuse"], rows)


def few(found: dict[str, Any]) -> None:
    import torch

    rows = []
    for shape in ((1, 262144), (8, 128256), (1, 10_000_000)):
        inputs = rotating(*shape, torch.float32)
        times = graph_times(
            {k: over(inputs, f) for k, f in {"eager": eager, **{k: ours(k) for k in OURS}}.items()}
        )
        rows.append([str(shape), *times.values(), times["eager"] / times["fuse"]])
        found[str(shape)] = times
    table("few long rows, graph time", ["shape", "eager us", *(f"{k} us" for k in OURS), "x fuse"], rows)


def call(found: dict[str, Any]) -> None:
    import torch

    import pfkit
    from pfkit.lse.torch_op import logsumexp_tensor

    x = torch.randn(512, 128, device="cuda")
    times = {
        "torch.logsumexp(x, 1)": wall_time(lambda: torch.logsumexp(x, 1)),
        "pfkit.logsumexp(x, 1)": wall_time(lambda: pfkit.logsumexp(x, 1)),
        "logsumexp_tensor(x, 1)": wall_time(lambda: logsumexp_tensor(x, 1)),
        "the operator": wall_time(lambda: torch.ops.pfkit.logsumexp.default(x, [1], "fuse", None)),
        "torch.empty_like": wall_time(lambda: torch.empty_like(x[:, 0])),
    }
    rows = [[k, t, times["torch.logsumexp(x, 1)"] / t] for k, t in times.items()]
    table("wall clock of a call at (512, 128) float32", ["call", "us", "x torch"], rows)
    found |= times


TRAFFIC = """
import torch
from apps import bench_lse_cuda as bench
for dtype in (torch.float32, torch.float16):
    x = torch.randn(512, 128256, device="cuda").to(dtype)
    for lse in bench.OURS:
        bench.ours(lse)(x)
torch.cuda.synchronize()
"""


def traffic(found: dict[str, Any]) -> None:
    if (ncu := shutil.which("ncu")) is None:
        print("\nbytes by Nsight Compute: ncu is not on the PATH")
        return
    metrics = {"dram__bytes_read.sum": "read", "dram__bytes_write.sum": "written"}
    done = subprocess.run(
        [ncu, "--clock-control", "none", "--csv", "--print-units", "base", "-k", "entry", "--metrics",
         ",".join(metrics), sys.executable, "-c", TRAFFIC],
        capture_output=True, text=True,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith('"')]
    seen: dict[str, dict[str, float]] = {}
    for line in csv.DictReader(lines):
        seen.setdefault(line["ID"], {})[metrics[line["Metric Name"]]] = float(
            line["Metric Value"].replace(",", "")
        )
    names = [(bits, lse) for bits in (32, 16) for lse in OURS]
    if len(seen) != len(names):
        print(
            f"\nbytes by Nsight Compute: {len(seen)} launches seen\n{done.stdout[-500:]}{done.stderr[-500:]}"
        )
        return
    rows = []
    for (bits, lse), counts in zip(names, seen.values(), strict=True):
        size = 512 * 128256 * bits // 8
        rows.append([f"float{bits}", lse, counts["read"] / 1e6, size / 1e6, counts["read"] / size])
        found[f"float{bits} {lse}"] = counts | {"input": size}
    table(
        "bytes at (512, 128256) by Nsight Compute", ["input", "kernel", "MB read", "MB input", "ratio"], rows
    )


TABLES = {
    f.__name__: f for f in (call, speed, vocabulary, error, split, reduced, robust, backward, few, traffic)
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m apps.bench_lse --device cuda", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("tables", nargs="*", metavar="table", help=f"of {', '.join(TABLES)}; default: all")
    parser.add_argument("--device", choices=("cuda",), default="cuda")
    parser.add_argument("--json", type=Path, help="write all numbers here")
    arguments = parser.parse_args(argv)
    if unknown := [name for name in arguments.tables if name not in TABLES]:
        parser.error(f"unknown tables {', '.join(unknown)}; there are {', '.join(TABLES)}")
    if no_cuda():
        return 1
    import torch

    from pfkit.lse import cuda

    found: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    print(f"{found['device']}, torch {torch.__version__}, NVRTC {'.'.join(map(str, cuda.nvrtc().version))}")
    for name in arguments.tables or TABLES:
        TABLES[name](found.setdefault(name, {}))
        if arguments.json:
            arguments.json.write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
