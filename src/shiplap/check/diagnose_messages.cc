// Sends and receives that do not match: which message is wrong.
//
// Messages from one rank to another with one tag and channel form a queue: send n matches receive
// n. If a queue has more sends than receives (or the reverse), the surplus ends are unmatched; the
// first position at which the sizes mismatch determines which ends they are. An unmatched send and
// an unmatched receive that differ only in tag or channel (D715), or only in one peer (D713), are
// one mistake. Ends that remain are D712 and D711.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "shiplap/check/diagnosis_internal.h"

namespace shiplap::check {
namespace {

constexpr std::size_t kMaxKeys = 256;

// A send without a receive, or the reverse.
struct UnmatchedEnd {
  OperationId place;
  std::int32_t from = 0;
  std::int32_t to = 0;
  std::int32_t channel = 0;
  std::int64_t tag = 0;
  bool reported = false;
};

// A size or type mismatch of two lines of the plan, on any number of ranks.
struct SizeMismatch {
  std::size_t finding = 0;  // of the first pair of ranks
  std::int64_t more = 0;    // pairs of ranks
};

class MessageDiagnosis {
 public:
  explicit MessageDiagnosis(const Job& job) : job_(job), formatter_(job) {}

  std::vector<Finding> diagnose(const Mismatches& mismatches) {
    for (std::size_t k = 0; k < std::min(mismatches.keys.size(), kMaxKeys); ++k) {
      check_queue(job_.queues()[mismatches.keys[k]]);
    }
    for (const auto& [lines, mismatch] : sizes_) {
      if (mismatch.more == 0) continue;
      findings_[mismatch.finding].diagnostic.why +=
          fmt::format("; and {} more {} of ranks, by the same two lines", mismatch.more,
                      mismatch.more == 1 ? "pair" : "pairs");
    }
    pair();
    for (const UnmatchedEnd& unmatched : sends_) {
      if (!unmatched.reported) report_unmatched(unmatched, true);
    }
    for (const UnmatchedEnd& unmatched : receives_) {
      if (!unmatched.reported) report_unmatched(unmatched, false);
    }
    return std::move(findings_);
  }

 private:
  void check_queue(const MessageQueue& key) {
    const std::size_t both = std::min(key.sends.size(), key.receives.size());
    if (key.sends.size() == key.receives.size()) return check_sizes(key);
    // The surplus begins at the first pair that mismatches.
    const bool more_sends = key.sends.size() > key.receives.size();
    const std::vector<std::int32_t>& longer = more_sends ? key.sends : key.receives;
    std::size_t odd = both;
    for (std::size_t n = 0; n < both; ++n) {
      const MismatchKind mismatch =
          mismatch_between(job_, {key.from, key.sends[n]}, {key.to, key.receives[n]});
      if (mismatch == MismatchKind::none) continue;
      odd = n;
      break;
    }
    const std::size_t count = longer.size() - both;
    for (std::size_t k = 0; k < count; ++k) {
      const UnmatchedEnd unmatched{.place = {more_sends ? key.from : key.to, longer[odd + k]},
                                   .from = key.from,
                                   .to = key.to,
                                   .channel = key.channel,
                                   .tag = key.tag};
      (more_sends ? sends_ : receives_).push_back(unmatched);
    }
  }

  void check_sizes(const MessageQueue& key) {
    std::vector<std::size_t> wrong;
    for (std::size_t n = 0; n < key.sends.size(); ++n) {
      const MismatchKind mismatch =
          mismatch_between(job_, {key.from, key.sends[n]}, {key.to, key.receives[n]});
      if (mismatch != MismatchKind::none) wrong.push_back(n);
    }
    if (wrong.size() >= 2 &&
        mismatch_between(job_, {key.from, key.sends[wrong[0]]}, {key.to, key.receives[wrong[1]]}) ==
            MismatchKind::none) {
      order(key, wrong[0], wrong[1]);
      return;
    }
    const std::size_t n = wrong.front();
    const OperationId send{key.from, key.sends[n]};
    const OperationId receive{key.to, key.receives[n]};
    const std::pair lines(job_.op(send).source, job_.op(receive).source);
    const auto [known, first] = sizes_.try_emplace(lines, SizeMismatch{findings_.size()});
    if (!first) {
      ++known->second.more;
      return;
    }
    const bool type = mismatch_between(job_, send, receive) == MismatchKind::type;
    Finding finding = start(send, "D716");
    finding.diagnostic.what = fmt::format(
        "`{}` of rank {} sends {}, `{}` of rank {} receives {}", formatter_.operation(send),
        key.from, size(send, type), formatter_.operation(receive), key.to, size(receive, type));
    finding.diagnostic.why =
        fmt::format("they match: message {} from {} to {}, tag {}", n, key.from, key.to, key.tag);
    finding.diagnostic.help = "make both the same";
    finding.witness = {send, receive};
    finding.folded = std::ssize(wrong) - 1;
    findings_.push_back(std::move(finding));
  }

