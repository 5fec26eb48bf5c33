"""Expectation maximisation of a circuit's parameters, full-batch and mini-batch.

One step replaces every distribution by its expected counts, normalised. Over mini-batches the expected
counts are a running average with a falling step size (the online EM of Cappe and Moulines 2009): a unit
that a batch does not visit keeps what earlier batches told about it.

A pseudocount is added to every distribution, shared evenly by its entries. A distribution that no row
reached and that has no pseudocount stays as it was.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from .arguments import as_tensor, check_circuit, check_count, check_pair, check_positive, numpy_generator
from .counts import GraphedCounts, expected_counts
from .gaussian import merged, moments_of, renewed
from .scale import check_scale

if TYPE_CHECKING:
    from .circuit import Circuit

Tensor = torch.Tensor
MOST_PSEUDOCOUNT = 1e30  # float32 holds it beside any number of rows


def normalized_counts(
    counts: Tensor, pseudocount: float, old: Tensor, dims: int | tuple[int, ...] = -1
) -> Tensor:
    """Expected counts as probabilities over `dims`.

    Parameters
    ----------
    counts : Tensor
        Non-negative; even subnormal ones keep their proportions.
    pseudocount : float
        Added in all to each distribution, shared evenly.
    old : Tensor
        What a distribution without any count keeps.
    """
    dims = (dims,) if isinstance(dims, int) else dims
    n = math.prod(counts.shape[d] for d in dims)
    counts = counts + pseudocount / n
    top = counts.amax(dims, keepdim=True)
    # divided by the largest entry first: the sum of subnormal counts must not lose their proportions
    share = counts / torch.where(top > 0, top, torch.ones_like(top))
    total = share.sum(dims, keepdim=True)
    return torch.where(total > 0, share / torch.where(total > 0, total, torch.ones_like(total)), old)


class EM:
    """Expectation maximisation, one accumulated step at a time.

        em = EM(circuit, pseudocount=0.1)
        for batch in batches:
            em.accumulate(batch)
        em.step()                              # full batch
        em.accumulate(batch); em.step(0.1)     # mini-batch: the running average moves by a tenth

    Parameters
    ----------
    circuit : Circuit
        Changed in place by :meth:`step`.
    pseudocount : float
        Added to each distribution, in rows.
    input_pseudocount : float, optional
        The same for input distributions; `pseudocount` if not given.
    n_rows : float, optional
        Rows of the whole data set, for mini-batches: what the pseudocount stands against. Without it, the
        rows accumulated since the last step.
    min_sd : float
        Lower limit of Gaussian standard deviations, in the units of the data.
    graph : bool
        On CUDA, capture the passes over batches of the first one's size as a graph: for many such batches.
    """

    def __init__(
        self,
        circuit: Circuit,
        *,
        pseudocount: float = 0.0,
        input_pseudocount: float | None = None,
        n_rows: float | None = None,
        min_sd: float = 1e-3,
        graph: bool = False,
    ) -> None:
        check_circuit(circuit)
        check_positive("pseudocount", pseudocount, zero=True)
        if input_pseudocount is not None:
            check_positive("input_pseudocount", input_pseudocount, zero=True)
        most = max(pseudocount, input_pseudocount or 0.0)
        if n_rows is not None:
            check_positive("n_rows", n_rows)
            if most / n_rows > MOST_PSEUDOCOUNT:
                raise ValueError(f"a pseudocount over n_rows must be at most {MOST_PSEUDOCOUNT:g}")
        if most > MOST_PSEUDOCOUNT:
            raise ValueError(f"a pseudocount must be at most {MOST_PSEUDOCOUNT:g}, got {most!r}")
        check_positive("min_sd", min_sd)
        self.circuit = circuit
        self.pseudocount = float(pseudocount)
        self.input_pseudocount = float(pseudocount if input_pseudocount is None else input_pseudocount)
        self.n_rows = n_rows
        self.min_sd = float(min_sd)
        self._graph: GraphedCounts | None = None
        self._may_graph = graph and circuit.device.type == "cuda"
        self._flagged = 0  # batches in a row that the graph could not count
        self._rows = 0
        self._sum: list[Tensor] | None = None  # since the last step
        self._average: list[Tensor] | None = None  # a row's expected counts, averaged over steps

    def accumulate(self, x: Any, *, validate: bool = True) -> Tensor:
        """Add the expected counts of rows x (B, V); returns their log-likelihoods (B,)."""
        circuit = self.circuit
        data = circuit.data(x, validate=validate)
        root, found, own = self._count(data)
        if self._sum is None:
            self._sum = found if own else [part.clone() for part in found]
        else:
            for total, part in zip(self._sum, found, strict=True):
                total += part
        self._rows += data.shape[0]
        return root

    def _count(self, data: Tensor) -> tuple[Tensor, list[Tensor], bool]:
        """Log-likelihoods and expected counts, and whether these tensors are ours to keep."""
        if self._may_graph and data.shape[0]:
            if self._graph is None:
                self._graph = GraphedCounts(self.circuit, data)
            if self._graph.fits(data):
                counted = self._graph(data)
                if counted is not None:
                    self._flagged = 0
                    return *counted, False
                self._flagged += 1
                self._may_graph = self._flagged < 3  # a circuit with zeros is flagged every time
        return *expected_counts(self.circuit, data), True

    @torch.no_grad()
    def step(self, size: float = 1.0) -> None:
        """Write new parameters from what was accumulated, and start over.

        Parameters
        ----------
        size : float, in (0, 1]
            Weight of the accumulated rows against the running average of earlier steps; 1 forgets those.

        Raises
        ------
        ValueError
            If nothing was accumulated, for a size outside (0, 1], or if a Gaussian's variance overflows:
            the parameters then stay as they were.
        """
        check_positive("size", size)
        if size > 1:
            raise ValueError(f"the size of a step must lie in (0, 1], got {size}")
        if self._sum is None or not self._rows:
            raise ValueError("nothing was accumulated since the last step")
        found = [total / self._rows for total in self._sum]
        inputs = self.circuit.inputs
        gaussian = inputs.family == "gaussian"
        if gaussian:  # means move with every step: moments about them cannot be averaged
            found[-1] = moments_of(found[-1], inputs.mean)
        if size < 1 and self._average is not None:
            *counts, leaves = self._average
            last = merged(leaves, found[-1], size) if gaussian else leaves.lerp(found[-1], size)
            found = [*(a.lerp(b, size) for a, b in zip(counts, found[:-1], strict=True)), last]
        self._write(found, float(self.n_rows or self._rows))
        self._average = found
        self._sum, self._rows = None, 0

    def _write(self, average: list[Tensor], n_rows: float) -> None:
        circuit, inputs = self.circuit, self.circuit.inputs
        root, *sums, leaves = average
        pseudo = self.input_pseudocount / n_rows
        if inputs.family == "gaussian":
            mean, sd = renewed(leaves, inputs.mean, inputs.sd, pseudo, self.min_sd)  # may raise: comes first
            inputs.mean.copy_(mean)
            inputs.sd.copy_(sd)
        elif inputs.family == "bernoulli":
            old = torch.stack((1 - inputs.probs, inputs.probs), 2)
            inputs.probs.copy_(normalized_counts(leaves, pseudo, old)[:, :, 1])
        else:
            inputs.probs.copy_(normalized_counts(leaves, pseudo, inputs.probs))
        pseudo = self.pseudocount / n_rows
        circuit.root_weight.copy_(normalized_counts(root, pseudo, circuit.root_weight, (0, 1)))
        for (_, _, layer), counts in zip(circuit.layers(), sums, strict=True):
            layer.weight.copy_(normalized_counts(counts, pseudo, layer.weight))


@dataclass
class FitResult:
    """What :func:`fit` did: mean log-likelihoods a row, in nats, one entry an epoch.

    ``train`` is measured while the parameters change (a full batch: before its step); ``valid`` after the
    epoch. The circuit holds the parameters of ``best_epoch`` when validation rows were given, of the last
    one otherwise.
    """

    train: list[float] = field(default_factory=list)
    valid: list[float] = field(default_factory=list)
    best_epoch: int = -1


def fit(
    circuit: Circuit,
    x: Any,
    *,
    epochs: int = 20,
    batch: int | None = 256,
    step: tuple[float, float] = (0.5, 0.01),
    pseudocount: float = 0.1,
    input_pseudocount: float | None = None,
    valid: Any = None,
    patience: int | None = None,
    min_sd: float = 1e-3,
    rng: Any = None,
    progress: Callable[[int, float, float | None], None] | None = None,
) -> FitResult:
    """Learn the parameters of `circuit` from rows x, in place.

    Parameters
    ----------
    x : array or Tensor, (N, V)
        May hold missing entries.
    epochs : int
        Passes over the data.
    batch : int or None
        Rows a step; None: one step an epoch over all rows (computed in pieces).
    step : (float, float)
        First and last step size of mini-batches, falling geometrically in between; a short last batch takes
        a step that is smaller in proportion.
    pseudocount, input_pseudocount, min_sd
        See :class:`EM`.
    valid : array or Tensor, (M, V), optional
        Validation rows: the parameters of the epoch that gives them the highest mean log-likelihood are kept.
        Where that is -inf after every epoch, the last one's are, with a warning.
    patience : int, optional
        Stop after so many epochs without a better validation score.
    rng : None, int, SeedSequence or Generator
        Order of the rows.
    progress : callable, optional
        Called with (epoch, train, valid) after each epoch.

    Raises
    ------
    ValueError, TypeError
        For bad data (as ``Circuit.log_prob``), no rows, or a keyword out of its range. Gaussian inputs: for
        a variable, not constant, whose standard deviation is below `min_sd` or lost in rounding to the
        parameters' dtype, or whose squares leave its range.
    """
    data = circuit.data(x)
    check_positive("min_sd", min_sd)
    if circuit.inputs.family == "gaussian":
        check_scale(as_tensor(x, "x"), circuit.dtype, min_sd=min_sd)
    if not data.shape[0]:
        raise ValueError("x has no rows")
    held_out = None if valid is None else circuit.data(valid, name="valid")
    if held_out is not None and not held_out.shape[0]:
        raise ValueError("valid has no rows")
    if patience is not None and held_out is None:
        raise ValueError("patience needs validation rows: valid")
    check_count("epochs", epochs)
    for name, count in (("batch", batch), ("patience", patience)):
        if count is not None:
            check_count(name, count)
    first, last = check_pair("step", step)
    if not (0 < last <= first <= 1):
        raise ValueError(f"step must be (first, last) with 0 < last <= first <= 1, got {step}")
    if progress is not None and not callable(progress):
        raise TypeError(f"progress must be callable, got {progress!r}")
    n = data.shape[0]
    random = numpy_generator(rng)
    rows = min(n, batch or 4096)
    em = EM(
        circuit,
        pseudocount=pseudocount,
        input_pseudocount=input_pseudocount,
        n_rows=n,
        min_sd=min_sd,
        graph=epochs * (n // rows) >= 4,
    )
    n_steps = epochs * -(-n // rows)
    result = FitResult()
    best: list[Tensor] | None = None
    done = 0
    for epoch in range(epochs):
        order = torch.from_numpy(random.permutation(n)).to(data.device)
        total = data.new_zeros((), dtype=torch.float64)
        for at in range(0, n, rows):
            piece = data[order[at : at + rows]]
            total += em.accumulate(piece, validate=False).sum(dtype=torch.float64)
            if batch is not None:
                # the short batch that ends an epoch weighs what its rows weigh
                share = len(piece) / rows
                em.step(share * first * (last / first) ** (done / max(1, n_steps - 1)))
                done += 1
        if batch is None:
            em.step()
        result.train.append(float(total) / n)
        score = None
        if held_out is not None:
            score = mean_log_likelihood(circuit, held_out)
            result.valid.append(score)
            top = -math.inf if best is None else result.valid[result.best_epoch]
            if score > top or top == -math.inf:  # -inf ranks no epochs: the latest is kept
                result.best_epoch = epoch
                best = [p.detach().clone() for p in circuit.parameters()]
        else:
            result.best_epoch = epoch
        if progress is not None:
            progress(epoch, result.train[-1], score)
        if patience is not None and epoch - result.best_epoch >= patience:
            break
    if held_out is not None and max(result.valid) == -math.inf:
        warnings.warn(
            "valid has rows of probability zero after every epoch, so it chose nothing and the last epoch is "
            "kept: give a pseudocount, or leave such rows out",
            stacklevel=3,
        )
    if best is not None:
        with torch.no_grad():
            for p, kept in zip(circuit.parameters(), best, strict=True):
                p.copy_(kept)
    return result


def mean_log_likelihood(circuit: Circuit, x: Any, *, rows: int = 4096) -> float:
    """Mean log p(x) a row, in nats.

    Parameters
    ----------
    circuit : Circuit
    x : array or Tensor, (N, V)
        As ``Circuit.log_prob`` takes it.
    rows : int
        Worked on at a time: what memory depends on.

    Raises
    ------
    ValueError
        For no rows.
    """
    check_circuit(circuit)
    check_count("rows", rows)
    data = circuit.data(x)
    if not data.shape[0]:
        raise ValueError("x has no rows")
    total = 0.0
    with torch.no_grad():
        for at in range(0, data.shape[0], rows):
            piece = circuit.log_prob(data[at : at + rows], validate=False)
            total += float(piece.sum(dtype=torch.float64))
    return total / data.shape[0]
