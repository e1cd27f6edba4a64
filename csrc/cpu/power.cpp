// exp(exponent * log(base)) on unevaluated sums of two doubles, about 100 bits.
#include "power.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "half.h"  // POSENC_INLINE

namespace posenc {
namespace {

#include "angle_math.h"  // DoubleDouble, exact_product, exact_sum

constexpr DoubleDouble kLog2 = {0x1.62e42fefa39efp-1, 0x1.abc9e3b39803fp-56};

DoubleDouble plus(DoubleDouble a, DoubleDouble b) {
  const DoubleDouble high = exact_sum(a.high, b.high);
  const DoubleDouble low = exact_sum(a.low, b.low);
  const DoubleDouble sum = exact_sum(high.high, high.low + low.high);
  return exact_sum(sum.high, sum.low + low.low);
}

DoubleDouble times(DoubleDouble a, DoubleDouble b) {
  const DoubleDouble product = exact_product(a.high, b.high);
  return exact_sum(product.high, product.low + (a.high * b.low + a.low * b.high));
}

DoubleDouble over(DoubleDouble a, DoubleDouble b) {
  const double first = a.high / b.high;
  const DoubleDouble part = times(b, {-first, 0});
  const DoubleDouble rest = plus(a, part);
  const double second = rest.high / b.high;
  const DoubleDouble left = plus(rest, times(b, {-second, 0}));
  const DoubleDouble both = exact_sum(first, second);
  return exact_sum(both.high, both.low + left.high / b.high);
}

// log x = e log 2 + 2 artanh((m - 1) / (m + 1)),  x = m 2^e,  m between sqrt(1/2) and sqrt(2)
DoubleDouble logarithm(double x) {
  int e;
  double m = std::frexp(x, &e);
  if (m < 0.70710678118654752) {
    m *= 2;
    --e;
  }
  const DoubleDouble s = over({m - 1, 0}, exact_sum(m, 1.0));
  const DoubleDouble z = times(s, s);  // at most 0.0295: 24 terms leave out less than 2^-120
  DoubleDouble sum = {0, 0};
  for (int n = 23; n >= 0; --n) sum = plus(over({1, 0}, {2.0 * n + 1, 0}), times(z, sum));
  return plus(times({static_cast<double>(e), 0}, kLog2), times({2 * s.high, 2 * s.low}, sum));
}

// exp x = 2^k exp(r)^64,  r = (x - k log 2) / 64
double exponential(DoubleDouble x) {
  if (!(x.high < 710)) return x.high < 0 ? x.high : std::numeric_limits<double>::infinity();
  if (x.high < -746) return 0;
  const double k = (x.high / kLog2.high + kRound) - kRound;
  DoubleDouble r = plus(x, times({-k, 0}, kLog2));
  r = {r.high / 64, r.low / 64};  // exact; |r| is at most 0.0055
  DoubleDouble sum = {1, 0};
  for (int n = 13; n >= 1; --n) sum = plus({1, 0}, times(over(r, {double(n), 0}), sum));
  for (int i = 0; i < 6; ++i) sum = times(sum, sum);
  return std::ldexp(sum.high + sum.low, static_cast<int>(k));
}

}  // namespace

double power(double base, double exponent) {
  if (exponent == 0 || base == 1) return 1;
  return exponential(times({exponent, 0}, logarithm(base)));
}

}  // namespace posenc
