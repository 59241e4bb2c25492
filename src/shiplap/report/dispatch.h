// Reports of a Q/KV dispatch: text, JSON, and a page that shows where the tokens of each document
// go, the bytes between ranks, and the load balance.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shiplap/base/json.h"
#include "shiplap/dispatch/compute.h"
#include "shiplap/dispatch/layout.h"
#include "shiplap/dispatch/summary.h"
#include "shiplap/report/page.h"
#include "shiplap/report/text.h"

namespace shiplap::report {

// How much a page draws. Above a limit, ranks are sampled, and boxes and cells merged; it says so.
struct DispatchPageLimits {
  int lanes = 64;
  std::size_t some_ranks = 8;   // of each kind, if not all ranks can be drawn
  std::int64_t boxes = 20'000;  // in all lanes
  int matrix_rows = 64;
};
// A notebook is saved with its pictures: each has less than 1 MB.
inline constexpr DispatchPageLimits kNotebookDispatch{
    .lanes = 16, .some_ranks = 4, .boxes = 1000, .matrix_rows = 32};

// The input of a report. References and pointers are used only during the calls.
struct DispatchView {
  const dispatch::QkvDispatch& dispatch;
  const dispatch::Routing* routing = nullptr;  // the input of the dispatch; required for a page
  std::int64_t documents = 0;                  // 0: not known
  dispatch::RowSizes sizes;                    // for a page, at least one byte
  const dispatch::BenchmarkResult* benchmark = nullptr;  // if it was run
  std::string backend;                                   // "threads", "mpi"
  // Whole sentences about the input: a random placement, assumed sizes.
  std::vector<std::string> assumed;
  DispatchPageLimits limits;  // of a page
};

// Lists at most `pairs` pairs of ranks; 0: all.
[[nodiscard]] std::string dispatch_text(const DispatchView& view, const TextStyle& style,
                                        std::int64_t pairs = 10);
// Schema "shiplap.dispatch.summary/1".
[[nodiscard]] Json dispatch_json(const DispatchView& view);

// Throws InputError D400 if a node has no rank.
[[nodiscard]] Page dispatch_page(const DispatchView& view, const std::string& command = "");

}  // namespace shiplap::report
