"""Code for CPUs and WebAssembly, through LLVM.

Owns: the translation of functions to LLVM IR, the public stub of ABI 1, host stubs of accelerator functions, and
object emission. Does not own: linking or loading (`farm.runtime`).

Invariant: generated code gives exactly what `farm.ir.interpreter` gives, except that ``exp`` and ``tanh`` may differ
by the ulps that `functions` states; objects refer to nothing but callees, memcpy, memmove, memset.
"""
