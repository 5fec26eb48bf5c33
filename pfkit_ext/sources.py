"""The Cython sources the compiled modules are built from, as one number.

`setup.py` puts it into the module, and importing compares it with the sources beside the module, if any.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

__all__ = ["check", "digest"]


def digest(folder: Path) -> str:
    """Of the names and texts of the .pyx and .pxi files in ``folder``, line ends aside; "" if none."""
    files = sorted((*folder.glob("*.pyx"), *folder.glob("*.pxi")), key=lambda p: p.name)
    if not files:
        return ""
    whole = sha256()
    for path in files:
        whole.update(path.name.encode() + b"\0" + path.read_bytes().replace(b"\r\n", b"\n") + b"\0")
    return whole.hexdigest()[:16]


def check(module: object, folder: Path) -> None:
    """ImportError if ``module`` was built from other sources than those in ``folder``."""
    if digest(folder) not in ("", getattr(module, "SOURCES", None)):
        raise ImportError(
            f"{getattr(module, '__file__', module)} was built from other sources than those beside it, as "
            "after an update without a build: run `pip install -e .` or `python setup.py build_ext --inplace`"
        )
