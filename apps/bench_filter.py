"""Whole particle filters against hand-written loops: microseconds a step, nanoseconds a particle.

    python -m apps.bench_filter                       # a few minutes; tables, out/bench_filter.json and .png
    python -m apps.bench_filter --quick               # one size, float64
    python -m apps.bench_filter --sizes 1000 100000 --models "local level" --every
    python -m apps.bench_filter --peers --sizes 100000 --every         # beside other packages' filters
    python -m apps.bench_filter --together            # many filters in one call, and threads
    python -m apps.bench_filter --lse-sweep           # every LSE kernel inside the running filter

One thread each. Contenders take turns in one run; figures are medians over the rounds. `numba` is the loop of
apps/filter_loops.py under @njit without fastmath, `numpy` its NumPy form with the log-sum-exp written out,
`python` pfkit with the same model as plain Python functions; `--peers` adds the installed ones of
apps/filter_peers.py. Log-likelihoods are compared first: means of
repeated runs must agree within five standard errors, or nothing is timed.

On a machine shared with other work give --clock cpu: processor time of this process instead of the wall
clock.
"""

from __future__ import annotations

import os

for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

import argparse  # noqa: E402
import json  # noqa: E402
import math  # noqa: E402
import statistics  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402

import pfkit  # noqa: E402
from pfkit_ext import _cpu  # noqa: E402

from . import filter_loops as loops  # noqa: E402
from . import filter_peers  # noqa: E402
from .benchmarking import machine, table  # noqa: E402

SIZES = (100, 1_000, 10_000, 100_000, 1_000_000)
MODELS = ("local level", "stochastic volatility", "bearings-only")
KERNELS = ("fuse", "int", "int-pairwise", "numpy", "scipy")
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


class PlainPython(pfkit.StateSpaceModel):
    """A hand-written NumPy model of filter_loops as a plain Python model of pfkit."""

    def __init__(self, functions: tuple[Callable, Callable, Callable], dim: int | None, dtype: str):
        self.functions, self.state_dim, self.dtype = functions, dim, np.dtype(dtype).type

    def initial(self, n, rng):
        return self.functions[0](n, rng, self.dtype)

    def transition(self, x, t, rng):
        return self.functions[1](x, rng)

    def log_likelihood(self, y, x, t):
        return self.functions[2](y, x)


def contenders(
    model: str, n: int, threshold: float, dtype: str, length: int, peers: bool = False
) -> dict[str, Callable[[], float]]:
    """Calls that filter `length` observations and return the log-likelihood."""
    y = loops.observations(model, length)
    ready, hand = loops.pfkit_models()[model], loops.numpy_models()[model]
    plain = PlainPython(hand, ready.state_dim, dtype)
    seeds = iter(range(1 << 60))

    def pf(m: Any, lse: str) -> Callable[[], float]:
        def call() -> float:
            f = pfkit.ParticleFilter(m, n, lse=lse, rng=next(seeds), ess_threshold=threshold, dtype=dtype)
            return f.run(y, store=()).log_likelihood

        return call

    found: dict[str, Callable[[], float]] = {
        "fuse": pf(ready, "fuse"),
        "int": pf(ready, "int"),
        "python": pf(plain, "fuse"),
    }
    kind = np.dtype(dtype).type
    rng = np.random.default_rng(5)
    found["numpy"] = lambda: loops.numpy_loop(hand, y, n, threshold, rng, kind)
    try:
        loop, zero = loops.numba_loops()[model], np.zeros(1, kind)
        found["numba"] = lambda: loop(rng, y, n, threshold, zero)
    except ImportError:
        pass
    for package in filter_peers.installed() if peers and dtype == "float64" else ():
        call = filter_peers.peer(package, model, n, threshold, y)
        if call is not None:
            found[package] = call
    return found


