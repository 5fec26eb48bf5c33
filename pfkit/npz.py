"""Arrays on disk: plain npz files, nothing pickled, written whole or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
import zipfile
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np


def write(path: Any, arrays: Mapping[str, Any]) -> None:
    """Write `arrays` to a path or a binary file. At a path, an error leaves what was there."""
    if hasattr(path, "write"):
        np.savez(path, **arrays)
        return
    path = os.path.realpath(os.fspath(path))  # a link stays one: the file it names is written
    temporary = os.path.join(os.path.dirname(path), f".pfkit-{secrets.token_hex(8)}")
    try:
        # as open() would: the mode is what the umask leaves, or that of the file there
        with open(temporary, "xb") as file:
            if os.path.exists(path):
                shutil.copymode(path, temporary)
            np.savez(file, **arrays)
        os.replace(temporary, path)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise


def read(path: Any, broken: Callable[[str], Exception]) -> dict[str, np.ndarray]:
    """Everything in the npz file at a path, or in a binary file. Raises `broken` of what is wrong with it."""
    if hasattr(path, "read"):
        return _arrays(path, path, broken)
    with open(os.fspath(path), "rb") as stream:
        return _arrays(stream, path, broken)


def _arrays(stream: Any, path: Any, broken: Callable[[str], Exception]) -> dict[str, np.ndarray]:
    try:
        file = np.load(stream, allow_pickle=False)
    except (zipfile.BadZipFile, EOFError, ValueError) as error:
        raise broken(f"{path!r} is not an npz file, or is cut short ({error})") from error
    if not isinstance(file, np.lib.npyio.NpzFile):
        raise broken(f"{path!r} holds a single array")
    with file:
        try:
            return {key: file[key] for key in file.files}
        except Exception as error:  # zip, zlib and numpy have a dozen of their own
            raise broken(f"{path!r} is damaged ({error})") from error
