// Reference attention in double, independent of the code under test. For each query it computes the
// whole row of weights.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "shiplap/base/random.h"
#include "shiplap/kernels/attention.h"

namespace shiplap::kernels {

using Doubles = std::vector<double>;

struct Lengths {
  std::uint32_t queries = 0;
  std::uint32_t keys = 0;
};

struct AttentionProblem {
  AttentionShape shape;
  std::vector<std::uint32_t> q_ends{0};
  std::vector<std::uint32_t> kv_ends{0};
  Doubles q;
  Doubles k;
  Doubles v;
  Doubles d_o;

  [[nodiscard]] Sequences sequences() const { return {q_ends, kv_ends}; }
  [[nodiscard]] std::size_t rows() const {
    return q_ends.back() * static_cast<std::size_t>(shape.heads);
  }
};

struct AttentionResult {
  Doubles o;
  Doubles lse;
  Doubles d_q;
  Doubles d_k;
  Doubles d_v;
};

// Uniform with variance 1, which makes scores of about that size.
inline Doubles random_array(Random& random, std::size_t count) {
  Doubles numbers(count);
  for (double& number : numbers) number = (2 * random.unit() - 1) * std::sqrt(3.0);
  return numbers;
}

inline AttentionProblem random_problem(const AttentionShape& shape,
                                       const std::vector<Lengths>& lengths, std::uint64_t seed) {
  Random random(seed);
  AttentionProblem problem{.shape = shape};
  for (const Lengths& length : lengths) {
    problem.q_ends.push_back(problem.q_ends.back() + length.queries);
    problem.kv_ends.push_back(problem.kv_ends.back() + length.keys);
  }
  const auto dim = static_cast<std::size_t>(shape.head_dim);
  const std::size_t keys = problem.kv_ends.back() * static_cast<std::size_t>(shape.kv_heads);
  problem.q = random_array(random, problem.rows() * dim);
  problem.k = random_array(random, keys * dim);
  problem.v = random_array(random, keys * dim);
  problem.d_o = random_array(random, problem.rows() * dim);
  return problem;
}

// One query of one head: where its numbers and those of its keys begin.
class ReferenceQuery {
 public:
  ReferenceQuery(const AttentionProblem& problem, AttentionResult& answer, std::size_t row,
                 std::size_t first_key, std::size_t keys)
      : p_(problem), answer_(answer), row_(row), first_key_(first_key), weights_(keys) {}

  void solve() {
    double sum = 0;
    for (std::size_t j = 0; j < weights_.size(); ++j) {
      double score = 0;
      for (std::size_t i = 0; i < dim(); ++i) score += p_.q[row_ * dim() + i] * p_.k[key(j) + i];
      weights_[j] = std::exp(score * scale());
      sum += weights_[j];
    }
    answer_.lse[row_] = std::log(sum);
    for (double& weight : weights_) weight /= sum;
    Doubles d_weights(weights_.size());
    double mean = 0;
    for (std::size_t j = 0; j < weights_.size(); ++j) {
      for (std::size_t i = 0; i < dim(); ++i) {
        answer_.o[row_ * dim() + i] += weights_[j] * p_.v[key(j) + i];
        d_weights[j] += p_.d_o[row_ * dim() + i] * p_.v[key(j) + i];
      }
      mean += weights_[j] * d_weights[j];
    }
    for (std::size_t j = 0; j < weights_.size(); ++j) {
      const double d_score = weights_[j] * (d_weights[j] - mean) * scale();
      for (std::size_t i = 0; i < dim(); ++i) {
        answer_.d_q[row_ * dim() + i] += d_score * p_.k[key(j) + i];
        answer_.d_k[key(j) + i] += d_score * p_.q[row_ * dim() + i];
        answer_.d_v[key(j) + i] += weights_[j] * p_.d_o[row_ * dim() + i];
      }
    }
  }

 private:
  [[nodiscard]] std::size_t dim() const { return static_cast<std::size_t>(p_.shape.head_dim); }
  [[nodiscard]] double scale() const {
    if (p_.shape.scale != 0) return static_cast<double>(p_.shape.scale);
    return 1 / std::sqrt(p_.shape.head_dim);
  }
  [[nodiscard]] std::size_t key(std::size_t j) const {
    const auto heads = static_cast<std::size_t>(p_.shape.heads);
    const auto kv_heads = static_cast<std::size_t>(p_.shape.kv_heads);
    const std::size_t kv_head = row_ % heads / (heads / kv_heads);
    return ((first_key_ + j) * kv_heads + kv_head) * dim();
  }

