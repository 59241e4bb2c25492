// Writes the text of a step's plan. The state is the program that is written and, in loops, what
// the names of the text mean:
//
//   pp, c, s    rank of the pipeline, chunk, stage: s = c*pipeline+pp
//   m, slot     microbatch; of a chunk: slot = c*microbatches+m
//   k, l, q     layer of the chunk, of the model, among those of its kind on the rank
//   kept        the rows of what layer k keeps of the microbatch
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shiplap/layout/layout.h"
#include "shiplap/schedule/schedule.h"
#include "shiplap/step/axes_internal.h"
#include "shiplap/step/pipeline_order_internal.h"
#include "shiplap/step/weights_internal.h"
#include "shiplap/workload/model.h"

namespace shiplap::step {

// The parts of a layer, by what surrounds them.
struct LayerParts {
  std::vector<workload::Part> attention_norm;
  std::vector<workload::Part> queries;  // from the norm to the queries, keys and values
  std::vector<workload::Part> core;
  std::vector<workload::Part> out;
  std::vector<workload::Part> attention_after;  // a norm after the sum over the tensor group
  std::vector<workload::Part> mlp_norm;
  std::vector<workload::Part> mlp;
  std::vector<workload::Part> router;
  std::vector<workload::Part> experts;
  std::vector<workload::Part> shared;
  std::vector<workload::Part> mlp_after;  // likewise
};
[[nodiscard]] LayerParts parts_of(const workload::Layer& layer);

// A kind of layer: its parts and weights.
struct Kind {
  LayerParts parts;
  std::vector<WeightGroup> groups;
  [[nodiscard]] bool has(std::string_view group) const {
    return std::ranges::any_of(groups, [&](const WeightGroup& g) { return g.name == group; });
  }
};

class StepWriter {
 public:
  StepWriter(const workload::Model& model, const layout::Layout& layout);

  std::string write();

 private:
  static bool has_experts(const workload::Model& model);

  void require_known() const;

  // ---------------------------------------------------------------- text

  template <class... Arguments>
  void line(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    text_.append(2 * depth_, ' ');
    fmt::format_to(std::back_inserter(text_), format, std::forward<Arguments>(arguments)...);
    text_ += '\n';
  }
  template <class Body>
  void block(const std::string& head, const Body& body) {
    line("{}", head);
    ++depth_;
    body();
    --depth_;
    line("end");
  }
  // `body` in the block, or alone.
  template <class Body>
  void block_if(bool needed, const std::string& head, const Body& body) {
    if (needed) {
      block(head, body);
    } else {
      body();
    }
  }

  // ---------------------------------------------------------------- sizes

  [[nodiscard]] std::int64_t element() const { return bytes_of(model_.type); }
  [[nodiscard]] std::int64_t tokens_of_sequence() const;
  [[nodiscard]] std::int64_t tokens_of_block() const;
  [[nodiscard]] std::int64_t row() const { return tokens_of_block() * model_.hidden * element(); }
  [[nodiscard]] std::int64_t rows_of_sequence() const { return axes_.blocks_of_sequence; }
  [[nodiscard]] bool gathers_tokens() const { return layout_.sequence_parallel; }
  [[nodiscard]] bool splits_heads() const;
  // Shares of the features of a layer: of tensor ranks, and with Ulysses also of context ranks.
  [[nodiscard]] std::int64_t shares() const;

  // What is kept of parts, in whole elements.
  [[nodiscard]] std::int64_t kept_by(const std::vector<workload::Part>& parts) const;

  // ---------------------------------------------------------------- weights

  // A group of the parts that `belongs` selects.
  template <class Belongs>
  void add_group(std::vector<WeightGroup>& groups, const workload::Layer& layer,
                 const std::string& name, const Belongs& belongs) const {
    WeightGroup group{.name = name};
    for (const workload::Part& part : layer.parts) {
      if (belongs(part)) group.parameters += local_part(part, layout_).part.parameters();
    }
    if (group.parameters == 0) return;
    group.sharing = axes_.dense;
    groups.push_back(std::move(group));
  }

  void cut_by_tensor(WeightGroup& group) const;

  Kind kind_of(std::size_t number) const;

  static void set_sharding(WeightGroup& group, layout::Sharding sharding);

  // Embedding, final norm and head.
  void add_edges();

