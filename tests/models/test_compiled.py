"""User models in C, Cython and numba, as the documentation writes them."""

import ctypes
import math
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from scipy import LowLevelCallable

from pfkit import CompiledModel, LocalLevel, ParticleFilter, StateSpaceModel

Y = np.cumsum(np.random.default_rng(2).normal(size=30))
Y[7] = np.nan

PAGE = (Path(__file__).parents[2] / "docs" / "compiled-models.md").read_text()


def block(language, holding=""):
    """The first block in that language, and with that text, of the page on compiled models."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.M | re.S)
    return next(text for text in blocks if holding in text)


class Level(StateSpaceModel):
    """A local level model that brings its own compiled functions."""

    def __init__(self, sigma_level, sigma_obs, functions, **keywords):
        self.plain = LocalLevel(sigma_level, sigma_obs)
        self.functions, self.keywords = functions, keywords
        self.params = (sigma_level, sigma_obs, math.log(sigma_obs) + 0.5 * math.log(2 * math.pi))

    def initial(self, n, rng):
        return self.plain.initial(n, rng)

    def transition(self, x, t, rng):
        raise AssertionError("the compiled function stands for this one")

    def log_likelihood(self, y, x, t):
        raise AssertionError("the compiled function stands for this one")

    def compiled(self):
        return CompiledModel(*self.functions, self.params, **self.keywords)


def check(functions, **keywords):
    """The same numbers as the ready model, to rounding."""
    for threads in (1, 3):
        pf = ParticleFilter(Level(1.0, 0.7, functions, **keywords), 2000, rng=4, n_threads=threads)
        result = pf.run(Y)
        expected = ParticleFilter(LocalLevel(1.0, 0.7), 2000, rng=4).run(Y)
        np.testing.assert_allclose(result.increment, expected.increment, rtol=0, atol=2e-2)
        np.testing.assert_allclose(result.increment[0], expected.increment[0], rtol=1e-12)
        assert pf._engine is not None


def compiled_c(folder):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    source, library = folder / "level.c", folder / "level.so"
    source.write_text(block("c"))
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))


def c_functions(library):
    pointer = ctypes.POINTER(ctypes.c_double)
    move, weigh = library.transition, library.log_likelihood
    move.restype = weigh.restype = None
    move.argtypes = [pointer, pointer, pointer, ctypes.c_int64, ctypes.c_int64, pointer, pointer]
    weigh.argtypes = [pointer, pointer, ctypes.c_int64, ctypes.c_int64, pointer, pointer]
    return LowLevelCallable(move), LowLevelCallable(weigh)


@pytest.mark.skipif(sys.platform == "win32", reason="the example builds a shared library the POSIX way")
def test_a_model_in_c(tmp_path):
    check(c_functions(compiled_c(tmp_path)))


@pytest.mark.skipif(sys.platform == "win32", reason="the example builds a shared library the POSIX way")
def test_the_pages_own_ctypes_and_model(tmp_path, monkeypatch):
    compiled_c(tmp_path)
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(block("python", "import ctypes"), names)
    check(names["functions"])
    exec(block("python", "class Level"), names)
    model, y = names["Level"](1.0, 0.7), names["y"]
    pf = ParticleFilter(model, 20_000, rng=1)
    compiled = pf.run(y)
    assert pf._engine is not None
    model.compiled = lambda: None
    python = ParticleFilter(model, 20_000, rng=1).run(y)
    np.testing.assert_allclose(compiled.increment, python.increment, rtol=0, atol=0.1)


def test_a_model_in_numba():
    pytest.importorskip("numba")
    names = {}
    exec(block("python", "import numba"), names)
    check(names["functions"])


@pytest.mark.skipif(sys.platform == "win32", reason="the example builds an extension the POSIX way")
def test_a_model_in_cython(tmp_path):
    pytest.importorskip("Cython")
    if shutil.which("cc") is None and shutil.which("gcc") is None:
        pytest.skip("no C compiler")
    (tmp_path / "level_model.pyx").write_text(block("cython"))
    build = """
        from Cython.Build import cythonize
        from setuptools import Extension, setup
        setup(ext_modules=cythonize([Extension("level_model", ["level_model.pyx"])], quiet=True))
    """
    (tmp_path / "setup.py").write_text(textwrap.dedent(build))
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    sys.path.insert(0, str(tmp_path))
    try:
        import level_model

        check([LowLevelCallable.from_cython(level_model, f) for f in ("transition", "log_likelihood")])
    finally:
        sys.path.remove(str(tmp_path))


# ---- what is refused ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def functions(tmp_path_factory):
    if sys.platform == "win32":
        pytest.skip("needs a shared library")
    return c_functions(compiled_c(tmp_path_factory.mktemp("level")))


def test_wrong_signatures_are_named(functions):
    move, weigh = functions
    with pytest.raises(ValueError, match="log_likelihood has the signature"):
        CompiledModel(move, move)
    with pytest.raises(ValueError, match="expected 'void \\(float"):
        CompiledModel(move, weigh, transition32=move, log_likelihood32=weigh)
    with pytest.raises(TypeError, match="LowLevelCallable"):
        CompiledModel(len, weigh)
    with pytest.raises(TypeError, match="both"):
        CompiledModel(move, weigh, transition32=move)


@pytest.mark.parametrize(
    "keywords", [{"state_dim": 0}, {"noise_dim": -1}, {"observation_dim": 0}, {"input_dim": 1.5}]
)
def test_dimensions_out_of_range(functions, keywords):
    with pytest.raises(ValueError, match=next(iter(keywords))):
        CompiledModel(*functions, **keywords)


def test_a_model_must_agree_with_its_compiled_form(functions):
    with pytest.raises(ValueError, match="the model has state_dim None, input_dim 0: pass .*state_dim=None"):
        ParticleFilter(Level(1.0, 1.0, functions, state_dim=1), 10)
    model = Level(1.0, 1.0, functions)
    model.compiled = lambda: "fast"
    with pytest.raises(TypeError, match="CompiledModel or None"):
        ParticleFilter(model, 10)


def test_float32_needs_float32_functions(functions):
    pf = ParticleFilter(Level(1.0, 1.0, functions), 10, dtype="float32")
    assert pf._engine is None
    assert CompiledModel(*functions).supports("float64") and not CompiledModel(*functions).supports("float32")


def test_ready_models_by_name():
    with pytest.raises(ValueError, match="no ready compiled model 'walk'"):
        CompiledModel.ready("walk", (), state_dim=None)
    assert "local_level" in repr(LocalLevel(1.0, 1.0).compiled())


READY = {
    "local_level": ([1.0, 1.0, 0.0], dict(state_dim=None)),
    "volatility": ([0.0, 0.9, 0.3, -0.9], dict(state_dim=1)),
    "theta": ([0.1] * 6, dict(state_dim=None)),
    "linear": ([2, 1, *[0.5] * 11], dict(state_dim=2, noise_dim=2)),
    "bearings": ([1.0] * 6 + [2.0] + [0.0] * 4, dict(state_dim=4, noise_dim=4, steps=2)),
    "robot": ([0.1] * 7 + [2.0] + [1.0] * 16, dict(state_dim=3, noise_dim=3, observation_dim=2, input_dim=3)),
}


@pytest.mark.parametrize("name", READY)
def test_ready_models_check_params_and_dimensions(name):
    params, dims = READY[name]
    CompiledModel.ready(name, params, **dims)
    for wrong in (params[:-1], [*params, 1.0], [], params[:1]):
        with pytest.raises(ValueError, match="params"):
            CompiledModel.ready(name, wrong, **dims)
    for key, least in (("state_dim", 1), ("noise_dim", 1), ("observation_dim", 1), ("input_dim", 0)):
        more = (dims.get(key) or least) + 1
        with pytest.raises(ValueError, match=f"{key}.*not"):
            CompiledModel.ready(name, params, **{**dims, key: more})


def test_lengths_among_the_params_of_ready_models_are_checked():
    for name, k in (("linear", 0), ("linear", 1), ("bearings", 6), ("robot", 7)):
        params, dims = READY[name]
        for wrong in (-1, 1.5, 7, np.nan, np.inf, 1e30):
            with pytest.raises(ValueError):
                CompiledModel.ready(name, [*params[:k], wrong, *params[k + 1 :]], **dims)
    params, dims = READY["bearings"]
    for steps in (None, 3):
        with pytest.raises(ValueError, match="a path of 2 needs steps"):
            CompiledModel.ready("bearings", params, **{**dims, "steps": steps})


def test_a_ready_model_follows_its_params_to_the_last_bit():
    """Models that were made before are handed out again, but never one of other numbers or dimensions."""
    made = {}
    for _ in range(2):
        for params in ((0.0, 1.0, -0.5), (-0.0, 1.0, -0.5), (0.0, 1.0, -0.25)):
            for state_dim in (None, 1):
                c = CompiledModel.ready("local_level", params, state_dim=state_dim)
                assert c.params.tobytes() == np.array(params).tobytes() and c.state_dim == state_dim
                made[id(c)] = c
        with pytest.raises(ValueError, match="state_dim"):
            CompiledModel.ready("local_level", (0.0, 1.0, -0.5), state_dim=True)
        with pytest.raises(ValueError, match="noise_dim"):
            CompiledModel.ready("local_level", (0.0, 1.0, -0.5), state_dim=None, noise_dim=[1])
    assert len(made) == 6
