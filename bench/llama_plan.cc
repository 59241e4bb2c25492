#include "llama_plan.h"

#include <fmt/format.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "shiplap/base/error.h"
#include "shiplap/schedule/schedule.h"

namespace shiplap {
namespace {

// A layer is two halves, attention and feed-forward, alike here: norm, all_gather, gemm,
// reduce_scatter. On a rank, half k of chunk c is weight q = c*halves+k; slot = c*microbatches+m.
struct Numbers {
  explicit Numbers(const LlamaSize& size)
      : halves(2 * size.layers / (size.pp * size.chunks)),
        stages(size.pp * size.chunks),
        actions(2 * size.chunks * size.microbatches),
        slots(size.chunks * size.microbatches),
        weights(size.chunks * halves),
        samples(size.dp * size.microbatches) {}
  int halves;  // of a chunk
  int stages;  // of all ranks
  int actions;
  int slots;
  int weights;
  int samples;
};

constexpr std::int64_t kTokens = 8192;
constexpr std::int64_t kHidden = 16384;
constexpr std::int64_t kHalfLayer = std::int64_t{1}
                                    << 30U;  // weights of one; 1.5 times that, really

std::string tensors(const LlamaSize& size, const Numbers& n) {
  const int all = 2 * size.layers;
  std::string text;
  const auto tensor = [&](std::string_view name, int count, const std::string& rest) {
    text += fmt::format("tensor {}[{}] {}\n", name, count, rest);
  };
  const std::string place = fmt::format("sample {} tok {}", n.samples, size.tp);
  const std::string part = fmt::format("ff {} z {}", size.tp, size.dp);
  const std::string sum = fmt::format(" sum {} scale 1/{}", place, n.samples);
  tensor("H", all + 1, "Hidden " + place);
  tensor("X", all, "Normed " + place);
  tensor("P", all, fmt::format("Partial {} sum ff {}", place, size.tp));
  tensor("dH", all + 1, "HiddenGrad " + place);
  tensor("dX", all, fmt::format("NormedGrad {} sum ff {}", place, size.tp));
  tensor("W", all, "Weight " + part);
  tensor("O", all, "OptState " + part);
  tensor("GW", all, "WeightGrad " + part + sum);
  tensor("N", all, fmt::format("Weight z {}", size.dp));
  tensor("ON", all, fmt::format("OptState z {}", size.dp));
  tensor("GN", all, fmt::format("WeightGrad z {}", size.dp) + sum);
  return text;
}

// The actions of all stages, one after the other.
std::string lists(const LlamaSize& size) {
  std::string back = "list back =";
  std::string chunk = "list chunk =";
  std::string microbatch = "list mb =";
  for (int stage = 0; stage < size.pp; ++stage) {
    const std::vector<schedule::PipelineAction> actions = schedule::interleaved(
        {.stages = size.pp, .microbatches = size.microbatches, .chunks = size.chunks}, stage);
    for (const schedule::PipelineAction& action : actions) {
      back += action.pass == schedule::Pass::backward ? " 1" : " 0";
      chunk += fmt::format(" {}", action.chunk);
      microbatch += fmt::format(" {}", action.microbatch);
    }
  }
  return back + "\n" + chunk + "\n" + microbatch + "\n";
}

std::string buffers(const LlamaSize& size, const Numbers& n) {
  const std::int64_t row = kTokens / size.tp * kHidden * 2;        // one rank's tokens
  const std::int64_t weight = kHalfLayer / size.tp / size.dp * 2;  // one rank's shard
  const std::int64_t norm = (kHidden + size.dp - 1) / size.dp * 2;
  std::string text;
  const auto buffer = [&](std::string_view name, int rows, std::int64_t bytes) {
    text += fmt::format("  buffer {} rows {} row_bytes {} bf16\n", name, rows, bytes);
  };
  buffer("w", n.weights * size.dp, weight);
  buffer("n", n.weights * size.dp, norm);
  buffer("g", n.weights * size.dp, weight);
  buffer("gn", n.weights * size.dp, norm);
  for (const char* name : {"sw", "so", "sg"}) buffer(name, n.weights, weight);
  for (const char* name : {"sn", "son", "sgn"}) buffer(name, n.weights, norm);
  buffer("in", size.microbatches, row);
  buffer("h", n.slots * (n.halves + 1), row);
  buffer("x", n.slots * n.halves, row);
  buffer("d", n.slots, row);
  buffer("e", 1, row);
  for (const char* name : {"full", "dfull", "part"}) buffer(name, size.tp, row);
  return text + "  streams net\n";
}

// The keep and given statements, and gradients that start at zero.
constexpr std::string_view kStart = R"(
  repeat c {chunks}
    repeat k {halves}
      let q = c*{halves}+k
      let l = (c*{pp}+pp)*{halves}+k
      keep w[q*{dp} +{dp}] = W[l] ff tp +1
      keep n[q*{dp} +{dp}] = N[l]
      keep sw[q +1] = W[l] ff tp +1 z dp +1
      keep so[q +1] = O[l] ff tp +1 z dp +1
      keep sn[q +1] = N[l] z dp +1
      keep son[q +1] = ON[l] z dp +1
      compute zero
        writes g[q*{dp} +{dp}] = GW[l] ff tp +1 sum none
        writes gn[q*{dp} +{dp}] = GN[l] sum none
    end
  end
  when pp=0
    repeat m {microbatches}
      given in[m +1] = H[0] sample {microbatches}*dp+m +1 tok tp +1
    end
  end
)";

constexpr std::string_view kAction = R"(
  repeat t {actions}
    let c = chunk[pp*{actions}+t]
    let m = mb[pp*{actions}+t]
    let i = {microbatches}*dp+m
    let s = c*{pp}+pp
    let slot = c*{microbatches}+m
    let hr = slot*({halves}+1)
    let xr = slot*{halves}
)";

