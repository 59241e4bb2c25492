// The page of a postmortem: suspects, proof, the state of every rank.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shiplap/base/id.h"
#include "shiplap/base/units.h"
#include "shiplap/base/version.h"
#include "shiplap/report/legend.h"
#include "shiplap/report/postmortem.h"
#include "shiplap/report/postmortem_internal.h"
#include "shiplap/report/table.h"

namespace shiplap::report {
namespace {

using postmortem::CallSite;
using postmortem::Divergence;
using postmortem::FaultClass;
using postmortem::HangStatus;
using postmortem::Position;
using postmortem::Postmortem;
using postmortem::Suspect;

constexpr std::size_t kMaxSuspectCards = 4;
constexpr std::size_t kMaxSuspectRows = 40;
constexpr std::size_t kMaxEvidenceItems = 8;
constexpr std::size_t kMaxProofs = 6;
constexpr std::size_t kMaxFileNotes = 40;
constexpr std::size_t kMaxClassRows = 64;
constexpr std::int64_t kMaxGridCells = 1024;
constexpr std::int64_t kMaxNumberedCells = 256;

// ------------------------------------------------------------------------------- texts

std::string capitalized(std::string text) {
  if (!text.empty()) text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
  return text;
}

std::string confidence_text(const Suspect& suspect) {
  return fmt::format("{:.0f}\u00A0%", suspect.confidence * 100);
}

std::string_view fault_title(FaultClass fault) {
  switch (fault) {
    case FaultClass::absent:
      return "No dump";
    case FaultClass::cpu_stuck:
      return "CPU stuck";
    case FaultClass::divergence:
      return "Divergence";
    case FaultClass::device_stuck:
      return "Device stuck";
    case FaultClass::order_across_groups:
      return "Order across groups";
    case FaultClass::slow:
      return "Slow";
    case FaultClass::message_cycle:
      return "Message cycle";
  }
  return "";
}

std::string_view fault_meaning(FaultClass fault) {
  switch (fault) {
    case FaultClass::absent:
      return "it wrote no dump: it crashed, was killed, or lost its host";
    case FaultClass::cpu_stuck:
      return "its CPU does not reach the call that others wait in";
    case FaultClass::divergence:
      return "it runs another program than its peers";
    case FaultClass::device_stuck:
      return "the call was made everywhere and does not complete";
    case FaultClass::order_across_groups:
      return "calls on several groups in different orders";
    case FaultClass::slow:
      return "the job moves, and others wait for this rank";
    case FaultClass::message_cycle:
      return "sends or receives that wait for one another";
  }
  return "";
}

// "divergence: size"; the names are those of the JSON.
std::string fault_name(const Suspect& suspect) {
  std::string text(postmortem::name(suspect.fault));
  if (suspect.divergence == Divergence::none) return text;
  return text + fmt::format(": {}", postmortem::name(suspect.divergence));
}

void replace_all(std::string& text, const std::string& part, const std::string& with) {
  if (part.empty()) return;
  for (std::size_t at = text.find(part); at != std::string::npos;
       at = text.find(part, at + with.size())) {
    text.replace(at, part.size(), with);
  }
}

// The details that the card of the suspect has, too, are left out of the title of the page, unless
// they are what differs.
void shorten_call(std::string& text, const CallSite& site, Divergence divergence) {
  if (!site.exists()) return;
  const std::string number = fmt::format(" (call {} on {})", site.sequence, site.group);
  replace_all(text, number, divergence == Divergence::group ? " on " + site.group : "");
  const bool needs_arguments = divergence == Divergence::size || divergence == Divergence::dtype ||
                               divergence == Divergence::splits;
  if (!needs_arguments && !site.arguments.empty()) replace_all(text, " of " + site.arguments, "");
}

// A capital letter, unless the text begins with the name of an operation.
std::string sentence(std::string text, const Suspect& suspect) {
  replace_all(text, "->", "\u2192");  // is not broken between lines
  const bool is_name = suspect.at.exists() && text.starts_with(suspect.at.operation);
  return is_name ? text : capitalized(text);
}

std::string headline(const Postmortem& found) {
  std::string text = postmortem_title(found);
  if (found.suspects.empty()) return capitalized(text);
  const Suspect& first = found.suspects.front();
  shorten_call(text, first.at, first.divergence);
  shorten_call(text, first.expected, first.divergence);
  if (found.status != HangStatus::hung) {
    text = "if this job hangs: " + text;
  }
  return sentence(text, first);
}

Html bullet_list(const std::vector<std::string>& texts, std::size_t limit) {
  if (texts.empty()) return {};
  std::string out = "<ul>\n";
  for (std::size_t k = 0; k < texts.size() && k < limit; ++k) {
    out += "<li>" + escaped(texts[k]) + "</li>\n";
  }
  if (texts.size() > limit) out += fmt::format("<li>and {} more</li>\n", texts.size() - limit);
  return {out + "</ul>\n"};
}

// --------------------------------------------------------------------------- suspects

void fact(std::string& out, std::string_view label, const std::string& markup) {
  if (markup.empty()) return;
  fmt::format_to(std::back_inserter(out), "<div><dt>{}</dt><dd>{}</dd></div>\n", label, markup);
}

// The line, and below it the call and the whole path.
std::string site_markup(const CallSite& site) {
  const std::string line = postmortem::frame_text(site.frame);
  const std::string call = full_call_text(site);
  if (line.empty() && call.empty()) return "";
  std::string out;
  if (!line.empty()) out = "<b>" + escaped(line) + "</b>";
  if (site.frame.file.find('/') != std::string::npos) {
    out += fmt::format("<br><span class=\"note\">{}</span>",
                       escaped(fmt::format("{}:{}", site.frame.file, site.frame.line)));
  }
  if (!call.empty()) {
    out += (out.empty() ? "" : "<br>") + ("<span class=\"note\">" + escaped(call) + "</span>");
  }
  return out;
}

std::string confidence_bar(const Suspect& suspect) {
  return fmt::format(
      "<span class=\"bar\"><span style=\"width:{:.0f}%\"></span></span>{} confidence",
      suspect.confidence * 100, confidence_text(suspect));
}

std::string suspect_card(const Suspect& suspect) {
  std::string out = fmt::format(
      "<li>\n<p class=\"what\">{}</p>\n<p class=\"fault\"><b>{}</b> {} <span class=\"note\">{}; "
      "{}</span></p>\n<dl>\n",
      escaped(sentence(suspect.what, suspect)), fault_title(suspect.fault), confidence_bar(suspect),
      escaped(fault_name(suspect)), fault_meaning(suspect.fault));
  const bool has_peers =
      suspect.fault == FaultClass::divergence || suspect.divergence != Divergence::none;
  fact(out, "Look at", site_markup(suspect.at));
  fact(out, has_peers ? "Its peers are at" : "The others wait at", site_markup(suspect.expected));
  fact(out, "By the plan", escaped(suspect.by_plan));
  fact(out, "Evidence", bullet_list(suspect.evidence, kMaxEvidenceItems).markup);
  if (suspect.victims > 0) {
    fact(out, "Effect",
         fmt::format("{} {} for it, directly or not", counted(suspect.victims, "rank"),
                     suspect.victims == 1 ? "waits" : "wait"));
  }
  fact(out, "To be more certain", escaped(suspect.would_help));
  return out + "</dl>\n</li>\n";
}

Panel suspects_panel(const Postmortem& found) {
  const std::size_t cards = std::min(found.suspects.size(), kMaxSuspectCards);
  std::string out = "<ol class=\"suspects\">\n";
  for (std::size_t k = 0; k < cards; ++k) out += suspect_card(found.suspects[k]);
  out += "</ol>\n";
  if (found.suspects.size() > cards) {
    Table table({Column::text("ranks"), Column::text("fault"), Column::numbers("confidence"),
                 Column::text("other suspect")});
    const std::size_t end = std::min(found.suspects.size(), cards + kMaxSuspectRows);
    for (std::size_t k = cards; k < end; ++k) {
      const Suspect& suspect = found.suspects[k];
      table.add({rank_set_text(suspect.ranks), fault_name(suspect), confidence_text(suspect),
                 sentence(suspect.what, suspect)});
    }
    out += "<div class=\"wraps\">\n" + to_html(table).markup + "</div>\n";
    if (end < found.suspects.size()) {
      out += paragraph(fmt::format("{} more are left out.", found.suspects.size() - end)).markup;
    }
  }
  return {.title = found.suspects.size() == 1 ? "The suspect" : "Suspects, most likely first",
          .body = {out}};
}

Panel proof_panel(const Postmortem& found) {
  switch (found.status) {
    case HangStatus::hung:
      return {.title = "Why this is a hang", .body = bullet_list(found.proof, kMaxProofs)};
    case HangStatus::slow:
      return {.title = "Why this is not a hang",
              .note = "Calls complete. In most of them others wait for the same rank."};
    case HangStatus::undecided:
      return {
          .title = "Why this is not certain",
          .note =
              found.by_ras_alone
                  ? ""
                  : "Calls are pending, but no call contradicts another, none is older than its "
                    "timeout, and the job was not silent for long. The ranks that others wait "
                    "for may only be late. If the job is known to hang, use --hung.",
          .body = bullet_list(found.proof, kMaxProofs)};
    case HangStatus::finished:
      break;
  }
  return {.title = "Why nothing hangs in a recorded call",
          .note =
              "Every recorded call is complete on every rank with a dump. A rank may hang "
              "outside of recorded calls; its stack (py-spy) shows where.",
          .body = bullet_list(found.proof, kMaxProofs)};
}

// -------------------------------------------------------------------- the grid of ranks

class RankGrid {
 public:
  RankGrid(const Postmortem& found, const RankClasses& classes)
      : found_(found), classes_(classes), world_(std::ssize(found.positions)) {
    while (cells() > kMaxGridCells) per_cell_ *= 2;
    columns_ = cells() <= 8 ? std::max<std::int64_t>(4, cells()) : cells() <= 128 ? 16 : 32;
    height_ = cells() <= 32 ? 32 : cells() <= 256 ? 22 : 17;
  }

