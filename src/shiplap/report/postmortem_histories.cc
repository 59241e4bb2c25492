// The last calls of some ranks of a postmortem, as columns of a table.
//
// The columns are aligned like the lines of a diff. Ranks that have little in common, such as two
// stages of a pipeline, are in tables of their own.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "shiplap/report/postmortem_internal.h"

namespace shiplap::report {
namespace {

using postmortem::CallSite;
using postmortem::Divergence;
using postmortem::History;
using postmortem::Postmortem;
using postmortem::Suspect;

// Rows of calls side by side; a column is a history. The calls that it lacks are null.
struct AlignedHistories {
  std::vector<const History*> columns;
  std::vector<std::vector<const History::Entry*>> rows;
};

bool is_same_line(const CallSite& a, const CallSite& b) {
  return operation_stem(a.operation) == operation_stem(b.operation) && a.frame == b.frame;
}

// Whether they are the same collective of a group, even if they do not match.
bool meet(const CallSite& a, const CallSite& b) {
  const bool is_message = operation_stem(a.operation) != a.operation;
  return !is_message && a.group == b.group && a.sequence == b.sequence;
}

// How much two calls of different ranks belong together; 0: not at all.
int affinity(const History::Entry& a, const History::Entry& b) {
  const CallSite& x = a.call;
  const CallSite& y = b.call;
  if (!x.exists() || !y.exists()) return 0;
  if (meet(x, y)) return 400;
  if (is_same_line(x, y)) return x.arguments == y.arguments ? 200 : 150;
  return 0;
}

// Global alignment (Needleman and Wunsch 1970) without a penalty for gaps: a skipped call is a gap
// beside the call of the peer.
class HistoryAlignment {
 public:
  explicit HistoryAlignment(AlignedHistories& table, const History& added)
      : table_(table), added_(added), width_(added.calls.size() + 1) {
    score_.resize((table.rows.size() + 1) * width_);
    for (std::size_t i = table.rows.size(); i-- > 0;) {
      for (std::size_t j = added.calls.size(); j-- > 0;) {
        score(i, j) = std::max({score(i + 1, j), score(i, j + 1), together(i, j)});
      }
    }
  }

  // Whether at least half of the calls have a partner.
  [[nodiscard]] bool fits() {
    std::size_t pairs = 0;
    walk([&](std::size_t i, std::size_t j) { pairs += i < table_.rows.size() && j + 1 < width_; });
    return 2 * pairs >= std::min(table_.rows.size(), added_.calls.size());
  }

  void add() {
    std::vector<std::vector<const History::Entry*>> rows;
    const std::size_t columns = table_.columns.size();
    walk([&](std::size_t i, std::size_t j) {
      rows.push_back(i < table_.rows.size() ? table_.rows[i]
                                            : std::vector<const History::Entry*>(columns));
      rows.back().push_back(j + 1 < width_ ? &added_.calls[j] : nullptr);
    });
    table_.rows = std::move(rows);
    table_.columns.push_back(&added_);
  }

 private:
  int& score(std::size_t i, std::size_t j) { return score_[i * width_ + j]; }

  // Of the best alignment that pairs these two; 0 if they do not belong together.
  int together(std::size_t i, std::size_t j) {
    int best = 0;
    for (const History::Entry* entry : table_.rows[i]) {
      if (entry != nullptr) best = std::max(best, affinity(*entry, added_.calls[j]));
    }
    if (best == 0) return 0;
    // Of equal calls, those at the same distance from the divergence.
    const auto distance = static_cast<int>(i > j ? i - j : j - i);
    return score(i + 1, j + 1) + best - std::min(distance, 20);
  }

  // Calls visit(i, j) for each row of the result; an index at the end of its list is a gap.
  template <class Visit>
  void walk(const Visit& visit) {
    std::size_t i = 0;
    std::size_t j = 0;
    const std::size_t rows = table_.rows.size();
    const std::size_t calls = added_.calls.size();
    while (i < rows || j < calls) {
      if (i < rows && j < calls && together(i, j) > 0 && score(i, j) == together(i, j)) {
        visit(i++, j++);
      } else if (i < rows && (j == calls || score(i, j) == score(i + 1, j))) {
        visit(i++, calls);
      } else {
        visit(rows, j++);
      }
    }
  }

