// An index of the relative ops cut into runs.
#pragma once

#include <algorithm>
#include <vector>

#include "cpu/relative_rows.h"

namespace posenc {

class RelativeRuns {
 public:
  // index: n columns from -1 to size - 1, which must outlive this. With `sums`, an up or down run
  // has only columns that occur once.
  RelativeRuns(const int64_t* index, int64_t n, int64_t size, bool sums) : index_(index) {
    if (sums) find_sums(index, n, size);
    for (int64_t i = 0; i < n;) i = append(index, i, n);
  }

  RelativeWindow window(int64_t first, int64_t keys) const {
    const auto run = std::upper_bound(runs_.begin(), runs_.end(), first,
                                      [](int64_t at, const RelativeRun& r) { return at < r.end; });
    return {runs_.data() + (run - runs_.begin()), index_, first, keys};
  }

  RelativeSums sums() const {
    return {columns_.data(), static_cast<int64_t>(columns_.size()), slot_.data()};
  }

 private:
  static constexpr int64_t kShortest = 4;  // shorter runs cost more than they save

  void find_sums(const int64_t* t, int64_t n, int64_t size) {
    constexpr int64_t unseen = -2, once = -1;
    slot_.assign(static_cast<size_t>(size), unseen);
    for (int64_t i = 0; i < n; ++i) {
      if (t[i] < 0) continue;
      int64_t& slot = slot_[static_cast<size_t>(t[i])];
      if (slot == unseen) {
        slot = once;
      } else if (slot == once) {
        slot = static_cast<int64_t>(columns_.size());
        columns_.push_back(t[i]);
      }
    }
  }

  bool summed(int64_t column) const {
    return column >= 0 && !slot_.empty() && slot_[static_cast<size_t>(column)] >= 0;
  }

  // The run from entry i on; returns its end.
  int64_t append(const int64_t* t, int64_t i, int64_t n) {
    const int64_t step = i + 1 < n ? t[i + 1] - t[i] : 0;
    int64_t end = i + 1;
    if (step == 0) {
      while (end < n && t[end] == t[i]) ++end;
    } else if ((step == 1 || step == -1) && t[i] >= 0 && !summed(t[i])) {
      while (end < n && t[end] - t[end - 1] == step && t[end] >= 0 && !summed(t[end])) ++end;
    }
    const auto kind =
        end - i < kShortest ? RelativeRun::mixed : static_cast<RelativeRun::Kind>(step);
    if (kind == RelativeRun::mixed && !runs_.empty() && runs_.back().kind == kind) {
      runs_.back().end = end;
    } else {
      runs_.push_back({i, end, t[i], kind});
    }
    return end;
  }

  const int64_t* index_;
  std::vector<RelativeRun> runs_;
  std::vector<int64_t> columns_, slot_;  // as in RelativeSums
};

}  // namespace posenc