  [[nodiscard]] const WeightGroup& edge(std::string_view name) const;
  [[nodiscard]] const WeightGroup& head_weight() const;

  // ---- the text of a group: values, and the rows that a computation reads and adds to

  [[nodiscard]] std::string instance(const WeightGroup& group) const;
  // Of the names of its operations.
  [[nodiscard]] static std::string operation_index(const WeightGroup& group);
  // Its whole weight on this rank, without the dimension of shards.
  [[nodiscard]] std::string whole(const WeightGroup& group, std::string_view letter) const;
  [[nodiscard]] std::string shard(const WeightGroup& group, std::string_view letter) const;
  [[nodiscard]] static std::string shard_name(const WeightGroup& group);
  [[nodiscard]] std::string rows_at(const WeightGroup& group, std::string_view buffer,
                                    std::int64_t rows) const;
  // Of a layer in use: one of two buffers.
  [[nodiscard]] std::string in_use(const WeightGroup& group, std::string_view buffer,
                                   std::int64_t rows) const;
  [[nodiscard]] std::string weight_rows(const WeightGroup& group) const;
  [[nodiscard]] std::string gradient_rows(const WeightGroup& group) const;
  void read_weight(const WeightGroup& group);
  // Adds the gradient of the samples and tokens `of`.
  void add_gradient(const WeightGroup& group, const std::string& of, const std::string& use = "");
  void read_weight(const Kind& kind, std::string_view name);
  void add_gradient(const Kind& kind, std::string_view name, const std::string& of);

  // ---------------------------------------------------------------- declarations

  template <class Values>
  void list(std::string_view name, const Values& values) {
    line("list {} = {}", name, fmt::join(values, " "));
  }

  void lists();
  [[nodiscard]] bool counts_before() const { return kinds_.size() > 1 || (!even_ && chunks_ > 1); }
  [[nodiscard]] bool is_ring() const;
  [[nodiscard]] bool gathers_keys() const;

  void tensors();
  void module_tensors(const std::string& place, const std::string& voc);

  [[nodiscard]] std::string key_sum() const { return fmt::format(" sum key {}", layout_.context); }

  template <class Is>
  [[nodiscard]] bool any_kind(const Is& is) const {
    return std::ranges::any_of(kinds_, is);
  }

  void weight_tensors(const WeightGroup& group, const std::string& place);

  // ---------------------------------------------------------------- a program

  [[nodiscard]] const layout::Stage& stage_at(std::int64_t rank, std::int64_t chunk) const;
  // What the program of a rank depends on.
  [[nodiscard]] std::vector<std::int64_t> content_of(std::int64_t rank) const;
  [[nodiscard]] std::vector<std::int64_t> layers_by_kind(std::int64_t rank) const;

  void program(std::int64_t from, std::int64_t to);

  void buffer(std::string_view name, std::int64_t rows, std::int64_t bytes, DType type);

  void buffers();
  void module_buffers(std::int64_t logits);

  [[nodiscard]] static std::int64_t divided(std::int64_t bytes, std::int64_t parts);
  [[nodiscard]] std::int64_t kept_by_out() const;

  // The keys and values of the tokens of a rank.
  [[nodiscard]] std::int64_t key_bytes() const;
  [[nodiscard]] std::int64_t query_bytes() const;

  // Rows of a gradient that the second half of a backward reads: one for each layer and microbatch.
  [[nodiscard]] std::int64_t layer_rows() const;

  void attention_buffers();

  // Rows of the tokens that are sent to one group of experts.
  [[nodiscard]] std::int64_t dispatched_bytes() const;
  void expert_buffers();

  void weight_buffers(const WeightGroup& group, std::int64_t layers);

  // ---- loops over the layers of a rank

