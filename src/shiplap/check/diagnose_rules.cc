// Operations that the selected library does not support.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <span>
#include <tuple>

#include "shiplap/check/diagnosis_internal.h"

namespace shiplap::check {
namespace {

// NCCL has no tags and no all-to-all in place, and both ends of a message are in a batch or
// neither.
class NcclRules {
 public:
  explicit NcclRules(const Job& job) : job_(job), formatter_(job) {}

  std::vector<Finding> diagnose() {
    check_message_order();
    for (const MessageQueue& key : job_.queues()) check_batches(key);
    for (const Script& script : job_.scripts) check_in_place(script);
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

  // Messages between two ranks are matched in order, regardless of their tags.
  void check_message_order() {
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

  // Queues that differ only in their tags.
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
    const OperationId sent{send->key->from, send->operation};
    const OperationId received{receive->key->to, receive->operation};
    if (const auto found = report_first(crossed_, "D719", sent)) {
      found->diagnostic.what = fmt::format(
          "`{}` of rank {} would match `{}` of rank {} on NCCL, which has no tags",
          formatter_.operation(sent), sent.rank, formatter_.operation(received), received.rank);
      found->diagnostic.why = fmt::format(
          "the send has tag {}, the receive tag {}: only tags distinguish the messages from rank "
          "{} to rank {}, and NCCL matches them in order",
          send->key->tag, receive->key->tag, sent.rank, received.rank);
      found->diagnostic.help = "receive in the order of the sends, or use a `channel` for each tag";
      found->witness = {sent, received};
    }
  }

  void check_batches(const MessageQueue& key) {
    for (std::size_t n = 0; n < std::min(key.sends.size(), key.receives.size()); ++n) {
      const OperationId send{key.from, key.sends[n]};
      const OperationId receive{key.to, key.receives[n]};
      if (job_.linked.step(send).member == job_.linked.step(receive).member) continue;
      const bool sends = job_.linked.step(send).member;
      const OperationId batched = sends ? send : receive;
      const OperationId alone = sends ? receive : send;
      if (const auto found = report_first(half_batched_, "D724", batched)) {
        found->diagnostic.what = fmt::format(
            "`{}` of rank {} is in a batch, its match `{}` of rank {} is not",
            formatter_.operation(batched), batched.rank, formatter_.operation(alone), alone.rank);
        found->diagnostic.why =
            "NCCL leaves this undefined, and torch uses two communicators, so they never match";
        found->diagnostic.help = fmt::format("put it into a `batch` on rank {} too", alone.rank);
        found->witness = {batched, alone};
      }
    }
  }

  void check_in_place(const Script& script) {
    for (std::int32_t k = 0; k < std::ssize(script.ops); ++k) {
      const ScriptOp& op = script[k];
      if (op.action != ActionKind::collective || op.from != op.to || op.from.count == 0) continue;
      const auto& collective = std::get<plan::Collective>(op.source->action);
      if (collective.kind != CollectiveKind::all_to_all) continue;
      if (job_.groups[op.match.with].ranks().size() == 1) continue;
      const OperationId place{script.rank, k};
      if (const auto found = report_first(in_place_, "D725", place)) {
        found->diagnostic.what = fmt::format("`{}` of rank {} is an all-to-all in place",
                                             formatter_.operation(place), place.rank);
        found->diagnostic.why = "on NCCL the send and receive buffers must not overlap";
        found->diagnostic.help = "receive into other rows: `all_to_all x to y`";
        found->witness = {place};
      }
    }
  }

  // The first of each kind is reported, the others are counted.
  Finding* report_first(std::optional<Finding>& kind, std::string code, OperationId place) {
    if (kind) {
      ++kind->folded;
      return nullptr;
    }
    kind = finding_at(formatter_, place, {.code = std::move(code)});
    return &*kind;
  }

  const Job& job_;
  Formatter formatter_;
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
