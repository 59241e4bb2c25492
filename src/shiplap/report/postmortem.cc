#include "shiplap/report/postmortem.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string_view>
#include <tuple>
#include <vector>

#include "shiplap/report/table.h"

namespace shiplap::report {
namespace {

using postmortem::CallSite;
using postmortem::HangStatus;
using postmortem::Position;
using postmortem::Postmortem;
using postmortem::Suspect;

constexpr std::size_t kMaxSuspects = 4;  // in text
constexpr std::size_t kMaxEvidence = 4;
constexpr std::size_t kMaxPlaces = 16;

long percent(double part) { return std::lround(part * 100); }

std::string fault_words(const Suspect& suspect) {
  std::string words(postmortem::name(suspect.fault));
  if (suspect.divergence != postmortem::Divergence::none) {
    words += fmt::format(", {}", postmortem::name(suspect.divergence));
  }
  return words;
}

std::string indented(const std::string& label, const std::string& text, int width) {
  const std::size_t inner = static_cast<std::size_t>(width) - 2;
  return "  " + wrapped(fmt::format("{}: {}", label, text), 4, inner) + "\n";
}

// Where to look: the line of the suspect, and the line where the others wait.
std::string suspect_text(const Suspect& suspect, const TextStyle& style) {
  std::string text;
  if (!suspect.at.frame.file.empty()) {
    text += indented("look at", postmortem::frame_text(suspect.at.frame), style.width);
  }
  if (suspect.expected.exists() && !suspect.expected.frame.file.empty()) {
    const std::string what = suspect.fault == postmortem::FaultClass::divergence
                                 ? "its peers are at"
                                 : "the others wait at";
    text += indented(what, postmortem::frame_text(suspect.expected.frame), style.width);
  }
  if (!suspect.by_plan.empty()) text += indented("by the plan", suspect.by_plan, style.width);
  for (std::size_t k = 0; k < suspect.evidence.size() && k < kMaxEvidence; ++k) {
    text += indented("because", suspect.evidence[k], style.width);
  }
  if (suspect.victims > 0) {
    text += indented("effect",
                     fmt::format("{} {} for {}, directly or not", counted(suspect.victims, "rank"),
                                 suspect.victims == 1 ? "waits" : "wait",
                                 suspect.ranks.size() == 1 ? "it" : "them"),
                     style.width);
  }
  if (!suspect.would_help.empty()) text += indented("would help", suspect.would_help, style.width);
  return text;
}

// Ranks that are in the same place.
struct PositionRow {
  std::vector<std::int32_t> ranks;
  const Position* position = nullptr;
};

std::vector<PositionRow> position_rows(const Postmortem& found) {
  using Key = std::tuple<Position::State, std::string, std::string, std::int32_t, std::string>;
  std::map<Key, PositionRow> rows;
  for (const Position& position : found.positions) {
    const CallSite& site = position.pending.exists() ? position.pending : position.last;
    PositionRow& row = rows[{position.state, site.operation, site.frame.file, site.frame.line,
                             postmortem::frame_text(position.now)}];
    row.ranks.push_back(position.rank);
    if (row.position == nullptr) row.position = &position;
  }
  std::vector<PositionRow> result;
  for (auto& [key, row] : rows) result.push_back(std::move(row));
  // Suspects first; and few ranks in a place are more interesting than many.
  const auto is_suspect = [&](std::int32_t rank) {
    return !found.suspects.empty() && std::ranges::find(found.suspects.front().ranks, rank) !=
                                          found.suspects.front().ranks.end();
  };
  std::ranges::stable_sort(result, {}, [&](const PositionRow& row) {
    const bool suspected = std::ranges::any_of(row.ranks, is_suspect);
    return std::tuple(!suspected, std::ssize(row.ranks), row.ranks.front());
  });
  return result;
}

std::string call_cell(const CallSite& site) {
  if (!site.exists() || site.operation.empty()) return "";
  const std::string group = site.group.substr(0, site.group.find(" {"));
  return fmt::format("{}, {} #{}", site.operation, group, site.sequence);
}

// "train.py:88", without the function.
std::string line_cell(const dump::Frame& frame) {
  const std::string text = postmortem::frame_text(frame);
  return text.substr(0, text.find(" in "));
}

Table position_table(const Postmortem& found, std::size_t max_rows) {
  Table table({Column::text("rank"), Column::text("state", 4), Column::text("call", 3),
               Column::text("line", 4).hidden_if_empty(),
               Column::text("now at", 3).hidden_if_empty(), Column::text("waits for", 2)});
  const std::vector<PositionRow> rows = position_rows(found);
  for (std::size_t k = 0; k < rows.size() && k < max_rows; ++k) {
    const Position& position = *rows[k].position;
    const CallSite& site = position.pending.exists() ? position.pending : position.last;
    table.add({postmortem::ranks_text(rows[k].ranks), std::string(postmortem::name(position.state)),
               call_cell(site),
               line_cell(site.frame) == line_cell(position.now) ? "" : line_cell(site.frame),
               line_cell(position.now), postmortem::ranks_text(position.waits_for)});
  }
  return table;
}

std::string status_line(const Postmortem& found) {
  switch (found.status) {
    case HangStatus::hung:
      return fmt::format("hung: {}", found.proof.empty() ? "" : found.proof.front());
    case HangStatus::slow:
      return "not proved to hang: calls complete, and one rank holds up the others";
    case HangStatus::undecided:
      if (!found.proof.empty()) return "not proved to hang: " + found.proof.front();
      return "not proved to hang: calls are pending, but the ranks that others wait for may only "
             "be "
             "late";
    case HangStatus::finished:
      return "no call is pending: nothing hangs in a recorded call";
  }
  return "";
}

Json frame_to_json(const dump::Frame& frame) {
  if (frame.file.empty()) return {};
  return Json::object(
      {{"file", frame.file}, {"line", std::int64_t{frame.line}}, {"function", frame.function}});
}

Json ranks_to_json(const std::vector<std::int32_t>& ranks) {
  Json list = Json::array();
  for (const std::int32_t rank : ranks) list.push(std::int64_t{rank});
  return list;
}

Json texts_to_json(const std::vector<std::string>& texts) {
  Json list = Json::array();
  for (const std::string& text : texts) list.push(text);
  return list;
}

Json site_to_json(const CallSite& site) {
  if (!site.exists()) return {};
  return Json::object({{"rank", std::int64_t{site.rank}},
                       {"operation", site.operation},
                       {"group", site.group},
                       {"sequence", site.sequence},
                       {"arguments", site.arguments},
                       {"frame", frame_to_json(site.frame)}});
}

Json suspect_to_json(const Suspect& suspect) {
  return Json::object({{"ranks", ranks_to_json(suspect.ranks)},
                       {"fault", postmortem::name(suspect.fault)},
                       {"divergence", postmortem::name(suspect.divergence)},
                       {"confidence", suspect.confidence},
                       {"what", suspect.what},
                       {"evidence", texts_to_json(suspect.evidence)},
                       {"by_plan", suspect.by_plan},
                       {"would_help", suspect.would_help},
                       {"at", site_to_json(suspect.at)},
                       {"expected", site_to_json(suspect.expected)},
                       {"victims", suspect.victims}});
}

Json planned_call_to_json(const postmortem::PlannedCall& call) {
  if (!call.exists()) return {};
  return Json::object({{"operation", std::int64_t{call.operation}},
                       {"what", call.what},
                       {"frame", frame_to_json(call.frame)}});
}

}  // namespace

std::string postmortem_title(const Postmortem& found) {
  if (found.suspects.empty()) return status_line(found);
  return found.suspects.front().what;
}

std::string postmortem_text(const Postmortem& found, const TextStyle& style) {
  std::string text;
  const auto width = static_cast<std::size_t>(style.width);
  if (found.suspects.empty()) {
    text += styled(wrapped(status_line(found), 2, width), kBold, style.colour) + "\n";
  } else {
    const Suspect& first = found.suspects.front();
    const bool sure = found.status == HangStatus::hung || found.status == HangStatus::slow;
    text += styled(wrapped(fmt::format("{}{}", sure ? "" : "if this job hangs: ", first.what), 2,
                           width),
                   kBold, style.colour) +
            "\n";
    text += fmt::format("  {}, confidence {} %\n", fault_words(first), percent(first.confidence));
    text += suspect_text(first, style);
    text += "\n";
    for (std::size_t k = 1; k < found.suspects.size() && k < kMaxSuspects; ++k) {
      const Suspect& other = found.suspects[k];
      text += wrapped(fmt::format("or {} ({}, {} %)", other.what, fault_words(other),
                                  percent(other.confidence)),
                      2, width) +
              "\n";
    }
    if (found.suspects.size() > kMaxSuspects) {
      text += fmt::format(
          "and {} (--json)\n",
          counted(std::ssize(found.suspects) - std::int64_t{kMaxSuspects}, "other suspect"));
    }
    if (found.suspects.size() > 1) text += "\n";
    text += wrapped(status_line(found), 2, width) + "\n";
  }
  if (!found.by_ras_alone) {
    text += fmt::format("{} of {} with {}\n", with_separators(found.dumps),
                        counted(found.world, "rank"), counted(found.calls, "call"));
  }
  for (const std::string& note : found.notes) text += wrapped("note: " + note, 2, width) + "\n";
  if (found.by_ras_alone) return text;
  const std::size_t rows = position_rows(found).size();
  text += "\n" + position_table(found, kMaxPlaces).text(style);
  if (rows > kMaxPlaces) text += fmt::format("{} more places\n", rows - kMaxPlaces);
  return text;
}

Json postmortem_json(const Postmortem& found) {
  Json suspects = Json::array();
  for (const Suspect& suspect : found.suspects) suspects.push(suspect_to_json(suspect));
  Json positions = Json::array();
  for (const Position& position : found.positions) {
    positions.push(Json::object({{"rank", std::int64_t{position.rank}},
                                 {"state", postmortem::name(position.state)},
                                 {"last", site_to_json(position.last)},
                                 {"pending", site_to_json(position.pending)},
                                 {"waits_for", ranks_to_json(position.waits_for)},
                                 {"now", frame_to_json(position.now)},
                                 {"calls", position.calls}}));
  }
  Json planned = Json::array();
  for (const postmortem::PlannedPosition& position : found.planned) {
    planned.push(Json::object({{"rank", std::int64_t{position.rank}},
                               {"relation", postmortem::name(position.relation)},
                               {"fit", position.fit},
                               {"call", site_to_json(position.call)},
                               {"next", planned_call_to_json(position.next)},
                               {"done", planned_call_to_json(position.done)}}));
  }
  return Json::object({{"schema", "shiplap.postmortem/1"},
                       {"status", postmortem::name(found.status)},
                       {"suspects", std::move(suspects)},
                       {"proof", texts_to_json(found.proof)},
                       {"world", std::int64_t{found.world}},
                       {"dumps", found.dumps},
                       {"calls", found.calls},
                       {"absent", ranks_to_json(found.absent)},
                       {"notes", texts_to_json(found.notes)},
                       {"positions", std::move(positions)},
                       {"planned", std::move(planned)}});
}

}  // namespace shiplap::report
