// Which message is wrong when sends and receives do not pair up.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "shiplap/check/diagnosis_internal.h"

namespace shiplap::check {
namespace {

constexpr std::size_t kMostKeys = 256;

// An end without the other.
struct Loose {
  Place place;
  std::int32_t from = 0;
  std::int32_t to = 0;
  std::int32_t channel = 0;
  std::int64_t tag = 0;
  bool told = false;
};

class Messages {
 public:
  explicit Messages(const Job& job) : job_(job), words_(job) {}

  std::vector<Finding> diagnose(const Mismatches& mismatches) {
    for (std::size_t k = 0; k < std::min(mismatches.keys.size(), kMostKeys); ++k) {
      look(job_.queues()[mismatches.keys[k]]);
    }
    pair();
    for (const Loose& loose : sends_) {
      if (!loose.told) alone(loose, true);
    }
    for (const Loose& loose : receives_) {
      if (!loose.told) alone(loose, false);
    }
    return std::move(findings_);
  }

 private:
  void look(const MessageQueue& key) {
    const std::size_t both = std::min(key.sends.size(), key.receives.size());
    if (key.sends.size() == key.receives.size()) return fits(key);
    // The odd one is the first behind which all others fit again.
    const bool more_sends = key.sends.size() > key.receives.size();
    const std::vector<std::int32_t>& longer = more_sends ? key.sends : key.receives;
    std::size_t odd = both;
    for (std::size_t n = 0; n < both; ++n) {
      const Misfit misfit = fit(job_, {key.from, key.sends[n]}, {key.to, key.receives[n]});
      if (misfit == Misfit::none) continue;
      odd = n;
      break;
    }
    const std::size_t count = longer.size() - both;
    for (std::size_t k = 0; k < count; ++k) {
      const Loose loose{.place = {more_sends ? key.from : key.to, longer[odd + k]},
                        .from = key.from,
                        .to = key.to,
                        .channel = key.channel,
                        .tag = key.tag};
      (more_sends ? sends_ : receives_).push_back(loose);
    }
  }

  void fits(const MessageQueue& key) {
    std::vector<std::size_t> wrong;
    for (std::size_t n = 0; n < key.sends.size(); ++n) {
      const Misfit misfit = fit(job_, {key.from, key.sends[n]}, {key.to, key.receives[n]});
      if (misfit != Misfit::none) wrong.push_back(n);
    }
    if (wrong.size() >= 2 && fit(job_, {key.from, key.sends[wrong[0]]},
                                 {key.to, key.receives[wrong[1]]}) == Misfit::none) {
      order(key, wrong[0], wrong[1]);
      return;
    }
    const std::size_t n = wrong.front();
    const Place send{key.from, key.sends[n]};
    const Place receive{key.to, key.receives[n]};
    const bool type = fit(job_, send, receive) == Misfit::type;
    Finding finding = start(send, "D716");
    finding.diagnostic.what = fmt::format("`{}` of rank {} sends {}, `{}` of rank {} receives {}",
                                          words_.operation(send), key.from, size(send, type),
                                          words_.operation(receive), key.to, size(receive, type));
    finding.diagnostic.why =
        fmt::format("they meet: message {} from {} to {}, tag {}", n, key.from, key.to, key.tag);
    finding.diagnostic.help = "make both the same";
    finding.witness = {send, receive};
    finding.folded = std::ssize(wrong) - 1;
    findings_.push_back(std::move(finding));
  }

  std::string size(Place place, bool type) {
    const Op& op = job_.op(place);
    const Zone& zone = op.act == Act::send ? op.from : op.to;
    const Script& script = job_.script(place.rank);
    if (type) {
      return std::string(
          shiplap::name(job_.plan.programs[script.program].buffers[zone.buffer].type));
    }
    return fmt::format("{} rows of {} bytes", zone.count, script.row_bytes[zone.buffer]);
  }

  void order(const MessageQueue& key, std::size_t a, std::size_t b) {
    const Place first{key.from, key.sends[a]};
    const Place second{key.from, key.sends[b]};
    Finding finding = start(first, "D714");
    finding.diagnostic.what =
        fmt::format("rank {} sends `{}` before `{}`, rank {} receives them the other way round",
                    key.from, words_.operation(first), words_.operation(second), key.to);
    finding.diagnostic.why =
        "messages with one peer, tag and channel are received in the order in "
        "which they were sent";
    finding.diagnostic.help = "exchange the two, or give them tags of their own";
    finding.witness = {first, second};
    findings_.push_back(std::move(finding));
  }

  // A send and a receive that would be one message, but for one thing.
  void pair() {
    for (const bool by_tag : {true, false}) {
      for (Loose& send : sends_) {
        for (Loose& receive : receives_) {
          if (send.told || receive.told) continue;
          const bool same_ends = send.from == receive.from && send.to == receive.to;
          if (by_tag && same_ends) tag(send, receive);
          if (!by_tag && !same_ends && (send.from == receive.from || send.to == receive.to)) {
            peer(send, receive);
          }
        }
      }
    }
  }

