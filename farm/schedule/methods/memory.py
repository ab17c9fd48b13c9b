"""Where operands and results lie: copies, layouts, padding."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from farm.errors import ScheduleError
from farm.schedule.base import Block, Loop, Recorder
from farm.schedule.index_map import map_text
from farm.schedule.primitive import BlockRV


class Memory(Recorder):
    """Methods that make copies and change layouts."""

    def cache_read(
        self, block: Block, read_buffer_index: int, storage_scope: str = "global"
    ) -> BlockRV:
        """Let a block read a copy of one of its operands; return the block that copies.

        Move that block with `compute_at`, change its layout with `transform_layout`.

        Parameters
        ----------
        read_buffer_index
            Number of the operand, in the order in which the block's value names them.
        storage_scope
            ``global``, ``stack`` or ``register``.

        Raises
        ------
        ScheduleError
            The operand is stored in the same loops, or later.

        Examples
        --------
        >>> sch = Schedule(scale)
        >>> a_stack = sch.cache_read("b", 0, "stack")
        >>> i_0, i_1 = sch.split("i", factors=[None, 5])
        >>> sch.compute_at(a_stack, i_0)
        >>> print(sch)
        func scale(a: float32[10] input, b: float32[10] output) {
          for i_0 in 2 {
            alloc a_stack: float32[5] stack {
              for ax0_1 in 5 {
                a_stack[ax0_1] = a[((i_0 * 5) + ax0_1)]
              }
              for i_1 in 5 {
                b[((i_0 * 5) + i_1)] = (a_stack[i_1] * float32(2.0))
              }
            }
          }
        }
        """
        arguments = {
            "block": block,
            "read_buffer_index": read_buffer_index,
            "storage_scope": storage_scope,
        }
        (found,) = self.take("cache_read", arguments)
        assert isinstance(found, BlockRV)
        return found

    def cache_write(
        self, block: Block, write_buffer_index: int = 0, storage_scope: str = "global"
    ) -> BlockRV:
        """Let a block store to other memory; return the block that copies the result from there.

        Move that block with `reverse_compute_at`.

        Raises
        ------
        ScheduleError
            The block does not alone store all of its buffer.

        Examples
        --------
        >>> sch = Schedule(matmul)
        >>> c_register = sch.cache_write("c", 0, "register")
        >>> sch.reorder("i", "k", "j")
        >>> sch.reverse_compute_at(c_register, "i")
        >>> print(sch)
        func matmul(a: float32[4, 6] input, b: float32[6, 8] input, c: float32[4, 8] output) {
          for i in 4 {
            alloc c_register: float32[1, 8] register {
              for j_init in 8 {
                c_register[0, j_init] = float32(0.0)
              }
              for k in 6 {
                for j in 8 {
                  c_register[0, j] = (c_register[0, j] + (a[i, k] * b[k, j]))
                }
              }
              for ax0_1 in 8 {
                c[i, ax0_1] = c_register[0, ax0_1]
              }
            }
          }
        }
        """
        arguments = {
            "block": block,
            "write_buffer_index": write_buffer_index,
            "storage_scope": storage_scope,
        }
        (found,) = self.take("cache_write", arguments)
        assert isinstance(found, BlockRV)
        return found

    def cache_inplace(
        self, block: Block, loop: Loop, storage_scope: str = "register"
    ) -> tuple[BlockRV, BlockRV]:
        """Let a block update a copy during each iteration of a loop: load it, update it, store it.

        For sums that go on in a later iteration (of a blocked reduction). Unlike TVM's, it makes the copy of the
        part that an iteration updates, at once.

        Returns
        -------
        tuple of BlockRV
            The block that loads and the one that stores.

        Raises
        ------
        ScheduleError
            The block does not update (`decompose_reduction` first), or another one uses the buffer in that loop.

        Examples
        --------
        >>> sch = Schedule(matmul)
        >>> k_0, k_1 = sch.split("k", factors=[None, 2])
        >>> sch.reorder(k_0, "i", k_1, "j")
        >>> sch.decompose_reduction("c", k_0)
        'c_init'
        >>> sch.cache_inplace("c", "i", "register")
        ('c_register_load', 'c_register')
        >>> print(sch)
        func matmul(a: float32[4, 6] input, b: float32[6, 8] input, c: float32[4, 8] output) {
          for i_init in 4 {
            for j_init in 8 {
              c[i_init, j_init] = float32(0.0)
            }
          }
          for k_0 in 3 {
            for i in 4 {
              alloc c_register: float32[1, 8] register {
                for ax0 in 8 {
                  c_register[0, ax0] = c[i, ax0]
                }
                for k_1 in 2 {
                  for j in 8 {
                    c_register[0, j] = (c_register[0, j] + (a[i, ((k_0 * 2) + k_1)] * b[((k_0 * 2) + k_1), j]))
                  }
                }
                for ax0_1 in 8 {
                  c[i, ax0_1] = c_register[0, ax0_1]
                }
              }
            }
          }
        }
        """
        arguments = {"block": block, "loop": loop, "storage_scope": storage_scope}
        first, last = self.take("cache_inplace", arguments)
        assert isinstance(first, BlockRV)
        assert isinstance(last, BlockRV)
        return first, last

    def store_inplace(self, block: Block, read_buffer_index: int) -> None:
        """Keep an inner operand of a block in the memory of its result, element by element.

        One buffer less goes through the caches. TVM has no such primitive.

        Raises
        ------
        ScheduleError
            The result is no output, has another shape or type, or something uses an element after the block has
            overwritten it.

        Examples
        --------
        >>> sch = Schedule(scale_shift)
        >>> sch.store_inplace("y", 0)
        >>> print(sch)
        func scale_shift(a: float32[10] input, y: float32[10] output) {
          for i in 10 {
            y[i] = (a[i] * float32(2.0))
          }
          for o in 10 {
            y[o] = (y[o] + float32(1.0))
          }
        }
        """
        self.take("store_inplace", {"block": block, "read_buffer_index": read_buffer_index})

    def set_scope(self, block: Block, buffer_index: int, storage_scope: str) -> None:
        """Put the inner buffer that a block stores to into other memory.

        Examples
        --------
        >>> sch = Schedule(blur)
        >>> sch.compute_at("h", "i")
        >>> sch.set_scope("h", 0, "stack")
        >>> print(sch)
        func blur(x: float32[5, 7] input, y: float32[4, 6] output) {
          for i in 4 {
            alloc h: float32[2, 6] stack {
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
        arguments = {"block": block, "buffer_index": buffer_index, "storage_scope": storage_scope}
        self.take("set_scope", arguments)

    def set_dtype(self, block: Block, buffer_index: int, dtype: str) -> None:
        """Keep the inner buffer that a block stores to in a wider type, in which all its values are the same.

        TVM's `unsafe_set_dtype` checks nothing.

        Raises
        ------
        ScheduleError
            The type does not hold every value of the buffer's, or a reduction adds up in the buffer.

        Examples
        --------
        >>> sch = Schedule(scale)
        >>> copy = sch.cache_read("b", 0)
        >>> sch.set_dtype(copy, 0, "float64")
        >>> print(sch)
        func scale(a: float32[10] input, b: float32[10] output) {
          alloc a_global: float64[10] {
            for ax0 in 10 {
              a_global[ax0] = cast(float64, a[ax0])
            }
            for i in 10 {
              b[i] = (cast(float32, a_global[i]) * float32(2.0))
            }
          }
        }
        """
        arguments = {"block": block, "buffer_index": buffer_index, "dtype": dtype}
        self.take("set_dtype", arguments)

    def transform_layout(
        self,
        block: Block,
        buffer: tuple[str, int],
        index_map: str | Callable[..., object],
    ) -> None:
        """Store the elements of an inner buffer in another order: packing.

        The block that stores it gets new loops in the new order, if nothing was done to its loops yet.

        Parameters
        ----------
        buffer
            ``("read", number)`` or ``("write", 0)`` of the block.
        index_map
            ``lambda i, j: (j // 16, i, j % 16)``, or that as text: sums of indices, their quotients and remainders.

        Raises
        ------
        ScheduleError
            The buffer is a parameter (use `cache_read` or `cache_write`), or two elements would share a place.

        Examples
        --------
        >>> sch = Schedule(matmul)
        >>> b_global = sch.cache_read("c", 1)
        >>> sch.transform_layout(b_global, ("write", 0), lambda k, j: (j // 4, k, j % 4))
        >>> print(sch)
        func matmul(a: float32[4, 6] input, b: float32[6, 8] input, c: float32[4, 8] output) {
          alloc b_global: float32[2, 6, 4] {
            for ax0_1 in 2 {
              for ax1_1 in 6 {
                for ax2 in 4 {
                  b_global[ax0_1, ax1_1, ax2] = b[ax1_1, ((ax0_1 * 4) + ax2)]
                }
              }
            }
            for i in 4 {
              for j in 8 {
                c[i, j] = float32(0.0)
                for k in 6 {
                  c[i, j] = (c[i, j] + (a[i, k] * b_global[(j // 4), k, (j % 4)]))
                }
              }
            }
          }
        }
        """
        try:
            which, number = buffer
            rank = len(self.shape_of(block, which, number))
            text = map_text(index_map, rank)
        except (TypeError, ValueError) as error:
            raise ScheduleError(f"transform_layout of block {block}: {error}") from error
        arguments = {"block": block, "buffer": [which, number], "index_map": text}
        self.take("transform_layout", arguments)

    def pad_einsum(self, block: Block, padding: Sequence[int]) -> list[BlockRV]:
        """Round the extents of a sum of products up to multiples, so that tiles divide them.

        Operands are copied into larger buffers with zeros around, and the result is copied from one.

        Parameters
        ----------
        padding
            For each of the block's loops, what its extent becomes a multiple of.

        Returns
        -------
        list of BlockRV
            The blocks that copy the operands, then the one that copies the result; only those that are needed.

        Raises
        ------
        ScheduleError
            The loops were changed, an index is more than one loop's, or zeros would count.

        Examples
        --------
        >>> sch = Schedule(matmul)
        >>> sch.pad_einsum("c", [3, 1, 1])
        ['a_pad', 'c_pad']
        >>> print(sch)
        func matmul(a: float32[4, 6] input, b: float32[6, 8] input, c: float32[4, 8] output) {
          alloc a_pad: float32[6, 6] {
            alloc c_pad: float32[6, 8] {
              for ax0 in 6 {
                for ax1 in 6 {
                  a_pad[ax0, ax1] = select((ax0 < 4), a[ax0, ax1], float32(0.0))
                }
              }
              for i in 6 {
                for j in 8 {
                  c_pad[i, j] = float32(0.0)
                  for k in 6 {
                    c_pad[i, j] = (c_pad[i, j] + (a_pad[i, k] * b[k, j]))
                  }
                }
              }
              for ax0_1 in 4 {
                for ax1_1 in 8 {
                  c[ax0_1, ax1_1] = c_pad[ax0_1, ax1_1]
                }
              }
            }
          }
        }
        """
        found = self.take("pad_einsum", {"block": block, "padding": list(padding)})
        return [x for x in found if isinstance(x, BlockRV)]

    def shape_of(self, block: Block, which: str, number: int) -> tuple[int, ...]:
        """Return the shape of a buffer that a block reads or stores (``read`` or ``write``, number)."""
        from farm.schedule.layout import named_buffer

        leaf, _ = self._state.leaf(str(block))
        return named_buffer("shape_of", f"block {block}", leaf, [which, number]).shape