  std::string size(OperationId place, bool type) {
    const ScriptOp& op = job_.op(place);
    const RowRange& row_range = op.action == ActionKind::send ? op.from : op.to;
    const Script& script = job_.script(place.rank);
    if (type) {
      return std::string(
          shiplap::name(job_.plan.programs[script.program].buffers[row_range.buffer].type));
    }
    return fmt::format("{} rows of {} bytes", row_range.count, script.row_bytes[row_range.buffer]);
  }

  void order(const MessageQueue& key, std::size_t a, std::size_t b) {
    const OperationId first{key.from, key.sends[a]};
    const OperationId second{key.from, key.sends[b]};
    Finding finding = start(first, "D714");
    finding.diagnostic.what =
        fmt::format("rank {} sends `{}` before `{}`, rank {} receives them in the opposite order",
                    key.from, formatter_.operation(first), formatter_.operation(second), key.to);
    finding.diagnostic.why =
        "messages with one peer, tag and channel are received in the order in "
        "which they were sent";
    finding.diagnostic.help = "swap the two, or give them different tags";
    finding.witness = {first, second};
    findings_.push_back(std::move(finding));
  }

  // A send and a receive that would match but for one property.
  void pair() {
    for (const bool by_tag : {true, false}) {
      for (UnmatchedEnd& send : sends_) {
        for (UnmatchedEnd& receive : receives_) {
          if (send.reported || receive.reported) continue;
          const bool same_ends = send.from == receive.from && send.to == receive.to;
          if (by_tag && same_ends) report_tag_mismatch(send, receive);
          if (!by_tag && !same_ends && (send.from == receive.from || send.to == receive.to)) {
            report_peer_mismatch(send, receive);
          }
        }
      }
    }
  }

  void report_tag_mismatch(UnmatchedEnd& send, UnmatchedEnd& receive) {
    send.reported = receive.reported = true;
    Finding finding = start(send.place, "D715");
    const auto name = [&](const UnmatchedEnd& unmatched) {
      const std::string& channel = job_.linked.matching.channels[unmatched.channel];
      return fmt::format("tag {}{}", unmatched.tag, channel.empty() ? "" : ", channel " + channel);
    };
    finding.diagnostic.what = fmt::format(
        "`{}` of rank {} has {}, `{}` of rank {} waits for {}", formatter_.operation(send.place),
        send.from, name(send), formatter_.operation(receive.place), receive.to, name(receive));
    finding.diagnostic.why = "a message is received with the tag and channel it was sent with";
    finding.diagnostic.help = fmt::format("send it with {}", name(receive));
    finding.witness = {send.place, receive.place};
    findings_.push_back(std::move(finding));
  }

  void report_peer_mismatch(UnmatchedEnd& send, UnmatchedEnd& receive) {
    send.reported = receive.reported = true;
    const bool sender_wrong = send.from == receive.from;  // it sends, but to another rank
    const OperationId place = sender_wrong ? send.place : receive.place;
    Finding finding = start(place, "D713");
    const std::int32_t found = sender_wrong ? send.to : receive.from;
    const std::int32_t expected = sender_wrong ? receive.to : send.from;
    finding.diagnostic.what = fmt::format(
        "`{}` of rank {} {} rank {}, but it is rank {} that {}", formatter_.operation(place),
        place.rank, sender_wrong ? "goes to" : "waits for", found, expected,
        sender_wrong ? fmt::format("waits for it in `{}`", formatter_.operation(receive.place))
                     : fmt::format("sends to it in `{}`", formatter_.operation(send.place)));
    finding.diagnostic.why =
        fmt::format("rank {} has no matching {}", found, sender_wrong ? "receive" : "send");
    finding.diagnostic.help =
        fmt::format("{} rank {}", sender_wrong ? "send to" : "receive from", expected);
    finding.witness = {send.place, receive.place};
    findings_.push_back(std::move(finding));
  }

