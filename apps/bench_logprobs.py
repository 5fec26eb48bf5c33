"""Log-probabilities and cross-entropy on the GPU: time, scratch memory and error beside other ways.

    python -m apps.bench_logprobs [token linear training budgets helion] [--rows 4096 8192] [--json FILE]

Each word is one part; none of them means all:

token     log-probabilities of tokens from logits: gather minus logsumexp, a loop over rows, log_softmax and
          gather, cross_entropy, torch.compile, pfkit.token_log_probs
linear    cross-entropy of a last layer, forward: torch eager, torch.compile, Liger, cut-cross-entropy,
          torch's linear_cross_entropy, pfkit.linear_cross_entropy
training  the same, forward and backward
budgets   pfkit.linear_cross_entropy at several scratch budgets; for float32 inputs beside torch eager
helion    a Helion kernel of the same name beside torch and pfkit. Its file is named by PFKIT_HELION_KERNEL
          (a module with fused_linear_cross_entropy(inputs, weight, target)), its configurations by
          PFKIT_HELION_CONFIGS, a JSON file {"fwd": {...}, "bwd": {...}} per dtype; without that Helion tunes.

Contenders take turns; times are medians of CUDA events in milliseconds, in the token part of the replays of
CUDA graphs over two inputs. Before it is timed, a contender's result is compared with float64 of the same
logits (of hidden @ weight), and one that is off is not timed. Scratch is the peak of torch's allocator beyond
inputs and returned gradients, in MB of 1e6 bytes; workspaces of the product library exist before and are not
in it. A contender that is not installed or fails is listed with the reason.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from .devices import no_cuda

HIDDEN, VOCABULARY = 4096, 128256
ROWS = (4096, 8192, 16384)
TOKEN_SHAPES = (
    ("float32", 2048, 128256),
    ("float32", 4096, 32000),
    ("float32", 4096, 50257),
    ("float32", 2048, 256000),
)
ENTROPY_SHAPE = ("bfloat16", 8192, 151936, True)
PRECISIONS = ("bfloat16", "float32", "tf32")
RESULTS = Path(__file__).resolve().parent.parent / "benchmarks" / "results" / "logprobs_h200.json"
FORWARD_BUDGETS = {"8 MiB": 8 << 20, "9 MB": 9 * 10**6, "20 MB": 20 * 10**6, "40 MB": 40 * 10**6}
TRAINING_BUDGETS = {"9 MB": 9 * 10**6, "200 MB": 2 * 10**8, "1 GiB": 1 << 30, "2.2 GiB": int(2.2 * 2**30)}
FLOAT32_BUDGETS = {"1.15 GB": 1_150_000_000, "2.17 GB": 2_170_000_000, "2.4 GB": 2_400_000_000}  # 4096 rows
COMPILING = ("torch.compile", "Liger", "cut-cross-entropy", "Helion kernel")
ERRORS = ("loss_error", "dx_error", "dw_error")
LARGEST_ERROR = {"bfloat16": 2e-2, "tf32": 2e-3, "float32": 2e-5}  # of a mean loss of about 12 nats


# --- measuring ---


def event_times(
    contenders: dict[str, Callable[[], Any]], rounds: int = 5, seconds: float = 4.0
) -> dict[str, float]:
    """Median milliseconds of each contender, taking turns for at most about `seconds`."""
    import time

    import torch

    taken: dict[str, list[float]] = {name: [] for name in contenders}
    begin = time.perf_counter()
    for _ in range(rounds):
        for name, call in contenders.items():
            a, b = (torch.cuda.Event(enable_timing=True) for _way in range(2))
            a.record()
            call()
            b.record()
            b.synchronize()
            taken[name].append(a.elapsed_time(b))
        if time.perf_counter() - begin > seconds:
            break
    return {name: statistics.median(times) for name, times in taken.items()}


def replay_times(contenders: dict[str, list[Callable[[], Any]]], rounds: int = 9) -> dict[str, float]:
    """Median milliseconds of one call of each contender: its calls are captured in a CUDA graph, three times
    over, and the graphs take turns. So no host time is in them, and what another contender left in the cache
    weighs little.
    """
    import torch

    graphs: dict[str, tuple[Any, list[Any]]] = {}
    for name, calls in contenders.items():
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for call in calls:
                call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = [call() for call in calls * 3]
        graphs[name] = (graph, results)
    times = event_times({name: graph.replay for name, (graph, _) in graphs.items()}, rounds)
    return {name: ms / (3 * len(contenders[name])) for name, ms in times.items()}


def scratch(call: Callable[[], Any]) -> tuple[Any, float]:
    """A call's result, and the peak MB it allocates beyond what lives before it and what it returns."""
    import torch

    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = call()
    torch.cuda.synchronize()
    kept = torch.cuda.memory_allocated() - before
    peak = torch.cuda.max_memory_allocated() - before
    return result, (peak - kept) / 1e6


