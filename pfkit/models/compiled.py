"""Models in compiled code: C functions over blocks of particles, so that a filter's whole loop runs in C.

A model opts in with a method ``compiled()`` that returns a ``CompiledModel``: two functions with the C
signatures

    void transition(const double *x, const double *noise, const double *u, int64_t t, int64_t n,
                    const double *params, double *x_new);
    void log_likelihood(const double *x, const double *y, int64_t t, int64_t n, const double *params,
                        double *log_g);

given as ``scipy.LowLevelCallable``, and so written in Cython, in C loaded by ctypes, or with numba's
``cfunc``. For filters of dtype float32, ``x``, ``noise``, ``x_new`` and ``log_g`` are ``float *``.

    x          (d, n): coordinate i of particle j is x[i * n + j]; at t - 1 in transition, else at t
    noise      (noise_dim, n): independent standard normals, drawn by pfkit, keyed by step and block
    u          (input_dim,): the input of this step; NULL for a model that takes none
    y          (observation_dim,): NaN where a component is missing; never called when all are
    params     the numbers given to CompiledModel
    x_new      (d, n): to be written        log_g   (n,): to be written, nats, finite or -inf

n is at most 512 and differs from call to call. The functions are called without the GIL and from several
threads at once: they must not call Python, and must not keep state. Work on each particle must not depend on
the others in the block; then results do not depend on the number of threads.

``initial`` stays a Python method, called once. ``transition`` and ``log_likelihood`` of the Python model stay
too, for everything but ``ParticleFilter`` and ``FilterBank``; both forms must describe the same model.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

import pfkit_ext._cpu as _cpu

__all__ = ["CompiledModel"]

_INT64 = r"(?:long|longlong|int64_t|npy_intp|npy_int64|Py_ssize_t|ssize_t)"


def _signature(real: str, transition: bool) -> tuple[re.Pattern, str]:
    """What a LowLevelCallable's signature must match once const and blanks are gone, and how to write it."""
    if transition:
        pointers: tuple[str, ...] = (real, real, "double")
        text = f"void ({real} *x, {real} *noise, double *u, int64_t t, int64_t n, double *params, "
        text += f"{real} *x_new)"
    else:
        pointers = (real, "double")
        text = f"void ({real} *x, double *y, int64_t t, int64_t n, double *params, {real} *log_g)"
    arguments = [*(p + r"\*" for p in pointers), _INT64, _INT64, r"double\*", real + r"\*"]
    return re.compile(r"void\(" + ",".join(arguments) + r"\)(?:noexcept)?(?:nogil)?"), text


_NAMES = _cpu.model_names()

#: Ready models made before, which never change: a filter made anew for every short series finds its own
#: checked already. Few and short ones only: no memory to speak of is held.
_MADE: dict[Any, CompiledModel] = {}
_MOST_MADE, _SHORT = 64, 16

#: Where the params of ready models hold lengths.
_LENGTHS = {"linear": (0, 1), "bearings": (6,), "robot": (7,)}


def _size(params: np.ndarray, k: int) -> int:
    """params[k], a length."""
    if k >= params.size:
        raise ValueError(f"at least {k + 1} params are needed, not {params.size}")
    value = float(params[k])
    if not (0 <= value < 1 << 40 and value == int(value)):
        raise ValueError(f"params[{k}] is a length and cannot be {value}")
    return int(value)