  AlignedHistories& table_;
  const History& added_;
  std::size_t width_;
  std::vector<int> score_;
};

std::vector<AlignedHistories> align_histories(const Postmortem& found) {
  std::vector<AlignedHistories> tables;
  for (const History& history : found.histories) {
    if (history.calls.empty()) continue;
    const auto fitting = std::ranges::find_if(
        tables, [&](AlignedHistories& table) { return HistoryAlignment(table, history).fits(); });
    if (fitting != tables.end()) {
      HistoryAlignment(*fitting, history).add();
      continue;
    }
    AlignedHistories& table = tables.emplace_back();
    table.columns.push_back(&history);
    for (const History::Entry& entry : history.calls) table.rows.push_back({&entry});
  }
  return tables;
}

// Whether its line is not the one of another call of the row that it meets.
bool has_other_line(const History::Entry& entry, const std::vector<const History::Entry*>& row) {
  return std::ranges::any_of(row, [&](const History::Entry* other) {
    return other != nullptr && meet(entry.call, other->call) &&
           !is_same_line(entry.call, other->call) && !entry.call.frame.file.empty() &&
           !other->call.frame.file.empty();
  });
}

std::string call_markup(const History::Entry& entry,
                        const std::vector<const History::Entry*>& row) {
  const CallSite& site = entry.call;
  std::string out = escaped(site.operation);
  if (!site.arguments.empty()) {
    out += " <span class=\"note\">" + escaped(truncated(site.arguments, 32)) + "</span>";
  }
  if (entry.differs) out += " <span class=\"tag wrong\">differs</span>";
  if (!entry.complete) {
    out += fmt::format(" <span class=\"tag\">{}</span>", entry.started ? "started" : "scheduled");
  }
  const std::string frame = postmortem::frame_text(site.frame);
  const std::string line = escaped(truncated(frame.substr(0, frame.find(" in ")), 32));
  out += "<br><span class=\"note\">";
  if (!line.empty()) out += (has_other_line(entry, row) ? "<b>" + line + "</b>" : line) + " ";
  out += escaped(truncated(fmt::format("#{} {}", site.sequence, site.group), 34));
  return out + "</span>";
}

// Whether a rank skipped the call of this row.
bool is_skipped_by(const Postmortem& found, const History& history,
                   const std::vector<const History::Entry*>& row) {
  return std::ranges::any_of(found.suspects, [&](const Suspect& suspect) {
    if (suspect.divergence != Divergence::skipped || suspect.ranks.front() != history.rank) {
      return false;
    }
    return std::ranges::any_of(row, [&](const History::Entry* entry) {
      return entry != nullptr && entry->call.rank == suspect.expected.rank &&
             entry->call.group == suspect.expected.group &&
             entry->call.sequence == suspect.expected.sequence &&
             entry->call.operation == suspect.expected.operation;
    });
  });
}

std::string history_table(const Postmortem& found, const AlignedHistories& table) {
  std::string out =
      "<div class=\"table\" tabindex=\"0\" role=\"region\" aria-label=\"last calls\">"
      "<table class=\"calls\">\n<thead><tr>";
  for (const History* history : table.columns) {
    out += fmt::format("<th class=\"words\">rank {}<br><span class=\"note\">{}</span></th>",
                       history->rank, escaped(history->role));
  }
  out += "</tr></thead>\n<tbody>\n";
  for (const auto& row : table.rows) {
    out += "<tr>";
    for (std::size_t k = 0; k < row.size(); ++k) {
      const History::Entry* entry = row[k];
      const bool skipped = entry == nullptr && is_skipped_by(found, *table.columns[k], row);
      const std::string_view kind = skipped            ? " differs"
                                    : entry == nullptr ? " gap"
                                    : entry->differs   ? " differs"
                                    : !entry->complete ? " open"
                                                       : "";
      out += fmt::format("<td class=\"words{}\">", kind);
      if (entry != nullptr) out += call_markup(*entry, row);
      if (skipped) out += "<span class=\"tag wrong\">not called</span>";
      out += "</td>";
    }
    out += "</tr>\n";
  }
  return out + "</tbody></table></div>\n";
}

}  // namespace

Panel histories_panel(const Postmortem& found) {
  const std::vector<AlignedHistories> tables = align_histories(found);
  Panel panel{
      .title = "The last calls, side by side",
      .note =
          "In order of program, downwards. Calls that meet, or that are made at the same line, "
          "share a row. Calls without a mark are complete; a scheduled call has not started on "
          "the device."};
  const bool has_other_lines = std::ranges::any_of(tables, [](const AlignedHistories& table) {
    return std::ranges::any_of(table.rows, [](const auto& row) {
      return std::ranges::any_of(row, [&](const History::Entry* entry) {
        return entry != nullptr && has_other_line(*entry, row);
      });
    });
  });
  if (has_other_lines) {
    panel.note +=
        " Lines in red: the calls have the same number on their group, so they meet, but "
        "are made at different lines.";
  }
  if (tables.size() > 1) {
    panel.note += " Ranks that run another part of the program have a table of their own.";
  }
  for (const AlignedHistories& table : tables) panel.body.markup += history_table(found, table);
  return panel;
}

}  // namespace shiplap::report
