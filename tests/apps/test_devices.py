"""--device of the applications: what cannot be had ends in one line."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from apps import circuit_mnist  # noqa: E402
from apps.devices import chosen_device  # noqa: E402


def fail(message):
    raise SystemExit(message)


def test_devices_that_are_there():
    assert chosen_device("cpu", fail) == "cpu"
    assert chosen_device(None, fail) == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize(
    "name, message",
    [("xyz", "got 'xyz'"), ("meta", "got 'meta'"), ("cuda:99", "no GPU is there"), ("", "got ''")],
)
def test_devices_that_are_not(name, message):
    with pytest.raises(SystemExit, match=message):
        chosen_device(name, fail)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--device", "cuda:99"], "no GPU is there for --device cuda:99"),
        (["--latents", "0"], "--latents must be >= 1"),
    ],
)
def test_the_digits_refuse_in_one_line(arguments, message, capsys):
    with pytest.raises(SystemExit):
        circuit_mnist.main(arguments)
    assert message in capsys.readouterr().err
