"""Forward passes of a hidden Chow-Liu tree over the 784 pixels of MNIST: time beside error.

    python -m apps.bench_circuit [--units 64 128] [--batch 512] [--seconds 1] [--json F] [--no-pyjuice]
                                 [--only PyJuice matmul]

For each number of latent states K, the same parameters in every contender:

PyJuice              its default mode; with its fast launcher switched off; with its inner layers recorded as
                     a CUDA graph; the same with its CUTLASS kernels, if PYJUICE_CUTLASS_PATH names CUTLASS
                     and there is an nvcc; accelerated by pfkit
torch                pfkit's layers, eager, with torch.logsumexp inside every sum layer
fuse, int, ...       the same layers with that kernel of pfkit in the place of torch.logsumexp
layers               the same layers with a matrix product (the default) instead
matmul               pfkit's executor: one launch for the whole circuit; also as a CUDA graph

Errors are against the same circuit in float64, over all rows: the largest and the mean. Times are medians of
CUDA events, the contenders taking turns. Outputs are compared before anything is timed. What is known so far
is written to F after every contender, so that a run cut short is not lost.

Needs a GPU. Without PyJuice (pip install --no-deps pyjuice networkx), the circuit is learned by pfkit.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from .circuit_mnist import DATA, load
from .devices import no_cuda

SIZES = (32, 64, 128, 256, 512)
KERNELS = ("torch", "fuse", "int", "int-pairwise", "fuse16", "int16")
LEARNING_STEPS = 6


def images() -> Any:
    """(5000, 784) uint8 grey values, a tensor."""
    import torch

    return torch.from_numpy(load())


def tree(x: Any) -> tuple[list[tuple[int, int]], int]:
    """The Chow-Liu tree of the grey values in 8 ranges, and its centre."""
    from pfkit.circuits import chow_liu_tree
    from pfkit.circuits.regions import tree_centre

    edges = [(int(a), int(b)) for a, b in chow_liu_tree(x.long().cuda() // 32, n_categories=8)]
    return edges, tree_centre(x.shape[1], edges)


def circuits(x: Any, edges: Any, root: int, units: int, batch: int, with_pyjuice: bool) -> tuple[Any, Any]:
    """A circuit on this tree, and the PyJuice model that has the same parameters, or None."""
    from pfkit.circuits import hclt

    if not with_pyjuice:
        circuit = hclt(x.long(), units, n_categories=256, edges=edges, root=root, rng=0).cuda()
        circuit.fit(x[: LEARNING_STEPS * batch].long().cuda(), epochs=1, batch=batch, pseudocount=0.1, rng=0)
        return circuit, None
    from apps.peers import pyjuice_hclt

    model = pyjuice_hclt.build(edges, root, units, x)
    return pyjuice_hclt.as_circuit(model), model


def exact(circuit: Any, x: Any, part: int = 128) -> Any:
    """log p in float64, layer by layer."""
    import copy

    import torch

    from pfkit.circuits.propagate import upward

    double = copy.deepcopy(circuit).double()
    return torch.cat([upward(double, x[i : i + part])[1] for i in range(0, len(x), part)])


def as_graph(call: Callable[[], Any]) -> Callable[[], Any]:
    """`call`, replayed from a CUDA graph."""
    import torch

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        out = call()

    def replay() -> Any:
        graph.replay()
        return out

    return replay


class Contender(NamedTuple):
    """A call that gives log p of every row, and what has to be switched before it, outside of the timing."""

    call: Callable[[], Any]
    before: Callable[[], Any] = bool


def contenders(circuit: Any, model: Any, x: Any) -> dict[str, Contender]:
    """By name."""
    found: dict[str, Contender] = {}
    if model is not None:
        found |= pyjuice_contenders(model, x)

    def use(executor: bool) -> Callable[[], Any]:
        return lambda: setattr(circuit, "executor", executor)

    def layers(lse: str) -> Callable[[], Any]:
        return lambda: circuit.log_prob(x, lse=lse, validate=False)

    for lse in KERNELS:
        found[lse] = Contender(layers(lse))
    found["layers"] = Contender(layers("matmul"), use(False))
    found["matmul"] = Contender(layers("matmul"), use(True))
    use(True)()
    found["matmul, graph"] = Contender(as_graph(layers("matmul")))
    return found


def pyjuice_contenders(model: Any, x: Any) -> dict[str, Contender]:
    """PyJuice in its modes, and accelerated."""
    from pyjuice.utils import kernel_launcher

    from pfkit.circuits import accelerate

    plain = {"class": type(model)}
    accelerate(model)
    faster = {"class": type(model), "_pfkit": model.__dict__["_pfkit"]}

    def become(which: dict[str, Any]) -> Callable[[], Any]:
        def switch() -> None:
            model.__class__ = which["class"]
            model.__dict__.pop("_pfkit", None)
            if "_pfkit" in which:
                model.__dict__["_pfkit"] = which["_pfkit"]

        return switch

    def forward(**keywords: Any) -> Callable[[], Any]:
        return lambda: model(x, **keywords)[:, 0]

    def slow_launch() -> Any:
        fast = kernel_launcher.FastJITFunction3x
        original = fast.__getitem__
        fast.__getitem__ = lambda self, grid: self.jit_fn[grid]  # as PYJUICE_FAST_LAUNCH=0 does
        try:
            return forward(apply_cudagraph=False)()
        finally:
            fast.__getitem__ = original

    theirs, ours = become(plain), become(faster)
    recorded = "PyJuice, graph" + (", CUTLASS" if uses_cutlass() else "")
    theirs()
    return {
        "PyJuice": Contender(forward(apply_cudagraph=False), theirs),
        "PyJuice, slow launcher": Contender(slow_launch, theirs),
        recorded: Contender(forward(record_cudagraph=True), theirs),
        "PyJuice, accelerated": Contender(forward(), ours),
    }


def uses_cutlass() -> bool:
    """Whether PyJuice's CUDA kernels are built and in use."""
    from pyjuice.layer.kernels import c

    return bool(os.environ.get("PYJUICE_DISABLE_CUDA_KERNELS", "0") != "1" and c.is_available())


