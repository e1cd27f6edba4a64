// Arguments of rope: what they must be, checked once for CPU, CUDA and meta tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>

#include <optional>
#include <string_view>
#include <tuple>
#include <type_traits>

#include "checks.h"
#include "strides.h"

namespace posenc {

// The arguments that every rope op shares, after the tensors it rotates. Int is int64_t for a
// kernel and c10::SymInt for a fake one.
template <class Int>
struct RopeOptions {
  const at::Tensor& cos;                        // [L, n] or [B | 1, S, n]
  const at::Tensor& sin;                        // like cos
  const std::optional<at::Tensor>& positions;   // [S] or [B | 1, S]
  const std::optional<at::Tensor>& offsets;     // [] or [B]; [N] with cu_seqlens
  const std::optional<at::Tensor>& cu_seqlens;  // [N + 1]
  Int offset;
  std::string_view layout;
  bool interleaved;  // pairs of the input
  bool inverse;
  bool interleaved_out;  // pairs of the output
};

// Where the axes of a layout stand; -1 for one that it does not have. The last axis is D.
struct RopeAxes {
  int batch = -1, seq = -1, heads = -1;
};

inline RopeAxes rope_axes(const char* op, std::string_view layout) {
  static constexpr std::string_view known[] = {"bshd", "bhsd", "sbhd", "thd", "shd",
                                               "hsd",  "bsd",  "sbd",  "sd"};
  bool found = false;
  for (const auto& name : known) found = found || name == layout;
  POSENC_CHECK_VALUE(found, op,
                     "layout must be one of bshd, bhsd, sbhd, thd, shd, hsd, bsd, sbd, sd, got '",
                     layout, "'");
  RopeAxes axes;
  for (size_t i = 0; i < layout.size(); ++i) {
    if (layout[i] == 'b') axes.batch = static_cast<int>(i);
    if (layout[i] == 's' || layout[i] == 't') axes.seq = static_cast<int>(i);
    if (layout[i] == 'h') axes.heads = static_cast<int>(i);
  }
  return axes;
}

// An argument to rotate, under the name that the caller knows.
struct RopeInput {
  const char* name;
  const at::Tensor& tensor;
};

template <class Int>
void check_rope_table(const char* op, RopeInput x, const RopeOptions<Int>& options) {
  const auto& [cos, sin] = std::tie(options.cos, options.sin);
  const auto type = x.tensor.scalar_type(), table = cos.scalar_type();
  POSENC_CHECK_TYPE(table == at::kFloat || table == type, op,
                    "cos must be float32 or have the dtype of ", x.name, " (", type, "), got ",
                    table);
  POSENC_CHECK_TYPE(sin.scalar_type() == table, op, "sin must have the dtype of cos (", table,
                    "), got ", sin.scalar_type());
  const auto dim = sizes_of<Int>(x.tensor).back();
  const auto size = sizes_of<Int>(cos);
  POSENC_CHECK_VALUE(cos.dim() == 2 || cos.dim() == 3, op,
                     "cos must have shape [L, R/2] or [B, S, R/2], got ", size);
  const char* hint = size.back() <= dim
                         ? "; a full-width table repeats its columns: pass half of them, "
                           "cos[..., :R // 2] (cos[..., ::2] if interleaved)"
                         : "";
  // Not size * 2 <= dim, which wraps for the 2^62 columns that an expanded table may have.
  POSENC_CHECK_VALUE(size.back() <= dim - size.back(), op, "cos must have shape [",
                     cos.dim() == 2 ? "L" : "B, S", ", R/2] with R <= D = ", dim, ", got ", size,
                     hint);
  POSENC_CHECK_VALUE(sizes_of<Int>(sin) == size, op, "sin must have the shape of cos, ", size,
                     ", got ", sizes_of<Int>(sin));
}

inline void check_rope_index(const char* op, const char* name, const at::Tensor& index) {
  POSENC_CHECK_TYPE(index.scalar_type() == at::kInt || index.scalar_type() == at::kLong, op, name,
                    " must be int32 or int64, got ", index.scalar_type());
}

// Tensors whose storage was freed or shrunk after they were made (as FSDP does) have no memory to
// read. A traced tensor has none at all.
template <class Int>
void check_allocated(const char* op, const char* name, const at::Tensor& t) {
  if constexpr (std::is_same_v<Int, int64_t>) {
    if (t.numel() == 0) return;
    int64_t last = t.storage_offset();
    for (int64_t i = 0; i < t.dim(); ++i) last += (t.size(i) - 1) * t.stride(i);
    const auto bytes = static_cast<size_t>(last + 1) * t.element_size();
    POSENC_CHECK_VALUE(bytes <= t.storage().nbytes(), op, name, " must have a storage of at least ",
                       bytes, " bytes, got ", t.storage().nbytes());
  }
}

template <class Int>
void check_rope_device(const char* op, RopeInput x, const RopeOptions<Int>& options) {
  const auto check = [&](const char* name, const at::Tensor& t) {
    POSENC_CHECK_VALUE(t.device() == x.tensor.device(), op, name, " must be on the device of ",
                       x.name, " (", x.tensor.device(), "), got ", t.device());
    POSENC_CHECK_TYPE(t.layout() == at::kStrided, op, name, " must be a dense tensor, got ",
                      t.layout());
    check_allocated<Int>(op, name, t);
  };
  check("cos", options.cos);
  check("sin", options.sin);
  if (options.positions) check("positions", *options.positions);
  if (options.offsets) check("offset", *options.offsets);
  if (options.cu_seqlens) check("cu_seqlens", *options.cu_seqlens);
}

// Everything that shapes and dtypes can tell. Values of positions, offsets and cu_seqlens are
// checked where they can be read: by the CPU kernel, or by a device assert.
template <class Int>
RopeAxes check_rope(const char* op, RopeInput x, const RopeOptions<Int>& options) {
  const auto type = x.tensor.scalar_type();
  POSENC_CHECK_TYPE(
      type == at::kFloat || type == at::kDouble || type == at::kBFloat16 || type == at::kHalf, op,
      x.name, " must be float32, float64, bfloat16 or float16, got ", type);
  POSENC_CHECK_TYPE(x.tensor.layout() == at::kStrided, op, x.name, " must be a dense tensor, got ",
                    x.tensor.layout());
  const RopeAxes axes = rope_axes(op, options.layout);
  const auto size = sizes_of<Int>(x.tensor);
  POSENC_CHECK_VALUE(size.size() == options.layout.size(), op, x.name, " must have ",
                     options.layout.size(), " dimensions for layout '", options.layout, "', got ",
                     size);
  check_allocated<Int>(op, x.name, x.tensor);
  check_rope_device(op, x, options);
  check_rope_table(op, x, options);

  const Int batch = axes.batch < 0 ? Int(1) : size[axes.batch];
  const Int length = size[axes.seq];
  const bool per_token = options.cos.dim() == 3;
  if (per_token) {
    const auto table = sizes_of<Int>(options.cos);
    POSENC_CHECK_VALUE((table[0] == batch || table[0] == 1) && table[1] == length, op,
                       "cos must have shape [B, S, R/2] with B = ", batch, " or 1 and S = ", length,
                       ", got ", table);
  }
  const int sources = (options.positions ? 1 : 0) + (options.cu_seqlens ? 1 : 0);
  const bool shifted = options.offsets || options.offset != 0;
  POSENC_CHECK_VALUE(!per_token || (sources == 0 && !shifted), op,
                     "cos must have shape [L, R/2] to be indexed by positions, offset or "
                     "cu_seqlens, got ",
                     sizes_of<Int>(options.cos));
  POSENC_CHECK_VALUE(sources <= 1, op,
                     "positions must not be given together with cu_seqlens, got both");
  if (options.positions) {
    const auto& positions = *options.positions;
    check_rope_index(op, "positions", positions);
    const auto given = sizes_of<Int>(positions);
    POSENC_CHECK_VALUE(
        !shifted, op, "positions must not be given together with offset: add it to them, got both");
    POSENC_CHECK_VALUE(
        (given.size() == 1 && given[0] == length) ||
            (given.size() == 2 && (given[0] == batch || given[0] == 1) && given[1] == length),
        op, "positions must have shape [S] or [B, S] with B = ", batch, " and S = ", length,
        ", got ", given);
  }
  if (!per_token && !options.positions && !options.offsets && !options.cu_seqlens) {
    const Int rows = sizes_of<Int>(options.cos)[0];
    POSENC_CHECK_INDEX(options.offset >= 0 && options.offset <= rows - length, op,
                       "cos must have a row for each of the S = ", length, " positions of ", x.name,
                       " from offset = ", options.offset, ", got L = ", rows);
  }
  Int sequences = batch;
  if (options.cu_seqlens) {
    check_rope_index(op, "cu_seqlens", *options.cu_seqlens);
    const auto given = sizes_of<Int>(*options.cu_seqlens);
    POSENC_CHECK_VALUE(options.layout == "thd", op,
                       "cu_seqlens must be used with layout 'thd', got layout '", options.layout,
                       "'");
    POSENC_CHECK_VALUE(given.size() == 1 && given[0] >= 1, op,
                       "cu_seqlens must have shape [N + 1], got ", given);
    sequences = given[0] - 1;
  }
  if (options.offsets) {
    check_rope_index(op, "offset", *options.offsets);
    POSENC_CHECK_VALUE(options.offset == 0, op,
                       "offset must be an int or a tensor, got both, the int being ",
                       options.offset);
    const auto given = sizes_of<Int>(*options.offsets);
    POSENC_CHECK_VALUE(given.empty() || (given.size() == 1 && given[0] == sequences), op,
                       "offset must be an int or have shape [", options.cu_seqlens ? "N" : "B",
                       "] = [", sequences, "], got ", given);
  }
  return axes;
}

// q and k of apply_rope: both as above, and fit to share tables, rows and one parallel region.
template <class Int>
RopeAxes check_apply_rope(const char* op, const at::Tensor& q, const at::Tensor& k,
                          const RopeOptions<Int>& options) {
  POSENC_CHECK_TYPE(q.scalar_type() == k.scalar_type(), op, "k must have the dtype of q (",
                    q.scalar_type(), "), got ", k.scalar_type());
  POSENC_CHECK_VALUE(q.device() == k.device(), op, "k must be on the device of q (", q.device(),
                     "), got ", k.device());
  const RopeAxes axes = check_rope(op, {"q", q}, options);
  check_rope(op, {"k", k}, options);
  const auto q_size = sizes_of<Int>(q), k_size = sizes_of<Int>(k);
  POSENC_CHECK_VALUE(axes.batch < 0 || q_size[axes.batch] == k_size[axes.batch], op,
                     "k must have the batch size of q, ", q_size, ", got ", k_size);
  POSENC_CHECK_VALUE(!options.cu_seqlens || q_size[axes.seq] == k_size[axes.seq], op,
                     "k must have the length of q with cu_seqlens, ", q_size, ", got ", k_size);
  POSENC_CHECK_VALUE(q_size.back() == k_size.back(), op, "k must have the head dim of q, ", q_size,
                     ", got ", k_size);
  return axes;
}

// rope_table_grad: x as for rope, and the gradient of its output.
template <class Int>
RopeAxes check_rope_table_grad(const char* op, const at::Tensor& grad, const at::Tensor& x,
                               const RopeOptions<Int>& options) {
  POSENC_CHECK_TYPE(grad.scalar_type() == x.scalar_type(), op, "grad must have the dtype of x (",
                    x.scalar_type(), "), got ", grad.scalar_type());
  POSENC_CHECK_VALUE(grad.device() == x.device(), op, "grad must be on the device of x (",
                     x.device(), "), got ", grad.device());
  POSENC_CHECK_VALUE(sizes_of<Int>(grad) == sizes_of<Int>(x), op, "grad must have the shape of x, ",
                     sizes_of<Int>(x), ", got ", sizes_of<Int>(grad));
  return check_rope(op, {"x", x}, options);
}

// out of rope_out.
template <class Int>
void check_rope_out(const char* op, const at::Tensor& x, const at::Tensor& out) {
  POSENC_CHECK_TYPE(out.scalar_type() == x.scalar_type(), op, "out must have the dtype of x (",
                    x.scalar_type(), "), got ", out.scalar_type());
  POSENC_CHECK_VALUE(out.device() == x.device(), op, "out must be on the device of x (", x.device(),
                     "), got ", out.device());
  POSENC_CHECK_VALUE(sizes_of<Int>(out) == sizes_of<Int>(x), op, "out must have the shape of x, ",
                     sizes_of<Int>(x), ", got ", sizes_of<Int>(out));
  check_allocated<Int>(op, "out", out);
}

}  // namespace posenc
