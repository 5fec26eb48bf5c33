"""Log-sum-exp kernels against NumPy, SciPy and torch: nanoseconds an element, and how wrong each one is.

    python -m apps.bench_lse                          # about two minutes; tables, out/bench_lse.json and .png
    python -m apps.bench_lse --quick                  # a few seconds, coarse
    python -m apps.bench_lse --sizes 100000 --dtypes float32
    python -m apps.bench_lse --markdown out/bench_lse.json      # the README's table from a run's JSON
    python -m apps.bench_lse --device cuda            # the CUDA kernels, on a machine with a GPU

One thread. All contenders take turns in one run; the figure is the median over the rounds, the Python call
included. `numpy` is the expression one writes by hand, m = x.max(); m + log(exp(x - m).sum()); `np.max` on
the same array is the floor: one read and nothing else. Before anything is timed every
result is compared with the exact value, and the run stops if one does not match.
"""

from __future__ import annotations

import os

for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")  # before NumPy is imported: BLAS reads it once

import argparse  # noqa: E402
import json  # noqa: E402
import sys  # noqa: E402
import textwrap  # noqa: E402
from collections.abc import Callable  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402

import pfkit  # noqa: E402

from .benchmarking import interleaved, machine, table  # noqa: E402

OURS = ("fuse", "int", "int-pairwise")
SIZES = (100, 1_000, 10_000, 100_000, 1_000_000)
#: Standard deviation of normal log-weights: from nearly equal weights to all but a few underflowing.
SPREADS = {"narrow": 0.1, "ordinary": 5.0, "wide": 50.0, "underflowing": 1000.0}
COLUMNS = (*OURS, "numpy", "torch", "scipy", "np.max")

Call = Callable[[np.ndarray], Any]


# --- what is timed ---


def numpy_expression(x: np.ndarray) -> Any:
    m = x.max()
    return m + np.log(np.exp(x - m).sum())


def numpy_normalize(x: np.ndarray) -> tuple[np.ndarray, Any, Any]:
    """Weights, log-sum-exp and effective sample size as one writes them by hand."""
    m = x.max()
    w = np.exp(x - m)
    total = w.sum()
    w /= total
    return w, m + np.log(total), 1.0 / np.sum(w**2)


def torch_logsumexp() -> Call | None:
    """torch.logsumexp of the array's memory on one thread; None without torch."""
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(1)
    return lambda x: torch.logsumexp(torch.from_numpy(x), 0)


def contenders() -> dict[str, Call]:
    from scipy.special import logsumexp as scipy_logsumexp

    found: dict[str, Call] = {name: (lambda x, lse=name: pfkit.logsumexp(x, lse=lse)) for name in OURS}
    found["numpy"] = numpy_expression
    torch = torch_logsumexp()
    if torch is not None:
        found["torch"] = torch
    found["scipy"] = scipy_logsumexp
    found["np.max"] = np.max
    return found


# --- inputs and exact values ---


def sample(n: int, dtype: str, spread: float, seed: int) -> np.ndarray:
    x = np.random.default_rng(seed).standard_normal(n, dtype=dtype)
    x *= spread
    return x


def exact(x: np.ndarray) -> Any:
    """The log-sum-exp in long double, or with mpmath where that has no more bits than float64."""
    m = x.max()
    if np.finfo(np.longdouble).eps < 1e-18:
        total = np.longdouble(0)
        for k in range(0, x.size, 1 << 12):
            total += np.exp(x[k : k + (1 << 12)].astype(np.longdouble) - np.longdouble(m)).sum()
        return np.longdouble(m) + np.log(total)
    import mpmath

    with mpmath.workdps(30):
        terms = x[np.isfinite(x)].tolist()
        return mpmath.mpf(float(m)) + mpmath.log(
            mpmath.fsum(mpmath.exp(mpmath.mpf(v) - float(m)) for v in terms)
        )


def allowed_error(name: str, x: np.ndarray, truth: float) -> float:
    """What a result may differ from the exact one: our bound and a rounding; 64 roundings for the others."""
    rounding = float(np.spacing(np.array(max(1.0, abs(truth), abs(float(x.max()))), x.dtype)))
    if name not in OURS:
        return 64 * rounding
    kernel = next(k for k in pfkit.kernels() if k.name == name and k.device == "cpu")
    return (kernel.error_bound(x.size, x.dtype) or 0.0) + rounding