  [[nodiscard]] std::string layers_in_chunk() const;
  [[nodiscard]] std::string first_layer() const;
  // The stage of the model that is computed.
  [[nodiscard]] std::string stage() const;
  [[nodiscard]] std::string chunk() const { return chunks_ == 1 ? "0" : "c"; }
  void let_stage();
  void let_layer();
  template <class Body>
  void each_kind(const Body& body) {
    for (const std::size_t k : here_) {
      block_if(here_.size() > 1, fmt::format("when kind[l]={}", k), [&] { body(kinds_[k], k); });
    }
  }
  template <class Body>
  void each_layer(const Body& body) {
    const auto chunk = [&] {
      let_stage();
      block(fmt::format("repeat k {}", layers_in_chunk()), [&] {
        let_layer();
        each_kind([&](const Kind& kind, std::size_t) {
          for (const WeightGroup& group : kind.groups) body(group);
        });
      });
    };
    each_edge(body);
    block_if(chunks_ > 1, fmt::format("repeat c {}", chunks_), chunk);
    each_module(false, [&] {
      for (const WeightGroup& group : kinds_[module_kind()].groups) body(group);
    });
  }
  template <class Body>
  void each_edge(const Body& body) {
    for (const WeightGroup* group : edges_here_) {
      block_if(group->of_modules, fmt::format("repeat module {}", modules_), [&] { body(*group); });
    }
  }

  void start();

  [[nodiscard]] std::string sample() const { return run("sample", plus(axes_.sample, "m"), 1); }

  void body();

  // ---- the pipeline

  [[nodiscard]] schedule::Pipeline pipeline() const;
  [[nodiscard]] std::int64_t stage_index(std::int64_t rank, std::int64_t chunk) const;
  void order_pipeline();
  void pipeline_lists();
  // Entries of a rank in the lists.
  [[nodiscard]] std::int64_t max_turns() const;
  // All ranks of a program have the same number of turns.
  void turns(const std::vector<OrderedTurn>& order);

  // What a chunk sends to the next stage or the previous one, or receives from it.
  struct Link {
    std::string when;  // empty: of all chunks
    std::string peer;
    std::string channel;
  };
  [[nodiscard]] std::vector<Link> links(bool next, std::string_view pass) const;
  [[nodiscard]] std::vector<Link> links_of_v(bool next, std::string_view pass) const;
  void receive_activations();
  void receive_gradient();
  void send_activations();
  void send_gradient();
  // Between the two chunks of the last rank, if they form a V.
  void hand_over(std::string_view buffer, const std::string& row, std::int64_t to_chunk);

  // ---- work

  [[nodiscard]] DType type_of(const workload::Part& part) const;
  // All parts but the last as computations of their own; returns the kernel and the work of the
  // last one: "forward_gemm work gemm 8 flop 8 bytes bf16 label head". `otherwise`: the kernel if
  // there are no parts.
  std::string works(std::vector<workload::Part> parts, Direction direction,
                    std::string_view otherwise = "gemm", const std::string& after = "");
  // All parts.
  void all_works(const std::vector<workload::Part>& parts, Direction direction);

  // ---- values of activations

  [[nodiscard]] std::string at_block(std::string_view tensor, std::string_view l = "[l]") const;
  [[nodiscard]] std::string at_sequence(std::string_view tensor, std::string_view l = "[l]") const;
  [[nodiscard]] std::string ff() const;
  // The features of this rank, for the tokens of its sequence. By heads: one share of the features
  // after the other.
  [[nodiscard]] std::string cut(std::string_view tensor) const;
  // By heads: one share of the features, for all tokens.
  [[nodiscard]] std::string heads_here(std::string_view tensor) const;
  [[nodiscard]] std::string of_block() const { return sample() + " " + axes_.block; }
  [[nodiscard]] std::string of_sequence() const { return sample() + " " + axes_.sequence; }
  [[nodiscard]] std::string of_experts() const;

  [[nodiscard]] std::string h_row(const std::string& of = "k") const;
  // Row `index` of the three of a layer: norm, after attention, norm.
  [[nodiscard]] std::string x_row(int index) const;
  [[nodiscard]] std::string kept_row(const std::string& buffer) const;
  // Of attention: by heads, a row for each context rank.
  [[nodiscard]] std::string attention_row(const std::string& buffer) const;
  [[nodiscard]] bool recomputes() const { return layout_.recompute == layout::Recompute::full; }
  // The gradients of the hidden vectors. They take turns with the rows of `d`; if backwards are
  // split, each has a row of its own until both halves are done.
  [[nodiscard]] std::string dh_row(const std::string& of) const;
  [[nodiscard]] std::string da_row() const;

  // The tokens of the tensor group, from the block of each rank.
  std::string gathered(const std::string& from, const std::string& to);
  // The sum over the tensor group, of a rank's block; of `part`.
  std::string reduced();

