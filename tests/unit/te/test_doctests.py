"""The examples in docstrings run and give what they show."""

from __future__ import annotations

import doctest
from types import ModuleType

import pytest

import farm.ir.printer
import farm.te


@pytest.mark.parametrize("module", [farm.te, farm.ir.printer], ids=lambda module: module.__name__)
def test_docstring_examples_of_module_run(module: ModuleType) -> None:
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0
