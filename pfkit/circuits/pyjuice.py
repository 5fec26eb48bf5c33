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
``load_state_dict`` or assignments in place need no further step. ``pc.node_mars`` is written when somebody
asks for it: at the first access after a forward, by ``pc.backward``, a gradient, ``pc.get_node_mars`` or you.

What is not covered is passed on to PyJuice, with a warning the first time for each reason: other algorithms
than "LL", tempered flows, external parameters, custom input functions (``pyjuice.queries.marginal`` and
``conditional`` with hard evidence are covered), caches, partial evaluation, other input distributions than
``Categorical``, sums over several products or with sparse edges, inputs that are not integers.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from pfkit.lse.cuda import CudaUnavailable

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
# arguments that its backward gets as well, when a gradient is asked for
_PASSED_BACK = ("record_cudagraph", "apply_cudagraph", "mode", "missing_mask")
_GRAPHS = {"record_cudagraph": False, "apply_cudagraph": True}
# arguments that choose between PyJuice's kernels, are read here, or matter to its backward alone
_NO_MATTER = frozenset(("force_use_bf16", "force_use_fp32", "target_vars", *_PASSED_BACK))


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

    Raises
    ------
    TypeError
        ``pc`` is not a compiled PyJuice model.
    """
    session = _session_of(pc)
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

    Raises
    ------
    TypeError
        ``pc`` is not a compiled PyJuice model.
    """
    session = _session_of(pc)
    return "not accelerated: PyJuice's own forward" if session is None else session.explain()


def _session_of(pc: Any) -> _Session | None:
    """What an accelerated model carries; None for a model that is not; TypeError for anything else."""
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
    session: _Session | None = pc.__dict__.get("_pfkit")
    return session


