// What a plan asks that a library for which it is meant does not do.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <span>
#include <tuple>

#include "shiplap/check/diagnosis_internal.h"

namespace shiplap::check {
namespace {

// NCCL: no tags, messages that meet are batched on both ranks or on none, no all-to-all in place.
class NcclRules {
 public:
  explicit NcclRules(const Job& job) : job_(job), words_(job) {}

  std::vector<Finding> diagnose() {
    keep_order();
    for (const MessageQueue& key : job_.queues()) batch_both(key);
    for (const Script& script : job_.scripts) use_two_regions(script);
    std::vector<Finding> findings;
    for (std::optional<Finding>* found : {&crossed_, &half_batched_, &in_place_}) {
      if (*found) findings.push_back(std::move(**found));
    }
    return findings;
  }

 private:
  struct End {
    std::int32_t operation = -1;
    const MessageQueue* key = nullptr;
  };

  // Between two ranks messages meet in their order, whatever their tags.
  void keep_order() {
    const auto ends_of = [](const MessageQueue* key) {
      return std::tuple(key->from, key->to, key->channel);
    };
    std::vector<const MessageQueue*> keys;
    for (const MessageQueue& key : job_.queues()) keys.push_back(&key);
    std::ranges::stable_sort(keys, {}, ends_of);
    for (auto first = keys.begin(); first != keys.end();) {
      const auto last = std::find_if(
          first, keys.end(), [&](const auto* key) { return ends_of(key) != ends_of(*first); });
      if (last - first > 1) compare(std::span(first, last));
      first = last;
    }
  }

  // Keys that differ in their tags only.
  void compare(std::span<const MessageQueue* const> keys) {
    std::vector<End> sends;
    std::vector<End> receives;
    for (const MessageQueue* key : keys) {
      for (const std::int32_t k : key->sends) sends.push_back({k, key});
      for (const std::int32_t k : key->receives) receives.push_back({k, key});
    }
    std::ranges::sort(sends, {}, &End::operation);
    std::ranges::sort(receives, {}, &End::operation);
    const auto [send, receive] = std::ranges::mismatch(sends, receives, {}, &End::key, &End::key);
    if (send == sends.end() || receive == receives.end()) return;
    const Place sent{send->key->from, send->operation};
    const Place received{receive->key->to, receive->operation};
    if (const auto found = tell(crossed_, "D719", sent)) {
      found->diagnostic.what =
          fmt::format("`{}` of rank {} would meet `{}` of rank {} on NCCL, which has no tags",
                      words_.operation(sent), sent.rank, words_.operation(received), received.rank);
      found->diagnostic.why = fmt::format(
          "the send has tag {}, the receive tag {}: only tags tell the messages from rank {} to "
          "rank {} apart, and there they meet in their order",
          send->key->tag, receive->key->tag, sent.rank, received.rank);
      found->diagnostic.help = "receive in the order of the sends, or use a `channel` for each tag";
      found->witness = {sent, received};
    }
  }

  void batch_both(const MessageQueue& key) {
    for (std::size_t n = 0; n < std::min(key.sends.size(), key.receives.size()); ++n) {
      const Place send{key.from, key.sends[n]};
      const Place receive{key.to, key.receives[n]};
      if (job_.linked.step(send).member == job_.linked.step(receive).member) continue;
      const bool sends = job_.linked.step(send).member;
      const Place batched = sends ? send : receive;
      const Place alone = sends ? receive : send;
      if (const auto found = tell(half_batched_, "D724", batched)) {
        found->diagnostic.what = fmt::format(
            "`{}` of rank {} is in a batch, `{}` of rank {}, which it meets, is not",
            words_.operation(batched), batched.rank, words_.operation(alone), alone.rank);
        found->diagnostic.why =
            "NCCL leaves it undefined, and torch uses two communicators, so that they never meet";
        found->diagnostic.help = fmt::format("put it into a `batch` on rank {} too", alone.rank);
        found->witness = {batched, alone};
      }
    }
  }

  void use_two_regions(const Script& script) {
    for (std::int32_t k = 0; k < std::ssize(script.ops); ++k) {
      const Op& op = script[k];
      if (op.act != Act::collective || op.from != op.to || op.from.count == 0) continue;
      const auto& collective = std::get<plan::Collective>(op.source->action);
      if (collective.kind != CollectiveKind::all_to_all) continue;
      if (job_.groups[op.match.with].ranks().size() == 1) continue;
      const Place place{script.rank, k};
      if (const auto found = tell(in_place_, "D725", place)) {
        found->diagnostic.what = fmt::format("`{}` of rank {} is an all-to-all in place",
                                             words_.operation(place), place.rank);
        found->diagnostic.why = "on NCCL what it sends and what it receives must not overlap";
        found->diagnostic.help = "receive into other rows: `all_to_all x to y`";
        found->witness = {place};
      }
    }
  }

  // The first of its kind is told, the others are counted.
  Finding* tell(std::optional<Finding>& kind, std::string code, Place place) {
    if (kind) {
      ++kind->folded;
      return nullptr;
    }
    kind = finding_at(words_, place, {.code = std::move(code)});
    return &*kind;
  }

  const Job& job_;
  Words words_;
  std::optional<Finding> crossed_;
  std::optional<Finding> half_batched_;
  std::optional<Finding> in_place_;
};

}  // namespace

std::vector<Finding> diagnose_rules(const Job& job, Rules rules) {
  if (!includes(rules, Rules::nccl)) return {};
  return NcclRules(job).diagnose();
}

}  // namespace shiplap::check
