// How communication fails: always with a name, never with a hang. After any of these the
// communicator it came from is dead and says so.
//
// Ranks are counted in the world, whatever the group in which it happened.
#pragma once

#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "shiplap/base/diagnostic.h"

namespace shiplap::comm {

class Failure : public std::runtime_error {
 public:
  explicit Failure(Diagnostic diagnostic);
  [[nodiscard]] const Diagnostic& diagnostic() const { return diagnostic_; }
  // The one rank because of which this happened, where that can be known.
  [[nodiscard]] virtual std::optional<int> culprit() const { return std::nullopt; }

 private:
  Diagnostic diagnostic_;
};

// D301: a deadline passed. `missing` are the ranks that did not arrive, where that can be known.
// One of them is the culprit if it alone did not even answer: others may be waiting themselves.
class DeadlinePassed : public Failure {
 public:
  DeadlinePassed(Diagnostic diagnostic, std::vector<int> missing,
                 std::optional<int> culprit = std::nullopt)
      : Failure(std::move(diagnostic)), missing_(std::move(missing)), culprit_(culprit) {}
  [[nodiscard]] const std::vector<int>& missing() const { return missing_; }
  [[nodiscard]] std::optional<int> culprit() const override { return culprit_; }

 private:
  std::vector<int> missing_;
  std::optional<int> culprit_;
};

// D302: a rank died, or left its work by an exception. -1: one of them did, nobody knows which.
class RankFailed : public Failure {
 public:
  RankFailed(Diagnostic diagnostic, int rank) : Failure(std::move(diagnostic)), rank_(rank) {}
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] std::optional<int> culprit() const override {
    return rank_ < 0 ? std::nullopt : std::optional(rank_);
  }

 private:
  int rank_;
};

// D303: the ranks of a group do not agree on what they do. `outliers` differ from the most.
class Mismatch : public Failure {
 public:
  Mismatch(Diagnostic diagnostic, std::vector<int> outliers)
      : Failure(std::move(diagnostic)), outliers_(std::move(outliers)) {}
  [[nodiscard]] const std::vector<int>& outliers() const { return outliers_; }

 private:
  std::vector<int> outliers_;
};

// D304: a message is longer than the buffer that was to receive it.
class MessageTooLong : public Failure {
  using Failure::Failure;
};

// D305: the communicator failed before.
class CommunicatorDead : public Failure {
  using Failure::Failure;
};

}  // namespace shiplap::comm
