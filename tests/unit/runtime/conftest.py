"""Compiled kernels for the tests of loaders."""

from compiled_kernels import add_body, add_module, add_params, built, emit

__all__ = ["add_body", "add_module", "add_params", "built", "emit"]
