"""An existing PyJuice model, made faster and more exact.

    pc = pyjuice.compile(ns).to("cuda")
    pfkit.circuits.accelerate(pc)         # the same object, also returned
    lls = pc(x)                           # as before, from here on through pfkit's forward
    pc.backward(x); pc.mini_batch_em(...) # PyJuice's own, on the node values it expects
    pfkit.circuits.pyjuice.explain(pc)    # what was executed here, what was passed on to PyJuice, and why
    pfkit.circuits.restore(pc)            # PyJuice's forward again

PyJuice's forward rounds every weight and every child value to bfloat16 before its matrix products (about
5e-3 nats a layer) and starts a hundred or more kernels a call from Python. The forward here is one CUDA
graph, input layers included, with products fused into the sums and exact tensor-core arithmetic.

The parameters stay where PyJuice keeps them and are read in every call, so EM, optimizers,
``load_state_dict`` or assignments in place need no further step. Node values are written to
``pc.node_mars`` when a gradient may follow (``torch.is_grad_enabled()``); otherwise only when somebody asks
for them: ``pc.node_mars`` is filled at first access after a forward, which is what makes ``pc.backward``
right after a forward without them.

What is not covered is passed on to PyJuice, with a warning the first time for each reason: other algorithms
than "LL", tempered flows, external parameters, custom input functions, caches, partial evaluation, other
input distributions than ``Categorical``, sums over several products or with sparse edges, inputs that are
not integers.
"""

from __future__ import annotations

import functools
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from .pyjuice_plain import PlainEngine
from .pyjuice_tables import CircuitTables, Unsupported, read_tables

__all__ = ["accelerate", "explain", "restore"]

_MODES = ("matmul",)
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
# arguments of TensorCircuit.forward under which it computes something else, with their neutral values
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "input_layer_fn": (None,),
    "cache": (None,),
    "return_cache": (False,),
    "propagation_alg": (None, "LL"),
    "pflow_temperature": (1.0, 1),
    "_inner_layers_only": (False,),
    "_no_buffer_reset": (False,),
}
# arguments that choose between PyJuice's kernels and do not change what is computed
_PYJUICE_ONLY = (
    "record_cudagraph",
    "apply_cudagraph",
    "force_use_bf16",
    "force_use_fp32",
    "mode",
    "missing_mask",
)


def accelerate(pc: Any, *, lse: str = "matmul") -> Any:
    """Make a compiled PyJuice model use pfkit's forward.

    Parameters
    ----------
    pc : pyjuice.TensorCircuit
        A compiled model (PyJuice 2.6). It is changed in place: its class becomes a subclass of the one it
        had. Moving it to another device afterwards is fine.
    lse : str, default "matmul"
        How sums are computed; "matmul": ``log(W exp(v - max)) + max`` on tensor cores, to float32 rounding.

    Returns
    -------
    pyjuice.TensorCircuit
        ``pc`` itself. Log-likelihoods have PyJuice's shape (B, roots), in nats.

    Raises
    ------
    TypeError
        ``pc`` is not a compiled PyJuice model.
    ValueError
        ``lse`` is none of the modes.

    Notes
    -----
    A model with parts that are not covered stays PyJuice's; ``explain(pc)`` says why, and so does a warning.
    A zero-probability input gives -inf, where PyJuice's Triton kernels give max - 55.
    """
    if lse not in _MODES:
        raise ValueError(f"lse must be one of {', '.join(map(repr, _MODES))}, not {lse!r}")
    try:
        from pyjuice.model import TensorCircuit
    except ImportError as error:
        raise TypeError(
            f"pc must be a compiled PyJuice model, and PyJuice cannot be imported: {error}"
        ) from error
    if not isinstance(pc, TensorCircuit):
        raise TypeError(
            f"pc must be a compiled PyJuice model (pyjuice.TensorCircuit), not {type(pc).__name__}"
        )
    restore(pc)
    session = _Session(pc, lse)
    pc.__dict__["_pfkit"] = session
    own: Any = type(pc)
    pc.__class__ = _accelerated(own)
    return pc


