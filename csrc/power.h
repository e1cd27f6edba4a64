#pragma once

namespace posenc {

// base^exponent for a positive finite base, correctly rounded but for about one value in 2^40:
// plain arithmetic in a fixed order. The C library's pow has other bits on processors without FMA.
double power(double base, double exponent);

}  // namespace posenc