  [[nodiscard]] std::int64_t per_cell() const { return per_cell_; }

  std::string figure() {
    out_ += "<figure class=\"ranks\">\n<div class=\"plot\">\n";
    const std::int64_t rows = (cells() + columns_ - 1) / columns_;
    draw("<svg class=\"names\" width=\"44\" height=\"{}\">\n", rows * height_);
    for (std::int64_t row = 0; row < rows; ++row) {
      draw("<text x=\"38\" y=\"{}\" class=\"end soft\">{}</text>\n",
           row * height_ + height_ / 2 + 4, row * columns_ * per_cell_);
    }
    draw("</svg>\n<svg class=\"boxes\" height=\"{}\" tabindex=\"0\" role=\"group\" ",
         rows * height_);
    draw("aria-label=\"The state of every rank; arrow keys move through the ranks\">\n");
    for (std::int64_t row = 0; row < rows; ++row) {
      draw("<g class=\"row\" transform=\"translate(0 {})\">", row * height_);
      const std::int64_t end = std::min(cells(), (row + 1) * columns_);
      for (std::int64_t index = row * columns_; index < end; ++index) cell(index);
      draw("</g>\n");
    }
    draw("</svg>\n</div>\n</figure>\n");
    return std::move(out_);
  }

 private:
  [[nodiscard]] std::int64_t cells() const { return (world_ + per_cell_ - 1) / per_cell_; }