class _Session:
    """What an accelerated model carries: its tables, engines, counts, and whether node values are owed."""

    def __init__(self, pc: Any, lse: str) -> None:
        self.lse = lse
        self.calls = self.filled = 0
        self.passed_on: Counter[str] = Counter()
        # what the inputs of pyjuice.queries.marginal and conditional go through: for categories and a mask it
        # computes what no input function does
        self.query_inputs = getattr(
            sys.modules.get("pyjuice.queries.conditional"), "_conditional_fw_input_fn", None
        )
        self.input_layers = list(pc.input_layer_group.layers)
        self.tables: CircuitTables | None = None
        self.unsupported: str | None = None
        self.engine: tuple[tuple[int, ...], Any] = (), None  # addresses of the parameters, and what runs them
        # the engine that holds the node values of the last forward, and their batch size
        self.owed: tuple[Any, int] | None = None
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
            if name in _NO_MATTER or any(value is n or value == n for n in _NEUTRAL.get(name, ())):
                continue
            if name == "input_layer_fn" and value is self.query_inputs:
                continue
            return f"{name} is given"
        if arguments.get("propagation_alg") is None and pc.default_propagation_alg != "LL":
            return f"the propagation algorithm is {pc.default_propagation_alg}"
        if pc._fw_partial_eval_enabled:
            return "partial evaluation is on"
        if not isinstance(inputs, torch.Tensor) or inputs.dtype not in _INTEGERS:
            return "inputs are not an integer tensor"
        if inputs.ndim != 2 or inputs.shape[1] != pc.num_vars or inputs.shape[0] == 0:
            return "inputs are not (B, variables)"
        params = pc._parameters["params"]
        if inputs.device != params.device or params.dtype != torch.float32:
            return "inputs or parameters are on another device or not float32"
        mask = arguments.get("missing_mask")
        if mask is not None and not (
            isinstance(mask, torch.Tensor)
            and mask.dtype == torch.bool
            and mask.shape in (inputs.shape, inputs.shape[1:])
        ):
            return "missing_mask is not a boolean tensor (B, variables) or (variables,)"
        engine = self._engine(pc)
        return engine if isinstance(engine, str) else None

    def forward(self, pc: Any, inputs: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Log-likelihoods, (B, roots), in memory of the engine that ``why_not`` has found."""
        x = inputs if mask is None else inputs.to(torch.int32).masked_fill(mask, -1)
        engine = self.engine[1]
        lls = engine.log_prob(x)
        self.owed = engine, x.shape[0]
        self.calls += 1
        return lls.T

    def materialise(self, pc: Any) -> None:
        """Write the node values that the last forward left out."""
        if self.owed is None:
            return
        (engine, batch), self.owed = self.owed, None
        values = pc.__dict__["node_mars"]
        if values is not None and values.is_inference():
            pc.__dict__["node_mars"] = None
        with torch.inference_mode(False):  # the buffers outlive it
            pc._init_buffer(name="node_mars", shape=(pc.num_nodes, batch))
            engine.export(pc.__dict__["node_mars"])
            self.filled += 1
            elements = pc.__dict__["element_mars"]
            if elements is None or elements.shape[1] != batch or elements.device != pc.device:
                # PyJuice's backward needs the buffer; rows that no product writes are of probability zero
                pc._init_buffer(name="element_mars", shape=(pc.num_elements, batch), set_value=-torch.inf)

    def pass_on(self, reason: str) -> None:
        """Count a call that is PyJuice's; warn at the first of its kind."""
        if reason not in self.passed_on and reason != self.unsupported:
            self._warn(reason)
        self.passed_on[reason] += 1

    def explain(self) -> str:
        """See ``explain``."""
        how = getattr(self.engine[1], "name", "not run yet")
        head = f"{self.calls} forward calls here, {self.filled} with node values"
        lines = [f'lse="{self.lse}": {head} ({how})']
        if self.unsupported is not None:
            lines = [f"every forward is PyJuice's: {self.unsupported}"]
        lines += [f"{count} passed on to PyJuice: {reason}" for reason, count in self.passed_on.items()]
        return "\n".join(lines)

    def _engine(self, pc: Any) -> Any:
        """What runs the tables on the parameters where they are now; why not, where nothing does."""
        parameters = [module._parameters["params"] for module in (pc, *self.input_layers)]
        key = tuple([p.data_ptr() for p in parameters])
        if key != self.engine[0]:
            assert self.tables is not None
            params, *inputs = [p.data for p in parameters]
            try:
                self.engine = key, _make_engine(self.tables, params, inputs)
            except (Unsupported, CudaUnavailable) as reason:
                self.engine = key, str(reason)
        return self.engine[1]

    @staticmethod
    def _warn(reason: str) -> None:
        warnings.warn(
            f"accelerated PyJuice model: this forward is PyJuice's own, because {reason}", stacklevel=4
        )


def _make_engine(tables: CircuitTables, params: torch.Tensor, inputs: Sequence[torch.Tensor]) -> Any:
    if params.device.type != "cuda":
        return PlainEngine(tables, params, inputs)
    from .pyjuice_cuda import CudaEngine

    return CudaEngine(tables, params, inputs)


def _without_init(kind: Any) -> Any:
    """An object of this class with nothing in it, for copies and pickles to fill."""
    return kind.__new__(kind)


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
                session.materialise(self)  # PyJuice's may build on them
                session.pass_on(reason)
                return super().forward(inputs, *args, **kwargs)
            lls = session.forward(self, inputs, kwargs.get("missing_mask"))
            if torch.is_grad_enabled():
                lls = lls.detach().requires_grad_()
                options = {name: kwargs[name] for name in _PASSED_BACK if name in kwargs}
                hook = functools.partial(
                    _pc_model_backward_hook, pc=self, inputs=inputs, propagation_alg="LL", **_GRAPHS | options
                )
                lls.register_hook(hook)
            return lls.clone()  # the engine keeps its own

        def to(self, device: Any) -> Any:
            """As PyJuice's; node values still owed are written where they were computed."""
            self.__dict__["_pfkit"].materialise(self)
            return super().to(device)

        def __reduce_ex__(self, protocol: Any) -> Any:
            """Copies and pickles are PyJuice's own model; accelerate them anew."""
            self.__dict__["_pfkit"].materialise(self)
            state = {name: value for name, value in self.__dict__.items() if name != "_pfkit"}
            return _without_init, (base,), state

    AcceleratedCircuit.__qualname__ = AcceleratedCircuit.__name__ = f"Accelerated{base.__name__}"
    return AcceleratedCircuit
