"""Bad arguments: an error that names what was given and what is accepted."""

import numpy as np
import pytest

import pfkit

GOOD = np.array([0.0, 1.0, 2.0])


@pytest.mark.parametrize("lse", ["fuse", "int", "int-pairwise", "numpy", "scipy"])
@pytest.mark.parametrize(
    "a, named",
    [
        (np.array([1, None], object), "object"),
        (None, "object"),
        (["a", "b"], "<U1"),
        (np.array([b"x"]), "S1"),
        (np.array(["2020-01-01"], "M8[D]"), "datetime64"),
        (np.array([1], "m8[s]"), "timedelta64"),
        (np.zeros(2, [("x", float)]), "x"),
        ({"a": 1}, "object"),
    ],
)
def test_dtypes(lse, a, named):
    with pytest.raises(TypeError, match=named) as error:
        pfkit.logsumexp(a, lse=lse)
    assert "accepted" in str(error.value)
    if a is not None:
        with pytest.raises(TypeError, match=f"b has dtype.*{named}"):
            pfkit.logsumexp(GOOD[:2], b=a, lse=lse)
    with pytest.raises(TypeError, match=named):
        pfkit.log_normalize(a, lse=lse)


def test_ragged():
    with pytest.raises(ValueError, match="inhomogeneous"):
        pfkit.logsumexp([[1.0, 2.0], [3.0]])


@pytest.mark.parametrize("axis", [1, -2, 7, (0, 1)])
def test_axis_out_of_bounds(axis):
    with pytest.raises(np.exceptions.AxisError, match="out of bounds"):
        pfkit.logsumexp(GOOD, axis=axis)
    assert issubclass(np.exceptions.AxisError, ValueError)


@pytest.mark.parametrize("axis", [(0, 0), (0, -1)])
def test_axis_twice(axis):
    with pytest.raises(ValueError, match="twice"):
        pfkit.logsumexp(GOOD, axis=axis)


@pytest.mark.parametrize("axis", [0.0, "0", [0], True, (0.5,)])
def test_axis_type(axis):
    with pytest.raises(TypeError, match="None, an integer or a tuple of integers"):
        pfkit.logsumexp(GOOD, axis=axis)


def test_axis_accepts_numpy_integers():
    assert pfkit.logsumexp(GOOD, axis=np.int8(0)) == pfkit.logsumexp(GOOD)


@pytest.mark.parametrize("function", [pfkit.logsumexp, pfkit.log_normalize, pfkit.logcumsumexp])
def test_unknown_kernel(function):
    with pytest.raises(ValueError, match="unknown lse='fast'.*accepted.*fuse"):
        function(GOOD, lse="fast")
    with pytest.raises(TypeError, match="name of a kernel.*fuse.*got 3"):
        function(GOOD, lse=3)
    with pytest.raises(TypeError, match="got None"):
        function(GOOD, lse=None)


def test_kernels_of_other_devices_and_functions():
    with pytest.raises(ValueError, match="fuse16.*CUDA tensors only"):
        pfkit.logsumexp(GOOD, lse="fuse16")
    with pytest.raises(ValueError, match="'int' is not available here; accepted: fuse, numpy"):
        pfkit.logcumsumexp(GOOD, lse="int")


def test_shapes_that_do_not_broadcast():
    with pytest.raises(ValueError, match=r"b has shape \(2,\).*\(3,\)"):
        pfkit.logsumexp(GOOD, b=[1.0, 2.0])


def test_out():
    with pytest.raises(TypeError, match="list"):
        pfkit.logsumexp(GOOD, out=[0.0])
    with pytest.raises(ValueError, match=r"\(2,\).*\(\)"):
        pfkit.logsumexp(GOOD, out=np.zeros(2))
    with pytest.raises(TypeError, match="int64"):
        pfkit.logsumexp(GOOD, out=np.zeros((), np.int64))
    frozen = np.zeros(())
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        pfkit.logsumexp(GOOD, out=frozen)
    with pytest.raises(ValueError, match="shape"):
        pfkit.log_normalize(GOOD, out=np.zeros(4))
    with pytest.raises(TypeError, match="float32"):
        pfkit.log_normalize(GOOD, out=np.zeros(3, np.float32))


def test_dimensions():
    with pytest.raises(ValueError, match="0-d"):
        pfkit.log_normalize(1.0)
    with pytest.raises(ValueError, match="0-d"):
        pfkit.logcumsumexp(1.0)
    with pytest.raises(TypeError, match="one integer"):
        pfkit.logcumsumexp(GOOD, axis=None)
    with pytest.raises(np.exceptions.AxisError):
        pfkit.logcumsumexp(GOOD, axis=1)


@pytest.mark.parametrize("function", [pfkit.log_normalize, pfkit.logcumsumexp])
def test_complex_where_only_reals_make_sense(function):
    with pytest.raises(TypeError, match="complex128"):
        function(np.array([1j, 2.0]))


def test_table():
    with pytest.raises(ValueError, match="at least 1, got 0"):
        pfkit.kernels()[0].error_bound(0)
    with pytest.raises(TypeError, match="complex"):
        pfkit.kernels()[0].error_bound(1, "complex128")
    with pytest.raises(ValueError, match="unknown device 'tpu'"):
        pfkit.explain("int", "tpu")
    with pytest.raises(ValueError, match="unknown lse='fast'"):
        pfkit.explain("fast")


def test_state():
    with pytest.raises(ValueError, match="int-pairwise.*accepted: fuse, int"):
        pfkit.LSEState.empty((), "int-pairwise")
    with pytest.raises(TypeError, match="float16"):
        pfkit.LSEState.empty((), dtype="float16")
    with pytest.raises(ValueError, match="NaN"):
        pfkit.LSEState.empty((), "int", reference=np.nan)
    with pytest.raises(ValueError, match="reference point"):
        pfkit.LSEState.empty((), "fuse", reference=0.0)
    state = pfkit.LSEState.empty((2,))
    with pytest.raises(ValueError, match=r"\(3,\).*\(2,\)"):
        state.update(np.zeros((3, 4)))
    with pytest.raises(TypeError, match="object"):
        state.update(np.array([[None], [None]]))
    with pytest.raises(TypeError, match="float"):
        state.combine(1.0)
    for other in (
        pfkit.LSEState.empty((3,)),
        pfkit.LSEState.empty((2,), "int"),
        pfkit.LSEState.empty((2,), dtype="float32"),
    ):
        with pytest.raises(ValueError, match="do not combine"):
            state.combine(other)
