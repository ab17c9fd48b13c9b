// What compiled code may call where there is no libc: memcpy, memset and memmove, for any machine.
//
// Included by runner.c; compiled alone for WebAssembly, where a module needs nothing else.

typedef unsigned char u8;
typedef unsigned long long u64;
typedef __SIZE_TYPE__ size;

void *memcpy(void *to, const void *from, size count) {
  u8 *t = to;
  const u8 *f = from;
  if (((size)t & 7) == ((size)f & 7)) {
    for (; count && ((size)t & 7); count--) *t++ = *f++;
    for (; count >= 8; count -= 8, t += 8, f += 8) *(u64 *)t = *(const u64 *)f;
  }
  for (; count; count--) *t++ = *f++;
  return to;
}

void *memset(void *to, int value, size count) {
  u8 *t = to;
  u64 wide = 0x0101010101010101ull * (u8)value;
  for (; count && ((size)t & 7); count--) *t++ = (u8)value;
  for (; count >= 8; count -= 8, t += 8) *(u64 *)t = wide;
  for (; count; count--) *t++ = (u8)value;
  return to;
}

void *memmove(void *to, const void *from, size count) {
  u8 *t = to;
  const u8 *f = from;
  if (t <= f || t >= f + count) return memcpy(to, from, count);
  while (count--) t[count] = f[count];
  return to;
}
