// An exported program: calls one of its functions on files. No libc; what it has is in exported.h, made for it.
//
//   PROGRAM                     prints its functions
//   PROGRAM FUNCTION FILE...    one raw row-major file for each parameter, in order: inputs are read, outputs written,
//                               inouts both; prints how long the call took
//
// Status 0: well; 1: the function refused or failed; 2: usage, or a file that does not fit; 4: out of memory.

#include "system.c"

typedef struct {
  const char *name;
  u8 code, bits, role, ndim;  // role: 1 read, 2 written, 3 both
  u32 align;
  u64 bytes;
  i64 shape[16];
} Parameter;

typedef struct {
  const char *name, *text;
  i32 (*call)(const DLTensor *const *args, i32 count);
  i32 count;
  const Parameter *parameters;
} Exported;

#include "exported.h"  // `exported`, EXPORTED of them

enum { EXIT_FAILED = 1, EXIT_USAGE = 2, AT_FDCWD = -100, READ_ONLY = 0, WRITE_NEW = 01 | 0100 | 01000 };

static size length_of(const char *text) {
  size length = 0;
  while (text[length]) length++;
  return length;
}

static i32 same(const char *a, const char *b) {
  while (*a && *a == *b) a++, b++;
  return *a == *b;
}

static i32 write_all(word file, const void *from, u64 count) {
  const u8 *f = from;
  while (count) {
    word put = call6(SYS_write, file, (word)f, (word)count, 0, 0, 0);
    if (put == -4) continue;  // EINTR
    if (put <= 0) return 0;
    f += put;
    count -= (u64)put;
  }
  return 1;
}

static void say(word file, const char *text) { write_all(file, text, length_of(text)); }

static void say_number(word file, u64 value) {
  char digits[24], *at = digits + sizeof digits - 1;
  *at = 0;
  do {
    u64 rest = 0, quotient = 0;  // by hand: a machine of 32 bits has no division of 64 without a library
    for (i32 bit = 63; bit >= 0; bit--) {
      rest = rest << 1 | (value >> bit & 1);
      if (rest >= 10) rest -= 10, quotient |= 1ull << bit;
    }
    *--at = (char)('0' + rest);
    value = quotient;
  } while (value);
  say(file, at);
}

static _Noreturn void refuse(const char *subject, const char *what, i32 status) {
  say(2, subject);
  say(2, ": ");
  say(2, what);
  say(2, "\n");
  leave(status);
}

static void read_file(const char *path, u8 *to, u64 bytes) {
  word file = call6(SYS_openat, AT_FDCWD, (word)path, READ_ONLY, 0, 0, 0);
  if (file < 0) refuse(path, "cannot be read", EXIT_USAGE);
  u64 done = 0;
  u8 more;
  for (;;) {
    word got = call6(SYS_read, file, done < bytes ? (word)(to + done) : (word)&more,
                     done < bytes ? (word)(bytes - done) : 1, 0, 0, 0);
    if (got == -4) continue;
    if (got <= 0) break;
    done += (u64)got;
    if (done > bytes) break;
  }
  call6(SYS_close, file, 0, 0, 0, 0, 0);
  if (done != bytes) {
    say(2, path);
    say(2, ": has another size; it needs ");
    say_number(2, bytes);
    refuse("", "bytes", EXIT_USAGE);
  }
}

static void write_file(const char *path, const u8 *from, u64 bytes) {
  word file = call6(SYS_openat, AT_FDCWD, (word)path, WRITE_NEW, 0644, 0, 0);
  if (file < 0 || !write_all(file, from, bytes)) refuse(path, "cannot be written", EXIT_USAGE);
  call6(SYS_close, file, 0, 0, 0, 0, 0);
}

static void list(word file) {
  for (i32 i = 0; i < EXPORTED; i++) {
    say(file, exported[i].text);
    say(file, "\n");
  }
}

static DLTensor tensors[64];
static const DLTensor *arguments[64];

static void run(const Exported *function, char **paths) {
  for (i32 i = 0; i < function->count; i++) {
    const Parameter *p = &function->parameters[i];
    u8 *memory = map(p->bytes + p->align);
    memory += (size)-(word)memory & (p->align - 1);
    if (p->role & 1) read_file(paths[i], memory, p->bytes);
    DLTensor tensor = {memory, 1, 0, p->ndim, p->code, p->bits, 1, (i64 *)p->shape, 0, 0};
    tensors[i] = tensor;
    arguments[i] = &tensors[i];
  }
  u64 start = now_ns();
  i32 code = function->call(arguments, function->count);
  u64 took = now_ns() - start;
  if (code) refuse(function->name, "failed", EXIT_FAILED);
  for (i32 i = 0; i < function->count; i++)
    if (function->parameters[i].role & 2) write_file(paths[i], tensors[i].data, function->parameters[i].bytes);
  say(1, function->name);
  say(1, ": ");
  say_number(1, took);
  say(1, " ns\n");
}

_Noreturn void __farm_main(const word *stack) {
  word count = stack[0];
  char **words = (char **)(stack + 1);
  if (count < 2) {
    list(1);
    leave(0);
  }
  for (i32 i = 0; i < EXPORTED; i++) {
    if (!same(words[1], exported[i].name)) continue;
    if (count - 2 != exported[i].count) refuse(exported[i].text, "pass one file for each parameter", EXIT_USAGE);
    run(&exported[i], words + 2);
    leave(0);
  }
  say(2, words[1]);
  say(2, ": no such function; there is\n");
  list(2);
  leave(EXIT_USAGE);
}
