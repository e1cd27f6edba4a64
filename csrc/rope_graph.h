// The rotation of eager tensors with a graph, for a gradient in q and k alone. What else there is
// to differentiate (the tables, forward mode, transforms) is in posenc_ext/ops/rope_autograd.py.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/string_view.h>

#include <optional>
#include <utility>

namespace posenc {

struct RopeGraphOptions {
  at::Tensor cos, sin;
  std::optional<at::Tensor> positions, offsets, cu_seqlens;
  int64_t offset;
  c10::string_view layout;
  bool interleaved, inverse, interleaved_out;
};

// Of q, and of k if there is one.
std::pair<at::Tensor, at::Tensor> rotate_with_graph(const at::Tensor& q,
                                                    const std::optional<at::Tensor>& k,
                                                    const RopeGraphOptions& options);

}  // namespace posenc
