// A small test harness for checks that all ranks run together, as threads or as processes. Ranks
// share no state here except where noted: under SMPI all of them are in one process, each with its
// own globals.
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

// Memory that is never freed: after a failure MPI may still access the buffers of the call that
// failed.
[[nodiscard]] std::span<std::byte> leak_bytes(std::size_t bytes);

// One rank in one check: its communicator and its failures.
class CheckContext {
 public:
  CheckContext(Communicator& fresh, std::uint64_t seed) : comm(fresh), seed_(seed) {}

  // A channel of all ranks for this check only, in checked mode, with a timeout of 20 s. The check
  // may make it fail.
  Communicator& comm;

  // The same random numbers on all ranks, for each `stream`.
  [[nodiscard]] Random random(std::uint64_t stream = 0) const {
    return Random(seed_).split(stream);
  }

  // A buffer for a call that is expected to fail.
  template <class T>
  [[nodiscard]] std::span<T> leaked_buffer(std::size_t count) {
    std::byte* const bytes = leak_bytes(count * sizeof(T)).data();
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

  // Compares bits: -0 differs from 0.
  template <class T>
  void expect_same_bits(std::span<const T> found, std::span<const T> expected,
                        std::string_view what, const char* file = __builtin_FILE(),
                        int line = __builtin_LINE());

  // Records a failure unless `function` throws an `Error`. Returns the exception.
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
void CheckContext::expect_same_bits(std::span<const T> found, std::span<const T> expected,
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
std::optional<Error> CheckContext::expect_throws(const Function& function, std::string_view what,
                                                 const char* file, int line) {
  try {
    function();
    record(std::string(what) + ": nothing was thrown", file, line);
  } catch (const Error& error) {
    return error;
  } catch (const std::exception& error) {
    record(std::string(what) + ": another exception was thrown: " + error.what(), file, line);
  }
  return std::nullopt;
}

struct Check {
  std::string name;
  int min_ranks = 1;
  std::function<void(CheckContext&)> run;
};

// The checks to run; the same on all ranks.
struct Selection {
  std::string only;  // prefix of the names; empty: all
  std::uint64_t seed = 1;
  [[nodiscard]] bool wants(const Check& check, int ranks) const {
    return check.min_ranks <= ranks && check.name.starts_with(only);
  }
};

// The results; the same on all ranks.
struct Tally {
  int passed = 0;
  std::vector<std::string> failed;
};

// Runs one check on a channel of its own, and combines the results of all ranks. Each rank prints
// its failures to stderr; rank 0 prints the result.
void run_check(Communicator& world, const Check& check, std::uint64_t seed, Tally& tally);

// Runs the check. An exception is a failure.
void run_caught(const Check& check, CheckContext& ctx);
// "rank 3: NAME: file:line: what" for each failure, in one write.
void print_failures(int rank, const std::string& name, const std::vector<std::string>& failures);
// "ok 12 NAME"
void print_result(bool passed, int number, const std::string& name);

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