def check(model: str, dtype: str, peers: bool = False) -> None:
    """Stop unless all contenders that report a likelihood estimate the same."""
    calls = contenders(model, 1000, 0.5, dtype, 50, peers)
    runs = {
        name: np.array([call() for _ in range(60)]) for name, call in calls.items() if not math.isnan(call())
    }
    mean = {name: float(np.log(np.mean(np.exp(v - v.max()))) + v.max()) for name, v in runs.items()}
    for name, values in runs.items():
        z = np.exp(values - values.max())
        se = float(z.std(ddof=1) / z.mean() / np.sqrt(len(z)))
        if abs(mean[name] - mean["fuse"]) > 5 * np.hypot(se, 0.05):
            sys.exit(
                f"{model}, {dtype}: {name} estimates {mean[name]:.3f}, fuse {mean['fuse']:.3f}: nothing timed"
            )


def timed(calls: dict[str, Callable], clock: Callable[[], float], seconds: float) -> dict[str, float]:
    """Median seconds a call, contenders in turn."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    start, rounds = time.perf_counter(), 0
    names = list(calls)
    while rounds < 3 or time.perf_counter() - start < seconds:
        shift = rounds % len(names)
        for name in names[shift:] + names[:shift]:
            before = clock()
            calls[name]()
            taken[name].append(clock() - before)
        rounds += 1
    return {name: statistics.median(values) for name, values in taken.items()}


def steps_for(n: int) -> int:
    return int(min(1000, max(25, 4_000_000 // n)))


def measure(args: argparse.Namespace, rows: list[dict[str, Any]], save: Callable[[], None]) -> None:
    """Time every line of the table: its figures go into `rows`, and `save` is called."""
    for model in args.models:
        for dtype in args.dtypes:
            check(model, dtype, args.peers)
            for threshold in (1.0,) if args.every else (0.5,) if args.half else (1.0, 0.5):
                for n in args.sizes:
                    length = steps_for(n)
                    times = timed(
                        contenders(model, n, threshold, dtype, length, args.peers),
                        CLOCKS[args.clock],
                        args.seconds,
                    )
                    for name, seconds in times.items():
                        rows.append(
                            {
                                "model": model,
                                "dtype": dtype,
                                "threshold": threshold,
                                "n": n,
                                "contender": name,
                                "us_per_step": seconds / length * 1e6,
                                "ns_per_particle": seconds / length / n * 1e9,
                            }
                        )
                    print(line(model, dtype, threshold, n, length, times), flush=True)
                    save()


def line(model: str, dtype: str, threshold: float, n: int, length: int, times: dict[str, float]) -> str:
    ns = {name: seconds / length / n * 1e9 for name, seconds in times.items()}
    text = "  ".join(f"{name} {value:.2f}" for name, value in ns.items())
    ratio = (
        f"  numba/fuse {ns['numba'] / ns['fuse']:.2f} numba/int {ns['numba'] / ns['int']:.2f}"
        if "numba" in ns
        else ""
    )
    return (
        f"{model:22s} {dtype} {'every step' if threshold >= 1 else 'ESS < N/2 '} N={n:<8d} {text}{ratio}"
        f" numpy/fuse {ns['numpy'] / ns['fuse']:.1f} numpy/python {ns['numpy'] / ns['python']:.1f}"
    )


def primitives(clock: Callable[[], float]) -> list[dict[str, Any]]:
    """What the parts of a step take, against NumPy, N = 1e5, nanoseconds a particle."""
    n = 100_000
    rows = []
    rng = np.random.default_rng(1)
    for dtype in (np.float64, np.float32):
        out, x = np.empty(n, dtype), rng.standard_normal(n).astype(dtype)
        log_w = (-0.5 * (x * 2) ** 2).astype(dtype)
        uneven = np.exp(log_w - log_w.max())
        gathered = np.empty((1, n), dtype)
        parents = np.empty(n, np.int64)
        weights = {"evenly": np.ones(n, dtype) / n, "unevenly": (uneven / uneven.sum()).astype(dtype)}
        pairs: dict[str, dict[str, Callable[[], Any]]] = {
            "normals": {
                "pfkit": lambda out=out: _cpu.random_fill(out, "normal", 1, 2, 0),
                "numpy": lambda out=out, dtype=dtype: rng.standard_normal(out=out, dtype=dtype),
            },
            "weights and ESS": {
                "pfkit": lambda log_w=log_w: pfkit.log_normalize(log_w),
                "numpy": lambda log_w=log_w: numpy_normalize(log_w),
            },
        }
        for how, w in weights.items():
            ints = _cpu.quantize(w)

            def ours(ints=ints, x=x, gathered=gathered, parents=parents):
                _cpu.systematic_move(ints, x[None], 3 << 62, parents, gathered)

            def from_floats(w=w, ours=ours):
                ours(_cpu.quantize(w))

            def theirs(w=w, x=x):
                return x[np.searchsorted(np.cumsum(w), (np.arange(n) + 0.25) / n).clip(max=n - 1)]

            ours()
            places = theirs(x=np.arange(n))
            if np.abs(parents - places).max() > 1e-3 * n or not np.array_equal(gathered[0], x[parents]):
                sys.exit(f"systematic resampling, {how} weighted: not the ancestors that NumPy finds")

            name = f"systematic and gather, {how} weighted"
            pairs[name] = {"pfkit": ours, "numpy": theirs}
            pairs[f"{name}, from floats"] = {"pfkit": from_floats, "numpy": theirs}
        for name, calls in pairs.items():
            times = timed(calls, clock, 0.5)
            row = {k: v / n * 1e9 for k, v in times.items()}
            rows.append(
                {
                    "primitive": name,
                    "dtype": np.dtype(dtype).name,
                    **row,
                    "ratio": row["numpy"] / row["pfkit"],
                }
            )
    return rows


def numpy_normalize(x: np.ndarray) -> tuple[np.ndarray, float]:
    m = x.max()
    w = np.exp(x - m)
    w /= w.sum()
    return w, 1.0 / float(w @ w)


#: np.exp of the machine of the reference figures, on which the numba loop takes 18 to 25 ns a particle.
REFERENCE_EXP, REFERENCE_NUMBA = 6.5, 25.0


def numba_health(rows: list[dict[str, Any]]) -> dict[str, float] | None:
    """Whether the numba loop is a fair opponent here: its ns a particle (local level, float64, every step),
    and that over its share of this machine's np.exp; at most 25 the one, or 1.3 the other, is fair.
    """
    found = [
        r["ns_per_particle"]
        for r in rows
        if (r["model"], r["dtype"], r["contender"]) == ("local level", "float64", "numba")
        and r["threshold"] >= 1
        and r["n"] in (10_000, 100_000)
    ]
    if not found:
        return None
    x, out = -np.random.default_rng(3).random(10_000) * 20, np.empty(10_000)
    exp = timed({"exp": lambda: [np.exp(x, out) for _ in range(100)]}, time.perf_counter, 0.3)["exp"] * 1e3
    worst = max(found)
    return {
        "numba_ns": worst,
        "exp_ns": exp,
        "over_share_of_exp": worst / (exp * REFERENCE_NUMBA / REFERENCE_EXP),
    }


def together(args: argparse.Namespace) -> list[dict[str, Any]]:
    """1000 filters of 1000 particles and 100 steps in one call against one filter of 100 000, and two threads
    against two processes, ns a particle and step.
    """
    clock, rows = time.perf_counter, []
    model, seeds = loops.pfkit_models()["local level"], iter(range(1 << 60))
    y = loops.observations("local level", 100)
    for dtype in args.dtypes:
        for lse in ("fuse", "int"):

            def one(n_threads: int = 1, lse: str = lse, dtype: str = dtype) -> Any:
                pf = pfkit.ParticleFilter(
                    model,
                    100_000,
                    lse=lse,
                    rng=next(seeds),
                    ess_threshold=1,
                    dtype=dtype,
                    n_threads=n_threads,
                )
                return pf.run(y, store=())

            def many(n_threads: int = 1, lse: str = lse, dtype: str = dtype) -> Any:
                bank = pfkit.FilterBank(
                    model,
                    1000,
                    n_filters=1000,
                    lse=lse,
                    rng=next(seeds),
                    ess_threshold=1,
                    dtype=dtype,
                    n_threads=n_threads,
                )
                return bank.run(y, store=())

            times = timed({"single": one, "bank": many}, clock, args.seconds)
            row = {"single": times["single"] / 1e7 * 1e9, "bank": times["bank"] / 1e8 * 1e9}
            row["bank_over_single"] = row["bank"] / row["single"]
            for name, call, size in (("bank", many, 1e8), ("single", one, 1e7)):
                both, threads = two_processes(call, lambda call=call: call(2), clock)
                row[f"{name}_two_processes"], row[f"{name}_two_threads"] = (
                    both / size * 1e9,
                    threads / size * 1e9,
                )
                row[f"{name}_threads_share"] = both / threads / 2
            rows.append({"dtype": dtype, "lse": lse, **row})
            text = "  ".join(f"{k} {v:.2f}" for k, v in row.items())
            print(f"{dtype} {lse:5s} {text}", flush=True)
    return rows


def two_processes(
    alone: Callable[[], Any], threaded: Callable[[], Any], clock: Callable
) -> tuple[float, float]:
    """Median seconds of one call while a second process makes the same calls, and of the threaded call
    alone, in turns.
    """
    pairs, repeats = [], 2
    for _ in range(3):
        ready, go = os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:  # as busy as its parent, until it is told to stop
            alone()
            os.write(ready[1], b"1")
            os.set_blocking(go[0], False)
            while True:
                alone()
                try:
                    if os.read(go[0], 1):
                        os._exit(0)
                except BlockingIOError:
                    pass
        os.read(ready[0], 1)
        before = clock()
        for _ in range(repeats):
            alone()
        both = (clock() - before) / repeats
        os.write(go[1], b"1")
        os.waitpid(child, 0)
        for end in (*ready, *go):
            os.close(end)
        before = clock()
        for _ in range(repeats):
            threaded()
        pairs.append((both, (clock() - before) / repeats))
    return statistics.median(p[0] for p in pairs), statistics.median(p[1] for p in pairs)


def lse_sweep(args: argparse.Namespace) -> list[dict[str, Any]]:
    """The LSE kernel changed inside the running filter, beside the kernel alone."""
    rows = []
    clock = CLOCKS[args.clock]
    for n in args.sizes:
        y, model = loops.observations("local level", steps_for(n)), loops.pfkit_models()["local level"]

        def run(lse: str, n: int = n, y: np.ndarray = y, model: Any = model) -> Callable[[], Any]:
            return lambda: pfkit.ParticleFilter(model, n, lse=lse, rng=1, ess_threshold=1).run(y, store=())

        whole = timed({lse: run(lse) for lse in KERNELS}, clock, args.seconds)
        x = np.random.default_rng(0).standard_normal(n) * 2
        alone = timed(
            {lse: (lambda lse=lse, x=x: [pfkit.logsumexp(x, lse=lse) for _ in range(20)]) for lse in KERNELS},
            clock,
            0.2,
        )
        for lse in KERNELS:
            rows.append(
                {
                    "n": n,
                    "lse": lse,
                    "filter_ns_per_particle": whole[lse] / len(y) / n * 1e9,
                    "lse_ns_per_particle": alone[lse] / 20 / n * 1e9,
                }
            )
    return rows


def markdown(result: dict[str, Any]) -> str:
    """The README's table of a result: float64, resampling at every step, N = 1000 and 100 000."""
    m, rows = result["machine"], result["filters"]
    found: dict[tuple[str, int], dict[str, float]] = {}
    for r in rows:
        if r["dtype"] == "float64" and r["threshold"] >= 1 and r["n"] in (1_000, 100_000):
            found.setdefault((r["model"], r["n"]), {})[r["contender"]] = r["ns_per_particle"]
    names = ("fuse", "int", "python", "numba", "numpy", "particles")
    lines = [
        "Nanoseconds a particle and step of whole filters, one thread, float64, systematic resampling at",
        f"every step ({m['processor']}, {m['simd_level']}; NumPy {m['numpy']}). `fuse` and `int`: pfkit with",
        "a ready model; `python`: pfkit with the model in NumPy; `numba` and `numpy`: loops written",
        "by hand (apps/filter_loops.py); `particles`: the package of that name.",
        "",
        "| model | N | " + " | ".join(f"`{x}`" for x in (*names, "numba / fuse", "numpy / fuse")) + " |",
        "|" + "---|" * (len(names) + 4),
    ]
    for (model, n), ns in found.items():
        cells = [f"{ns[name]:.1f}" if name in ns else "" for name in names]
        ratios = [f"{ns[name] / ns['fuse']:.1f}" if name in ns else "" for name in ("numba", "numpy")]
        lines.append(f"| {model} | {table_size(n)} | " + " | ".join(cells + ratios) + " |")
    return "\n".join(lines)


