"""Other loops around the same blocks, and how they run."""

from __future__ import annotations

from collections.abc import Sequence

from farm.schedule.base import Loop, Recorder
from farm.schedule.primitive import LoopRV


class Loops(Recorder):
    """Methods that change loops."""

    def split(
        self, loop: Loop, factors: Sequence[int | None], *, tail: str = "guard"
    ) -> list[LoopRV]:
        """Make several nested loops of one.

        Parameters
        ----------
        factors
            Extents of the new loops, outermost first; one may be None and is inferred.
        tail
            What to do if they do not divide the extent: ``guard`` tests in each iteration whether it exists (as TVM
            does), ``peel`` puts the rest into loops of its own (the last one returned), ``refuse`` refuses.

        Raises
        ------
        ScheduleError
            The factors do not reach the extent, or the loop has a kind already.

        Examples
        --------
        >>> sch = Schedule(scale)
        >>> sch.split("i", factors=[None, 4])
        ['i_0', 'i_1']
        >>> print(sch)
        func scale(a: float32[10] input, b: float32[10] output) {
          for i_0 in 3 {
            for i_1 in 4 {
              if (((i_0 * 4) + i_1) < 10) {
                b[((i_0 * 4) + i_1)] = (a[((i_0 * 4) + i_1)] * float32(2.0))
              }
            }
          }
        }

        >>> sch = Schedule(scale)
        >>> sch.split("i", factors=[None, 4], tail="peel")
        ['i_0', 'i_1', 'i_tail']
        >>> print(sch)
        func scale(a: float32[10] input, b: float32[10] output) {
          for i_0 in 2 {
            for i_1 in 4 {
              b[((i_0 * 4) + i_1)] = (a[((i_0 * 4) + i_1)] * float32(2.0))
            }
          }
          for i_tail in 2 {
            b[(i_tail + 8)] = (a[(i_tail + 8)] * float32(2.0))
          }
        }
        """
        found = self.take("split", {"loop": loop, "factors": factors, "tail": tail})
        return [x for x in found if isinstance(x, LoopRV)]

    def fuse(self, *loops: Loop) -> LoopRV:
        """Make one loop of several that are directly nested, named outermost first.

        Raises
        ------
        ScheduleError
            Something is between them, or a block reduces over some of them only.

        Examples
        --------
        >>> sch = Schedule(matmul)
        >>> sch.fuse("i", "j")
        'i_j_fused'
        >>> print(sch)
        func matmul(a: float32[4, 6] input, b: float32[6, 8] input, c: float32[4, 8] output) {
          for i_j_fused in 32 {
            c[(i_j_fused // 8), (i_j_fused % 8)] = float32(0.0)
            for k in 6 {
              c[(i_j_fused // 8), (i_j_fused % 8)] = (c[(i_j_fused // 8), (i_j_fused % 8)] + (a[(i_j_fused // 8), k] * b[k, (i_j_fused % 8)]))
            }
          }
        }
        """  # noqa: E501
        (found,) = self.take("fuse", {"loops": list(loops)})
        assert isinstance(found, LoopRV)
        return found

    def reorder(self, *loops: Loop) -> None:
        """Put loops of one nest into the given order; loops that are not named keep their places.

        A reduction's start (an element's initial value) moves out of the way by itself.

        Raises
        ------
        ScheduleError
            A dependence would be reversed, or the order in which floats are added; the message names it.

        Examples
        --------
        >>> sch = Schedule(matmul)
        >>> sch.reorder("k", "j", "i")
        >>> print(sch)
        func matmul(a: float32[4, 6] input, b: float32[6, 8] input, c: float32[4, 8] output) {
          for j_init in 8 {
            for i_init in 4 {
              c[i_init, j_init] = float32(0.0)
            }
          }
          for k in 6 {
            for j in 8 {
              for i in 4 {
                c[i, j] = (c[i, j] + (a[i, k] * b[k, j]))
              }
            }
          }
        }
        """
        self.take("reorder", {"loops": list(loops)})

    def tile(self, outer: Loop, inner: Loop, outer_factor: int, inner_factor: int) -> list[LoopRV]:
        """Split two nested loops and put the inner parts inside: outer tile, inner tile, outer, inner.

        Examples
        --------
        >>> sch = Schedule(matmul)
        >>> sch.tile("i", "j", 2, 4)
        ['i_0', 'j_0', 'i_1', 'j_1']
        >>> print(sch)
        func matmul(a: float32[4, 6] input, b: float32[6, 8] input, c: float32[4, 8] output) {
          for i_0 in 2 {
            for j_0 in 2 {
              for i_1 in 2 {
                for j_1 in 4 {
                  c[((i_0 * 2) + i_1), ((j_0 * 4) + j_1)] = float32(0.0)
                  for k in 6 {
                    c[((i_0 * 2) + i_1), ((j_0 * 4) + j_1)] = (c[((i_0 * 2) + i_1), ((j_0 * 4) + j_1)] + (a[((i_0 * 2) + i_1), k] * b[k, ((j_0 * 4) + j_1)]))
                  }
                }
              }
            }
          }
        }
        """  # noqa: E501
        a, b = self.split(outer, [None, outer_factor])
        c, d = self.split(inner, [None, inner_factor])
        self.reorder(a, c, b, d)
        return [a, c, b, d]

    def parallel(self, loop: Loop) -> None:
        """Let the iterations of a loop run on several threads.

        Raises
        ------
        ScheduleError
            They depend on each other, or a loop around or inside is parallel.

        Examples
        --------
        >>> sch = Schedule(scale)
        >>> sch.parallel("i")
        >>> print(sch)
        func scale(a: float32[10] input, b: float32[10] output) {
          for i in 10 parallel {
            b[i] = (a[i] * float32(2.0))
          }
        }
        """
        self.take("parallel", {"loop": loop})

    def vectorize(self, loop: Loop) -> None:
        """Make the iterations of a loop, at most 1024, the lanes of vectors.

        Raises
        ------
        ScheduleError
            They depend on each other (as those of a reduction do: see `rfactor`), are too many, or hold what no
            vector can.

        Examples
        --------
        >>> sch = Schedule(scale)
        >>> sch.vectorize("i")
        >>> print(sch)
        func scale(a: float32[10] input, b: float32[10] output) {
          for i in 10 vectorized {
            b[i] = (a[i] * float32(2.0))
          }
        }
        """
        self.take("vectorize", {"loop": loop})

    def unroll(self, loop: Loop) -> None:
        """Repeat the body of a loop for each of its iterations, at most 1024.

        Examples
        --------
        >>> sch = Schedule(scale)
        >>> sch.unroll("i")
        >>> print(sch)
        func scale(a: float32[10] input, b: float32[10] output) {
          for i in 10 unrolled {
            b[i] = (a[i] * float32(2.0))
          }
        }
        """
        self.take("unroll", {"loop": loop})

    def annotate(self, loop: Loop, key: str, value: int | str) -> None:
        """Give a loop a hint, in place of one with the same key; a code generator ignores those it does not know.

        Examples
        --------
        >>> sch = Schedule(scale)
        >>> sch.annotate("i", "unroll_count", 4)
        >>> print(sch)
        func scale(a: float32[10] input, b: float32[10] output) {
          for i in 10 [unroll_count=4] {
            b[i] = (a[i] * float32(2.0))
          }
        }
        """
        self.take("annotate", {"loop": loop, "key": key, "value": value})

    def unannotate(self, loop: Loop, key: str) -> None:
        """Take a hint away that `annotate` gave."""
        self.take("unannotate", {"loop": loop, "key": key})
