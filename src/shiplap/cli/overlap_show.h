// What `shiplap overlap` says of an overlapped product: predicted, measured, or both.
#pragma once

#include <string>
#include <vector>

#include "shiplap/base/json.h"
#include "shiplap/cli/context.h"
#include "shiplap/cli/overlap_prediction.h"
#include "shiplap/cli/overlap_steps.h"
#include "shiplap/overlap/choose.h"
#include "shiplap/overlap/overlap.h"
#include "shiplap/run/overlap_trial.h"

namespace shiplap::cli {

// What was measured, and where.
struct OverlapMeasurement {
  run::OverlapTrialResult trial;
  std::string backend;  // "threads", "mpi"
  bool polled = false;  // there was no thread for progress
  int rounds = 0;
  int cores = 0;                             // of this machine; 0: not known
  [[nodiscard]] OverlapTimes times() const;  // medians
  [[nodiscard]] Seconds noise() const { return trial.overlapped.most - trial.overlapped.least; }
  [[nodiscard]] bool is_right() const { return trial.difference <= trial.tolerance; }
};

// At least one of the three is there; what was calibrated, only with what was measured.
struct OverlapView {
  overlap::Choice choice;
  overlap::Problem problem;
  std::optional<OverlapPrediction> predicted;   // for a machine
  std::optional<OverlapPrediction> calibrated;  // from what was measured
  std::optional<OverlapMeasurement> measured;
  std::optional<overlap::Chosen> chosen;  // if the method was

  // Whose steps are listed.
  [[nodiscard]] const OverlapPrediction& listed() const;
  // Whose steps are drawn: beside a measurement, the one that has its scale.
  [[nodiscard]] const OverlapPrediction& drawn() const;
};

// "all_gather, ring_exchange on 4 ranks, 2 tapered chunks on each".
[[nodiscard]] std::string overlap_name(const overlap::Choice& choice,
                                       const overlap::Problem& problem);
// "X 1,024 x 512, W 512 x 2,048, bf16, mxfp8 e4m3, 8 groups".
[[nodiscard]] std::string overlap_shape(const overlap::Problem& problem);
// Its sizes, types and ranks, without its chunks.
[[nodiscard]] Json overlap_problem_json(const overlap::Problem& problem);
// "82 %"; "" if there is nothing to hide, "in the noise" if there is less than times scatter.
[[nodiscard]] std::string hidden_text(const OverlapTimes& times, Seconds noise = {});

// The numbers as a table, its first column what each is.
struct OverlapNumbers {
  std::vector<std::string> columns;
  std::vector<std::vector<std::string>> rows;
};
[[nodiscard]] OverlapNumbers overlap_numbers(const OverlapView& view);
// Whole sentences on what disturbs the measurement, or nothing.
[[nodiscard]] std::vector<std::string> overlap_warnings(const OverlapView& view);

[[nodiscard]] std::string show_overlap(const OverlapView& view, const Context& context);
[[nodiscard]] Json overlap_to_json(const OverlapView& view);

// Candidates, the fastest first.
struct OverlapComparison {
  overlap::Problem problem;
  std::string system;
  std::vector<OverlapCandidate> candidates;
};
[[nodiscard]] std::string show_comparison(const OverlapComparison& about, const Context& context);
[[nodiscard]] Json comparison_to_json(const OverlapComparison& about);

}  // namespace shiplap::cli