def restore(pc: Any) -> Any:
    """Give a model its own forward back; a model that was never accelerated is left as it is.

    Parameters
    ----------
    pc : pyjuice.TensorCircuit
        The model.

    Returns
    -------
    pyjuice.TensorCircuit
        ``pc`` itself. ``pc.node_mars`` holds the node values of the last forward, as PyJuice's would.
    """
    session = getattr(pc, "__dict__", {}).get("_pfkit")
    if session is None:
        return pc
    session.materialise(pc)
    pc.__class__ = type(pc).__mro__[1]
    del pc.__dict__["_pfkit"]
    return pc


def explain(pc: Any) -> str:
    """What an accelerated model runs, in words.

    Parameters
    ----------
    pc : pyjuice.TensorCircuit
        The model.

    Returns
    -------
    str
        How many calls were executed here and how many by PyJuice, with the reasons.
    """
    session = getattr(pc, "__dict__", {}).get("_pfkit")
    if session is None:
        return "not accelerated: PyJuice's own forward"
    return session.explain()


class _Session:
    """What an accelerated model carries: its tables, engines, counts, and whether node values are owed."""

    def __init__(self, pc: Any, lse: str) -> None:
        self.lse = lse
        self.calls = self.filled = 0
        self.passed_on: Counter[str] = Counter()
        self.tables: CircuitTables | None = None
        self.unsupported: str | None = None
        self.engines: dict[tuple[object, ...], Any] = {}
        self.owed: tuple[Any, torch.Tensor] | None = None  # engine and categories of the last forward
        try:
            self.tables = read_tables(pc)
        except Unsupported as reason:
            self.unsupported = str(reason)
            self._warn(self.unsupported)

    def why_not(self, pc: Any, inputs: Any, arguments: dict[str, Any]) -> str | None:
        """The reason why this call is PyJuice's, or None."""
        if self.unsupported is not None:
            return self.unsupported
        for name, value in arguments.items():
            if name in _NEUTRAL:
                if not any(value is neutral or value == neutral for neutral in _NEUTRAL[name]):
                    return f"{name} is given"
            elif name not in _PYJUICE_ONLY:
                return f"{name} is given"
        if arguments.get("propagation_alg") is None and pc.default_propagation_alg != "LL":
            return f"the propagation algorithm is {pc.default_propagation_alg}"
        if pc._fw_partial_eval_enabled:
            return "partial evaluation is on"
        if not isinstance(inputs, torch.Tensor) or inputs.dtype not in _INTEGERS:
            return "inputs are not an integer tensor"
        if inputs.ndim != 2 or inputs.shape[1] != pc.num_vars or inputs.shape[0] == 0:
            return "inputs are not (B, variables)"
        if inputs.device != pc.params.device or pc.params.dtype != torch.float32:
            return "inputs or parameters are on another device or not float32"
        mask = arguments.get("missing_mask")
        if mask is not None and not (
            isinstance(mask, torch.Tensor)
            and mask.dtype == torch.bool
            and mask.shape in (inputs.shape, inputs.shape[1:])
        ):
            return "missing_mask is not a boolean tensor (B, variables) or (variables,)"
        return None

    def forward(self, pc: Any, inputs: torch.Tensor, mask: torch.Tensor | None, fill: bool) -> torch.Tensor:
        """Log-likelihoods, (B, roots); ``fill``: write the node values as well."""
        x = inputs if mask is None else inputs.to(torch.int64).masked_fill(mask, -1)
        engine = self._engine(pc)
        self.calls += 1
        if fill:
            return self._fill(pc, engine, x)
        self._buffers(pc, x.shape[0])
        self.owed = (engine, x.clone())  # the caller may reuse its tensor
        return engine.log_prob(x).T.clone()

    def materialise(self, pc: Any) -> None:
        """Write the node values that the last forward left out."""
        if self.owed is not None:
            (engine, x), self.owed = self.owed, None
            self._fill(pc, engine, x)

    def pass_on(self, reason: str) -> None:
        """Count a call that is PyJuice's; warn at the first of its kind."""
        self.owed = None
        if reason not in self.passed_on and reason != self.unsupported:
            self._warn(reason)
        self.passed_on[reason] += 1

    def explain(self) -> str:
        """See ``explain``."""
        lines = [f'lse="{self.lse}": {self.calls} forward calls here, {self.filled} with node values']
        if self.unsupported is not None:
            lines = [f"every forward is PyJuice's: {self.unsupported}"]
        lines += [f"{count} passed on to PyJuice: {reason}" for reason, count in self.passed_on.items()]
        return "\n".join(lines)

    def _fill(self, pc: Any, engine: Any, x: torch.Tensor) -> torch.Tensor:
        node_mars = self._buffers(pc, x.shape[0])
        engine.values(x, out=node_mars)
        self.owed = None
        self.filled += 1
        low, high = pc._root_node_range
        return node_mars[low:high].T.clone()

    def _buffers(self, pc: Any, batch: int) -> torch.Tensor:
        """PyJuice's own buffers at this batch size, which its backward takes as given."""
        element_mars = pc.__dict__["element_mars"]
        if element_mars is None or element_mars.shape[1] != batch or element_mars.device != pc.params.device:
            # rows that no product writes stand for zero probability
            pc._init_buffer(name="element_mars", shape=(pc.num_elements, batch), set_value=-torch.inf)
        pc._init_buffer(name="node_mars", shape=(pc.num_nodes, batch))
        return pc.__dict__["node_mars"]

    def _engine(self, pc: Any) -> Any:
        params, inputs = pc.params.data, [layer.params.data for layer in pc.input_layer_group.layers]
        key = tuple(t.data_ptr() for t in (params, *inputs))
        if key not in self.engines:
            assert self.tables is not None
            self.engines = {key: _make_engine(self.tables, params, inputs)}
        return self.engines[key]

    @staticmethod
    def _warn(reason: str) -> None:
        warnings.warn(
            f"accelerated PyJuice model: this forward is PyJuice's own, because {reason}", stacklevel=4
        )


