"""A tiny model, its loss and gradients on one process, and the cells into which a plan cuts both.

`reference` is the witness: the whole model on the whole batch, with the functions and the autograd
of torch. It knows nothing of plans.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import torch
import torch.nn.functional as F

Tensors = dict[str, torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Model:
    """The keys of a config.json."""

    layers: int = 2
    hidden: int = 16
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 4
    ffn: int = 24
    vocabulary: int = 32
    experts: int = 0
    top_k: int = 2
    dense: tuple[int, ...] = ()  # the layers without experts
    shared: int = 0  # experts that all tokens meet
    head_norms: bool = False
    # Of latent attention (MLA), in which `rope` more features of queries and keys are rotated.
    q_rank: int = 0
    kv_rank: int = 0
    rope: int = 0
    tied: bool = False
    modules: int = 0  # for further tokens (MTP), each with a layer like the last one
    module_weight: float = 0.1  # of the mean of their losses
    sequence: int = 16

    def has_experts(self, layer: int) -> bool:
        return self.experts > 0 and min(layer, self.layers - 1) not in self.dense

    def all_layers(self) -> list[int]:
        """With those of modules, each of which has two numbers: what it joins is the first one."""
        return [*range(self.layers), *(self.layers + 1 + 2 * k for k in range(self.modules))]

    def layers_with(self, group: str) -> list[int]:
        """The layers, or modules, that have these weights."""
        if group in ("mtp", "mtp_norm"):
            return list(range(self.modules))
        routed = {"mlp": False, "router": True, "experts": True, "shared": True}
        return [layer for layer in self.all_layers()
                if self.has_experts(layer) == routed.get(group, self.has_experts(layer))]

    def config(self) -> dict[str, object]:
        families = {(False, False): "llama", (False, True): "qwen3", (True, False): "mixtral",
                    (True, True): "qwen3_moe"}
        family = families[self.experts > 0, self.head_norms]
        if self.kv_rank:
            family = "deepseek_v2"
        keys: dict[str, object] = {
            "model_type": family,
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.ffn,
            "vocab_size": self.vocabulary,
            "max_position_embeddings": self.sequence,
            "tie_word_embeddings": self.tied,
            "torch_dtype": "bfloat16",
            "num_nextn_predict_layers": self.modules,
        }
        if self.experts:
            keys |= {"num_local_experts": self.experts, "num_experts_per_tok": self.top_k}
        if family == "qwen3_moe":
            keys |= {"moe_intermediate_size": self.ffn, "mlp_only_layers": list(self.dense)}
        if self.kv_rank:
            assert list(self.dense) == list(range(len(self.dense)))
            keys |= {"moe_intermediate_size": self.ffn, "n_routed_experts": self.experts,
                     "first_k_dense_replace": len(self.dense), "n_shared_experts": self.shared,
                     "q_lora_rank": self.q_rank, "kv_lora_rank": self.kv_rank,
                     "qk_nope_head_dim": self.head_dim, "qk_rope_head_dim": self.rope,
                     "v_head_dim": self.head_dim}
            del keys["num_local_experts"]
        return keys


def parameters(model: Model) -> Tensors:
    """Random weights: those of layer 1 are `1.wq`, .."""
    numbers = torch.Generator().manual_seed(1)

    def matrix(*sizes: int) -> torch.Tensor:
        values = torch.randn(*sizes, generator=numbers, dtype=torch.float64)
        return values / math.sqrt(sizes[-1])

    def gain(size: int) -> torch.Tensor:
        return 1 + torch.rand(size, generator=numbers, dtype=torch.float64)

    queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    found = {"embedding": 4 * matrix(model.vocabulary, model.hidden), "norm": gain(model.hidden)}
    if not model.tied:
        found["head"] = matrix(model.vocabulary, model.hidden)
    wide = model.head_dim + model.rope
    for layer in model.all_layers():
        experts = (model.experts,) if model.has_experts(layer) else ()
        weights = {
            "attention_norm": gain(model.hidden),
            "wq": matrix(queries, model.hidden),
            "wk": matrix(keys, model.hidden),
            "wv": matrix(keys, model.hidden),
            "wo": matrix(model.hidden, queries),
            "mlp_norm": gain(model.hidden),
            "gate": matrix(*experts, model.ffn, model.hidden),
            "up": matrix(*experts, model.ffn, model.hidden),
            "down": matrix(*experts, model.hidden, model.ffn),
        }
        if model.kv_rank:
            for name in ("wq", "wk", "wv"):
                del weights[name]
            weights |= {
                "q_down": matrix(model.q_rank, model.hidden),
                "q_norm": gain(model.q_rank),
                "q_up": matrix(model.heads * wide, model.q_rank),
                "kv_down": matrix(model.kv_rank + model.rope, model.hidden),
                "kv_norm": gain(model.kv_rank),
                "kv_up": matrix(2 * queries, model.kv_rank),
            }
        if model.shared and experts:
            width = model.shared * model.ffn
            weights |= {
                "shared_gate": matrix(width, model.hidden),
                "shared_up": matrix(width, model.hidden),
                "shared_down": matrix(model.hidden, width),
            }
        if model.head_norms:
            weights |= {"q_norm": gain(model.head_dim), "k_norm": gain(model.head_dim)}
        if experts:
            weights["router"] = 3 * matrix(model.experts, model.hidden)
        found |= {f"{layer}.{name}": weight for name, weight in weights.items()}
    for module in range(model.modules):
        found |= {f"mtp{module}.hidden_norm": gain(model.hidden),
                  f"mtp{module}.embedding_norm": gain(model.hidden),
                  f"mtp{module}.projection": matrix(model.hidden, 2 * model.hidden),
                  f"mtp{module}.norm": gain(model.hidden)}
    return found


def batch(model: Model, samples: int, sequences: int) -> torch.Tensor:
    """Tokens [sample, sequence, position]: each has the next one as its label, and further ones
    as those of modules."""
    numbers = torch.Generator().manual_seed(2)
    return torch.randint(model.vocabulary, (samples, sequences, model.sequence + 1 + model.modules),
                         generator=numbers)


# ---------------------------------------------------------------- one process


def _rotated(x: torch.Tensor) -> torch.Tensor:
    """Rotary positions of [sequence, position, head, feature], as complex numbers."""
    half = x.shape[-1] // 2
    frequency = 10000.0 ** (-torch.arange(half, dtype=x.dtype) / half)
    angle = torch.arange(x.shape[1], dtype=x.dtype)[:, None] * frequency
    pairs = torch.complex(x[..., :half].contiguous(), x[..., half:].contiguous())
    turned = pairs * torch.polar(torch.ones_like(angle), angle)[:, None, :]
    return torch.cat([turned.real, turned.imag], -1)


def _normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight, eps=1e-6)


def _latent_attention(model: Model, weights: Callable[[str], torch.Tensor],
                      x: torch.Tensor) -> torch.Tensor:
    q = F.linear(_normed(F.linear(x, weights("q_down")), weights("q_norm")), weights("q_up"))
    q = q.unflatten(-1, (model.heads, -1))
    q = torch.cat([q[..., :model.head_dim], _rotated(q[..., model.head_dim:])], -1)
    latent, rope = F.linear(x, weights("kv_down")).split([model.kv_rank, model.rope], -1)
    kv = F.linear(_normed(latent, weights("kv_norm")), weights("kv_up"))
    k, v = kv.unflatten(-1, (model.heads, -1)).chunk(2, -1)
    k = torch.cat([k, _rotated(rope[:, :, None]).expand(-1, -1, model.heads, -1)], -1)
    out = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=True)
    return F.linear(out.transpose(1, 2).flatten(2), weights("wo"))


def _attention(model: Model, weights: Callable[[str], torch.Tensor],
               x: torch.Tensor) -> torch.Tensor:
    if model.kv_rank:
        return _latent_attention(model, weights, x)

    def heads(name: str, count: int) -> torch.Tensor:
        return F.linear(x, weights(name)).unflatten(-1, (count, model.head_dim))

    q, k, v = (heads("wq", model.heads), heads("wk", model.kv_heads), heads("wv", model.kv_heads))
    if model.head_norms:
        q, k = _normed(q, weights("q_norm")), _normed(k, weights("k_norm"))
    q, k, v = (t.transpose(1, 2) for t in (_rotated(q), _rotated(k), v))
    group = model.heads // model.kv_heads
    k, v = (t.repeat_interleave(group, 1) for t in (k, v))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return F.linear(out.transpose(1, 2).flatten(2), weights("wo"))


def _mlp(model: Model, weights: Callable[[str], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    def one(gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
        return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)

    gate, up, down = weights("gate"), weights("up"), weights("down")
    if gate.dim() == 2:
        return one(gate, up, down)
    shares, chosen = F.linear(x, weights("router")).softmax(-1).topk(model.top_k)
    shares = shares / shares.sum(-1, keepdim=True)
    total = torch.zeros_like(x)
    if model.shared:
        total = one(*(weights(f"shared_{name}") for name in ("gate", "up", "down")))
    for expert in range(model.experts):
        share = (shares * (chosen == expert)).sum(-1, keepdim=True)
        total = total + share * one(gate[expert], up[expert], down[expert])
    return total


def reference(model: Model, samples: int, sequences: int) -> tuple[float, Tensors]:
    """The mean loss of a token, and its gradient by every weight."""
    weights = {name: w.clone().requires_grad_() for name, w in parameters(model).items()}
    tokens = batch(model, samples, sequences).flatten(0, 1)

    def embedded(shift: int) -> torch.Tensor:
        return F.embedding(tokens[:, shift:shift + model.sequence], weights["embedding"])

    def layer(x: torch.Tensor, number: int) -> torch.Tensor:
        def of_layer(name: str) -> torch.Tensor:
            return weights[f"{number}.{name}"]

        x = x + _attention(model, of_layer, _normed(x, of_layer("attention_norm")))
        return x + _mlp(model, of_layer, _normed(x, of_layer("mlp_norm")))

    def loss_of(x: torch.Tensor, norm: str, shift: int) -> torch.Tensor:
        logits = F.linear(_normed(x, weights[norm]), weights["embedding" if model.tied else "head"])
        labels = tokens[:, shift:shift + model.sequence]
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())

    x = embedded(0)
    for number in range(model.layers):
        x = layer(x, number)
    loss = loss_of(x, "norm", 1)
    for k in range(model.modules):
        joined = torch.cat([_normed(x, weights[f"mtp{k}.hidden_norm"]),
                            _normed(embedded(1 + k), weights[f"mtp{k}.embedding_norm"])], -1)
        x = layer(F.linear(joined, weights[f"mtp{k}.projection"]), model.layers + 1 + 2 * k)
        loss = loss + model.module_weight / model.modules * loss_of(x, f"mtp{k}.norm", 2 + k)
    loss.backward()
    return loss.item(), {name: w.grad for name, w in weights.items() if w.grad is not None}


# ---------------------------------------------------------------- cells of weights


@dataclasses.dataclass(frozen=True)
class Shares:
    """Sizes of the dimensions of a plan."""

    ff: int = 1
    voc: int = 1
    eg: int = 1
    et: int = 1


def pieces(model: Model, group: str, layer: int, at: dict[str, int], shares: Shares,
           whole: Tensors) -> Tensors:
    """What W_group[layer] and G_group[layer] have at these coordinates: views of `whole`."""
    def cut(name: str, axis: int, place: int, count: int) -> torch.Tensor:
        weight = whole[name]
        assert weight.shape[axis] % count == 0, f"{name} of {weight.shape} in {count} shares"
        size = weight.shape[axis] // count
        return weight.narrow(axis, place * size, size)

    def features(name: str, axis: int) -> torch.Tensor:
        return cut(f"{layer}.{name}", axis, at["ff"], shares.ff)

    def of_expert(name: str, axis: int) -> torch.Tensor:
        weight = cut(f"{layer}.{name}", 0, at["eg"], shares.eg)
        size = weight.shape[axis] // shares.et
        return weight.narrow(axis, at["et"] * size, size)

    if group == "attention":
        names = ("q_up", "kv_up", "wo") if model.kv_rank else ("wq", "wk", "wv", "wo")
        return {name: features(name, 1 if name == "wo" else 0) for name in names}
    if group == "mlp":
        return {name: features(name, 1 if name == "down" else 0) for name in ("gate", "up", "down")}
    if group == "shared":
        return {name: features(f"shared_{name}", 1 if name == "down" else 0)
                for name in ("gate", "up", "down")}
    if group == "attention_norms" and model.kv_rank:
        return {name: whole[f"{layer}.{name}"]
                for name in ("attention_norm", "q_down", "q_norm", "kv_down", "kv_norm")}
    if group == "experts":
        return {name: of_expert(name, 2 if name == "down" else 1)
                for name in ("gate", "up", "down")}
    if group == "router":
        return {"router": cut(f"{layer}.router", 0, at["eg"], shares.eg)}
    if group == "head_norms":
        return {name: whole[f"{layer}.{name}"] for name in ("q_norm", "k_norm")}
    if group in ("attention_norms", "mlp_norms"):
        return {"norm": whole[f"{layer}.{group.removesuffix('s')}"]}
    if group == "mtp":
        return {name: whole[f"mtp{layer}.{name}"]
                for name in ("hidden_norm", "embedding_norm", "projection")}
    if group == "mtp_norm":
        return {"norm": whole[f"mtp{layer}.norm"]}
    if group == "final_norm":
        return {"norm": whole["norm"]}
    if group in ("embedding", "head"):
        return {"words": cut(group, 0, at["voc"], shares.voc)}
    raise KeyError(f"no weights are called {group}")
