"""The schedule: what users rewrite a function with.

Owns: the one class. Does not own: its methods (`methods`), its steps (a module for each family).

Invariant: the function that it gives computes what it was made from computes.
"""

from __future__ import annotations

from farm.schedule import (
    cache,
    inline,
    inplace,
    kinds,
    layout,
    loops,
    move,
    pad,
    query,
    reduction,
    tensorize,
    widen,
)
from farm.schedule.methods.loops import Loops
from farm.schedule.methods.memory import Memory
from farm.schedule.methods.moves import Moves
from farm.schedule.methods.queries import Queries

FAMILIES = (
    *(cache, inline, inplace, kinds, layout, loops, move, pad, query, reduction),
    *(tensorize, widen),
)
"""The modules whose primitives a schedule can take; importing them registers those."""


class Schedule(Queries, Loops, Moves, Memory):
    """A function and checked rewrites of it.

    Names and meanings are those of TVM's ``tir.Schedule``. A *block* is one computation, named after the buffer that
    it stores to; a *loop* is named after its variable. Methods take handles or names, and return handles, which are
    names. A step that would change the function's results is refused, and changes nothing.

    Parameters
    ----------
    function
        What to start from, for instance from `farm.te.function`. It stays as it is.

    Raises
    ------
    ScheduleError
        The function calls others, or a condition in it depends on an element.

    Notes
    -----
    The examples start from these functions, all on float32:

    - ``scale``: ``b[i] = a[i] * 2`` for 10 elements
    - ``matmul``: ``c[i, j] = sum over k of a[i, k] * b[k, j]`` for 4 x 8 from 4 x 6 and 6 x 8
    - ``scale_shift``: ``s[i] = a[i] * 2`` and ``y[i] = s[i] + 1`` for 10 elements
    - ``blur``: ``h[i, j] = x[i, j] + x[i, j + 1]`` and ``y[i, j] = h[i, j] + h[i + 1, j]`` for 4 x 6 from 5 x 7
    - ``total``: ``t[()] = sum over k of a[k]`` for 12 elements

    Examples
    --------
    >>> sch = Schedule(matmul)
    >>> i, j, k = sch.get_loops(sch.get_block("c"))
    >>> sch.reorder(i, k, j)
    >>> sch.vectorize(j)
    >>> print(sch)
    func matmul(a: float32[4, 6] input, b: float32[6, 8] input, c: float32[4, 8] output) {
      for i in 4 {
        for j_init in 8 vectorized {
          c[i, j_init] = float32(0.0)
        }
        for k in 6 {
          for j in 8 vectorized {
            c[i, j] = (c[i, j] + (a[i, k] * b[k, j]))
          }
        }
      }
    }
    """
