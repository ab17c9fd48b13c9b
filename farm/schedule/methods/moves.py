"""Blocks computed elsewhere, and reductions in two blocks."""

from __future__ import annotations

from farm.schedule.base import Block, Loop, Recorder
from farm.schedule.primitive import BlockRV


class Moves(Recorder):
    """Methods that move and divide blocks."""

    def compute_at(self, block: Block, loop: Loop, *, preserve_unit_loops: bool = False) -> None:
        """Compute a block inside a loop of its consumers, as much as an iteration needs.

        Its buffer shrinks to that part. What neighbouring iterations both need is computed in each.

        Raises
        ------
        ScheduleError
            Something else reads the buffer, it is a parameter, or what the block reads is not complete there.

        Examples
        --------
        >>> sch = Schedule(blur)
        >>> sch.compute_at("h", "i")
        >>> print(sch)
        func blur(x: float32[5, 7] input, y: float32[4, 6] output) {
          for i in 4 {
            alloc h: float32[2, 6] {
              for ax0 in 2 {
                for ax1 in 6 {
                  h[ax0, ax1] = (x[(ax0 + i), ax1] + x[(ax0 + i), (ax1 + 1)])
                }
              }
              for j in 6 {
                y[i, j] = (h[0, j] + h[1, j])
              }
            }
          }
        }
        """
        arguments = {"block": block, "loop": loop, "preserve_unit_loops": preserve_unit_loops}
        self.take("compute_at", arguments)

    def reverse_compute_at(
        self, block: Block, loop: Loop, *, preserve_unit_loops: bool = False
    ) -> None:
        """Compute a block inside a loop of its producer, as much as an iteration completes.

        Raises
        ------
        ScheduleError
            An iteration does not complete what the block reads (a reduction goes on, neighbours are read).

        Examples
        --------
        >>> sch = Schedule(scale_shift)
        >>> i_0, i_1 = sch.split("i", factors=[None, 4])
        >>> sch.reverse_compute_at("y", i_0)
        >>> print(sch)
        func scale_shift(a: float32[10] input, y: float32[10] output) {
          for i_0 in 3 {
            alloc s: float32[4] {
              for i_1 in 4 {
                if (((i_0 * 4) + i_1) < 10) {
                  s[i_1] = (a[((i_0 * 4) + i_1)] * float32(2.0))
                }
              }
              for ax0 in 4 {
                if (((i_0 * 4) + ax0) < 10) {
                  y[((i_0 * 4) + ax0)] = (s[ax0] + float32(1.0))
                }
              }
            }
          }
        }
        """
        arguments = {"block": block, "loop": loop, "preserve_unit_loops": preserve_unit_loops}
        self.take("reverse_compute_at", arguments)

    def compute_inline(self, block: Block) -> None:
        """Put a block's value in place of every load of its buffer.

        Raises
        ------
        ScheduleError
            It is a reduction, its buffer is a parameter, or what it reads has changed where it is used.

        Examples
        --------
        >>> sch = Schedule(scale_shift)
        >>> sch.compute_inline("s")
        >>> print(sch)
        func scale_shift(a: float32[10] input, y: float32[10] output) {
          for o in 10 {
            y[o] = ((a[o] * float32(2.0)) + float32(1.0))
          }
        }
        """
        self.take("compute_inline", {"block": block})

    def decompose_reduction(self, block: Block, loop: Loop) -> BlockRV:
        """Split off the start of a reduction into a block of its own, right before a loop around it.

        Without this, elements are started right before the outermost loop that is reduced over.

        Raises
        ------
        ScheduleError
            A loop around that one is reduced over.

        Examples
        --------
        >>> sch = Schedule(matmul)
        >>> sch.decompose_reduction("c", "i")
        'c_init'
        >>> print(sch)
        func matmul(a: float32[4, 6] input, b: float32[6, 8] input, c: float32[4, 8] output) {
          for i_init in 4 {
            for j_init in 8 {
              c[i_init, j_init] = float32(0.0)
            }
          }
          for i in 4 {
            for j in 8 {
              for k in 6 {
                c[i, j] = (c[i, j] + (a[i, k] * b[k, j]))
              }
            }
          }
        }
        """
        (found,) = self.take("decompose_reduction", {"block": block, "loop": loop})
        assert isinstance(found, BlockRV)
        return found

    def rfactor(self, loop: Loop, factor_axis: int = 0) -> BlockRV:
        """Make a reduced loop compute partial results, which a second block combines.

        Parameters
        ----------
        factor_axis
            The dimension of the partial results' buffer that the loop becomes.

        Raises
        ------
        ScheduleError
            The block does not reduce over the loop, or adds floats and ``fast_math(reassociate=True)`` was not
            called.

        Examples
        --------
        >>> sch = Schedule(total)
        >>> sch.fast_math(reassociate=True)
        >>> k_0, k_1 = sch.split("k", factors=[None, 4])
        >>> sch.rfactor(k_1)
        't_rf'
        >>> sch.reorder(k_0, k_1)
        >>> sch.vectorize(k_1)
        >>> print(sch)
        func total(a: float32[12] input, t: float32[] output) fast(reassociate) {
          alloc t_rf: float32[4] {
            for k_1_init in 4 vectorized {
              t_rf[k_1_init] = float32(0.0)
            }
            for k_0 in 3 {
              for k_1 in 4 vectorized {
                t_rf[k_1] = (t_rf[k_1] + a[((k_0 * 4) + k_1)])
              }
            }
            t[] = float32(0.0)
            for k_1_total in 4 {
              t[] = (t[] + t_rf[k_1_total])
            }
          }
        }
        """
        (found,) = self.take("rfactor", {"loop": loop, "factor_axis": factor_axis})
        assert isinstance(found, BlockRV)
        return found

    def tensorize(self, loop: Loop, tensor_intrin: str) -> None:
        """Replace a loop and all inside by a registered intrinsic (`register_intrin`) that computes the same.

        Raises
        ------
        ScheduleError
            The loops are not what the intrinsic describes; the message says where they differ.

        Examples
        --------
        >>> from farm.schedule import TensorIntrin, register_intrin
        >>> register_intrin(TensorIntrin("fill4", fill_desc, fill_impl))
        >>> sch = Schedule(fill)
        >>> i_0, i_1 = sch.split("i", factors=[None, 4])
        >>> sch.tensorize(i_1, "fill4")
        >>> print(sch)
        func fill(f: int32[8] output) {
          for i_0 in 2 {
            for i in 4 vectorized {
              f[((i_0 * 4) + i)] = int32(7)
            }
          }
        }
        """
        self.take("tensorize", {"loop": loop, "tensor_intrin": tensor_intrin})
