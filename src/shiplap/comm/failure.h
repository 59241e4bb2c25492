// Failures of communication. Every one is an exception; no call blocks indefinitely. After any of
// these the communicator is unusable.
//
// Ranks are those of the world, whatever the group.
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
  // Returns the rank at fault, if it is known.
  [[nodiscard]] virtual std::optional<int> culprit() const { return std::nullopt; }

 private:
  Diagnostic diagnostic_;
};

// D301: a call timed out. `missing` are the ranks that did not arrive, if they are known. A missing
// rank is the culprit if it is the only one that did not reply to probes: others may be waiting
// themselves.
class TimeoutError : public Failure {
 public:
  TimeoutError(Diagnostic diagnostic, std::vector<int> missing,
               std::optional<int> culprit = std::nullopt)
      : Failure(std::move(diagnostic)), missing_(std::move(missing)), culprit_(culprit) {}
  [[nodiscard]] const std::vector<int>& missing() const { return missing_; }
  [[nodiscard]] std::optional<int> culprit() const override { return culprit_; }

 private:
  std::vector<int> missing_;
  std::optional<int> culprit_;
};

// D302: a rank died, or aborted with an exception. -1: it is not known which rank.
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

// D303: the ranks of a group make different calls. `outliers` differ from the majority.
class Mismatch : public Failure {
 public:
  Mismatch(Diagnostic diagnostic, std::vector<int> outliers)
      : Failure(std::move(diagnostic)), outliers_(std::move(outliers)) {}
  [[nodiscard]] const std::vector<int>& outliers() const { return outliers_; }

 private:
  std::vector<int> outliers_;
};

// D304: a message is longer than the receive buffer.
class MessageTooLong : public Failure {
  using Failure::Failure;
};

// D305: the communicator is dead since an earlier failure.
class CommunicatorDead : public Failure {
  using Failure::Failure;
};

}  // namespace shiplap::comm
