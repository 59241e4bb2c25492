// A tiny harness for checks that many ranks make together, as threads or as processes. Nothing here
// is shared by the ranks except what is said so: under the simulator all of them live in one
// process, each with globals of its own.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "shiplap/base/random.h"
#include "shiplap/comm/communicator.h"

namespace shiplap::comm {

// Memory that is never given back: after a failure MPI may still read and write the buffers of the
// call that failed.
[[nodiscard]] std::span<std::byte> keep_bytes(std::size_t bytes);

// What one rank does in one check, and what it found wrong.
class Trial {
 public:
  Trial(Communicator& fresh, std::uint64_t seed) : comm(fresh), seed_(seed) {}

  // A channel of all ranks for this check alone, checked, with 20 s for each call. It may be
  // killed.
  Communicator& comm;

  // The same numbers on all ranks, for each `stream`.
  [[nodiscard]] Random random(std::uint64_t stream = 0) const {
    return Random(seed_).split(stream);
  }

  // A buffer for a call that is to fail.
  template <class T>
  [[nodiscard]] std::span<T> keep(std::size_t count) {
    std::byte* const bytes = keep_bytes(count * sizeof(T)).data();
    return {reinterpret_cast<T*>(bytes), count};
  }

  void expect(bool holds, std::string_view what, const char* file = __builtin_FILE(),
              int line = __builtin_LINE()) {
    if (!holds) record(std::string(what), file, line);
  }

  template <class A, class B>
  void expect_equal(const A& found, const B& expected, std::string_view what,
                    const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    if (found == expected) return;
    record(std::string(what) + ": found " + text(found) + ", expected " + text(expected), file,
           line);
  }

  // The same bits, where == would take -0 for 0.
  template <class T>
  void expect_same_bits(std::span<const T> found, std::span<const T> expected,
                        std::string_view what, const char* file = __builtin_FILE(),
                        int line = __builtin_LINE());

  // Returns what was caught, or nothing, which is a failure, if it was not an `Error`.
  template <class Error, class Function>
  std::optional<Error> expect_throws(const Function& function, std::string_view what,
                                     const char* file = __builtin_FILE(),
                                     int line = __builtin_LINE());

  void record(const std::string& what, const char* file, int line);
  [[nodiscard]] const std::vector<std::string>& failures() const { return failures_; }

 private:
  template <class A>
  static std::string text(const A& value) {
    std::ostringstream out;
    out.precision(17);
    if constexpr (std::is_same_v<A, std::vector<int>>) {
      out << "{";
      for (const int one : value) out << " " << one;
      out << " }";
    } else {
      out << value;
    }
    return out.str();
  }

  std::uint64_t seed_;
  std::vector<std::string> failures_;
};

template <class T>
void Trial::expect_same_bits(std::span<const T> found, std::span<const T> expected,
                             std::string_view what, const char* file, int line) {
  expect_equal(found.size(), expected.size(), std::string(what) + ": elements", file, line);
  if (found.size() != expected.size()) return;
  if (std::ranges::equal(std::as_bytes(found), std::as_bytes(expected))) return;
  for (std::size_t k = 0; k < found.size(); ++k) {
    if (std::ranges::equal(std::as_bytes(found.subspan(k, 1)),
                           std::as_bytes(expected.subspan(k, 1)))) {
      continue;
    }
    record(std::string(what) + ": element " + std::to_string(k) + " is " +
               std::to_string(found[k]) + ", expected " + std::to_string(expected[k]),
           file, line);
    return;
  }
}

template <class Error, class Function>
std::optional<Error> Trial::expect_throws(const Function& function, std::string_view what,
                                          const char* file, int line) {
  try {
    function();
    record(std::string(what) + ": nothing was thrown", file, line);
  } catch (const Error& error) {
    return error;
  } catch (const std::exception& error) {
    record(std::string(what) + ": thrown was another: " + error.what(), file, line);
  }
  return std::nullopt;
}

struct Check {
  std::string name;
  int least_ranks = 1;
  std::function<void(Trial&)> run;
};

// What is to be run, the same on all ranks.
struct Selection {
  std::string only;  // the beginning of the names; empty: all
  std::uint64_t seed = 1;
  [[nodiscard]] bool wants(const Check& check, int ranks) const {
    return check.least_ranks <= ranks && check.name.starts_with(only);
  }
};

// How it went. All ranks agree on it.
struct Tally {
  int passed = 0;
  std::vector<std::string> failed;
};

// Runs one check on a channel of its own and lets the ranks of `world` agree on the verdict. Each
// rank that found something wrong says so on stderr; rank 0 prints the verdict.
void run_check(Communicator& world, const Check& check, std::uint64_t seed, Tally& tally);

// Calls the check, and takes an exception that leaves it for a failure.
void run_caught(const Check& check, Trial& trial);
// "rank 3: NAME: file:line: what" for each failure, in one write.
void print_failures(int rank, const std::string& name, const std::vector<std::string>& failures);
// "ok 12 NAME"
void print_verdict(bool passed, int number, const std::string& name);

void add_message_checks(std::vector<Check>& checks);
void add_collective_checks(std::vector<Check>& checks);
void add_parts_checks(std::vector<Check>& checks);
void add_reduction_checks(std::vector<Check>& checks);
void add_mixed_checks(std::vector<Check>& checks);
void add_group_checks(std::vector<Check>& checks);
void add_argument_checks(std::vector<Check>& checks);
void add_mismatch_checks(std::vector<Check>& checks);
void add_deadline_checks(std::vector<Check>& checks);

}  // namespace shiplap::comm
