// Runs compiled functions of ABI 1 inside an emulated or remote process that has no libc.
//
// Linked with a module's objects into one static executable; talks on descriptors 0 and 1. It is its own
// whole world: raw system calls, no heap but mmap, no threads. Everything read is checked before use; what does not
// follow the protocol ends the process with status 3, out of memory with 4.
//
// Protocol, little-endian. Each request and reply is `u64 length` and as many bytes.
//   request 1: u32 op = 1
//     reply: u32 count, then `count` times u32 length and the name
//   request 2: u32 op = 2, u32 function, u32 arguments, u32 repeat, then for each argument
//       u8 dtype code, u8 bits, u8 role (1 read, 2 written, 3 both), u8 ndim, u32 alignment, u64 size in bytes,
//       i64 extents[ndim], and the content if it is read
//     reply: i32 return code of the first call, u32 0; if it was 0: the content of each argument that is written,
//       as the first call left it, then u64 nanoseconds[repeat], then i64 return code of the last timed call
//
// A new architecture adds its block to "system calls and entry" below, and nothing else.

#include "memory.c"  // memcpy, memset, memmove; u8, u64, size

typedef unsigned short u16;
typedef unsigned int u32;
typedef int i32;
typedef long long i64;
typedef __INTPTR_TYPE__ word;

enum { MAX_ARGS = 256, MAX_NDIM = 16, MAX_REPEAT = 10000, MAX_ALIGN = 4096, MIN_ALIGN = 64, POISON = 0xA5 };
enum { EXIT_PROTOCOL = 3, EXIT_MEMORY = 4 };
static const u64 MAX_FRAME_BYTES = 1ull << 34;

// ---- system calls and entry

#if defined(__aarch64__)
enum { SYS_read = 63, SYS_write = 64, SYS_exit_group = 94, SYS_clock_gettime = 113, SYS_munmap = 215, SYS_mmap = 222 };
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
__asm__(".globl __farm_start\n__farm_start:\n mov x29, #0\n mov x30, #0\n bl __farm_runner_main\n");
#elif defined(__riscv) && __riscv_xlen == 64
enum { SYS_read = 63, SYS_write = 64, SYS_exit_group = 94, SYS_clock_gettime = 113, SYS_munmap = 215, SYS_mmap = 222 };
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
        " call __farm_runner_main\n");
#elif defined(__arm__)
// Numbers of the EABI; mmap is mmap2 (its offset, which is 0 here, counts pages).
enum { SYS_read = 3, SYS_write = 4, SYS_exit_group = 248, SYS_clock_gettime = 263, SYS_munmap = 91, SYS_mmap = 192 };
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
__asm__(".globl __farm_start\n__farm_start:\n mov r11, #0\n mov lr, #0\n bl __farm_runner_main\n");
#else
#error "no system calls for this architecture"
#endif

static _Noreturn void leave(int status) {
  for (;;) call6(SYS_exit_group, status, 0, 0, 0, 0, 0);
}

// ---- input and output

static u64 read_some(u8 *to, u64 count) {
  u64 done = 0;
  while (done < count) {
    word got = call6(SYS_read, 0, (word)(to + done), (word)(count - done), 0, 0, 0);
    if (got == -4) continue;  // EINTR
    if (got <= 0) break;
    done += (u64)got;
  }
  return done;
}

static void write_all(const void *from, u64 count) {
  const u8 *f = from;
  while (count) {
    word put = call6(SYS_write, 1, (word)f, (word)count, 0, 0, 0);
    if (put == -4) continue;
    if (put <= 0) leave(EXIT_PROTOCOL);
    f += put;
    count -= (u64)put;
  }
}

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

typedef struct {
  const u8 *at;
  u64 left;
} Cursor;

static const u8 *take(Cursor *cursor, u64 count) {
  if (count > cursor->left) leave(EXIT_PROTOCOL);
  const u8 *at = cursor->at;
  cursor->at += count;
  cursor->left -= count;
  return at;
}

static u32 take_u32(Cursor *cursor) {
  u32 value;
  memcpy(&value, take(cursor, 4), 4);
  return value;
}

static u64 take_u64(Cursor *cursor) {
  u64 value;
  memcpy(&value, take(cursor, 8), 8);
  return value;
}

// ---- functions

typedef struct {
  void *data;
  i32 device_type, device_id;
  i32 ndim;
  u8 code, bits;
  u16 lanes;
  i64 *shape, *strides;
  u64 byte_offset;
} DLTensor;

typedef struct {
  const char *name;
  i32 (*function)(const DLTensor *const *args, i32 count);
} Function;

extern const Function __start_farm_functions[] __attribute__((weak));
extern const Function __stop_farm_functions[] __attribute__((weak));

static u32 function_count(void) { return (u32)(__stop_farm_functions - __start_farm_functions); }

static u32 length_of(const char *text) {
  u32 length = 0;
  while (text[length]) length++;
  return length;
}

static void list_functions(void) {
  u32 count = function_count();
  u64 total = 4;
  for (u32 i = 0; i < count; i++) total += 4 + length_of(__start_farm_functions[i].name);
  write_all(&total, 8);
  write_all(&count, 4);
  for (u32 i = 0; i < count; i++) {
    u32 length = length_of(__start_farm_functions[i].name);
    write_all(&length, 4);
    write_all(__start_farm_functions[i].name, length);
  }
}