def table(title: str, header: list[str], rows: list[list[Any]]) -> None:
    print(f"\n{title}")
    cells = [header] + [[f"{c:.3f}" if isinstance(c, float) else str(c) for c in row] for row in rows]
    widths = [max(len(row[k]) for row in cells) for k in range(len(header))]
    for row in cells:
        print("  ".join(c.ljust(w) if k == 0 else c.rjust(w) for k, (c, w) in
                        enumerate(zip(row, widths, strict=True))), flush=True)  # fmt: skip


# --- tokens ---


def token_contenders(entropy: bool) -> dict[str, Callable[[Any, Any], Any]]:
    import torch

    import pfkit

    def gathered(x: Any, t: Any) -> Any:
        x = x.float()
        return x.gather(1, t[:, None])[:, 0] - torch.logsumexp(x, 1)

    def loop(x: Any, t: Any) -> Any:  # one row at a time, to hold one row's softmax only
        out = [torch.log_softmax(row.float(), 0)[k] for row, k in zip(x, t, strict=True)]
        return torch.stack(out)

    def whole(x: Any, t: Any) -> Any:
        return torch.log_softmax(x.float(), 1).gather(1, t[:, None])[:, 0]

    def loss(x: Any, t: Any) -> Any:
        return -torch.nn.functional.cross_entropy(x.float(), t, reduction="none")

    def with_entropy(x: Any, t: Any) -> Any:
        logp = torch.log_softmax(x.float(), 1)
        return logp.gather(1, t[:, None])[:, 0], -(logp.exp() * logp).sum(1)

    if entropy:
        return {
            "log_softmax, entropy": with_entropy,
            "torch.compile": torch.compile(with_entropy, dynamic=False),
            "pfkit": lambda x, t: pfkit.token_log_probs(x, t, return_entropy=True),
        }
    return {
        "gather - logsumexp": gathered,
        "row loop": loop,
        "log_softmax, gather": whole,
        "cross_entropy": loss,
        "torch.compile": torch.compile(whole, dynamic=False),
        "pfkit": pfkit.token_log_probs,
    }


def token(found: dict[str, Any], arguments: argparse.Namespace) -> None:
    for dtype, rows, n, entropy in [(*shape, False) for shape in TOKEN_SHAPES] + [ENTROPY_SHAPE]:
        token_shape(found, dtype, rows, n, entropy)
        arguments.save()


def token_shape(found: dict[str, Any], dtype: str, rows: int, n: int, entropy: bool) -> None:
    import torch

    inputs = []
    for _ in range(2):  # in turn, each larger than the cache
        x = torch.randn(rows, n, device="cuda").mul_(3).to(getattr(torch, dtype))
        inputs.append((x, torch.randint(n, (rows,), device="cuda")))
    x, t = inputs[0]
    want = torch.cat([torch.log_softmax(p.double(), 1).gather(1, k[:, None])[:, 0]
                      for p, k in zip(x.split(256), t.split(256), strict=True)])  # fmt: skip
    calls, report = {}, {}
    for name, f in token_contenders(entropy).items():
        try:
            call = partial(f, x, t)
            call()
            got, mb = scratch(call)
            off = float(((got[0] if entropy else got).double() - want).abs().max())
            assert off < 1e-4, f"off by {off:.1e}"
            report[name] = {"max_error": off, "scratch_mb": mb}
            calls[name] = [partial(f, *pair) for pair in inputs]
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {str(error)[:200]}")
    loop = {k: calls.pop(k) for k in list(calls) if k == "row loop"}
    times = replay_times(calls) | event_times({name: some[0] for name, some in loop.items()}, 1)
    for name, ms in times.items():
        report[name]["ms"] = ms
    table(
        f"token log-probs{' and entropy' if entropy else ''}, {dtype} ({rows}, {n})",
        ["", "ms", "x pfkit", "scratch MB", "max error"],
        [[k, v["ms"], v["ms"] / times["pfkit"], v["scratch_mb"], f"{v['max_error']:.1e}"]
         for k, v in report.items()],
    )  # fmt: skip
    found[f"{dtype} {rows} {n}{' entropy' if entropy else ''}"] = report
    del x, t, inputs, want, calls, loop
    torch.cuda.empty_cache()


