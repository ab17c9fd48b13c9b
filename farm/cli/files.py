"""Files that a user names: checked before they are used.

Owns: the limits, and errors that say which file and why. Does not own: formats (`farm.artifact`, numpy's).

Invariant: no file is read beyond its limit, and no ``.npy`` file is unpickled.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from farm.errors import InvalidArguments, InvalidInput

if TYPE_CHECKING:
    import numpy.typing as npt

    from farm.artifact import ParamSpec

EXISTING_FILE = click.Path(exists=True, dir_okay=False, readable=True, path_type=Path)
HEADER_BYTES = 10_000


def read_artifact(path: Path) -> bytes:
    """Return the bytes of an artifact's file.

    Raises
    ------
    ArtifactCorrupt
        It is too large to be an artifact.
    InvalidInput
        It is no regular file.
    """
    from farm.artifact.container import MAX_FILE_BYTES
    from farm.core.files import read_regular, regular_size
    from farm.errors import ArtifactCorrupt

    size_bytes = regular_size(path)
    if size_bytes > MAX_FILE_BYTES:
        raise ArtifactCorrupt(
            f"artifact: {path} is too large ({size_bytes} bytes); use a file of at most {MAX_FILE_BYTES}"
        )
    return read_regular(path)


def read_numbers(path: Path, max_bytes: int) -> npt.NDArray[Any]:
    """Read a ``.npy`` file of numbers of any shape, in this machine's byte order.

    Raises
    ------
    InvalidInput
        The file is no regular file, no ``.npy`` file of numbers, too large, or ends early.
    """
    import numpy as np

    from farm.core.files import regular_size

    size_bytes = regular_size(path)
    if size_bytes > max_bytes:
        raise InvalidInput(f"{path}: too large ({size_bytes} bytes); use at most {max_bytes}")
    with path.open("rb") as file:
        shape, dtype = _header(file, path)
        _check_content(file, path, math.prod(shape) * np.dtype(dtype).itemsize)
        file.seek(0)
        return np.ascontiguousarray(np.load(file, allow_pickle=False))


def read_array(path: Path, spec: ParamSpec) -> npt.NDArray[Any]:
    """Read a ``.npy`` file that holds one parameter.

    Raises
    ------
    InvalidInput
        The file is no regular file, no ``.npy`` file of numbers, or ends early.
    InvalidArguments
        Its dtype or shape is not the parameter's; nothing was read but the header.
    """
    import numpy as np

    from farm.core.elements import numpy_dtype
    from farm.core.files import regular_size

    regular_size(path)  # opening a pipe would wait for its writer
    with path.open("rb") as file:
        shape, dtype = _header(file, path)
        wanted = numpy_dtype(spec.dtype)
        # numpy's files do not know bfloat16: they hold two bytes of anything
        held = np.dtype("V2") if spec.dtype == "bfloat16" else wanted
        if (shape, dtype) != (spec.shape, held):
            raise InvalidArguments(
                f"{path}: does not fit argument {spec.name} (has {dtype}{list(shape)}); "
                f"save {spec.dtype}{list(spec.shape)}",
                argument=spec.name,
                has=f"{dtype}{list(shape)}",
                needs=f"{spec.dtype}{list(spec.shape)}",
            )
        _check_content(file, path, spec.size_bytes)
        file.seek(0)
        found = np.ascontiguousarray(np.load(file, allow_pickle=False)).reshape(shape)
        return found if held == wanted else found.view(wanted)


def writable_folder(path: Path) -> Path:
    """Create a folder unless it exists; raises InvalidInput if that cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(
            f"{path}: cannot be created ({error.strerror}); choose another folder"
        ) from error
    return path


def _check_content(file: BinaryIO, path: Path, size_bytes: int) -> None:
    content = path.stat().st_size - file.tell()
    if content != size_bytes:
        raise InvalidInput(
            f"{path}: damaged (it holds {content} bytes, its header says {size_bytes}); save it again"
        )


def _header(file: BinaryIO, path: Path) -> tuple[tuple[int, ...], npt.DTypeLike]:
    import tokenize

    from numpy.lib import format as npy

    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    try:
        version = npy.read_magic(file)
        if version not in readers:
            raise InvalidInput(
                f"{path}: unknown version {version} of .npy; save it with numpy.save"
            )
        shape, _, dtype = readers[version](file, max_header_size=HEADER_BYTES)
    except (
        ValueError,
        EOFError,
        SyntaxError,
        RecursionError,
        MemoryError,
        tokenize.TokenError,
    ) as error:  # of the header
        raise InvalidInput(f"{path}: no .npy file ({error}); save it with numpy.save") from error
    if dtype.hasobject:
        raise InvalidInput(f"{path}: holds Python objects; save an array of numbers")
    return shape, dtype
