"""A compiled module that is older than its sources says so when it is imported."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import pfkit_ext
from pfkit_ext import _cpu, sources

PACKAGE = Path(pfkit_ext.__file__).parent


@pytest.fixture
def copied(tmp_path):
    """The package with its compiled modules and Cython sources, elsewhere."""
    folder = tmp_path / "pfkit_ext"
    folder.mkdir()
    for path in PACKAGE.iterdir():
        if path.suffix in (".py", ".pyx", ".pxi", ".so", ".pyd"):
            shutil.copy(path, folder)
    return folder


def imported(folder):
    command = "import pfkit_ext; print(pfkit_ext.__file__)"
    return subprocess.run([sys.executable, "-c", command], cwd=folder.parent, capture_output=True, text=True)


def test_the_module_names_its_sources():
    if sources.digest(PACKAGE):
        assert _cpu.SOURCES == sources.digest(PACKAGE)


def test_changed_sources_are_an_import_error_and_none_are_fine(copied):
    if not any(PACKAGE.glob("*.pxi")):
        pytest.skip("the sources are not beside the installed module")
    run = imported(copied)
    assert run.returncode == 0 and str(copied) in run.stdout, run.stderr
    for name in ("step.pxi", "_cpu.pyx"):
        text = (copied / name).read_text()
        (copied / name).write_text(text + "# a later line\n")
        failed = imported(copied)
        assert failed.returncode and "ImportError" in failed.stderr and "build_ext" in failed.stderr
        (copied / name).write_text(text)
    extra = copied / "later.pxi"
    extra.write_text("")
    assert "built from other sources" in imported(copied).stderr
    extra.unlink()
    assert imported(copied).returncode == 0
    for path in (*copied.glob("*.pxi"), *copied.glob("*.pyx")):
        path.unlink()
    assert imported(copied).returncode == 0


def test_a_module_from_before_there_was_a_digest_is_refused(tmp_path):
    (tmp_path / "a.pxi").write_text("one\r\ntwo\n")
    with pytest.raises(ImportError, match="built from other sources"):
        sources.check(object(), tmp_path)
    (tmp_path / "a.pxi").write_bytes(b"one\ntwo\n")
    unix = sources.digest(tmp_path)
    (tmp_path / "a.pxi").write_bytes(b"one\r\ntwo\r\n")
    assert sources.digest(tmp_path) == unix and len(unix) == 16