def table_size(n: int) -> str:
    return f"1e{round(math.log10(n))}"


def picture(rows: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    models = sorted({r["model"] for r in rows})
    figure, axes = plt.subplots(1, len(models), figsize=(4.2 * len(models), 3.6), squeeze=False, sharey=True)
    for axis, model in zip(axes[0], models, strict=True):
        for name in ("numpy", "python", "numba", "fuse", "int"):
            found = [
                r for r in rows if (r["model"], r["contender"], r["dtype"]) == (model, name, rows[0]["dtype"])
            ]
            found = [r for r in found if r["threshold"] >= 1]
            if found:
                axis.loglog([r["n"] for r in found], [r["ns_per_particle"] for r in found], "o-", label=name)
        axis.set_title(f"{model}, {rows[0]['dtype']}, every step")
        axis.set_xlabel("particles")
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("ns a particle and step")
    if axes[0][-1].lines:
        axes[0][-1].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m apps.bench_filter",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--dtypes", nargs="+", choices=("float64", "float32"), default=("float64", "float32"))
    one = parser.add_mutually_exclusive_group()
    one.add_argument("--every", action="store_true", help="only filters that resample at every step")
    one.add_argument("--half", action="store_true", help="only filters that resample when ESS < N/2")
    parser.add_argument("--seconds", type=float, default=1.5, help="time for each line of the table")
    parser.add_argument("--clock", choices=tuple(CLOCKS), default="wall")
    parser.add_argument("--quick", action="store_true", help="N = 10000, float64, every step")
    parser.add_argument(
        "--lse-sweep", action="store_true", help="only the sweep over LSE kernels in the filter"
    )
    parser.add_argument("--peers", action="store_true", help="also the filters of other packages, float64")
    parser.add_argument("--together", action="store_true", help="only the bank of filters and the threads")
    parser.add_argument("--out", type=Path, default=Path("out"))
    args = parser.parse_args(arguments)
    if args.quick:
        args.sizes, args.dtypes, args.every, args.seconds = (10_000,), ("float64",), True, 0.3
    if min(args.sizes) < 1:
        parser.error("--sizes must be positive")
    args.out.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {"machine": machine(), "clock": args.clock}
    if args.lse_sweep:
        result["lse_sweep"] = lse_sweep(args)
        head = ["N", "kernel", "filter", "LSE alone"]
        cells = [
            [f"{r['n']}", r["lse"], f"{r['filter_ns_per_particle']:.2f}", f"{r['lse_ns_per_particle']:.2f}"]
            for r in result["lse_sweep"]
        ]
        print(table(head, cells))
        name = "bench_filter_lse"
    elif args.together:
        result["together"] = together(args)
        name = "bench_filter_together"
    else:
        print(f"ns a particle and step, {args.clock} clock")
        result["primitives"] = primitives(CLOCKS[args.clock])
        for r in result["primitives"]:
            figures = f"pfkit {r['pfkit']:.2f} numpy {r['numpy']:.2f} ({r['ratio']:.1f}x)"
            print(f"{r['primitive']:40s} {r['dtype']} {figures}")
        result["filters"] = []
        measure(args, result["filters"], lambda: write(args.out / "bench_filter.json", result))
        result["numba_health"] = numba_health(result["filters"])
        if result["numba_health"]:
            print("numba loop:", result["numba_health"])
        name = "bench_filter"
        try:
            picture(result["filters"], args.out / f"{name}.png")
        except ImportError:
            print("no matplotlib: no picture")
    path = args.out / f"{name}.json"
    write(path, result)
    print(path)


def write(path: Path, result: dict[str, Any]) -> None:
    path.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