  [[nodiscard]] bool sends_forward() const { return !links(true, "forward").empty(); }
  [[nodiscard]] bool sends_backward() const { return !links(false, "backward").empty(); }

  // ---- forward

  void forward_pass();

  void allocate_h();
  void let_kept();
  void allocate_kept(std::string_view word);
  void allocate_kept_of(std::string_view word, const Kind& kind, std::size_t number);

  void embed();
  // The rows of a table of words: `part` of tensor `sum`, then `to` of the first dimension.
  void look_up(const std::string& ids, const std::string& sum, const std::string& to);
  // The rows of a buffer of tokens that have the microbatch.
  [[nodiscard]] std::string token_rows(std::string_view buffer) const;

  void norm(const std::vector<workload::Part>& parts, const Kind& kind, std::string_view group,
            std::pair<std::string, std::string> from, std::pair<std::string, std::string> to);

  void attention_forward(const Kind& kind, std::size_t number);

  [[nodiscard]] std::string keys_here(std::string_view tensor) const;
  [[nodiscard]] std::string all_keys(std::string_view tensor) const;
  // The keys that came after `step` steps around the ring.
  [[nodiscard]] std::string keys_at(std::string_view tensor, const std::string& step) const;
  [[nodiscard]] std::string key_of_sum(const std::string& step) const;

  // The work of one of `steps` equal steps of attention.
  std::string core_work(const Kind& kind, Direction direction, std::int64_t steps) const;

  void core_forward(const Kind& kind, const std::string& ka);

  // Each step computes with the keys that have arrived, while they travel on.
  template <class Body>
  void around_the_ring(const std::string& ka, const std::string& pass, const Body& body) {
    line("i[{},slot,k]: compute other label keys and values", pass);
    line("  reads {} = {}", ka, cut("KA"));
    line("  writes kv[0 +1] = {}", keys_here("KV"));
    block(fmt::format("repeat r {}", layout_.context), [&] {
      block(fmt::format("when r<{}", layout_.context - 1), [&] {
        line("z[{0},slot,k,r]: @keys batch after i[{0},slot,k], z[{0},slot,k,r-1]", pass);
        line("  send kv[r +1] to cp+1 wrap channel keys");
        line("  receive kv[r+1 +1] from cp-1 wrap channel keys");
        line("end");
      });
      body("r");
    });
  }

  void gather_keys(const std::string& ka);

  void mlp_forward(const Kind& kind, std::size_t number, bool writes_output);

  // Names of a dense MLP: its weights, the buffer of what it keeps, that tensor, and its sum.
  struct DenseNames {
    std::string_view group;
    std::string_view buffer;
    std::string_view kept;
    std::string_view sum;
  };
  std::string dense_forward(const Kind& kind, std::size_t number,
                            const std::vector<workload::Part>& parts, const DenseNames& names);

  // ---- experts

  [[nodiscard]] std::string to_all_experts(std::string_view tensor) const;
  // " te 0 +2": all blocks of the ranks that divide an expert.
  [[nodiscard]] std::string all_te() const;
  [[nodiscard]] std::string of_all_te(std::string_view tensor) const;
  [[nodiscard]] std::string et() const { return " " + run("et", axes_.etp, 1); }

  // `from` holds, for each group of experts, the tokens of this rank. Returns where this rank's
  // experts have those of all ranks.
  std::string at_experts(const std::string& from, const std::string& to, const std::string& all);
  // Back again: sums of the ranks that divide an expert, then to the ranks of the tokens.
  void from_experts(const std::string& all, const std::string& at, const std::string& to);
  // Where experts write: what `from_experts` begins with.
  [[nodiscard]] std::string written_by_experts(const std::string& all, const std::string& at,
                                               const std::string& to) const;

  void dispatch_forward(const Kind& kind, std::size_t number);

  // Leaves the gradient of the dispatched tokens in `sd`.
  void dispatch_backward(const Kind& kind, std::size_t number);

  // Between the stages that have it.
  [[nodiscard]] bool sums_stages(const WeightGroup& group) const {
    return group.is_at_ends && pipeline_ > 1 && !is_v_;
  }

  // ---- the head, and those of modules for further tokens