# --- the last layer ---


class Problem:
    """hidden, weight and targets of one size, and the exact loss and gradients in float64."""

    def __init__(self, rows: int, precision: str, hidden: int = HIDDEN, vocabulary: int = VOCABULARY) -> None:
        import torch

        self.precision = precision
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
        g = torch.Generator(device="cuda").manual_seed(0)
        self.hidden = torch.randn(rows, hidden, device="cuda", generator=g).to(dtype).requires_grad_()
        self.weight = (
            torch.randn(vocabulary, hidden, device="cuda", generator=g).mul_(0.02).to(dtype).requires_grad_()
        )
        self.targets = torch.randint(vocabulary, (rows,), device="cuda", generator=g)
        self.columns = slice(0, 64 * (vocabulary // 64), vocabulary // 64)  # where gradients are compared
        self.name = f"{precision} ({rows}, {hidden}) x {vocabulary}"

    def exact(self, gradients: bool) -> dict[str, Any]:
        """Loss, and the gradients of some rows of both, in float64."""
        import torch

        with torch.no_grad():
            x, w, t = self.hidden.double(), self.weight.double(), self.targets
            losses, dx, dw = [], [], torch.zeros(64, x.shape[1], dtype=torch.float64, device="cuda")
            for k in range(0, len(x), 1024):
                z = x[k : k + 1024] @ w.t()
                lse = torch.logsumexp(z, 1)
                losses.append(lse - z.gather(1, t[k : k + 1024, None])[:, 0])
                if gradients:
                    g = z.sub_(lse[:, None]).exp_()
                    g[torch.arange(len(g)), t[k : k + 1024]] -= 1
                    g /= len(x)
                    dw += g[:, self.columns].t() @ x[k : k + 1024]
                    if k == 0:
                        dx = g[:64] @ w
                del z
        return {"loss": torch.cat(losses).mean(), "dx": dx, "dw": dw}

    def forward(self, f: Callable[..., Any]) -> Callable[[], Any]:
        """A call on tensors that need no gradient."""
        return partial(f, self.hidden.detach(), self.weight.detach(), self.targets)

    def training(self, f: Callable[..., Any]) -> Callable[[], Any]:
        import torch

        def call() -> Any:
            loss = f(self.hidden, self.weight, self.targets)
            return loss.detach(), *torch.autograd.grad(loss, (self.hidden, self.weight))

        return call

    def products(self, gradients: bool) -> Callable[[], Any]:
        """The matrix products that no way to the loss can do without, into memory that is there."""
        import torch

        x, w = self.hidden.detach(), self.weight.detach()
        logits = torch.empty(len(x), len(w), dtype=x.dtype, device="cuda")
        dx, dw = (torch.empty_like(x), torch.empty_like(w)) if gradients else (None, None)

        def call() -> None:
            torch.mm(x, w.t(), out=logits)
            if gradients:
                torch.mm(logits, w, out=dx)
                torch.mm(logits.t(), x, out=dw)

        return call


def relative(a: Any, b: Any) -> float:
    return float((a.double() - b).norm() / b.norm())


def linear_contenders(precision: str) -> tuple[dict[str, Callable[..., Any]], dict[str, str]]:
    """What can run here, and why the rest cannot."""
    import torch

    import pfkit

    functional = torch.nn.functional
    missing: dict[str, str] = {}

    def eager(x: Any, w: Any, t: Any) -> Any:
        return functional.cross_entropy((x @ w.t()).float(), t)

    calls: dict[str, Callable[..., Any]] = {
        "torch eager": eager,
        "torch.compile": torch.compile(eager, dynamic=False),
    }
    if importlib.util.find_spec("liger_kernel"):
        from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

        liger = LigerFusedLinearCrossEntropyLoss()
        calls["Liger"] = lambda x, w, t: liger(w, x, t)
    else:
        missing["Liger"] = "liger-kernel is not installed"
    if not importlib.util.find_spec("cut_cross_entropy"):
        missing["cut-cross-entropy"] = "cut-cross-entropy is not installed"
    elif precision != "bfloat16":
        missing["cut-cross-entropy"] = "takes 16-bit inputs only"
    else:
        from cut_cross_entropy import linear_cross_entropy as cut

        calls["cut-cross-entropy"] = lambda x, w, t: cut(x, w, t)
    if hasattr(functional, "linear_cross_entropy"):
        calls["torch linear_cross_entropy"] = lambda x, w, t: functional.linear_cross_entropy(x, w, t)
    else:
        missing["torch linear_cross_entropy"] = f"not in torch {torch.__version__}"
    calls["pfkit"] = pfkit.linear_cross_entropy
    return calls, missing


def budgeted(memory: int | None) -> Callable[..., Any]:
    import pfkit

    return lambda x, w, t: pfkit.linear_cross_entropy(x, w, t, memory=memory)


def compare(
    found: dict[str, Any], problem: Problem, calls: dict[str, Callable[..., Any]],
    arguments: argparse.Namespace, *, gradients: bool, missing: dict[str, str] | None = None, rounds: int = 5,
) -> None:  # fmt: skip
    """Check, then time `calls` on one problem; a table and an entry of `found`."""
    import torch

    exact = problem.exact(gradients)
    ready, report, failed = {}, {}, dict(missing or {})
    for name, f in calls.items():
        call = problem.training(f) if gradients else problem.forward(f)
        try:
            if name in COMPILING or problem.precision == "bfloat16":
                call()  # what the first call builds is no scratch
            got, mb = scratch(call)
            got = got if gradients else (got,)
            line: dict[str, Any] = {"loss_error": abs(float(got[0].double() - exact["loss"]))}
            if gradients:
                line["dx_error"] = relative(got[1][:64], exact["dx"])
                line["dw_error"] = relative(got[2][problem.columns], exact["dw"])
            assert line["loss_error"] < LARGEST_ERROR[problem.precision], f"loss off by {line['loss_error']}"
            assert not gradients or max(line["dx_error"], line["dw_error"]) < 0.05, f"gradients off: {line}"
            del got
            line["scratch_mb"] = mb
            ready[name], report[name] = call, line
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {str(error)[:160]}"
            torch.cuda.empty_cache()
    floor = f"{3 if gradients else 1} products alone"
    times = event_times(ready | {floor: problem.products(gradients)}, rounds)
    report[floor] = {}
    ours = min(times[k] for k in times if k.startswith("pfkit")) if any("pfkit" in k for k in times) else 1.0
    for name, ms in times.items():
        report[name]["ms"] = ms
    what = "forward and backward" if gradients else "forward"
    errors = ["loss error"] + (["dX error", "dW error"] if gradients else [])
    table(
        f"linear cross-entropy, {what}, {problem.name}",
        ["", "ms", "x pfkit", "scratch MB", *errors],
        [[k, v["ms"], v["ms"] / ours, v.get("scratch_mb", "-"),
          *(f"{v[e]:.1e}" if e in v else "-" for e in ERRORS[: len(errors)])]
         for k, v in report.items()],
    )  # fmt: skip
    for name, reason in failed.items():
        print(f"  {name}: {reason}")
    found[f"{what} {problem.name}"] = report | {k: {"not run": v} for k, v in failed.items()}
    arguments.save()


def linear(found: dict[str, Any], arguments: argparse.Namespace, gradients: bool = False) -> None:
    import torch

    for precision in arguments.precisions:
        sizes = [(rows, VOCABULARY) for rows in arguments.rows]
        if precision == "bfloat16":
            sizes.append((4096, 32000))
        for rows, n in sizes:
            calls, missing = linear_contenders(precision)
            calls = {k: f for k, f in calls.items() if k not in arguments.without}
            problem = Problem(rows, precision, vocabulary=n)
            compare(found, problem, calls, arguments, gradients=gradients, missing=missing,
                    rounds=5 if precision == "bfloat16" else 3)  # fmt: skip
            del problem, calls
            torch.cuda.empty_cache()


def training(found: dict[str, Any], arguments: argparse.Namespace) -> None:
    linear(found, arguments, gradients=True)


def budgets(found: dict[str, Any], arguments: argparse.Namespace) -> None:
    import torch

    problem = Problem(8192, "bfloat16")
    for gradients, sizes in ((False, FORWARD_BUDGETS), (True, TRAINING_BUDGETS)):
        calls = {f"pfkit {name}": budgeted(memory) for name, memory in sizes.items()}
        calls["pfkit default"] = budgeted(None)
        compare(found, problem, calls, arguments, gradients=gradients, rounds=7)
    del problem
    for precision in ("tf32", "float32"):
        torch.cuda.empty_cache()
        calls = {
            "torch eager": linear_contenders(precision)[0]["torch eager"],
            "pfkit default": budgeted(None),
        }
        calls |= {f"pfkit {name}": budgeted(memory) for name, memory in FLOAT32_BUDGETS.items()}
        compare(found, Problem(4096, precision), calls, arguments, gradients=True)


# --- a Helion kernel ---


def helion_kernel(precision: str) -> Callable[..., Any]:
    """The function of the file named by PFKIT_HELION_KERNEL, with the configurations given, if any."""
    path = os.environ.get("PFKIT_HELION_KERNEL")
    if not path:
        raise RuntimeError("PFKIT_HELION_KERNEL does not name a file")
    spec = importlib.util.spec_from_file_location(f"helion_{precision}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    if chosen := os.environ.get("PFKIT_HELION_CONFIGS"):
        import helion

        for way, config in json.loads(Path(chosen).read_text())[precision].items():
            name = f"fused_linear_cross_entropy_{way}_kernel"
            tuned = helion.kernel(
                config=helion.Config(**config), static_shapes=False,
                dot_precision="ieee" if precision == "float32" else "tf32",
                ignore_warnings=[helion.exc.TensorOperationInWrapper],
            )(getattr(module, name).fn)  # fmt: skip
            setattr(module, name, tuned)
    return module.fused_linear_cross_entropy


def helion(found: dict[str, Any], arguments: argparse.Namespace) -> None:
    import torch

    for precision in arguments.precisions:
        try:
            theirs = helion_kernel(precision)
        except Exception as error:
            print(f"helion, {precision}: {type(error).__name__}: {error}")
            found[f"{precision} not run"] = str(error)
            continue
        for rows in arguments.rows:
            problem = Problem(rows, precision)
            eager = linear_contenders(precision)[0]["torch eager"]
            calls = {"torch eager": eager, "Helion kernel": theirs, "pfkit": budgeted(None),
                     "pfkit 9 MB": budgeted(9 * 10**6)}  # fmt: skip
            for gradients in (False, True):
                compare(found, problem, calls, arguments, gradients=gradients, rounds=3)
            del problem
            torch.cuda.empty_cache()


PARTS = {f.__name__: f for f in (token, linear, training, budgets, helion)}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m apps.bench_logprobs", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("parts", nargs="*", metavar="part", help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=PRECISIONS)
    parser.add_argument("--without", nargs="+", default=(), metavar="CONTENDER", help="leave these out")
    parser.add_argument("--json", type=Path, help=f"add all numbers to this file, such as {RESULTS.name}")
    arguments = parser.parse_args(argv)
    if unknown := [name for name in arguments.parts if name not in PARTS]:
        parser.error(f"unknown parts {', '.join(unknown)}; there are {', '.join(PARTS)}")
    if no_cuda():
        return 1
    import torch

    found: dict[str, Any] = {}
    if arguments.json and arguments.json.exists():
        found = json.loads(arguments.json.read_text())
    found |= {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    print(f"{found['device']}, torch {torch.__version__}")

    def save() -> None:
        if arguments.json:
            arguments.json.write_text(json.dumps(found, indent=1))

    arguments.save = save
    for name in arguments.parts or PARTS:
        PARTS[name](found.setdefault(name, {}), arguments)
        save()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
