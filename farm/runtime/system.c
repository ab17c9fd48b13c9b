// What a program without libc stands on: types, raw system calls of Linux, its entry, memory, a clock.
//
// Included by runner.c and program.c, which define __farm_main. A new architecture adds its block to "system calls and
// entry", and nothing else.

#include "memory.c"  // memcpy, memset, memmove; u8, u64, size

typedef unsigned short u16;
typedef unsigned int u32;
typedef int i32;
typedef long long i64;
typedef __INTPTR_TYPE__ word;

enum { EXIT_MEMORY = 4 };

// ---- system calls and entry

_Noreturn void __farm_main(const word *stack);

#if defined(__aarch64__)
enum { SYS_openat = 56, SYS_close = 57, SYS_read = 63, SYS_write = 64, SYS_exit_group = 94 };
enum { SYS_clock_gettime = 113, SYS_munmap = 215, SYS_mmap = 222 };
static word call6(word number, word a, word b, word c, word d, word e, word f) {
  register word x8 __asm__("x8") = number;
  register word x0 __asm__("x0") = a;
  register word x1 __asm__("x1") = b;
  register word x2 __asm__("x2") = c;
  register word x3 __asm__("x3") = d;
  register word x4 __asm__("x4") = e;
  register word x5 __asm__("x5") = f;
  __asm__ volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory", "cc");
  return x0;
}
__asm__(".globl __farm_start\n__farm_start:\n mov x29, #0\n mov x30, #0\n mov x0, sp\n bl __farm_main\n");
#elif defined(__riscv) && __riscv_xlen == 64
enum { SYS_openat = 56, SYS_close = 57, SYS_read = 63, SYS_write = 64, SYS_exit_group = 94 };
enum { SYS_clock_gettime = 113, SYS_munmap = 215, SYS_mmap = 222 };
static word call6(word number, word a, word b, word c, word d, word e, word f) {
  register word a7 __asm__("a7") = number;
  register word a0 __asm__("a0") = a;
  register word a1 __asm__("a1") = b;
  register word a2 __asm__("a2") = c;
  register word a3 __asm__("a3") = d;
  register word a4 __asm__("a4") = e;
  register word a5 __asm__("a5") = f;
  __asm__ volatile("ecall" : "+r"(a0) : "r"(a7), "r"(a1), "r"(a2), "r"(a3), "r"(a4), "r"(a5) : "memory");
  return a0;
}
__asm__(".globl __farm_start\n__farm_start:\n .option push\n .option norelax\n lla gp, __global_pointer$\n .option pop\n"
        " mv a0, sp\n call __farm_main\n");
#elif defined(__arm__)
// Numbers of the EABI; mmap is mmap2 (its offset, which is 0 here, counts pages).
enum { SYS_openat = 322, SYS_close = 6, SYS_read = 3, SYS_write = 4, SYS_exit_group = 248 };
enum { SYS_clock_gettime = 263, SYS_munmap = 91, SYS_mmap = 192 };
static word call6(word number, word a, word b, word c, word d, word e, word f) {
  register word r7 __asm__("r7") = number;
  register word r0 __asm__("r0") = a;
  register word r1 __asm__("r1") = b;
  register word r2 __asm__("r2") = c;
  register word r3 __asm__("r3") = d;
  register word r4 __asm__("r4") = e;
  register word r5 __asm__("r5") = f;
  __asm__ volatile("svc #0" : "+r"(r0) : "r"(r7), "r"(r1), "r"(r2), "r"(r3), "r"(r4), "r"(r5) : "memory", "cc");
  return r0;
}
__asm__(".globl __farm_start\n__farm_start:\n mov r11, #0\n mov lr, #0\n mov r0, sp\n bl __farm_main\n");
#elif defined(__x86_64__)
enum { SYS_openat = 257, SYS_close = 3, SYS_read = 0, SYS_write = 1, SYS_exit_group = 231 };
enum { SYS_clock_gettime = 228, SYS_munmap = 11, SYS_mmap = 9 };
static word call6(word number, word a, word b, word c, word d, word e, word f) {
  register word r10 __asm__("r10") = d;
  register word r8 __asm__("r8") = e;
  register word r9 __asm__("r9") = f;
  word result;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                   : "rcx", "r11", "memory");
  return result;
}
__asm__(".globl __farm_start\n__farm_start:\n xor %ebp, %ebp\n mov %rsp, %rdi\n and $-16, %rsp\n call __farm_main\n");
#else
#error "no system calls for this architecture"
#endif

static _Noreturn void leave(int status) {
  for (;;) call6(SYS_exit_group, status, 0, 0, 0, 0, 0);
}

// ---- memory and time

static u8 *map(u64 bytes) {
  u64 rounded = (bytes + 4095) & ~4095ull;
  if (rounded != (size)rounded) leave(EXIT_MEMORY);
  word at = call6(SYS_mmap, 0, (word)(rounded ? rounded : 4096), 3, 0x22, -1, 0);  // read, write, private, anonymous
  if (at < 0 && at > -4096) leave(EXIT_MEMORY);
  return (u8 *)at;
}

static void unmap(u8 *at, u64 bytes) {
  u64 rounded = (bytes + 4095) & ~4095ull;
  call6(SYS_munmap, (word)at, (word)(rounded ? rounded : 4096), 0, 0, 0, 0);
}

static u64 now_ns(void) {
  word time[2];  // struct timespec of these calls: two registers' width each
  call6(SYS_clock_gettime, 1, (word)time, 0, 0, 0, 0);  // CLOCK_MONOTONIC
  return (u64)time[0] * 1000000000ull + (u64)time[1];
}

// ---- arguments of functions

typedef struct {
  void *data;
  i32 device_type, device_id;
  i32 ndim;
  u8 code, bits;
  u16 lanes;
  i64 *shape, *strides;
  u64 byte_offset;
} DLTensor;