  [[nodiscard]] std::string rank_tooltip(std::int32_t rank) const {
    const Position& position = found_.positions[at(rank)];
    const RankRole role = classes_.role(rank);
    std::string text = fmt::format("rank {}: {}", rank, state_text(position.state));
    if (role == RankRole::culprit) text += ", main suspect";
    if (role == RankRole::suspect) text += ", suspect";
    const CallSite& site = call_of(position);
    if (!site.operation.empty()) {
      text +=
          fmt::format("\n{}{}", position.pending.exists() ? "in " : "last: ", full_call_text(site));
    }
    const std::string line = postmortem::frame_text(site.frame);
    if (!line.empty()) text += "\nat " + line;
    const std::string now = postmortem::frame_text(position.now);
    if (!now.empty()) text += "\nstack: " + now;
    if (!position.waits_for.empty()) {
      text += fmt::format("\nwaits for {}", named_ranks(position.waits_for));
    }
    return text;
  }

  // Of a cell of several ranks.
  [[nodiscard]] std::string fold_tooltip(std::int32_t begin, std::int32_t end) const {
    std::map<std::size_t, std::vector<std::int32_t>> by_class;
    for (std::int32_t rank = begin; rank < end; ++rank) by_class[classes_.of(rank)].push_back(rank);
    std::string text = fmt::format("ranks {}-{}", begin, end - 1);
    for (const auto& [index, ranks] : by_class) {
      const RankClass& found = classes_.all()[index];
      text += fmt::format("\n{}: {}", by_class.size() == 1 ? "all" : rank_set_text(ranks),
                          class_state(found));
      if (found.role == RankRole::culprit) text += ", main suspect";
      if (found.role == RankRole::suspect) text += ", suspect";
      const std::string line = class_line(found);
      if (!line.empty()) text += ", " + line;
    }
    return text;
  }