constexpr std::string_view kForward = R"(
    when back[pp*{actions}+t]=0
      allocate h[hr +{halves}+1]
      allocate x[xr +{halves}]
      when s=0
        copy in[m +1] to h[hr +1]
      end
      when pp>0
        receive h[hr +1] from pp-1 tag s*{microbatches}+m channel forward
      end
      when pp=0 and s>0
        receive h[hr +1] from pp-1 wrap tag s*{microbatches}+m channel forward_wrap
      end
      repeat k {halves}
        let q = c*{halves}+k
        let l = s*{halves}+k
        compute norm work memory {norm_bytes} bytes bf16
          reads h[hr+k +1] = H[l] sample i +1 tok tp +1
          reads n[q*{dp} +{dp}] = N[l]
          writes x[xr+k +1] = X[l] sample i +1 tok tp +1
        all_gather x[xr+k +1] to full over tp
        compute gemm work gemm {gemm} flop bf16
          reads full = X[l] sample i +1
          reads w[q*{dp} +{dp}] = W[l] ff tp +1
          writes part = P[l] sample i +1 sum ff tp +1
        reduce_scatter part to e over tp
        compute cast
          reads e = P[l] sample i +1 tok tp +1
          writes h[hr+k+1 +1] = H[l+1] sample i +1 tok tp +1
      end
      when pp<{pp}-1
        f[slot]: send h[hr+{halves} +1] to pp+1 tag (s+1)*{microbatches}+m channel forward async
      end
      when pp={pp}-1 and s<{stages}-1
        let tag_next = (s+1)*{microbatches}+m
        f[slot]: send h[hr+{halves} +1] to pp+1 wrap tag tag_next channel forward_wrap async
      end
    end
)";

