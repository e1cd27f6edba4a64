// cos and sin of position * frequency, to about half an ulp of double, the same for every
// instruction set and device: plain arithmetic on doubles, in a fixed order, without FMA and
// without libm.
//
//   turns = position * frequency / 2pi      as an unevaluated sum of two doubles
//   quarter = nearest multiple of 1/4       subtracted exactly
//   angle = (turns - quarter) * 2pi         high + low, |angle| <= pi/4
//
// The value of an integer position p is defined as the rotation of the exact values at
// 64*floor(p/64) by the exact values at p mod 64, multiplied out in double (rotate_pair). So it is
// the same bits in whatever order, chunk or thread a table is built, and consecutive positions cost
// one rotation.
//
// Accurate up to |position * frequency| = 2^53; NaN beyond, and for infinities and NaN.
//
// No include guard and no includes: each instruction-set namespace includes its own copy.

struct DoubleDouble {
  double high, low;  // high + low, |low| <= ulp(high) / 2 unless said otherwise
};

POSENC_INLINE uint64_t double_bits(double x) {
  uint64_t u;
  std::memcpy(&u, &x, sizeof u);
  return u;
}

POSENC_INLINE double bits_double(uint64_t u) {
  double x;
  std::memcpy(&x, &u, sizeof x);
  return x;
}

// a * b exactly (Dekker). An overflow gives NaN.
POSENC_INLINE DoubleDouble exact_product(double a, double b) {
  constexpr double split = 134217729.0;  // 2^27 + 1 (Veltkamp): halves of 26 bits
  const double a_scaled = a * split, b_scaled = b * split;
  const double a_high = a_scaled - (a_scaled - a), b_high = b_scaled - (b_scaled - b);
  const double a_low = a - a_high, b_low = b - b_high;
  const double product = a * b;
  const double error =
      ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low;
  return {product, error};
}

// a + b exactly (Knuth).
POSENC_INLINE DoubleDouble exact_sum(double a, double b) {
  const double sum = a + b;
  const double b_part = sum - a;
  return {sum, (a - (sum - b_part)) + (b - b_part)};
}

// Adding and subtracting this rounds to an integer, |x| < 2^51; the last bits of x + round are that
// integer in two's complement.
constexpr double kRound = 6755399441055744.0;  // 1.5 * 2^52

// position * frequency modulo a quarter turn, in radians, and the number of quarters in `quarters`
// (only its last two bits count).
POSENC_INLINE DoubleDouble reduce_angle(double position, double frequency, uint64_t& quarters) {
  constexpr DoubleDouble inverse_2pi = {0x1.45f306dc9c883p-3, -0x1.6b01ec5417056p-57};
  constexpr DoubleDouble two_pi = {0x1.921fb54442d18p+2, 0x1.1a62633145c07p-52};

  const DoubleDouble product = exact_product(position, frequency);
  DoubleDouble turns = exact_product(product.high, inverse_2pi.high);
  turns.low += product.high * inverse_2pi.low + product.low * inverse_2pi.high;

  // All ones where |turns| is beyond 2^53 radians, infinite or NaN.
  constexpr uint64_t limit = 0x43145f306dc9c883u;
  const uint64_t magnitude = double_bits(turns.high) & 0x7fffffffffffffffu;
  const uint64_t invalid = uint64_t{0} - ((limit - magnitude) >> 63);
  const double fraction = turns.high - ((turns.high + kRound) - kRound);
  turns = exact_sum(fraction, turns.low);
  const double rounded = 4.0 * turns.high + kRound;
  quarters = double_bits(rounded);
  const double rest = turns.high - 0.25 * (rounded - kRound);

  DoubleDouble angle = exact_product(rest, two_pi.high);
  angle.low += rest * two_pi.low + turns.low * two_pi.high;
  angle = exact_sum(angle.high, angle.low);
  angle.high = bits_double(double_bits(angle.high) | (invalid & 0x7ff8000000000000u));
  return angle;
}