  // The rank whose colour the cell has: a suspect or one without a dump, or else one like most.
  [[nodiscard]] std::int32_t representative(std::int32_t begin, std::int32_t end) const {
    std::map<RankRole, std::int32_t> counts;
    std::map<RankRole, std::int32_t> first;
    for (std::int32_t rank = begin; rank < end; ++rank) {
      ++counts[classes_.role(rank)];
      first.try_emplace(classes_.role(rank), rank);
    }
    if (first.begin()->first <= RankRole::no_dump) return first.begin()->second;
    const auto most =
        std::ranges::max_element(counts, {}, [](const auto& count) { return count.second; });
    return first.at(most->first);
  }

  void cell(std::int64_t index) {
    const auto begin = static_cast<std::int32_t>(index * per_cell_);
    const auto end = static_cast<std::int32_t>(std::min(world_, (index + 1) * per_cell_));
    const std::int32_t shown_rank = representative(begin, end);
    const RankRole role = classes_.role(shown_rank);
    const bool is_lost = found_.positions[at(shown_rank)].state == Position::State::no_dump;
    const double width = 100.0 / static_cast<double>(columns_);
    const double x = width * static_cast<double>(index % columns_);
    draw("<g class=\"m {}{}\" data-d=\"{}\"><rect x=\"{:.5g}%\" width=\"{:.5g}%\" height=\"{}\"/>",
         css_class(role), is_lost ? " lost" : "", classes_.of(shown_rank), x, width,
         is_lost ? height_ - 4 : height_);
    const bool stands_out = role <= RankRole::no_dump;
    if (cells() <= kMaxNumberedCells || stands_out) label(shown_rank, x + width / 2);
    draw("<title>{}</title></g>\n",
         escaped(end - begin == 1 ? rank_tooltip(begin) : fold_tooltip(begin, end)));
  }

  // Hidden where it would be wider than the cell.
  void label(std::int32_t rank, double x) {
    const std::string number = std::to_string(rank);
    const std::size_t room = columns_ < 32 ? 3 : 1;  // digits on any screen
    const std::string_view least_screen = number.size() <= room       ? ""
                                          : number.size() <= room + 1 ? " t2"
                                                                      : " t3";
    draw("<text x=\"{:.5g}%\" y=\"{}\" class=\"mid{}\">{}</text>", x, height_ / 2 + 4, least_screen,
         number);
  }

  template <typename... Values>
  void draw(fmt::format_string<Values...> format, Values&&... values) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Values>(values)...);
  }

  const Postmortem& found_;
  const RankClasses& classes_;
  std::int64_t world_;
  std::int64_t per_cell_ = 1;  // ranks
  std::int64_t columns_ = 8;
  std::int64_t height_ = 32;  // of a cell, in pixels
  std::string out_;
};