// ---- calls

typedef struct {
  DLTensor tensor;
  i64 shape[MAX_NDIM];
  const u8 *given;  // in the request; null if it is only written
  u64 bytes;
  u32 align;
  u8 role;
} Argument;

static Argument arguments[MAX_ARGS];
static const DLTensor *tensors[MAX_ARGS];
static u64 samples[MAX_REPEAT];

static void take_argument(Cursor *cursor, Argument *argument) {
  const u8 *head = take(cursor, 4);
  DLTensor *tensor = &argument->tensor;
  memset(argument, 0, sizeof *argument);
  tensor->device_type = 1;
  tensor->code = head[0];
  tensor->bits = head[1];
  tensor->lanes = 1;
  argument->role = head[2];
  tensor->ndim = head[3];
  argument->align = take_u32(cursor);
  argument->bytes = take_u64(cursor);
  if (argument->role < 1 || argument->role > 3 || tensor->ndim > MAX_NDIM || tensor->bits % 8 || !tensor->bits ||
      argument->align > MAX_ALIGN || (argument->align & (argument->align - 1)) || argument->bytes > MAX_FRAME_BYTES)
    leave(EXIT_PROTOCOL);
  if (argument->align < MIN_ALIGN) argument->align = MIN_ALIGN;
  u64 bytes = tensor->bits / 8;
  for (i32 i = 0; i < tensor->ndim; i++) {
    argument->shape[i] = (i64)take_u64(cursor);
    if (argument->shape[i] < 0 || __builtin_mul_overflow(bytes, (u64)argument->shape[i], &bytes)) leave(EXIT_PROTOCOL);
  }
  if (bytes != argument->bytes) leave(EXIT_PROTOCOL);
  tensor->shape = argument->shape;
  if (argument->role & 1) argument->given = take(cursor, argument->bytes);
}

static u64 place(Argument *list, u32 count, u8 *base) {
  u64 used = 0;
  for (u32 i = 0; i < count; i++) {
    used = (used + list[i].align - 1) & ~(u64)(list[i].align - 1);
    list[i].tensor.data = base + used;
    used += list[i].bytes;
    if (used > MAX_FRAME_BYTES) leave(EXIT_MEMORY);
  }
  return used;
}

static void fill(const Argument *argument) {
  if (argument->given)
    memcpy(argument->tensor.data, argument->given, (size)argument->bytes);
  else
    memset(argument->tensor.data, POISON, (size)argument->bytes);
}

static void reply_first(i32 code, u32 count, u32 repeat) {
  u64 total = 8;
  u32 zero = 0;
  if (!code) {
    total += 8ull * repeat + 8;
    for (u32 i = 0; i < count; i++)
      if (arguments[i].role & 2) total += arguments[i].bytes;
  }
  write_all(&total, 8);
  write_all(&code, 4);
  write_all(&zero, 4);
  for (u32 i = 0; !code && i < count; i++)
    if (arguments[i].role & 2) write_all(arguments[i].tensor.data, arguments[i].bytes);
}

static void call_function(Cursor *cursor) {
  u32 index = take_u32(cursor), count = take_u32(cursor), repeat = take_u32(cursor);
  if (index >= function_count() || count > MAX_ARGS || repeat > MAX_REPEAT) leave(EXIT_PROTOCOL);
  for (u32 i = 0; i < count; i++) {
    take_argument(cursor, &arguments[i]);
    tensors[i] = &arguments[i].tensor;
  }
  if (cursor->left) leave(EXIT_PROTOCOL);
  u64 bytes = place(arguments, count, 0);
  u8 *memory = map(bytes);
  place(arguments, count, memory);
  for (u32 i = 0; i < count; i++) fill(&arguments[i]);
  const Function *function = &__start_farm_functions[index];
  i32 code = function->function(tensors, (i32)count);
  reply_first(code, count, repeat);
  if (!code) {
    for (u32 r = 0; r < repeat; r++) {
      samples[r] = 0;
      for (u32 i = 0; i < count; i++)
        if (arguments[i].role == 3) fill(&arguments[i]);
      if (code) continue;
      u64 start = now_ns();
      code = function->function(tensors, (i32)count);
      samples[r] = now_ns() - start;
    }
    i64 last = code;
    write_all(samples, 8ull * repeat);
    write_all(&last, 8);
  }
  unmap(memory, bytes);
}

_Noreturn void __farm_runner_main(void) {
  for (;;) {
    u64 length;
    u64 got = read_some((u8 *)&length, 8);
    if (!got) leave(0);
    if (got != 8 || length > MAX_FRAME_BYTES) leave(EXIT_PROTOCOL);
    u8 *frame = map(length);
    if (read_some(frame, length) != length) leave(EXIT_PROTOCOL);
    Cursor cursor = {frame, length};
    u32 op = take_u32(&cursor);
    if (op == 1 && !cursor.left)
      list_functions();
    else if (op == 2)
      call_function(&cursor);
    else
      leave(EXIT_PROTOCOL);
    unmap(frame, length);
  }
}