  struct Head {
    std::string letter;  // before the names of its tensors and buffers
    std::string index;   // of its tensors
    std::string row;     // of its buffers
    std::string layer;   // of the model, whose input it reads
    std::string hidden;  // the row of this
    std::string norm;    // its weights
    std::string use;     // of the words
    std::string label;
  };
  [[nodiscard]] Head main_head() const;
  [[nodiscard]] Head module_head() const;
  [[nodiscard]] std::string head_row(const Head& head, std::string_view buffer) const;
  [[nodiscard]] std::string labels_row(const Head& head) const;
  [[nodiscard]] std::string logits(const Head& head, std::string_view tensor) const;
  void head_forward(const Head& head);
  // `from` is the module whose gradient is added, if there is one.
  void head_backward(const Head& head, const std::string& from);
  void head_norm_backward(const Head& head, const std::string& sum, const std::string& from);
  void free_head(const Head& head);
  void head_weight_backward(const Head& head);

  // ---- modules for further tokens (MTP)

  [[nodiscard]] std::size_t module_kind() const { return model_.layers.back(); }
  // Rows of hidden vectors, and layers, of a microbatch and chunk in the current program.
  [[nodiscard]] std::int64_t hidden_rows() const { return most_layers_ + 1 + 2 * modules_here(); }
  [[nodiscard]] std::int64_t layer_slots() const { return most_layers_ + modules_here(); }
  [[nodiscard]] std::int64_t modules_here() const { return has_head_ ? modules_ : 0; }
  // All of one after the other, backwards if `back`. A module has the numbers of two layers: what
  // it joins, and the input of its layer.
  template <class Body>
  void each_module(bool back, const Body& body) {
    if (modules_here() == 0) return;
    block(fmt::format("repeat {} {}", back ? "i" : "module", modules_), [&] {
      if (back) line("let module = {}-i", modules_ - 1);
      line("let l = {}+2*module", layers_ + 1);
      line("let k = {}+2*module", stages_.back().layers + 1);
      line("let q = {}+module", module_first_);
      body();
    });
  }
  // Those of the chunk with the head.
  template <class Body>
  void each_module_of_chunk(bool back, const Body& body) {
    if (modules_here() == 0) return;
    block_if(chunks_ > 1, fmt::format("when c={}", chunks_ - 1), [&] {
      each_module(back, [&] {
        if (!recomputes()) {
          line("let kept = {}+{}+module", times("slot", layer_slots()), most_layers_);
        }
        body();
      });
    });
  }
  [[nodiscard]] std::vector<workload::Part> joining_parts() const;
  [[nodiscard]] std::string module_tokens(std::string_view buffer) const;
  [[nodiscard]] std::string embedded_row() const;
  // The rows of modules in a buffer of hidden vectors.
  void for_module_rows(std::string_view words, const std::string& after = "");
  void modules_forward();
  void modules_backward();
  void modules_weight_backward();
  void join_forward();
  void join_backward();
  void add_modules();

  // ---- backward

  // Where a microbatch before had the gradient that is written.
  [[nodiscard]] std::string after_gradient_sent() const;

  // Of layers, one after the other from the last to the first.
  template <class Body>
  void each_layer_backward(const Body& body) {
    block(fmt::format("repeat j {}", layers_in_chunk()), [&] {
      line("let k = {}-1-j", layers_in_chunk());
      let_layer();
      let_kept();
      body();
    });
  }
  // Both halves, or that of the inputs.
  void backward_pass();
  void backward_weight_pass();
  [[nodiscard]] Direction backward() const {
    return splits_ ? Direction::backward_input : Direction::backward;
  }
  // The name of the last computation of a layer in `backward_pass`.
  [[nodiscard]] std::string_view layer_done() const { return splits_ ? "yi" : "y"; }
  // Whether the gradient of a weight is computed in the second half: those of products are.
  [[nodiscard]] bool is_put_off(const WeightGroup& group) const;
  // Those of a kind in one of the halves.
  [[nodiscard]] std::vector<const WeightGroup*> groups_of(const Kind& kind, bool put_off) const;
  void layer_backward(const Kind& kind, std::size_t number);
  void layer_weight_backward(const Kind& kind, std::size_t number);
  // What the second half reads of a layer.
  void allocate_gradients(std::string_view word, const Kind& kind);
  void allocate_dh();
  void mlp_weight_backward(const Kind& kind, std::size_t number);
  void attention_weight_backward(const Kind& kind);

  void embedding_backward();

