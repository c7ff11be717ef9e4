// Subnormal numbers among what a product reads. With one a multiplication takes 100 times as long, so a tile is computed
// with zeros in their places at first; where there are any it is computed again with them alone, times 2^64, and both are
// added. That is right where the other operand is finite, and has no subnormal numbers itself; else it is computed plainly.
// (The processor's own way, to take them for zeros, does so with sums as well.)

static int eg_has_subnormal(const float* from, eg_index count) {
  unsigned least = ~0u;
  for (eg_index i = 0; i < count; ++i) {
    unsigned bits;
    memcpy(&bits, from + i, sizeof bits);
    const unsigned below = (bits & 0x7fffffffu) - 1;  // zero is the largest one then
    least = below < least ? below : least;
  }
  return least < 0x7fffffu;
}

static void eg_without_subnormal(float* numbers, eg_index count) {
  for (eg_index i = 0; i < count; ++i) {
    unsigned bits;
    memcpy(&bits, numbers + i, sizeof bits);
    bits = (bits & 0x7f800000u) ? bits : bits & 0x80000000u;
    memcpy(numbers + i, &bits, sizeof bits);
  }
}

// Them times 2^64, zeros in the places of all others; whether there are any.
static int eg_lift(float* numbers, eg_index count) {
  int any = 0;
  for (eg_index i = 0; i < count; ++i) {
    unsigned bits;
    memcpy(&bits, numbers + i, sizeof bits);
    const int size = (int)(bits & 0x7fffffffu);
    const float lifted = size < 0x800000 ? (float)size * 0x1p-85f : 0.0f;
    numbers[i] = bits >> 31 ? -lifted : lifted;
    any |= size < 0x800000 ? size : 0;
  }
  return any != 0;
}

// Whether an operand lets that be done with the other one: 1 if all of it is finite and nothing is subnormal.
eg_index eg_is_plain(const float* from, eg_index count) {
  int other = 0;
  for (eg_index i = 0; i < count; ++i) {
    unsigned bits;
    memcpy(&bits, from + i, sizeof bits);
    const unsigned size = bits & 0x7fffffffu;
    other |= (size - 1 < 0x7fffffu) | (size >= 0x7f800000u);
  }
  return !other;
}