constexpr std::array kRoles{RankRole::culprit, RankRole::suspect, RankRole::no_dump,
                            RankRole::near,    RankRole::waits,   RankRole::free};

Legend roles_legend(const Postmortem& found, const RankClasses& classes) {
  std::map<RankRole, std::int64_t> counts;
  for (const Position& position : found.positions) ++counts[classes.role(position.rank)];
  const auto entry = [](RankRole role) -> std::pair<Swatch, std::string_view> {
    switch (role) {
      case RankRole::culprit:
        return {Swatch::wrong, "main suspect"};
      case RankRole::suspect:
        return {Swatch::suspect, "other suspect"};
      case RankRole::no_dump:
        return {Swatch::absent, "no dump"};
      case RankRole::near:
        return {Swatch::near, "waits for the main suspect"};
      case RankRole::waits:
        return {Swatch::waiting, "waits for other ranks"};
      case RankRole::free:
        break;
    }
    return {Swatch::computation, "no call pending"};
  };
  // A suspect without a dump has the colour of a suspect and the border of a rank without a dump.
  counts[RankRole::no_dump] =
      std::ranges::count(found.positions, Position::State::no_dump, &Position::state);
  Legend legend;
  for (const RankRole role : kRoles) {
    if (counts[role] == 0) continue;
    const auto [swatch, text] = entry(role);
    legend.entries.push_back(
        {.swatch = swatch, .text = fmt::format("{}: {}", text, counted(counts[role], "rank"))});
  }
  return legend;
}

// Few ranks in a place are more interesting than many; suspects are first.
std::vector<const RankClass*> classes_by_interest(const RankClasses& classes) {
  std::vector<const RankClass*> order;
  for (const RankClass& each : classes.all()) order.push_back(&each);
  std::ranges::stable_sort(order, {}, [](const RankClass* each) {
    return std::pair(interest(each->role), each->ranks.size());
  });
  return order;
}

Html classes_table(const RankClasses& classes) {
  const std::vector<const RankClass*> order = classes_by_interest(classes);
  const bool has_stacks = std::ranges::any_of(
      order, [](const RankClass* each) { return !each->first->now.file.empty(); });
  const std::size_t shown = std::min(order.size(), kMaxClassRows);
  std::vector<Column> columns{Column::text("ranks"), Column::numbers("count"),
                              Column::text("state"), Column::text("line")};
  if (has_stacks) columns.push_back(Column::text("stack"));
  columns.push_back(Column::text("waits for"));
  columns.push_back(Column::text("call"));
  Table table(columns);
  for (std::size_t k = 0; k < shown; ++k) {
    const RankClass& each = *order[k];
    std::string state(state_text(each.first->state));
    if (each.role <= RankRole::suspect) state += ", suspect";
    std::vector<Cell> row{rank_set_text(each.ranks), with_separators(std::ssize(each.ranks)), state,
                          postmortem::frame_text(call_of(*each.first).frame)};
    if (has_stacks) row.push_back(postmortem::frame_text(each.first->now));
    row.push_back(class_waits_for(each));
    row.push_back(class_call(each));
    table.add(std::move(row));
  }
  Html html = to_html(table);
  if (shown < order.size()) {
    html += paragraph(fmt::format("{} other places are left out.", order.size() - shown));
  }
  return html;
}

Panel positions_panel(const Postmortem& found, const RankClasses& classes) {
  RankGrid grid(found, classes);
  std::string note = "A cell is a rank; the number at the left is the first rank of the row.";
  if (grid.per_cell() > 1) {
    note = fmt::format(
        "A cell is {} consecutive ranks, in the colour of a suspect or a rank without a dump, if "
        "it has one, or else of most of its ranks; the number at the left is the first rank of the "
        "row.",
        grid.per_cell());
  }
  Html body = to_html(roles_legend(found, classes));
  body += {grid.figure()};
  body += paragraph("Ranks in the same place share a row of the table:");
  body += {"<div class=\"wraps\">\n" + classes_table(classes).markup + "</div>\n"};
  return {.title = "Where every rank was",
          .note = note,
          .by_hand =
              "Point at a cell, or use the arrow keys, to see its call and to highlight the "
              "ranks in the same place.",
          .body = std::move(body)};
}