def check(name: str, call: Call, x: np.ndarray) -> None:
    """Stop the run if a contender's result is not the log-sum-exp."""
    if name == "np.max":
        return
    truth = exact(x)
    error = abs(float(float(call(x)) - truth))
    if not error <= allowed_error(name, x, float(truth)):
        sys.exit(f"{name} is off by {error:.2e} nats for {x.size} {x.dtype} terms: nothing is timed")


def errors(calls: dict[str, Call], n: int, dtype: str, spread: float, inputs: int) -> dict[str, list[float]]:
    """Absolute errors in nats over `inputs` arrays."""
    found: dict[str, list[float]] = {name: [] for name in calls if name != "np.max"}
    for seed in range(inputs):
        x = sample(n, dtype, spread, 1000 + seed)
        truth = exact(x)
        for name, values in found.items():
            values.append(abs(float(float(calls[name](x)) - truth)))
    return found


# --- the measurements ---


def measure_speed(
    calls: dict[str, Call], n: int, dtype: str, args: argparse.Namespace
) -> list[dict[str, Any]]:
    """Time and error of every contender for each spread."""
    rows = []
    for spread in args.spreads:
        x = sample(n, dtype, SPREADS[spread], 0)
        for name, call in calls.items():
            check(name, call, x)
        wrong = errors(calls, n, dtype, SPREADS[spread], max(5, min(args.inputs, 2_000_000 // n)))
        times = interleaved({name: _bound(call, x) for name, call in calls.items()}, args.seconds)
        for name, timing in times.items():
            row = _row(dtype, n, name, timing) | {"spread": spread}
            if name in wrong:
                row["p95_error"] = _digits(float(np.quantile(wrong[name], 0.95)))
                row["max_error"] = _digits(max(wrong[name]))
            rows.append(row)
    return rows


def measure_robust(calls: dict[str, Call], args: argparse.Namespace) -> list[dict[str, Any]]:
    """What -inf and extreme spreads cost a kernel, against a plain row of the same length in the same run."""
    rows = []
    n = max(n for n in args.sizes if n <= 100_000) if min(args.sizes) <= 100_000 else min(args.sizes)
    for dtype in args.dtypes:
        plain = sample(n, dtype, 5.0, 0)
        tenth, leading = plain.copy(), plain.copy()
        tenth[np.random.default_rng(1).random(n) < 0.1] = -np.inf
        leading[: n // 2] = -np.inf
        kinds = {
            "plain": plain,
            "a tenth -inf": tenth,
            "first half -inf": leading,
            "spread 1000": sample(n, dtype, 1000.0, 0),
            "all -inf": np.full(n, -np.inf, dtype),
        }
        for name, call in calls.items():
            if name in ("np.max", "numpy"):  # the expression gives NaN for a row of -inf
                continue
            times = interleaved({kind: _bound(call, x) for kind, x in kinds.items()}, args.seconds)
            for kind, timing in times.items():
                overhead = timing.median / times["plain"].median - 1
                rows.append(_row(dtype, n, name, timing) | {"input": kind, "overhead": _digits(overhead)})
    return rows


def measure_normalize(n: int, dtype: str, seconds: float) -> list[dict[str, Any]]:
    """log_normalize against weights, log-sum-exp and ESS by hand."""
    x = sample(n, dtype, 5.0, 0)
    weights, log_norm, ess = numpy_normalize(x)
    calls: dict[str, Call] = {lse: (lambda x, lse=lse: pfkit.log_normalize(x, lse=lse)) for lse in OURS[:2]}
    for name, call in calls.items():
        found = call(x)
        close = abs(found[1] - log_norm) < 1e-4 and abs(found[2] / ess - 1) < 1e-3
        if not close or np.abs(found[0] - weights).max() > 1e-4 * weights.max():
            sys.exit(f"log_normalize with {name} does not match for {n} {dtype} terms: nothing is timed")
    calls["numpy"] = numpy_normalize
    times = interleaved({name: _bound(call, x) for name, call in calls.items()}, seconds)
    return [_row(dtype, n, name, timing) for name, timing in times.items()]


def _bound(call: Call, x: np.ndarray) -> Callable[[], Any]:
    return lambda: call(x)


def _row(dtype: str, n: int, name: str, timing: Any) -> dict[str, Any]:
    return {
        "dtype": dtype,
        "n": n,
        "kernel": name,
        "ns_per_element": _digits(timing.median / n * 1e9),
        "us_per_call": _digits(timing.median * 1e6),
        "us_low": _digits(timing.low * 1e6),
        "us_high": _digits(timing.high * 1e6),
        "rounds": timing.rounds,
    }


def _digits(value: float) -> float:
    """Four significant digits: more than a timing holds."""
    return float(f"{value:.4g}")


# --- what is printed and drawn ---


def cells(rows: list[dict[str, Any]], **wanted: Any) -> dict[str, dict[str, Any]]:
    """The rows that match, by kernel."""
    return {row["kernel"]: row for row in rows if all(row[key] == value for key, value in wanted.items())}


def error_text(value: float | None) -> str:
    return "-" if value is None else "0" if value == 0 else f"{value:.0e}"


def speed_tables(rows: list[dict[str, Any]], args: argparse.Namespace) -> str:
    text = []
    for dtype in args.dtypes:
        for spread in args.spreads:
            lines = []
            for n in args.sizes:
                found = cells(rows, dtype=dtype, spread=spread, n=n)
                names = [name for name in COLUMNS if name in found]
                lines.append([f"{n}", "ns"] + [f"{found[name]['ns_per_element']:.3f}" for name in names])
                for kind in ("p95", "max"):
                    errors = [error_text(found[name].get(f"{kind}_error")) for name in names]
                    lines.append(["", f"{kind} error", *errors])
            title = f"{dtype}, {spread} (sd {SPREADS[spread]:g}): ns an element; absolute error in nats"
            text.append(f"{title}\n{table(['n', '', *names], lines)}")
    return "\n\n".join(text)


def ratio_table(rows: list[dict[str, Any]], args: argparse.Namespace) -> str:
    """How many times as fast as each baseline, and how many times np.max."""
    lines, spread = [], "ordinary" if "ordinary" in args.spreads else args.spreads[0]
    baselines = [name for name in ("numpy", "torch", "scipy") if any(r["kernel"] == name for r in rows)]
    for dtype in args.dtypes:
        for n in args.sizes:
            found = cells(rows, dtype=dtype, spread=spread, n=n)
            for name in OURS:
                ours = found[name]["ns_per_element"]
                line = [f"{dtype} {n}", name] + [
                    f"{found[b]['ns_per_element'] / ours:.1f}" for b in baselines
                ]
                lines.append([*line, f"{ours / found['np.max']['ns_per_element']:.1f}"])
    header = ["dtype n", "kernel", *(f"x {name}" for name in baselines), "of np.max"]
    return (
        f"times as fast as (spread: {spread}); last column: times the time of np.max\n{table(header, lines)}"
    )


def robust_table(rows: list[dict[str, Any]]) -> str:
    kinds = list(dict.fromkeys(row["input"] for row in rows))
    lines = []
    for dtype, name in dict.fromkeys((row["dtype"], row["kernel"]) for row in rows):
        found = [
            next(r for r in rows if (r["dtype"], r["kernel"], r["input"]) == (dtype, name, k)) for k in kinds
        ]
        times = [f"{row['ns_per_element']:.3f} ({row['overhead']:+.0%})" for row in found]
        lines.append([dtype, name, times[0].partition(" ")[0], *times[1:]])
    n = rows[0]["n"]
    return f"robust path, n = {n}: ns an element (against plain)\n{table(['dtype', 'kernel', *kinds], lines)}"


def normalize_table(rows: list[dict[str, Any]]) -> str:
    lines = []
    for dtype, n in sorted({(row["dtype"], row["n"]) for row in rows}):
        found = cells(rows, dtype=dtype, n=n)
        theirs = found["numpy"]["ns_per_element"]
        times = [f"{found[name]['ns_per_element']:.3f}" for name in (*OURS[:2], "numpy")]
        ratios = [f"{theirs / found[name]['ns_per_element']:.1f}" for name in OURS[:2]]
        lines.append([dtype, f"{n}", *times, *ratios])
    header = ["dtype", "n", *OURS[:2], "numpy", *(f"{name}: x numpy" for name in OURS[:2])]
    return f"log_normalize (weights, log-sum-exp, ESS): ns an element\n{table(header, lines)}"


def call_table(rows: list[dict[str, Any]], args: argparse.Namespace) -> str:
    n, lines = min(args.sizes), []
    for dtype in args.dtypes:
        found = cells(rows, dtype=dtype, n=n, spread=args.spreads[0])
        names = [name for name in COLUMNS if name in found]
        lines.append([dtype, "", *(f"{found[name]['us_per_call']:.2f}" for name in names)])
    return f"microseconds a call, n = {n}\n{table(['dtype', '', *names], lines)}"


def markdown(result: dict[str, Any]) -> str:
    """The README's table: ns an element and the largest error, ordinary spread."""
    rows, about = result["speed"], result["machine"]
    names = [name for name in COLUMNS if any(row["kernel"] == name for row in rows)]
    torch = f", torch {about['torch']}" if about["torch"] else ""
    about_text = (
        f"Nanoseconds an element, Python call included, one thread ({about['processor']}, "
        f"{about['simd_level']}; NumPy {about['numpy']}, SciPy {about['scipy']}{torch}), normal log-weights "
        "of standard deviation 5; in brackets the largest error in nats over many inputs. `numpy` is "
        "`m + log(exp(x - m).sum())`, `np.max` the floor."
    )
    said = [
        *textwrap.wrap(about_text, 110),
        "",
        "| dtype | N | " + " | ".join(f"`{name}`" for name in names) + " |",
        "|---|---|" + "---|" * len(names),
    ]
    for dtype in sorted({row["dtype"] for row in rows}):
        for n in sorted({row["n"] for row in rows}):
            found = cells(rows, dtype=dtype, n=n, spread="ordinary")
            best = min(found[name]["ns_per_element"] for name in names if name != "np.max")
            texts = []
            for name in names:
                time = f"{found[name]['ns_per_element']:.2f}"
                time = f"**{time}**" if found[name]["ns_per_element"] == best else time
                error = found[name].get("max_error")
                texts.append(time if error is None else f"{time} ({error_text(error)})")
            said.append(f"| {dtype} | {n:.0e} | ".replace("e+0", "e") + " | ".join(texts) + " |")
    return "\n".join(said)


def draw(result: dict[str, Any], path: Path) -> None:
    """Time against size for each dtype, and error against spread, as one PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    rows = result["speed"]
    dtypes = list(dict.fromkeys(row["dtype"] for row in rows))
    spreads = list(dict.fromkeys(row["spread"] for row in rows))
    shown = "ordinary" if "ordinary" in spreads else spreads[0]
    names = [name for name in COLUMNS if any(row["kernel"] == name for row in rows)]
    colours = {name: f"C{k}" for k, name in enumerate(names)}
    figure, axes = plt.subplots(
        2, len(dtypes), figsize=(5.2 * len(dtypes), 7.6), squeeze=False, layout="constrained"
    )
    for column, dtype in enumerate(dtypes):
        top, bottom = axes[:, column]
        for name in names:
            line = [r for r in rows if (r["dtype"], r["spread"], r["kernel"]) == (dtype, shown, name)]
            style = {"color": colours[name], "linestyle": "-" if name in OURS else "--", "marker": "."}
            top.loglog([r["n"] for r in line], [r["ns_per_element"] for r in line], label=name, **style)
            largest = max(r["n"] for r in line)
            errors = [r for r in rows if (r["dtype"], r["n"], r["kernel"]) == (dtype, largest, name)]
            if "max_error" in errors[0]:
                values = [max(r["max_error"], 1e-18) for r in errors]
                bottom.semilogy([r["spread"] for r in errors], values, label=name, **style)
        top.set(title=f"{dtype}, spread: {shown}", xlabel="terms", ylabel="ns an element")
        bottom.set(title=f"{dtype}, {largest} terms", ylabel="largest error, nats")
        for axis in (top, bottom):
            axis.grid(alpha=0.3)
    axes[0, 0].legend(fontsize="small")
    about = result["machine"]
    figure.suptitle(
        f"log-sum-exp, one thread: {about['processor']}, {about['simd_level']}", fontsize="medium"
    )
    figure.savefig(path, dpi=110)
    plt.close(figure)


# --- the command ---


def as_json(result: dict[str, Any]) -> str:
    """JSON with one measurement a line, so that two runs can be compared line by line."""
    parts = []
    for key, value in result.items():
        if isinstance(value, list):
            value_text = "[\n  " + ",\n  ".join(json.dumps(row) for row in value) + "\n ]"
        else:
            value_text = json.dumps(value)
        parts.append(f" {json.dumps(key)}: {value_text}")
    return "{\n" + ",\n".join(parts) + "\n}"


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m apps.bench_lse",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="numbers of terms")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "float64"], choices=["float32", "float64"])
    parser.add_argument("--spreads", nargs="+", default=list(SPREADS), choices=list(SPREADS))
    parser.add_argument(
        "--seconds", type=float, default=0.5, help="timing of one set of contenders (default 0.5)"
    )
    parser.add_argument("--inputs", type=int, default=100, help="arrays the errors are taken over, at most")
    parser.add_argument("--quick", action="store_true", help="small sizes, few rounds: does it run?")
    parser.add_argument(
        "--out", type=Path, default=Path("out"), help="folder of bench_lse.json and bench_lse.png"
    )
    parser.add_argument(
        "--markdown", type=Path, metavar="JSON", help="print the README's table of an earlier run"
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    args = parser.parse_args(argv)
    if min(args.sizes) < 1:
        parser.error(f"--sizes must be positive, got {min(args.sizes)}")
    if args.quick:
        args.sizes = [n for n in args.sizes if n <= 10_000] or [min(args.sizes)]
        args.seconds, args.inputs = min(args.seconds, 0.02), min(args.inputs, 5)
    return args


def run(args: argparse.Namespace) -> dict[str, Any]:
    """All measurements, as written to the JSON file."""
    calls = contenders()
    speed, normalize = [], []
    for n in sorted(args.sizes):
        for dtype in sorted(args.dtypes):
            speed += measure_speed(calls, n, dtype, args)
            normalize += measure_normalize(n, dtype, args.seconds)
    return {
        "machine": machine(),
        "settings": {"threads": 1, "seconds": args.seconds, "spreads": {k: SPREADS[k] for k in args.spreads}},
        "speed": speed,
        "robust": measure_robust(calls, args),
        "normalize": normalize,
    }


def main(argv: list[str] | None = None) -> None:
    words = sys.argv[1:] if argv is None else argv
    device = argparse.ArgumentParser(add_help=False)
    device.add_argument("--device")
    if device.parse_known_args(words)[0].device == "cuda":  # which has arguments of its own
        try:
            from . import bench_lse_cuda
        except ImportError as error:
            sys.exit(f"--device cuda: {error}")
        sys.exit(bench_lse_cuda.main(words))
    args = arguments(words)
    if args.markdown:
        print(markdown(json.loads(args.markdown.read_text())))
        return
    result = run(args)
    print(", ".join(f"{key} {value}" for key, value in result["machine"].items()), end="\n\n")
    print(speed_tables(result["speed"], args), end="\n\n")
    for text in (
        ratio_table(result["speed"], args),
        robust_table(result["robust"]),
        normalize_table(result["normalize"]),
        call_table(result["speed"], args),
    ):
        print(text, end="\n\n")
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "bench_lse.json"
    path.write_text(as_json(result) + "\n")
    print(f"wrote {path}")
    try:
        draw(result, args.out / "bench_lse.png")
        print(f"wrote {args.out / 'bench_lse.png'}")
    except ImportError:
        print("no picture: matplotlib is not installed (pip install 'pfkit[plot]')")


if __name__ == "__main__":
    main()