  void report_unmatched(const UnmatchedEnd& unmatched, bool sends) {
    const std::int32_t other = sends ? unmatched.to : unmatched.from;
    for (Finding& finding : findings_) {  // more of the same, between the same ranks
      if (finding.diagnostic.code == (sends ? "D712" : "D711") &&
          finding.place.rank == unmatched.place.rank) {
        ++finding.folded;
        return;
      }
    }
    Finding finding = start(unmatched.place, sends ? "D712" : "D711");
    finding.diagnostic.what =
        sends
            ? fmt::format("`{}` of rank {} is never received: rank {} has no matching receive",
                          formatter_.operation(unmatched.place), unmatched.place.rank, other)
            : fmt::format("`{}` of rank {} waits for a send of rank {}, which has no matching send",
                          formatter_.operation(unmatched.place), unmatched.place.rank, other);
    finding.diagnostic.why =
        sends ? "with rendezvous sends it hangs, with eager sends its bytes are lost" : "it hangs";
    finding.diagnostic.help =
        sends ? fmt::format("let rank {} receive it (tag {}), or do not send it", other,
                            unmatched.tag)
              : fmt::format("let rank {} send it (tag {}), or do not wait for it", other,
                            unmatched.tag);
    finding.witness = {unmatched.place};
    findings_.push_back(std::move(finding));
  }

  Finding start(OperationId place, std::string code) {
    return finding_at(formatter_, place, {.code = std::move(code)});
  }

  const Job& job_;
  Formatter formatter_;
  std::vector<UnmatchedEnd> sends_;
  std::vector<UnmatchedEnd> receives_;
  std::map<std::pair<const plan::Operation*, const plan::Operation*>, SizeMismatch> sizes_;
  std::vector<Finding> findings_;
};

}  // namespace

std::vector<Finding> diagnose_messages(const Job& job, const Mismatches& mismatches) {
  return MessageDiagnosis(job).diagnose(mismatches);
}

std::vector<Finding> diagnose_tables(const Job& job, const Mismatches& mismatches) {
  Formatter formatter(job);
  std::map<std::string, Finding> by_table;
  std::vector<Finding> findings;
  for (const Violation& violation : mismatches.violations) {
    const auto& exchange = std::get<plan::Exchange>(job.op(violation.place).source->action);
    const std::string& table = job.plan.tables[exchange.table].name;
    const bool differs = violation.symptom == Symptom::exchange_mismatch;
    const std::string code = differs ? "D717" : "D718";
    const auto same = std::ranges::find_if(
        findings, [&](const Finding& finding) { return finding.diagnostic.code == code; });
    if (same != findings.end()) {
      ++same->folded;
      continue;
    }
    Finding finding = finding_at(formatter, violation.place, {.code = code});
    finding.witness = {violation.place};
    if (differs) {
      finding.diagnostic.what = fmt::format(
          "by table `{}` rank {} {} {} rows {} rank {}, which {} {}", table, violation.place.rank,
          violation.what, violation.why, violation.what == "sends" ? "to" : "from",
          violation.other.rank, violation.what == "sends" ? "receives" : "sends", violation.help);
      finding.diagnostic.why = "the two ends of a message must agree on its length";
      finding.diagnostic.help = "state it once, as `message`";
    } else {
      const bool group = violation.why == "group";
      finding.diagnostic.what =
          group ? fmt::format(
                      "by table `{}` rank {} {} something {} rank {}, which is not in the "
                      "group of this exchange",
                      table, violation.place.rank, violation.what,
                      violation.what == "sends" ? "to" : "from", violation.other.rank)
                : fmt::format("a message of table `{}` leaves {} of rank {}", table,
                              formatter.row_range(violation.place.rank, violation.row_range),
                              violation.place.rank);
      finding.diagnostic.why = "a table counts rows of the region, and ranks of the whole mesh";
      finding.diagnostic.help = "fix the table or the region";
    }
    findings.push_back(std::move(finding));
  }
  return findings;
}

}  // namespace shiplap::check
