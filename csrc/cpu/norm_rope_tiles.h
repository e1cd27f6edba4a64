// What the tasks of norm_rope and of its gradient share: weights as the row kernels want them.
#pragma once

#include <c10/util/SmallVector.h>

#include <memory>
#include <optional>

#include "cpu/norm_rope_rows.h"
#include "cpu/rope_tables.h"
#include "norm_rope.h"

namespace posenc {

// [size] numbers in the math type: a weight or a bias as it stands in memory, or made once for all
// tasks.
template <class Math>
class NormParameter {
 public:
  // t + offset, or `otherwise` for none.
  NormParameter(const std::optional<at::Tensor>& t, int64_t size, Math offset, Math otherwise) {
    constexpr auto own = sizeof(Math) == 8 ? at::kDouble : at::kFloat;
    if (t && t->scalar_type() == own && offset == 0 && (size <= 1 || t->stride(0) == 1)) {
      data_ = static_cast<const Math*>(t->const_data_ptr());
    } else if (t) {
      made_.resize(size);
      read(*t, offset);
    } else {
      made_.resize(size, otherwise);
    }
  }

  const Math* data() const { return data_ == nullptr ? made_.data() : data_; }

 private:
  template <class Stored>
  void add(const at::Tensor& t, Math offset) {
    const Stored* from = static_cast<const Stored*>(t.const_data_ptr());
    const int64_t step = t.stride(0), size = static_cast<int64_t>(made_.size());
    for (int64_t i = 0; i < size; ++i) made_[i] = static_cast<Math>(widen(from[i * step])) + offset;
  }

  void read(const at::Tensor& t, Math offset) {
    switch (rope_dtype(t.scalar_type())) {
      case RopeDtype::f32:
        return add<float>(t, offset);
      case RopeDtype::f64:
        return add<double>(t, offset);
      case RopeDtype::bf16:
        return add<bf16>(t, offset);
      case RopeDtype::f16:
        return add<f16>(t, offset);
    }
  }

  const Math* data_ = nullptr;
  c10::SmallVector<Math, 128> made_;
};

// The weights of one tensor. A bias of zeros is made only where the mean is taken off: a kernel
// that does neither reads none.
template <class Math>
struct NormWeights {
  NormRule rule;
  bool all;
  int64_t scratch;  // elements that a task may need
  NormParameter<Math> weight, bias;

  NormWeights(const NormInput& in, const NormOptions& norm, const NormRule& rule, int64_t heads)
      : rule(rule),
        all(norm.norm_dims == "all"),
        scratch(norm_scratch(heads, in.x.tensor.size(-1), all)),
        weight(in.weight, size(in, heads), static_cast<Math>(norm.weight_offset), 1),
        bias(in.bias, in.bias || rule.centred ? size(in, heads) : 0, 0, 0) {}

  // `buffer` holds `scratch` elements, or none if the norm is plain.
  NormRows rows(Math* buffer) const { return {rule, all, weight.data(), bias.data(), buffer}; }

 private:
  int64_t size(const NormInput& in, int64_t heads) const {
    return in.x.tensor.size(-1) * (all ? heads : 1);
  }
};

}  // namespace posenc
