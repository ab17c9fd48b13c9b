"""Element types by name."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from farm.artifact.abi import DTYPES
from farm.core.elements import NAMES, is_float, numpy_dtype
from farm.ir import DType


@pytest.mark.parametrize("name", NAMES)
def test_name_is_that_of_numpy_of_the_ir_and_of_dlpack(name: str) -> None:
    dtype = numpy_dtype(name)
    assert (dtype.name, dtype.itemsize * 8) == (name, DTYPES[name][1])
    assert DType(name).numpy == dtype
    assert is_float(dtype) is DType(name).is_float
    assert np.frombuffer(np.ones(3, dtype).tobytes(), dtype).tolist() == [1, 1, 1]


def test_names_are_those_of_the_ir_and_of_dlpack() -> None:
    assert list(NAMES) == [str(dtype) for dtype in DType] == list(DTYPES)


def test_library_of_bfloat16_is_loaded_only_for_it() -> None:
    code = (
        "import sys, farm.core.wire, farm.artifact.signature\n"
        "from farm.core.elements import numpy_dtype\n"
        "numpy_dtype('float16'); assert 'ml_dtypes' not in sys.modules\n"
        "numpy_dtype('bfloat16'); assert 'ml_dtypes' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=180)
