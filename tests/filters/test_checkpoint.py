"""Saving and resuming: the same bits as a run that was never interrupted."""

import io
import os
import subprocess
import sys

import numpy as np
import pytest

import pfkit
from pfkit import LocalLevel, ParticleFilter, from_functions

Y = np.cumsum(np.random.default_rng(9).normal(size=40))
MODEL = LocalLevel(1.0, 0.8, 0.0, 2.0)


def first_index(weights, n, rng):
    return np.sort(rng.integers(0, n, n))


def state(pf):
    return (
        pf.particles.tobytes(),
        pf.log_weights.tobytes(),
        pf.weights.tobytes(),
        pf.ess,
        pf.log_likelihood,
        pf.time,
    )


@pytest.mark.parametrize("lse", ["fuse", "int", "numpy"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("scheme", ["systematic", "stratified", "multinomial", "residual", first_index])
def test_resumed_at_every_point_gives_the_same_bits(tmp_path, lse, dtype, scheme):
    options = dict(rng=5, lse=lse, dtype=dtype, resampling=scheme, ess_threshold=0.6, on_collapse="keep")
    again = {} if isinstance(scheme, str) else {"resampling": scheme}
    whole, broken = ParticleFilter(MODEL, 60, **options), ParticleFilter(MODEL, 60, **options)
    path = tmp_path / "filter"
    for k, y in enumerate([*Y[:8], None, *Y[8:12], 1e200, *Y[12:16]]):
        if k:
            broken.save(path)
            broken = ParticleFilter.load(path, MODEL, **again)
        whole.predict()
        broken.predict()
        broken.save(str(path))
        broken = ParticleFilter.load(str(path), MODEL, **again)
        assert whole.update(y) == broken.update(y)
        assert state(whole) == state(broken)
    assert os.listdir(tmp_path) == ["filter"]


RESUME = """
import sys, numpy as np, pfkit
pf = pfkit.ParticleFilter.load(sys.argv[1], pfkit.LocalLevel(1.0, 0.8, 0.0, 2.0))
y = np.load(sys.argv[2], allow_pickle=False)
result = pf.run(y)
print(result.log_likelihood.hex(), pf.log_likelihood.hex(), pf.particles.tobytes().hex()[:2000])
"""


@pytest.mark.parametrize("lse", ["fuse", "int"])
def test_resumed_in_a_new_process(tmp_path, lse):
    whole = ParticleFilter(MODEL, 200, rng=1, lse=lse)
    whole.run(Y[:20])
    whole.save(tmp_path / "half.npz")
    np.save(tmp_path / "rest.npy", Y[20:])
    rest = whole.run(Y[20:])
    expected = (
        f"{rest.log_likelihood.hex()} {whole.log_likelihood.hex()} {whole.particles.tobytes().hex()[:2000]}"
    )
    run = subprocess.run(
        [sys.executable, "-c", RESUME, tmp_path / "half.npz", tmp_path / "rest.npy"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.strip() == expected


def test_before_the_first_step_and_after_a_collapse(tmp_path):
    path = tmp_path / "f"
    pf = ParticleFilter(MODEL, 30, rng=2)
    pf.save(path)
    assert ParticleFilter.load(path, MODEL).run(Y).log_likelihood == pf.run(Y).log_likelihood
    pf = ParticleFilter(MODEL, 30, rng=2, on_collapse="keep")
    pf.step(1e200)
    pf.save(path)
    again = ParticleFilter.load(path, MODEL)
    assert again.ess == 0 and again.log_likelihood == -np.inf
    assert again.step(0.0) == pf.step(0.0) and state(again) == state(pf)


def test_vector_states_and_undeclared_dimensions(tmp_path):
    def model():
        return from_functions(
            lambda n, rng: rng.normal(size=(n, 3)),
            lambda x, t, rng: x + rng.normal(size=x.shape),
            lambda y, x, t: -0.5 * np.sum((y - x) ** 2, axis=1),
        )

    pf = ParticleFilter(model(), 25, rng=0)
    pf.run(np.zeros((5, 3)))
    pf.save(tmp_path / "f")
    again = ParticleFilter.load(tmp_path / "f", model())
    assert again.particles.shape == (25, 3) and again.state_dim == 3
    assert again.run(np.ones((5, 3))).log_likelihood == pf.run(np.ones((5, 3))).log_likelihood
    with pytest.raises(ValueError, match="state_dim 3, the model None"):
        ParticleFilter.load(tmp_path / "f", MODEL)


def test_a_step_interrupted_after_resampling_is_saved_as_such(tmp_path):
    fail = [False]

    def transition(x, t, rng):
        if fail[0]:
            raise OSError
        return x + rng.normal(size=x.shape)

    model = from_functions(lambda n, rng: rng.normal(size=n), transition, lambda y, x, t: -0.5 * (y - x) ** 2)
    whole, broken = (ParticleFilter(model, 40, rng=1, ess_threshold=1) for _ in range(2))
    whole.step(0.0)
    broken.step(0.0)
    fail[0] = True
    with pytest.raises(OSError):
        broken.predict()
    fail[0] = False
    broken.save(tmp_path / "f")
    again = ParticleFilter.load(tmp_path / "f", model)
    assert again.step(0.5) == whole.step(0.5) and state(again) == state(whole)


def test_nothing_is_pickled_and_files_work_too(tmp_path):
    pf = ParticleFilter(MODEL, 10, rng=0, lse="int")
    pf.run(Y[:3])
    file = io.BytesIO()
    pf.save(file)
    file.seek(0)
    with np.load(file, allow_pickle=False) as saved:
        assert all(saved[name].dtype.kind != "O" for name in saved.files)
    file.seek(0)
    assert state(ParticleFilter.load(file, MODEL)) == state(pf)


def test_more_particles_than_fit_32_bit_weights(tmp_path):
    n = 2**20 + 7
    pf = ParticleFilter(MODEL, n, rng=0, lse="int")
    pf.step(5.0)
    pf.save(tmp_path / "f")
    again = ParticleFilter.load(tmp_path / "f", MODEL)
    assert again.step(5.0).resampled and pf.step(5.0).resampled and state(again) == state(pf)


def test_what_load_refuses(tmp_path):
    path = tmp_path / "f"
    pf = ParticleFilter(MODEL, 10, resampling=first_index)
    pf.save(path)
    with pytest.raises(ValueError, match="callable"):
        ParticleFilter.load(path, MODEL)
    ParticleFilter(MODEL, 10).save(path)
    with pytest.raises(ValueError, match="'systematic'"):
        ParticleFilter.load(path, MODEL, resampling="multinomial")
    with pytest.raises(FileNotFoundError):
        ParticleFilter.load(tmp_path / "none", MODEL)
    np.savez(tmp_path / "other.npz", x=1)
    with pytest.raises(ValueError, match="not a file written by"):
        ParticleFilter.load(tmp_path / "other.npz", MODEL)
    with np.load(path) as saved:
        fields = {name: saved[name] for name in saved.files}
    np.savez(tmp_path / "new.npz", **{**fields, "format": 99})
    with pytest.raises(ValueError, match="format 99"):
        ParticleFilter.load(tmp_path / "new.npz", MODEL)


def test_a_save_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    pf = ParticleFilter(MODEL, 10, rng=0)
    pf.step(0.0)
    pf.save(tmp_path / "f")
    before = (tmp_path / "f").read_bytes()

    def broken(*args, **kwargs):
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez", broken)
    pf.step(0.0)
    with pytest.raises(OSError, match="disk full"):
        pf.save(tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == before and os.listdir(tmp_path) == ["f"]


def test_a_deep_copy_forecasts_without_touching_the_original():
    import copy

    pf = ParticleFilter(MODEL, 50, rng=1)
    pf.run(Y[:5])
    before = state(pf)
    other = copy.deepcopy(pf)
    assert other.run(Y[5:10]).log_likelihood != 0 and state(pf) == before
    assert state(other) != before
    pf.run(Y[5:10])
    assert state(other) == state(pf)


def test_levels_do_not_change_integer_weights(tmp_path, at_every_level):
    """A file written at one SIMD level resumes to the same ancestors and weights at another."""
    pf = ParticleFilter(MODEL, 500, rng=1, lse="int", ess_threshold=1)
    pf.run(Y[:5])
    pf.save(tmp_path / "f")
    code = (
        "import sys, pfkit; m = pfkit.LocalLevel(1.0, 0.8, 0.0, 2.0);"
        "pf = pfkit.ParticleFilter.load(sys.argv[1], m); pf.predict(); r = pf.update(0.5);"
        "print(r, pf.weights.tobytes().hex())"
    )
    seen = set(at_every_level(code, tmp_path / "f").values())
    assert len(seen) == 1 and "StepResult" in seen.pop()
    assert pfkit.__version__


def saved_fields(path, **options):
    pf = ParticleFilter(MODEL, 16, rng=1, **options)
    pf.run(Y[:6])
    pf.save(path)
    with np.load(path) as file:
        return {name: file[name] for name in file.files}


NAN, TINY = np.full(16, np.nan), np.full(16, 1e-3)
DAMAGE = {
    "particles": [
        np.zeros((1, 8)), np.zeros(16), np.zeros((16, 1)), np.zeros((1, 16), np.float32), np.zeros((2, 16)),
        np.zeros((0, 16)), np.zeros((1, 16), "U8"), np.zeros((1, 16), np.int64),
    ],
    "weights": [np.zeros(16), NAN, -TINY, np.full(16, np.inf), np.ones(15),
                np.ones((1, 16)), TINY.astype("f4")],
    "log_weights": [NAN, np.full(16, np.inf), np.full(16, -np.inf), np.ones(17), np.ones(16, np.int64)],
    "ints": [np.zeros(16, np.uint32), np.ones(4, np.uint32), np.ones(16, np.uint64), np.ones(16, np.int32)],
    "key": [np.zeros(3, np.uint64), np.zeros(2, np.int64), np.uint64(1)],
    "time": [-1, -5, 2**62, 1.5, "now", np.zeros(2, np.int64)],
    "n_particles": [0, -1, 2**60, 1.0],
    "unique_next": [-1, 17],
    "n_unique": [0, 17],
    "ess": [np.nan, -1.0, 1e9],
    "ess_threshold": [np.nan, -1.0],
    "log_likelihood": [np.nan, np.inf],
    "dtype": ["float16", "object", 3],
    "lse": ["none", 1],
    "on_collapse": ["ignore"],
    "resampling": ["none"],
    "n_threads": [0, -3],
    "scalar": [2, "yes"],
    "format": ["1", np.ones(2, np.int64)],
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_each_field_of_a_file_is_checked(tmp_path, name):
    path = tmp_path / "f"
    good = saved_fields(path, lse="int")
    for value in DAMAGE[name]:
        np.savez(tmp_path / "bad.npz", **{**good, name: value})
        with pytest.raises(ValueError, match=rf"^not a file written by ParticleFilter.save: .*{name}"):
            ParticleFilter.load(tmp_path / "bad.npz", MODEL)
    np.savez(tmp_path / "bad.npz", **{key: value for key, value in good.items() if key != name})
    if name == "particles":  # then the filter would be one that has not begun, and has no time
        name = "time"
    if name != "ints":
        with pytest.raises(ValueError, match=rf"^not a file written by ParticleFilter.save: .*{name}"):
            ParticleFilter.load(tmp_path / "bad.npz", MODEL)


def test_files_of_other_kinds_and_damaged_ones(tmp_path):
    path, bad = tmp_path / "f", tmp_path / "bad"
    saved_fields(path)
    whole = path.read_bytes()
    contents = [b"", b"text\n", b"PK\x03\x04"]
    contents += [whole[:-1], whole[:-30], whole[: len(whole) // 2], whole[:100]]
    for at in range(30, len(whole) - 400, 97):  # one byte flipped, here and there
        contents.append(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
    refused = 0
    for content in contents:
        bad.write_bytes(content)
        try:
            ParticleFilter.load(bad, MODEL).run(Y[6:12])
        except ValueError as error:
            assert str(error).startswith("not a file written by ParticleFilter.save: ")
            refused += 1
    assert refused > len(contents) // 2
    np.save(tmp_path / "one.npy", np.ones(3))
    with pytest.raises(ValueError, match="^not a file written by ParticleFilter.save: .*single array"):
        ParticleFilter.load(tmp_path / "one.npy", MODEL)


def test_particles_in_any_memory_order(tmp_path):
    good = saved_fields(tmp_path / "f")
    whole = ParticleFilter.load(tmp_path / "f", MODEL)
    np.savez(tmp_path / "g.npz", **{**good, "particles": np.asfortranarray(good["particles"])})
    again = ParticleFilter.load(tmp_path / "g.npz", MODEL)
    assert again.run(Y[6:12]).log_likelihood == whole.run(Y[6:12]).log_likelihood


@pytest.mark.skipif(os.name != "posix", reason="file modes and links of POSIX")
def test_a_saved_file_has_the_mode_of_any_other(tmp_path):
    pf = ParticleFilter(LocalLevel(1.0, 1.0), 10, rng=1)
    before = os.umask(0o027)
    try:
        pf.save(tmp_path / "new.npz")
        (tmp_path / "old.npz").write_bytes(b"")
        (tmp_path / "old.npz").chmod(0o604)
        pf.save(tmp_path / "old.npz")
    finally:
        os.umask(before)
    assert (tmp_path / "new.npz").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "old.npz").stat().st_mode & 0o777 == 0o604
    assert sorted(p.name for p in tmp_path.iterdir()) == ["new.npz", "old.npz"]


@pytest.mark.skipif(os.name != "posix", reason="file modes and links of POSIX")
def test_a_link_is_written_through(tmp_path):
    pf = ParticleFilter(LocalLevel(1.0, 1.0), 10, rng=1)
    (tmp_path / "there").mkdir()
    (tmp_path / "link.npz").symlink_to(tmp_path / "there" / "real.npz")
    for _ in range(2):  # the first names a file that is not there yet
        pf.save(tmp_path / "link.npz")
        assert (tmp_path / "link.npz").is_symlink()
        assert ParticleFilter.load(tmp_path / "there" / "real.npz", pf.model).n_particles == 10