def turns(found: dict[str, Contender], seconds: float) -> Iterator[tuple[str, float]]:
    """Each contender and its median milliseconds, when its time is up.

    In each round every contender that still has time runs once.
    """
    import torch

    taken: dict[str, list[float]] = {name: [] for name in found}
    spent = dict.fromkeys(found, 0.0)
    for contender in found.values():  # compilation, tuning and recording happen in the first calls
        for _ in range(3):
            contender.before()
            before = time.perf_counter()
            contender.call()
            torch.cuda.synchronize()
            if time.perf_counter() - before > seconds:
                break
    going = list(found)
    while going:
        for name in going:
            found[name].before()
            torch.cuda.synchronize()
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            before = time.perf_counter()
            start.record()
            found[name].call()
            end.record()
            end.synchronize()
            spent[name] += time.perf_counter() - before
            taken[name].append(start.elapsed_time(end))
        over = [name for name in going if spent[name] >= seconds and len(taken[name]) >= 3]
        going = [name for name in going if name not in over]
        yield from ((name, statistics.median(taken[name])) for name in over)


def measure(
    circuit: Any, model: Any, x: Any, seconds: float, only: Any, report: Callable[[str, dict[str, Any]], Any]
) -> dict[str, Any]:
    """All contenders at one K, or those whose names begin with one of `only`.

    `report` is called with a word on what was done last and with the results so far.
    """
    import torch

    with torch.no_grad():
        true = exact(circuit, x)
        rows: dict[str, dict[str, float]] = {}
        found = {
            "log_likelihood": float(true.mean()),
            "sum_regions": circuit.n_regions - len(circuit.graph.input_variables),
            "levels": len(circuit.graph.levels),
            "contenders": rows,
        }
        report("float64", found)
        running = {}
        for name, contender in contenders(circuit, model, x).items():
            if only and not name.startswith(tuple(only)):
                continue
            try:
                contender.before()
                error = (contender.call().double() - true).abs()
                torch.cuda.synchronize()
            except Exception as problem:  # one contender's trouble is a line of the table
                print(f"{name} does not run: {problem!r}", file=sys.stderr)
                continue
            running[name] = contender
            rows[name] = {"max_error": float(error.max()), "mean_error": float(error.mean())}
            report(f"{name} runs", found)
        for name, ms in turns(running, seconds):
            rows[name]["ms"] = ms
            report(f"{name}: {ms:.3f} ms", found)
    return found


def show(units: int, found: dict[str, Any]) -> None:
    """One table."""
    print(
        f"\nK = {units}: {found['sum_regions']} sum regions in {found['levels']} levels, "
        f"mean log-likelihood {found['log_likelihood']:.1f} nats"
    )
    print(f"{'':26}{'ms':>9}{'max error':>12}{'mean error':>12}")
    for name, row in found["contenders"].items():
        print(f"{name:26}{row['ms']:9.3f}{row['max_error']:12.1e}{row['mean_error']:12.1e}")
    rows = found["contenders"]
    for ours, theirs in (
        ("matmul, graph", "PyJuice, graph"),
        ("PyJuice, accelerated", "PyJuice, graph"),
        ("matmul", "PyJuice"),
        ("fuse", "torch"),
    ):
        rival = [name for name in rows if name == theirs or name.startswith(theirs + ", CUTLASS")]
        if ours in rows and rival:
            ratio = rows[rival[0]]["ms"] / rows[ours]["ms"]
            print(f"  {ours} over {rival[0]}: {ratio:.2f} times as fast", flush=True)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m apps.bench_circuit", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--units", type=int, nargs="+", default=SIZES, help="numbers of latent states")
    parser.add_argument("--batch", type=int, default=512, help="rows a forward")
    parser.add_argument("--seconds", type=float, default=1.0, help="of timing for each contender")
    parser.add_argument("--json", type=Path, help="write all numbers here")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="contenders whose names begin so")
    parser.add_argument("--no-pyjuice", action="store_true", help="leave PyJuice out")
    arguments = parser.parse_args(argv)
    if no_cuda():
        return 1
    if not DATA.exists():
        print(f"the images are not there: {DATA}", file=sys.stderr)
        return 1
    import torch

    with_pyjuice = not arguments.no_pyjuice and importlib.util.find_spec("pyjuice") is not None
    results: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "batch": arguments.batch,
    }
    which = "with" if with_pyjuice else "without"
    print(f"{results['device']}, torch {torch.__version__}, {which} PyJuice", flush=True)
    start = time.perf_counter()
    data = images()
    edges, root = tree(data)
    x = data[-arguments.batch :].long().cuda()
    for units in arguments.units:

        def report(what: str, found: dict[str, Any], units: int = units) -> None:
            print(f"{time.perf_counter() - start:7.1f} s  K = {units}: {what}", file=sys.stderr, flush=True)
            results[str(units)] = found
            if arguments.json:
                arguments.json.write_text(json.dumps(results, indent=1))

        report("begins", {})
        circuit, model = circuits(data, edges, root, units, arguments.batch, with_pyjuice)
        show(units, measure(circuit, model, x, arguments.seconds, arguments.only, report))
        del circuit, model
        gc.collect()  # graphs and plans hold on to each other
        torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
