// One error form for every op: `posenc_ext.<op>: <argument> must <rule>, got <value>`.
#pragma once

#include <c10/util/Exception.h>

// `op` is the public name of the function, the rest is streamed into the message.
#define POSENC_CHECK(kind, cond, op, ...) \
  TORCH_CHECK_##kind(cond, "posenc_ext.", op, ": ", __VA_ARGS__)
#define POSENC_CHECK_VALUE(cond, op, ...) POSENC_CHECK(VALUE, cond, op, __VA_ARGS__)
#define POSENC_CHECK_TYPE(cond, op, ...) POSENC_CHECK(TYPE, cond, op, __VA_ARGS__)
#define POSENC_CHECK_INDEX(cond, op, ...) POSENC_CHECK(INDEX, cond, op, __VA_ARGS__)
