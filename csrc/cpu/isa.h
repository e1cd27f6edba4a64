// Which row kernels to use. Asked once per op, never inside a row.
#pragma once

namespace posenc {

enum class Isa { plain, avx2, avx512 };

Isa current_isa();

}  // namespace posenc