// Taylor polynomials; what they leave out is below 2^-62 for |x| <= pi/4. z = x^2.
//   sin x = x + x * z * sin_tail(z)       cos x = 1 - z/2 + z^2 * cos_tail(z)
POSENC_INLINE double sin_tail(double z) {
  double sum = 1.0 / 355687428096000.0;  // 1/17!
  sum = -1.0 / 1307674368000.0 + z * sum;
  sum = 1.0 / 6227020800.0 + z * sum;
  sum = -1.0 / 39916800.0 + z * sum;
  sum = 1.0 / 362880.0 + z * sum;
  sum = -1.0 / 5040.0 + z * sum;
  sum = 1.0 / 120.0 + z * sum;
  return -1.0 / 6.0 + z * sum;
}

POSENC_INLINE double cos_tail(double z) {
  double sum = -1.0 / 6402373705728000.0;  // 1/18!
  sum = 1.0 / 20922789888000.0 + z * sum;
  sum = -1.0 / 87178291200.0 + z * sum;
  sum = 1.0 / 479001600.0 + z * sum;
  sum = -1.0 / 3628800.0 + z * sum;
  sum = 1.0 / 40320.0 + z * sum;
  sum = -1.0 / 720.0 + z * sum;
  return 1.0 / 24.0 + z * sum;
}

POSENC_INLINE double select_bits(uint64_t mask, double yes, double no) {
  return bits_double((double_bits(yes) & mask) | (double_bits(no) & ~mask));
}

// cos and sin of position * frequency, without a branch, so that a loop of them vectorises.
POSENC_INLINE void exact_cos_sin(double position, double frequency, double& cos, double& sin) {
  uint64_t quarters;
  const DoubleDouble x = reduce_angle(position, frequency, quarters);
  const DoubleDouble z = exact_product(x.high, x.high);  // x^2, but for 2 * high * low
  const double half = 0.5 * z.high;
  const double one_minus_half = 1.0 - half;
  const double half_error = (1.0 - one_minus_half) - half;
  const double low = x.high * x.low + 0.5 * z.low;  // what `half` lacks
  const double c = one_minus_half + (half_error + (z.high * z.high * cos_tail(z.high) - low));
  const double s = x.high + (x.low * one_minus_half + x.high * (z.high * sin_tail(z.high)));
  const uint64_t odd = uint64_t{0} - (quarters & 1u);
  cos = select_bits(odd, s, c);
  sin = select_bits(odd, c, s);
  cos = bits_double(double_bits(cos) ^ (((quarters + 1u) & 2u) << 62));
  sin = bits_double(double_bits(sin) ^ ((quarters & 2u) << 62));
}

// Where a position takes its value from: the exact row of base rotated by that of offset.
struct PositionSplit {
  double base;
  int64_t offset;  // in [0, kOffsets)
};

constexpr int64_t kOffsets = 64;

POSENC_INLINE PositionSplit split_position(int64_t position) {
  const int64_t offset = position & (kOffsets - 1);  // right for negative ones too
  return {static_cast<double>(position - offset), offset};
}

// An integer held in a double is that integer; any other value is its own base.
POSENC_INLINE PositionSplit split_position(double position) {
  constexpr double limit = 0x1p62;
  if (position > -limit && position < limit) {
    const int64_t whole = static_cast<int64_t>(position);
    if (static_cast<double>(whole) == position) return split_position(whole);
  }
  return {position, 0};
}

// round_to_odd of half.h without a branch, for |x| >= 2^-126; below that it rounds to nearest.
POSENC_INLINE float sticky_float(double x) {
  constexpr uint64_t lost = (uint64_t{1} << 29) - 1;  // bits of a double that a float has not
  const uint64_t u = double_bits(x);
  const uint64_t sticky = ((u & lost) + lost) & (lost + 1);
  return static_cast<float>(bits_double((u & ~lost) | sticky));
}