// ---------------------------------------------------------------------------- the page

std::string_view status_title(HangStatus status) {
  switch (status) {
    case HangStatus::hung:
      return "Hung";
    case HangStatus::slow:
      return "Slow";
    case HangStatus::undecided:
      return "Not proved";
    case HangStatus::finished:
      return "No call pending";
  }
  return "";
}

std::vector<KeyNumber> key_numbers(const Postmortem& found) {
  std::vector<KeyNumber> numbers;
  std::string why = "the ranks that others wait for may only be late";
  if (found.status == HangStatus::hung && !found.proof.empty()) {
    why = found.proof.front().substr(0, found.proof.front().find(": "));
  }
  if (found.status == HangStatus::finished) why = "nothing hangs in a recorded call";
  numbers.push_back(
      {.label = "Status", .value = std::string(status_title(found.status)), .note = why});
  const std::int64_t waiting =
      std::ranges::count(found.positions, Position::State::waits, &Position::state);
  KeyNumber waits{.label = "Ranks that wait",
                  .value = fmt::format("{} of {}", with_separators(waiting),
                                       with_separators(std::int64_t{found.world}))};
  if (!found.suspects.empty()) {
    const Suspect& first = found.suspects.front();
    const std::size_t others = found.suspects.size() - 1;
    const std::string who = first.ranks.empty() ? "Not a known rank" : named_ranks(first.ranks);
    numbers.push_back({.label = found.status == HangStatus::hung ? "Culprit" : "Suspect",
                       .value = capitalized(who),
                       .note = others == 0
                                   ? "the only suspect"
                                   : fmt::format("the most likely of {} suspects", others + 1)});
    numbers.push_back(
        {.label = "Fault",
         .value = fault_title(first.fault),
         .note = fmt::format("{}, {} confidence", fault_name(first), confidence_text(first))});
    if (first.victims > 0 && waiting > 0) {
      waits.note = fmt::format("{} for the {}, directly or not", with_separators(first.victims),
                               found.status == HangStatus::hung ? "culprit" : "suspect");
    }
  }
  if (found.by_ras_alone) return numbers;
  numbers.push_back(std::move(waits));
  numbers.push_back(
      {.label = "Dumps",
       .value = fmt::format("{} of {}", with_separators(found.dumps), counted(found.world, "rank")),
       .note = found.absent.empty() ? counted(found.calls, "recorded call")
                                    : "missing: " + named_ranks(found.absent)});
  return numbers;
}

std::vector<std::string> assumptions(const Postmortem& found) {
  if (found.status == HangStatus::finished && found.suspects.empty()) return {};
  if (found.by_ras_alone) return {"What NCCL's RAS says of all ranks is of the same moment."};
  std::vector<std::string> sentences{
      "The dumps are of the same moment.",
      "What follows the first pending call of a rank is held up by that call."};
  if (!found.absent.empty()) {
    sentences.emplace_back("A rank without a dump may have entered any call.");
  }
  return sentences;
}

}  // namespace

Page postmortem_page(const Postmortem& found, const std::string& command) {
  const RankClasses classes(found);
  Page page{.title = headline(found),
            .numbers = key_numbers(found),
            .assumed = assumptions(found),
            .command = command,
            .version = command.empty() ? "" : std::string(version())};
  if (!found.suspects.empty()) page.panels.push_back(suspects_panel(found));
  page.panels.push_back(proof_panel(found));
  if (!found.positions.empty()) {
    page.panels.push_back(positions_panel(found, classes));
    if (found.status != HangStatus::finished)
      page.panels.push_back(wait_graph_panel(found, classes));
  }
  const bool has_calls = std::ranges::any_of(
      found.histories, [](const postmortem::History& history) { return !history.calls.empty(); });
  if (has_calls) page.panels.push_back(histories_panel(found));
  if (!found.notes.empty()) {
    page.panels.push_back(
        {.title = "About the files", .body = bullet_list(found.notes, kMaxFileNotes)});
  }
  return page;
}

}  // namespace shiplap::report
