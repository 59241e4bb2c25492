#include "shiplap/report/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "shiplap/base/catalogue.h"
#include "shiplap/base/error.h"
#include "shiplap/base/units.h"
#include "shiplap/base/version.h"
#include "shiplap/report/text.h"

namespace shiplap::report {
namespace {

using check::Finding;
using check::Report;

std::string sends_phrase(const check::Options& options) {
  if (options.eager_limit) {
    return fmt::format("eager sends up to {} bytes", with_separators(options.eager_limit->count));
  }
  switch (options.sends) {
    case check::Sends::eager:
      return "eager sends only";
    case check::Sends::rendezvous:
      return "rendezvous sends only";
    case check::Sends::both:
      return "eager and rendezvous sends";
  }
  throw InternalError("unknown sends");
}

std::string_view libraries(check::Rules rules) {
  switch (rules) {
    case check::Rules::any:
      return "NCCL, MPI and gloo";
    case check::Rules::nccl:
      return "NCCL";
    case check::Rules::mpi:
      return "MPI";
    case check::Rules::gloo:
      return "gloo";
  }
  throw InternalError("unknown rules");
}

// "30 collectives, 12 messages": the properties that were reached, or those that were not.
std::string list_of(const std::vector<check::Examined>& examined, bool reached) {
  std::vector<std::string> parts;
  for (const check::Examined& each : examined) {
    if (each.reached != reached) continue;
    const std::string one = each.property.substr(0, each.property.size() - 1);
    parts.push_back(reached ? counted(each.objects, one) : each.property);
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

// "what 4 computations write (3 `other`, 1 `read_batch`)"
std::string assumed_in(const Report& report) {
  std::int64_t all = 0;
  std::string list;
  for (const check::Assumed& some : report.assumed) {
    all += some.computations;
    list += fmt::format("{}{} `{}`", list.empty() ? "" : ", ", with_separators(some.computations),
                        some.kernel);
  }
  return fmt::format("what {} {} ({})", counted(all, "computation"), all == 1 ? "writes" : "write",
                     list);
}

// The checked ranks, operations and properties, and the assumptions.
std::string looked_at(const Report& report) {
  std::string text = counted(report.ranks, "rank");
  if (report.programs > 0 && report.programs < report.ranks) {
    text += fmt::format(" ({})", counted(report.programs, "representative"));
  }
  text += ", " + counted(report.operations, "operation");
  const std::string reached = list_of(report.examined, true);
  if (!reached.empty()) text += ": " + reached;
  text += ".";
  if (!report.assumed.empty()) text += " Assumed, not proved: " + assumed_in(report) + ".";
  if (report.absent > 0) {
    text += fmt::format(" {} after `after` {} nothing on the rank.",
                        counted(report.absent, "reference"), report.absent == 1 ? "names" : "name");
  }
  return text;
}

std::int64_t errors_in(const Report& report) {
  return std::ranges::count_if(report.findings, [](const Finding& finding) {
    return finding.diagnostic.severity == Severity::error;
  });
}

std::int64_t warnings_in(const Report& report) {
  return std::ssize(report.findings) - errors_in(report) + std::ssize(report.advice);
}

// The codes that occur, each once, in the order of the findings.
std::vector<std::string> codes_of(const Report& report) {
  std::vector<std::string> codes;
  for (const Finding& finding : report.findings) {
    const std::string& code = finding.diagnostic.code;
    if (!code.empty() && std::ranges::find(codes, code) == codes.end()) codes.push_back(code);
  }
  return codes;
}

std::string finding_text(const Finding& finding, Colour colour) {
  std::string text = render(finding.diagnostic, colour);
  for (const Diagnostic& note : finding.notes) text += render(note, colour);
  if (finding.folded > 0) {
    text += fmt::format("  {} suppressed\n", counted(finding.folded, "follow-on error"));
  }
  return text;
}

Json places_to_json(const std::vector<check::OperationId>& places) {
  Json result = Json::array();
  for (const check::OperationId& place : places) {
    result.push(Json::object({{"rank", place.rank}, {"operation", place.operation}}));
  }
  return result;
}

Json finding_to_json(const Finding& finding) {
  const Diagnostic& diagnostic = finding.diagnostic;
  const Json shared = to_json(diagnostic);
  const Json* where = shared.find("where");
  return Json::object({{"code", diagnostic.code},
                       {"severity", name(diagnostic.severity)},
                       {"what", diagnostic.what},
                       {"why", diagnostic.why},
                       {"help", diagnostic.help},
                       {"rank", finding.place.rank},
                       {"operation", finding.place.operation},
                       {"where", where != nullptr ? *where : Json::object()},
                       {"witness", places_to_json(finding.witness)},
                       {"only_rendezvous", finding.only_rendezvous},
                       {"folded", finding.folded},
                       {"notes", to_json(finding.notes)}});
}

// "rank 3, b[1]: compute backward", as far as it is known.
std::string rank_and_operation(const Where& where) {
  std::string text;
  if (where.rank) text = fmt::format("rank {}", *where.rank);
  if (!where.operation.empty()) text += (text.empty() ? "" : ", ") + where.operation;
  return text;
}

// Everything that is known of a finding but where it is in the file.
std::string message_of(const Finding& finding) {
  const Diagnostic& diagnostic = finding.diagnostic;
  std::string text = diagnostic.what;
  const auto add = [&](std::string_view before, const std::string& part) {
    if (!part.empty()) text += fmt::format("\n{}{}", before, part);
  };
  add("at ", rank_and_operation(diagnostic.where));
  add("", diagnostic.why);
  for (const Diagnostic& note : finding.notes) {
    const std::string place = rank_and_operation(note.where);
    add("note: ", place.empty() ? note.what : fmt::format("{} ({})", note.what, place));
  }
  add("help: ", diagnostic.help);
  return text;
}

// A file name as a relative reference of RFC 3986.
std::string uri_of(std::string_view file) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~/";
  std::string uri;
  for (const char c : file) {
    if (kPlain.find(c) != kPlain.npos) {
      uri += c;
    } else {
      uri += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return uri;
}

Json sarif_location(const Where& where, const std::string& plan_file) {
  Json location = Json::object();
  const std::string file = where.file.empty() ? plan_file : where.file;
  if (!plan_file.empty()) {
    Json physical = Json::object({{"artifactLocation", Json::object({{"uri", uri_of(file)}})}});
    if (where.line > 0) {
      Json region = Json::object({{"startLine", where.line}});
      if (where.column > 0) region.set("startColumn", where.column);
      physical.set("region", std::move(region));
    }
    location.set("physicalLocation", std::move(physical));
  }
  if (const std::string place = rank_and_operation(where); !place.empty()) {
    location.set("logicalLocations", Json::array({Json::object({{"fullyQualifiedName", place}})}));
  }
  return location;
}

Json sarif_rules(const std::vector<std::string>& codes) {
  Json rules = Json::array();
  for (const std::string& code : codes) {
    Json rule = Json::object({{"id", code}});
    if (const CatalogueEntry* entry = find_in_catalogue(code)) {
      rule.set("shortDescription", Json::object({{"text", entry->title}}));
      rule.set("help", Json::object({{"text", entry->page}, {"markdown", entry->page}}));
    } else {
      rule.set("shortDescription", Json::object({{"text", code}}));
    }
    rules.push(std::move(rule));
  }
  return rules;
}

Json sarif_result(const Finding& finding, const CheckedPlan& checked,
                  const std::vector<std::string>& codes) {
  const Diagnostic& diagnostic = finding.diagnostic;
  const auto rule = std::ranges::find(codes, diagnostic.code) - codes.begin();
  Json related = Json::array();
  for (const Diagnostic& note : finding.notes) {
    Json location = sarif_location(note.where, checked.file);
    location.set("message", Json::object({{"text", note.what}}));
    related.push(std::move(location));
  }
  Json result =
      Json::object({{"ruleId", diagnostic.code},
                    {"ruleIndex", std::int64_t{rule}},
                    {"level", name(diagnostic.severity)},
                    {"message", Json::object({{"text", message_of(finding)}})},
                    {"locations", Json::array({sarif_location(diagnostic.where, checked.file)})}});
  if (!finding.notes.empty()) result.set("relatedLocations", std::move(related));
  result.set("properties", Json::object({{"rank", finding.place.rank},
                                         {"operation", finding.place.operation},
                                         {"folded", finding.folded},
                                         {"onlyRendezvous", finding.only_rendezvous}}));
  return result;
}

// Percent-encodes the characters that would end a workflow command or one of its properties.
std::string percent_encoded(std::string_view text, std::string_view special) {
  std::string result;
  for (const char c : text) {
    if (special.find(c) == special.npos) {
      result += c;
    } else {
      result += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return result;
}

constexpr std::string_view kSpecial = "%\r\n";
constexpr std::string_view kSpecialInProperty = "%\r\n:,";

std::string github_line(const Finding& finding, const CheckedPlan& checked) {
  const Diagnostic& diagnostic = finding.diagnostic;
  const bool note = diagnostic.severity == Severity::note;
  std::string properties;
  const auto add = [&](std::string_view key, const std::string& value) {
    properties += fmt::format("{}{}={}", properties.empty() ? " " : ",", key,
                              percent_encoded(value, kSpecialInProperty));
  };
  if (!checked.file.empty()) {
    const Where& where = diagnostic.where;
    add("file", where.file.empty() ? checked.file : where.file);
    if (where.line > 0) add("line", std::to_string(where.line));
    if (where.line > 0 && where.column > 0) add("col", std::to_string(where.column));
  }
  if (!diagnostic.code.empty()) add("title", diagnostic.code);
  return fmt::format("::{}{}::{}\n", note ? "notice" : name(diagnostic.severity), properties,
                     percent_encoded(message_of(finding), kSpecial));
}

// The properties that were not reached or cannot be checked, for the end of a verdict.
std::string not_checked(const Report& report) {
  if (report.examined.empty()) return "; nothing was checked";
  std::string list = list_of(report.examined, false);
  if (!report.declares_values) {
    list += list.empty() ? "" : ", ";
    list += "what buffers hold (`values undeclared`)";
  }
  return list.empty() ? "" : "; not checked: " + list;
}

std::string verdict(const CheckedPlan& checked) {
  const Report& report = checked.report;
  std::string text = "not sound: " + counted(errors_in(report), "error");
  if (report.sound()) {
    const std::string except =
        checked.allowed.empty() ? ""
                                : fmt::format(" except for {}", fmt::join(checked.allowed, ", "));
    text = fmt::format("sound{}: {}", except, checked_scope(checked));
  }
  if (const std::int64_t warnings = warnings_in(report); warnings > 0) {
    text += ", " + counted(warnings, "warning");
  }
  return text + not_checked(report);
}

// What was proved, how much of it, and what was assumed.
std::string proof_text(const CheckedPlan& checked) {
  const Report& report = checked.report;
  const bool all_reached = std::ranges::all_of(report.examined, &check::Examined::reached);
  std::string text;
  if (report.sound() && !report.examined.empty() && all_reached) {
    text = fmt::format(
        "Proved for {} with the rules of {}: no rank hangs, every call and message has its match, "
        "there are no data races{}. ",
        checked.name, libraries(checked.options.rules),
        report.declares_values ? ", and all declared values hold" : "");
  }
  return text + "Checked " + looked_at(report);
}

}  // namespace

void add_source_locations(check::Report& report, const SourceText& source) {
  for (Finding& finding : report.findings) {
    finding.diagnostic = add_source_location(std::move(finding.diagnostic), source);
    for (Diagnostic& note : finding.notes) note = add_source_location(std::move(note), source);
  }
  for (Diagnostic& warning : report.advice)
    warning = add_source_location(std::move(warning), source);
}

std::string send_mode_name(const check::Options& options) {
  if (options.eager_limit) return "by_size";
  switch (options.sends) {
    case check::Sends::eager:
      return "eager";
    case check::Sends::rendezvous:
      return "rendezvous";
    case check::Sends::both:
      return "both";
  }
  throw InternalError("unknown sends");
}

std::string checked_scope(const CheckedPlan& checked) {
  std::string text = counted(checked.report.ranks, "rank") + ", " + sends_phrase(checked.options);
  if (checked.options.rules != check::Rules::any) {
    text += fmt::format(", {} only", libraries(checked.options.rules));
  }
  return text;
}

std::string check_text(const CheckedPlan& checked, const TextStyle& style, Detail detail) {
  const Report& report = checked.report;
  std::string text;
  for (const Finding& finding : report.findings) text += finding_text(finding, style.colour) + "\n";
  for (const Diagnostic& warning : report.advice) text += render(warning, style.colour) + "\n";
  const auto width = static_cast<std::size_t>(style.width);
  text += wrapped(verdict(checked), 0, width) + "\n";
  if (detail == Detail::verbose) text += wrapped(proof_text(checked), 0, width) + "\n";
  if (const std::vector<std::string> codes = codes_of(report); !codes.empty()) {
    text += styled("more: ", kDim, style.colour) +
            fmt::format("shiplap explain {}\n", fmt::join(codes, " "));
  }
  return text;
}

Json check_json(const CheckedPlan& checked) {
  const Report& report = checked.report;
  Json findings = Json::array();
  for (const Finding& finding : report.findings) findings.push(finding_to_json(finding));
  Json examined = Json::array();
  for (const check::Examined& each : report.examined) {
    examined.push(Json::object(
        {{"property", each.property}, {"objects", each.objects}, {"reached", each.reached}}));
  }
  Json result = Json::object({{"schema", "shiplap.check/1"},
                              {"name", checked.name},
                              {"sound", report.sound()},
                              {"rules", std::string(check::name(checked.options.rules))},
                              {"sends", send_mode_name(checked.options)}});
  if (checked.options.eager_limit) {
    result.set("eager_limit", checked.options.eager_limit->count);
  }
  result.set("declares_values", report.declares_values);
  result.set("ranks", report.ranks);
  result.set("programs", report.programs);
  result.set("operations", report.operations);
  Json assumed = Json::array();
  for (const check::Assumed& some : report.assumed) {
    assumed.push(Json::object({{"kernel", some.kernel}, {"computations", some.computations}}));
  }
  result.set("assumed", std::move(assumed));
  result.set("absent", report.absent);
  result.set("advice", to_json(report.advice));
  result.set("findings", std::move(findings));
  result.set("examined", std::move(examined));
  return result;
}

Json check_sarif(const CheckedPlan& checked) {
  const std::vector<std::string> codes = codes_of(checked.report);
  Json results = Json::array();
  for (const Finding& finding : checked.report.findings) {
    results.push(sarif_result(finding, checked, codes));
  }
  const Json driver = Json::object(
      {{"name", "shiplap"}, {"version", std::string(version())}, {"rules", sarif_rules(codes)}});
  const Json run =
      Json::object({{"tool", Json::object({{"driver", driver}})}, {"results", std::move(results)}});
  return Json::object({{"$schema", "https://json.schemastore.org/sarif-2.1.0.json"},
                       {"version", "2.1.0"},
                       {"runs", Json::array({run})}});
}

std::string check_github(const CheckedPlan& checked) {
  std::string text;
  for (const Finding& finding : checked.report.findings) text += github_line(finding, checked);
  return text + verdict(checked) + "\n";
}

}  // namespace shiplap::report