class CompiledModel:
    """Transition and log-likelihood of a model as C functions.

    Parameters
    ----------
    transition, log_likelihood : scipy.LowLevelCallable
        For float64 filters; the signatures are in the module's documentation and are checked.
    transition32, log_likelihood32 : scipy.LowLevelCallable, optional
        For float32 filters, which otherwise run the Python model.
    params : array_like, optional
        Numbers handed to both functions, float64.
    state_dim : int or None
        As the model's: None for scalar particles.
    noise_dim : int
        Standard normals a particle needs for a transition.
    observation_dim : int
        Numbers in an observation.
    input_dim : int
        Numbers in an input; 0: none.
    steps : int, optional
        The functions only know times below this (params hold a path, say); beyond, the Python model is asked.

    Raises
    ------
    TypeError, ValueError
        Not a LowLevelCallable, a wrong signature, a dimension out of range.
    """

    def __init__(
        self,
        transition: Any,
        log_likelihood: Any,
        params: ArrayLike = (),
        *,
        transition32: Any = None,
        log_likelihood32: Any = None,
        state_dim: int | None = None,
        noise_dim: int = 1,
        observation_dim: int = 1,
        input_dim: int = 0,
        steps: int | None = None,
    ):
        if (transition32 is None) != (log_likelihood32 is None):
            raise TypeError("give both transition32 and log_likelihood32, or neither")
        self._keep: tuple = (transition, log_likelihood, transition32, log_likelihood32)
        addresses = [
            _address("transition", transition, *_signature("double", True)),
            _address("log_likelihood", log_likelihood, *_signature("double", False)),
            0 if transition32 is None else _address("transition32", transition32, *_signature("float", True)),
            0
            if log_likelihood32 is None
            else _address("log_likelihood32", log_likelihood32, *_signature("float", False)),
        ]
        self.functions: str | tuple[int, ...] = tuple(addresses)
        self._describe(params, state_dim, noise_dim, observation_dim, input_dim, steps)

    def _describe(self, params, state_dim, noise_dim, observation_dim, input_dim, steps) -> None:
        self.params = np.array(params, np.float64).reshape(-1)
        self.params.flags.writeable = False
        for name, value, least in (
            ("state_dim", 1 if state_dim is None else state_dim, 1),
            ("noise_dim", noise_dim, 0),
            ("observation_dim", observation_dim, 1),
            ("input_dim", input_dim, 0),
        ):
            if (
                isinstance(value, bool)
                or not isinstance(value, (int, np.integer))
                or not least <= value < 1000
            ):
                raise ValueError(f"{name} must be an int in {least} .. 999, not {value!r}")
        self.state_dim, self.noise_dim = state_dim, int(noise_dim)
        self.observation_dim, self.input_dim = int(observation_dim), int(input_dim)
        self.steps = steps

    @classmethod
    def ready(
        cls,
        name: str,
        params: Sequence[float] | np.ndarray,
        *,
        state_dim: int | None,
        noise_dim: int = 1,
        observation_dim: int = 1,
        input_dim: int = 0,
        steps: int | None = None,
    ) -> CompiledModel:
        """One of pfkit's own, named as in ``pfkit_ext/cpu/models.c``."""
        if name not in _NAMES:
            raise ValueError(f"no ready compiled model {name!r}; there are {', '.join(_NAMES)}")
        values = np.array(params, np.float64).reshape(-1)
        dims = (state_dim, noise_dim, observation_dim, input_dim, steps)
        key = None
        if values.size <= _SHORT and all(type(dim) is int or dim is None for dim in dims):
            key = (cls, name, values.tobytes(), dims)  # bytes: 0.0 == -0.0
            found = _MADE.get(key)
            if found is not None:
                return found
        self = cls.__new__(cls)
        self._keep = ()
        self.functions = name
        self._describe(values, *dims)
        self._check_ready(name)
        if key is not None:
            if len(_MADE) >= _MOST_MADE:
                _MADE.clear()
            _MADE[key] = self
        return self

    def _check_ready(self, name: str) -> None:
        """What the functions read and write must be there; ValueError otherwise."""
        p, given = self.params, (self.state_dim or 1, self.noise_dim, self.observation_dim, self.input_dim)
        lead = [_size(p, k) for k in _LENGTHS.get(name, ())]
        if name == "linear":
            d, o = lead
            most = _cpu.model_max_dim()
            if not (1 <= d <= most and 1 <= o <= most):
                raise ValueError(f"'linear' needs params that begin with d and p in 1 .. {most}, not {p[:2]}")
            size, dims = 2 + 2 * d * d + o * d + o * o, (d, d, o, 0)
        elif name == "bearings":
            size, dims = 7 + 2 * max(lead[0], 1), (4, 4, 1, 0)
            steps = self.steps
            if lead[0] > 0 and (steps is None or not 0 <= steps <= lead[0]):
                raise ValueError(f"'bearings' with a path of {lead[0]} needs steps up to it, not {steps}")
        elif name == "robot":
            size, dims = 8 + 8 * lead[0], (3, 3, lead[0], 3)
        else:
            size, dims = {"local_level": 3, "volatility": 4, "theta": 6}[name], (1, 1, 1, 0)
        if p.size != size:
            raise ValueError(f"{name!r} needs {size} params here, not {p.size}")
        if given != dims:
            raise ValueError(
                f"{name!r} needs (state_dim, noise_dim, observation_dim, input_dim) {dims}, not {given}"
            )

    def supports(self, dtype: Any) -> bool:
        """Whether there are functions for this dtype, and the params of a ready model are in its range."""
        if np.dtype(dtype) == np.float64:
            return True
        if not isinstance(self.functions, str):
            return self.functions[2] != 0
        # ready models compute in the dtype, params included; the Python model of wilder scales in float64
        p = self.params
        if self.functions == "linear":  # divides by standard deviations, the others are given their inverse
            p = np.append(
                p, 1 / np.diag(p[2:][-(self.observation_dim**2) :].reshape((self.observation_dim,) * 2))
            )
        return bool((np.abs(p[np.isfinite(p)]) < 1e30).all())

    def __deepcopy__(self, memo: dict) -> CompiledModel:
        return self  # never changes

    def __repr__(self) -> str:
        what = self.functions if isinstance(self.functions, str) else "user functions"
        return f"<CompiledModel: {what}, state_dim {self.state_dim}, {len(self.params)} params>"


def _address(name: str, callback: Any, pattern: re.Pattern, expected: str) -> int:
    from scipy import LowLevelCallable

    if not isinstance(callback, LowLevelCallable):
        raise TypeError(f"{name} must be a scipy.LowLevelCallable, not {callback!r}")
    signature, address = _cpu.callable_signature(callback)
    plain = re.sub(r"\bconst\b|\s|__pyx_t_\w*?_(?=int64_t)", "", signature.replace("long long", "longlong"))
    if not pattern.fullmatch(plain):
        raise ValueError(f"{name} has the signature {signature!r}; expected {expected!r}")
    return address