  const AttentionProblem& p_;
  AttentionResult& answer_;
  std::size_t row_;
  std::size_t first_key_;
  Doubles weights_;
};

inline AttentionResult reference(const AttentionProblem& problem) {
  AttentionResult answer{.o = Doubles(problem.q.size()),
                         .lse = Doubles(problem.rows()),
                         .d_q = Doubles(problem.q.size()),
                         .d_k = Doubles(problem.k.size()),
                         .d_v = Doubles(problem.v.size())};
  const auto heads = static_cast<std::size_t>(problem.shape.heads);
  for (std::size_t s = 0; s + 1 < problem.q_ends.size(); ++s) {
    for (std::size_t query = problem.q_ends[s]; query < problem.q_ends[s + 1]; ++query) {
      const std::size_t hidden = problem.q_ends[s + 1] - 1 - query;
      const std::size_t keys = problem.kv_ends[s + 1] - problem.kv_ends[s] - hidden;
      for (std::size_t head = 0; head < heads; ++head) {
        ReferenceQuery(problem, answer, query * heads + head, problem.kv_ends[s], keys).solve();
      }
    }
  }
  return answer;
}

inline void put(float& to, double value) { to = static_cast<float>(value); }
inline void put(Bf16& to, double value) { to = to_bf16(static_cast<float>(value)); }
inline double get(float value) { return static_cast<double>(value); }
inline double get(Bf16 value) { return static_cast<double>(to_float(value)); }

template <class T>
std::vector<T> rounded(const Doubles& numbers) {
  std::vector<T> result(numbers.size());
  for (std::size_t i = 0; i < numbers.size(); ++i) put(result[i], numbers[i]);
  return result;
}

template <class T>
Doubles doubles(const std::vector<T>& numbers) {
  Doubles result;
  result.reserve(numbers.size());
  for (const T number : numbers) result.push_back(get(number));
  return result;
}

// The same problem with inputs that T can hold.
template <class T>
AttentionProblem rounded(AttentionProblem problem) {
  for (Doubles* numbers : {&problem.q, &problem.k, &problem.v, &problem.d_o}) {
    *numbers = doubles(rounded<T>(*numbers));
  }
  return problem;
}

// The arrays that Attention works on.
template <class T>
struct AttentionArrays {
  explicit AttentionArrays(const AttentionProblem& problem)
      : q(rounded<T>(problem.q)),
        k(rounded<T>(problem.k)),
        v(rounded<T>(problem.v)),
        d_o(rounded<T>(problem.d_o)),
        o(q.size()),
        lse(problem.rows()),
        d_q(q.size()),
        d_k(k.size()),
        d_v(v.size()) {}

  void run(Attention& attention, const Sequences& sequences) {
    attention.forward<T>(sequences, forward());
    attention.backward<T>(sequences, backward());
  }

  [[nodiscard]] AttentionForward<T> forward() {
    return {.q = q, .k = k, .v = v, .o = o, .lse = lse};
  }
  [[nodiscard]] AttentionBackward<T> backward() {
    return {
        .q = q, .k = k, .v = v, .o = o, .lse = lse, .d_o = d_o, .d_q = d_q, .d_k = d_k, .d_v = d_v};
  }
  [[nodiscard]] AttentionResult answer() const {
    return {.o = doubles(o),
            .lse = doubles(lse),
            .d_q = doubles(d_q),
            .d_k = doubles(d_k),
            .d_v = doubles(d_v)};
  }

  std::vector<T> q, k, v, d_o;
  std::vector<T> o;
  std::vector<float> lse;
  std::vector<T> d_q, d_k, d_v;
};

// The largest difference, relative to the largest number of the tensor unless all are zero. A NaN
// gives a NaN.
inline double error_of(const Doubles& found, const Doubles& expected) {
  if (found.size() != expected.size()) return HUGE_VAL;
  double difference = 0;
  double largest = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    const double here = std::abs(found[i] - expected[i]);
    if (!(here <= difference)) difference = here;
    largest = std::max(largest, std::abs(expected[i]));
  }
  return largest == 0 ? difference : difference / largest;
}

}  // namespace shiplap::kernels
