"""The code generator of the emulated accelerator: integer layers, tiled over its memories.

Owns: recognising what a function computes (`lift`), element-wise code (`epilogue`), sizes of tiles (`tiling`), the
program (`schedule`). Does not own: the machine (`farm.ea`).

What it compiles: at most one product ``C[i, j] = sum(A[i, k] * W[k, j])`` of int8 matrices in int32, followed by any
element-wise int32 expression of the product, of matrices ``[i, j]`` and of vectors ``[j]``: sums, products, minimum,
maximum, shifts by constants, and, or, xor, requantisation. Any sizes, tails included. Everything else is refused with
the reason, and belongs on the CPU.

Invariant: a program that is returned passed the machine's static checks, and computes what the plain interpreter
computes, bit for bit.
"""
