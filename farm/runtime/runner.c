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

#include "system.c"

enum { MAX_ARGS = 256, MAX_NDIM = 16, MAX_REPEAT = 10000, MAX_ALIGN = 4096, MIN_ALIGN = 64, POISON = 0xA5 };
enum { EXIT_PROTOCOL = 3 };
static const u64 MAX_FRAME_BYTES = 1ull << 34;

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

_Noreturn void __farm_main(const word *stack) {
  (void)stack;
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