constexpr std::string_view kBackward = R"(
    when back[pp*{actions}+t]=1
      when s={stages}-1
        compute other label loss
          reads h[hr+{halves} +1] = H[{all}] sample i +1 tok tp +1
          writes d[slot +1] = dH[{all}] sample i +1 tok tp +1
      end
      when pp<{pp}-1
        receive d[slot +1] from pp+1 tag s*{microbatches}+m channel backward
      end
      when pp={pp}-1 and s<{stages}-1
        receive d[slot +1] from pp+1 wrap tag s*{microbatches}+m channel backward_wrap
      end
      repeat j {halves}
        let k = {halves}-1-j
        let q = c*{halves}+k
        let l = s*{halves}+k
        all_gather d[slot +1] to dfull over tp
        all_gather x[xr+k +1] to full over tp
        compute gemm_backward work gemm 2*{gemm} flop bf16
          reads full = X[l] sample i +1
          reads dfull = dH[l+1] sample i +1
          reads w[q*{dp} +{dp}] = W[l] ff tp +1
          writes part = dX[l] sample i +1 sum ff tp +1
          adds g[q*{dp} +{dp}] = GW[l] ff tp +1 sum sample i +1
        reduce_scatter part to e over tp
        b[t,k]: compute norm_backward work memory {norm_bytes} bytes bf16
          reads e = dX[l] sample i +1 tok tp +1
          reads h[hr+k +1] = H[l] sample i +1 tok tp +1
          reads n[q*{dp} +{dp}] = N[l]
          writes d[slot +1] = dH[l] sample i +1 tok tp +1
          adds gn[q*{dp} +{dp}] = GN[l] sum sample i +1 tok tp +1
      end
      when pp>0
        send d[slot +1] to pp-1 tag (s-1)*{microbatches}+m channel backward async
      end
      when pp=0 and s>0
        send d[slot +1] to pp-1 wrap tag (s-1)*{microbatches}+m channel backward_wrap async
      end
      when s<{stages}-1
        free h[hr +{halves}+1] after f[slot]
      end
      when s={stages}-1
        free h[hr +{halves}+1]
      end
      free x[xr +{halves}]
)";

// The gradients of a chunk are reduced while other chunks are computed.
constexpr std::string_view kReduce = R"(
      when m={microbatches}-1
        repeat j {halves}
          let k = {halves}-1-j
          let q = c*{halves}+k
          @net all_reduce gn[q*{dp} +{dp}] over tp/norm after b[t,k]
          @net reduce_scatter g[q*{dp} +{dp}] to sg[q +1] over dp scale 1/{samples}
          r[q]: @net reduce_scatter gn[q*{dp} +{dp}] to sgn[q +1] over dp scale 1/{samples}
        end
      end
    end
  end
)";

constexpr std::string_view kUpdate = R"(
  repeat c {chunks}
    repeat k {halves}
      let q = c*{halves}+k
      let l = (c*{pp}+pp)*{halves}+k
      compute update after r[q]
        reads sg[q +1] = GW[l] ff tp +1 z dp +1 scale 1/{samples}
        reads sw[q +1] = W[l] ff tp +1 z dp +1
        reads so[q +1] = O[l] ff tp +1 z dp +1
        writes sw[q +1] = new W[l] ff tp +1 z dp +1
        writes so[q +1] = new O[l] ff tp +1 z dp +1
      u[q]: compute update
        reads sgn[q +1] = GN[l] z dp +1 scale 1/{samples}
        reads sn[q +1] = N[l] z dp +1
        reads son[q +1] = ON[l] z dp +1
        writes sn[q +1] = new N[l] z dp +1
        writes son[q +1] = new ON[l] z dp +1
      @net all_gather sw[q +1] to w[q*{dp} +{dp}] over dp after u[q]
      @net all_gather sn[q +1] to n[q*{dp} +{dp}] over dp
    end
  end
)";

// `text` without its first newline, with the numbers in place of the names in braces.
std::string filled(std::string_view text, const LlamaSize& size, const Numbers& n) {
  return fmt::format(
      fmt::runtime(text.substr(1)), fmt::arg("chunks", size.chunks), fmt::arg("halves", n.halves),
      fmt::arg("pp", size.pp), fmt::arg("dp", size.dp), fmt::arg("microbatches", size.microbatches),
      fmt::arg("actions", n.actions), fmt::arg("stages", n.stages), fmt::arg("samples", n.samples),
      fmt::arg("all", 2 * size.layers), fmt::arg("gemm", 2 * kTokens * (kHalfLayer / size.tp)),
      fmt::arg("norm_bytes", 4 * kTokens / size.tp * kHidden));
}

}  // namespace

std::string llama_plan(const LlamaSize& size) {
  ensure(size.layers % (size.pp * size.chunks) == 0, "chunks have equally many layers");
  const Numbers n(size);
  std::string text =
      fmt::format("shiplap-plan 1\nmesh dp={} pp={} tp={}\n", size.dp, size.pp, size.tp);
  text += lists(size) + tensors(size, n) + "program all on all\n" + buffers(size, n);
  for (const std::string_view piece : {kStart, kAction, kForward, kBackward, kReduce, kUpdate}) {
    text += filled(piece, size, n);
  }
  return text;
}

}  // namespace shiplap
