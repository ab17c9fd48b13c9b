"""The code generator of the emulated accelerator: integer layers, tiled over its memories.

Owns: recognising what a function computes (`lift`, `reduction`), element-wise code (`epilogue`), windows over images
(`geometry`), sizes of tiles (`shape`, `predict`, `tiling`), their order (`tiles`), the program (`schedule`,
`loading`). Does not own: the machine (`farm.ea`).

What it compiles: at most one reduction, then any element-wise expression of its result, of tensors of the output's
shape and of vectors ``[column]``, the output's last axis: int32 sums, products, minimum, maximum, shifts by constants,
and, or, xor, requantisation, tables of 256 entries. A reduction is one of

- a product ``C[i, j] = sum(A[i, k] * W[k, j])`` of int8 matrices in int32;
- a convolution of int8 images (NHWC) with any strides to 15, zeros around, dilation and groups: the matrix engine adds
  up taps, nothing is unfolded;
- the sum, the largest or the smallest of int8 windows, or their sum weighted for each channel (a depthwise
  convolution), on the vector engine.

Any sizes, tails included. Everything else is refused with the reason, and belongs on the CPU.

Invariant: a program that is returned passed the machine's static checks, and computes what the plain interpreter
computes, bit for bit.
"""
