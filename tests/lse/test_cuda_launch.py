"""The thin launcher without a GPU: what it hands to the driver's two functions, read back from fakes."""

import ctypes

import pytest

from pfkit.lse import cuda
from pfkit_ext import _cuda

BLOCK = cuda.pack_arguments(5, 7, [(7, 5)], [(5, 1)])
WORDS = len(BLOCK) // 8


class Attribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int), ("padding", ctypes.c_int), ("value", ctypes.c_char * 64)]


class Config(ctypes.Structure):
    """CUlaunchConfig as the driver's documentation lays it out."""

    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(Attribute)),
        ("count", ctypes.c_uint),
    ]


PARAMETERS = ctypes.POINTER(ctypes.POINTER(ctypes.c_int64))
PLAIN = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, *[ctypes.c_uint] * 7, ctypes.c_void_p, PARAMETERS, ctypes.c_void_p
)
EXTENDED = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(Config), ctypes.c_void_p, PARAMETERS, ctypes.c_void_p
)


@pytest.fixture
def seen():
    """What the fakes were called with; the driver's own functions are bound again by the next device."""
    if not cuda.missing():
        pytest.skip("CUDA works here: the driver's functions stay bound")
    calls = []

    @PLAIN
    def plain(function, *numbers):
        *launch, stream, parameters, _ = numbers
        calls.append(("plain", function, launch, stream, parameters[0][:WORDS]))
        return 3

    @EXTENDED
    def extended(config, function, parameters, _):
        c = config[0]
        attribute = c.attributes[0]
        calls.append(("extended", function, [*c.grid, *c.block, c.shared], c.stream, parameters[0][:WORDS],
                      c.count, attribute.id, attribute.value))  # fmt: skip
        return 4

    address = lambda f: ctypes.cast(f, ctypes.c_void_p).value  # noqa: E731
    _cuda.bind(address(plain), address(extended))
    yield calls
    _cuda.bind(0)


def block(*pointers):
    return [*pointers, *[0] * (8 - len(pointers)), *memoryview(BLOCK).cast("q")[8:]]


def test_a_plain_launch(seen):
    launch = _cuda.Launch(99, (6, 2), 128, 4096, BLOCK)
    assert launch(17, 1, 2, 3) == 3
    assert seen == [("plain", 99, [6, 2, 1, 128, 1, 1, 4096], 17, block(1, 2, 3))]


def test_a_launch_that_may_start_early_carries_the_attribute(seen):
    launch = _cuda.Launch(99, (6, 2), 128, 4096, BLOCK, early=True)
    assert launch(17, 1, 2, 3, 4, 5, 6, 7, 8) == 4
    serialization = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    want = ("extended", 99, [6, 2, 1, 128, 1, 1, 4096], 17, block(*range(1, 9)), 1, serialization, b"\1")
    assert seen == [want]


def test_a_driver_without_the_extended_launch_gets_the_plain_one(seen):
    address = PLAIN(lambda *a: 5)
    _cuda.bind(ctypes.cast(address, ctypes.c_void_p).value)
    assert _cuda.Launch(99, (1, 1), 32, 0, BLOCK, early=True)(0, 0) == 5


def test_unbound_and_oversized_launches_are_refused():
    if cuda.missing():
        _cuda.bind(0)
        with pytest.raises(RuntimeError, match="no CUDA driver"):
            _cuda.Launch(99, (1, 1), 32, 0, BLOCK)(0, 0)
    for size in (56, 520):
        with pytest.raises(ValueError, match=f"got {size}"):
            _cuda.Launch(99, (1, 1), 32, 0, bytes(size))