  void mlp_backward(const Kind& kind, std::size_t number);
  void read_for_mlp_gradients(const Kind& kind, std::size_t number, const std::string& gradient,
                              const std::string& full);

  void attention_backward(const Kind& kind, std::size_t number);
  void read_for_attention_gradients(const Kind& kind, const std::string& gradient,
                                    const std::string& full);
  // The gradients of queries, keys and values, and of other ranks' keys and values.
  [[nodiscard]] std::string dq_rows() const;
  [[nodiscard]] std::string dkt_row() const { return splits_ ? kept_row("dkt") : "dkt"; }
  // Whether the gradients of keys and values are apart, in `dkt`.
  [[nodiscard]] bool has_keys() const { return layout_.context > 1 && !splits_heads(); }
  // Those of the outputs of the experts here.
  [[nodiscard]] std::string dy_rows() const;

  void core_backward(const Kind& kind, const std::string& ka);

  // ---------------------------------------------------------------- weights in use

  // With sharded weights: those of the first layer of a pass are gathered before it, all others
  // while the layer before is computed, into the other of two buffers.
  void gather_weights(Direction direction);
  // Of the layer of a module: on the stream of the computations.
  void gather_module(Direction direction);
  static std::string_view pass_of(Direction direction);
  [[nodiscard]] bool shards_weights() const;
  // Of layer `l`, which is the q-th of its kind here and the k-th of its chunk. The first of a pass
  // on the stream of the computations, which need it at once.
  void gather_layer(const std::string& l, const std::string& q, const std::string& k,
                    std::string_view pass, const std::string& after);
  void gather_kind(std::size_t number, const std::string& q, const std::string& k,
                   std::string_view pass, const std::string& after);

  // With sharded gradients: those of a layer, summed over the microbatch, go to their owners.
  void zero_gradients(const std::vector<const WeightGroup*>& groups);
  // `computed` are those of a layer.
  void reduce_now(const std::vector<const WeightGroup*>& groups, const std::string& use = "",
                  std::string_view computed = "y");
  [[nodiscard]] std::string reduced_name(const WeightGroup& group, const std::string& use,
                                         const std::string& k = "k") const;
  // The buffers of gradients are free again.
  void wait_for_reductions(bool put_off);
  // Those of a module's layer, before others of the same group are on the stream of computations.
  void wait_for_module_reductions(bool put_off);

  // After the last microbatch of a chunk, while others are computed.
  void last_reductions();

  // The rest of the way of a gradient: over the tensor group, the two uses of a tied embedding, the
  // data parallel ranks.
  void reduce_at_end(const WeightGroup& group, const std::string& computed);

  // At the end, since the two stages of a tied embedding wait for each other.
  void reduce_edges();

  void update();
  // Whether reduce_at_end has a call.
  [[nodiscard]] bool has_end_call(const WeightGroup& group) const;

  const workload::Model& model_;
  const layout::Layout& layout_;
  Axes axes_;
  std::vector<layout::Stage> stages_;
  std::int64_t pipeline_;
  std::int64_t chunks_;
  std::int64_t microbatches_;
  std::int64_t samples_;
  std::int64_t layers_;
  std::int64_t modules_ = 0;          // for further tokens
  std::int64_t module_first_ = 0;     // of the layers of their kind on the rank
  std::vector<std::int64_t> firsts_;  // by stage: its first layer
  std::int64_t most_layers_ = 0;      // of a stage
  bool even_ = true;
  std::vector<std::vector<OrderedTurn>> order_;  // by rank of the pipeline
  std::int64_t gradients_ = 2;                   // rows of `d` of a chunk
  bool splits_ = false;                          // backwards into two halves
  bool is_v_ = false;                            // the second chunks go back to the first rank
  std::vector<Kind> kinds_;
  std::vector<WeightGroup> edges_;
  bool tied_ = false;

  // Of the current program:
  std::int64_t first_rank_ = 0;  // of the pipeline
  bool is_first_ = false;
  bool is_last_ = false;
  bool has_head_ = false;
  std::vector<std::size_t> here_;   // kinds of its layers
  std::vector<std::int64_t> most_;  // by kind: layers of a rank
  std::vector<const WeightGroup*> edges_here_;
  int middles_ = 0;
  bool is_recomputing_ = false;

  std::string text_;
  std::size_t depth_ = 0;
};

}  // namespace shiplap::step