def _make_engine(tables: CircuitTables, params: torch.Tensor, inputs: Sequence[torch.Tensor]) -> Any:
    return PlainEngine(tables, params, inputs)


@functools.cache
def _accelerated(base: type) -> type:
    """The subclass of a compiled model's class that runs the forward here."""
    from pyjuice.model.tensorcircuit import _pc_model_backward_hook

    class AcceleratedCircuit(base):  # type: ignore[misc, valid-type]
        """A compiled PyJuice model with pfkit's forward; see ``pfkit.circuits.accelerate``."""

        @property
        def node_mars(self) -> torch.Tensor | None:
            """Log values of all nodes at the last forward, (nodes, B)."""
            self.__dict__["_pfkit"].materialise(self)
            return self.__dict__["node_mars"]

        @node_mars.setter
        def node_mars(self, value: torch.Tensor | None) -> None:
            self.__dict__["_pfkit"].owed = None
            self.__dict__["node_mars"] = value

        def forward(self, inputs: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            """As PyJuice's, same arguments and result."""
            session = self.__dict__["_pfkit"]
            reason = "an argument is given by position" if args else session.why_not(self, inputs, kwargs)
            if reason is not None:
                session.pass_on(reason)
                return super().forward(inputs, *args, **kwargs)
            differentiable = torch.is_grad_enabled()
            with torch.no_grad():
                lls = session.forward(self, inputs, kwargs.get("missing_mask"), differentiable)
            if differentiable:
                lls.requires_grad = True
                options = {"record_cudagraph": False, "apply_cudagraph": True, **kwargs}
                options["propagation_alg"] = "LL"
                for name in ("pflow_temperature", "force_use_bf16", "force_use_fp32", *_NEUTRAL):
                    if name != "propagation_alg":
                        options.pop(name, None)
                lls.register_hook(
                    functools.partial(_pc_model_backward_hook, pc=self, inputs=inputs, **options)
                )
            return lls

        def mini_batch_em(self, *args: Any, **kwargs: Any) -> Any:
            """As PyJuice's; node values still owed belong to the parameters before the step."""
            self.__dict__["_pfkit"].materialise(self)
            return super().mini_batch_em(*args, **kwargs)

    AcceleratedCircuit.__qualname__ = AcceleratedCircuit.__name__ = f"Accelerated{base.__name__}"
    return AcceleratedCircuit
