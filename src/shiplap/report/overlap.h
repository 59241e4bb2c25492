// Reports of an overlapped GEMM, predicted or measured: text, JSON and page.
#pragma once

#include <string>
#include <vector>

#include "shiplap/base/json.h"
#include "shiplap/overlap/calibration.h"
#include "shiplap/overlap/study.h"
#include "shiplap/report/page.h"
#include "shiplap/report/table.h"
#include "shiplap/report/text.h"

namespace shiplap::report {

// The chosen method and the reason, then the times.
[[nodiscard]] std::string overlap_text(const overlap::Study& study, const TextStyle& style);
// Schema "shiplap.overlap/1", or "shiplap.overlap.compare/1" or "shiplap.overlap.auto/1" if there
// is only a comparison or a choice.
[[nodiscard]] Json overlap_json(const overlap::Study& study);
// With timelines. REQUIRES: study.has_times().
[[nodiscard]] Page overlap_page(const overlap::Study& study, const std::string& command);

// The supported overlap methods.
[[nodiscard]] std::string overlap_list_text(const TextStyle& style);
[[nodiscard]] Json overlap_list_json();
// A few lines.
[[nodiscard]] std::string calibration_text(const overlap::Calibration& calibration);

// "all_gather, ring_exchange on 4 ranks, 2 tapered chunks on each".
[[nodiscard]] std::string overlap_name(const overlap::Choice& choice,
                                       const overlap::Problem& problem);
// "X 1,024 x 512, W 512 x 2,048, bf16, mxfp8 e4m3, 8 groups".
[[nodiscard]] std::string overlap_shape(const overlap::Problem& problem);
// "82 %"; "" if there is nothing to hide, "in the noise" if it is less than the variation of times.
[[nodiscard]] std::string hidden_text(const overlap::Times& times, Seconds noise = {});

// One row per time; the first column is its name.
[[nodiscard]] Table overlap_table(const overlap::Study& study);
// Sentences on problems of the measurement; may be empty.
[[nodiscard]] std::vector<std::string> overlap_warnings(const overlap::Study& study);

}  // namespace shiplap::report