  void tag(Loose& send, Loose& receive) {
    send.told = receive.told = true;
    Finding finding = start(send.place, "D715");
    const auto name = [&](const Loose& loose) {
      const std::string& channel = job_.linked.matching.channels[loose.channel];
      return fmt::format("tag {}{}", loose.tag, channel.empty() ? "" : ", channel " + channel);
    };
    finding.diagnostic.what = fmt::format(
        "`{}` of rank {} has {}, `{}` of rank {} waits for {}", words_.operation(send.place),
        send.from, name(send), words_.operation(receive.place), receive.to, name(receive));
    finding.diagnostic.why = "a message is received with the tag and channel it was sent with";
    finding.diagnostic.help = fmt::format("send it with {}", name(receive));
    finding.witness = {send.place, receive.place};
    findings_.push_back(std::move(finding));
  }

  void peer(Loose& send, Loose& receive) {
    send.told = receive.told = true;
    const bool sender_wrong = send.from == receive.from;  // it sends, but to somebody else
    const Place place = sender_wrong ? send.place : receive.place;
    Finding finding = start(place, "D713");
    const std::int32_t found = sender_wrong ? send.to : receive.from;
    const std::int32_t expected = sender_wrong ? receive.to : send.from;
    finding.diagnostic.what = fmt::format(
        "`{}` of rank {} {} rank {}, but it is rank {} that {}", words_.operation(place),
        place.rank, sender_wrong ? "goes to" : "waits for", found, expected,
        sender_wrong ? fmt::format("waits for it in `{}`", words_.operation(receive.place))
                     : fmt::format("sends to it in `{}`", words_.operation(send.place)));
    finding.diagnostic.why =
        fmt::format("rank {} has no {} for it", found, sender_wrong ? "receive" : "send");
    finding.diagnostic.help =
        fmt::format("{} rank {}", sender_wrong ? "send to" : "receive from", expected);
    finding.witness = {send.place, receive.place};
    findings_.push_back(std::move(finding));
  }

  void alone(const Loose& loose, bool sends) {
    const std::int32_t other = sends ? loose.to : loose.from;
    for (Finding& finding : findings_) {  // more of the same, between the same ranks
      if (finding.diagnostic.code == (sends ? "D712" : "D711") &&
          finding.place.rank == loose.place.rank) {
        ++finding.folded;
        return;
      }
    }
    Finding finding = start(loose.place, sends ? "D712" : "D711");
    finding.diagnostic.what =
        sends ? fmt::format("nobody receives `{}` of rank {}: rank {} has no receive for it",
                            words_.operation(loose.place), loose.place.rank, other)
              : fmt::format("`{}` of rank {} waits for a send of rank {}, which has none for it",
                            words_.operation(loose.place), loose.place.rank, other);
    finding.diagnostic.why =
        sends ? "with rendezvous sends it waits for ever, with eager sends its bytes are lost"
              : "it waits for ever";
    finding.diagnostic.help =
        sends
            ? fmt::format("let rank {} receive it (tag {}), or do not send it", other, loose.tag)
            : fmt::format("let rank {} send it (tag {}), or do not wait for it", other, loose.tag);
    finding.witness = {loose.place};
    findings_.push_back(std::move(finding));
  }

  Finding start(Place place, std::string code) {
    return finding_at(words_, place, {.code = std::move(code)});
  }

  const Job& job_;
  Words words_;
  std::vector<Loose> sends_;
  std::vector<Loose> receives_;
  std::vector<Finding> findings_;
};

}  // namespace

std::vector<Finding> diagnose_messages(const Job& job, const Mismatches& mismatches) {
  return Messages(job).diagnose(mismatches);
}

std::vector<Finding> diagnose_tables(const Job& job, const Mismatches& mismatches) {
  Words words(job);
  std::map<std::string, Finding> by_table;
  std::vector<Finding> findings;
  for (const Trouble& trouble : mismatches.troubles) {
    const auto& exchange = std::get<plan::Exchange>(job.op(trouble.place).source->action);
    const std::string& table = job.plan.tables[exchange.table].name;
    const bool differs = trouble.symptom == Symptom::exchange_differs;
    const std::string code = differs ? "D717" : "D718";
    const auto same = std::ranges::find_if(
        findings, [&](const Finding& finding) { return finding.diagnostic.code == code; });
    if (same != findings.end()) {
      ++same->folded;
      continue;
    }
    Finding finding = finding_at(words, trouble.place, {.code = code});
    finding.witness = {trouble.place};
    if (differs) {
      finding.diagnostic.what = fmt::format(
          "by table `{}` rank {} {} {} rows {} rank {}, which {} {}", table, trouble.place.rank,
          trouble.what, trouble.why, trouble.what == "sends" ? "to" : "from", trouble.other.rank,
          trouble.what == "sends" ? "receives" : "sends", trouble.help);
      finding.diagnostic.why = "the two ends of a message must agree on its length";
      finding.diagnostic.help = "state it once, as `message`";
    } else {
      const bool group = trouble.why == "group";
      finding.diagnostic.what =
          group ? fmt::format(
                      "by table `{}` rank {} {} something {} rank {}, which is not in the "
                      "group of this exchange",
                      table, trouble.place.rank, trouble.what,
                      trouble.what == "sends" ? "to" : "from", trouble.other.rank)
                : fmt::format("a message of table `{}` leaves {} of rank {}", table,
                              words.zone(trouble.place.rank, trouble.zone), trouble.place.rank);
      finding.diagnostic.why = "a table counts rows of the region, and ranks of the whole mesh";
      finding.diagnostic.help = "mend the table, or the region";
    }
    findings.push_back(std::move(finding));
  }
  return findings;
}

}  // namespace shiplap::check
