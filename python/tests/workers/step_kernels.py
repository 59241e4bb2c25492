"""What the computations of a step's plan compute, from the values that they read alone.

A computation is known by what it writes. Its operands come as cells: of each tensor of the plan the
coordinates that are read, with their numbers. One that the plan does not read is `Missing`: the
plan lacks what arithmetic needs. Gradients are products of a vector with the Jacobian of the
function of the forward pass, by autograd, with one exception: attention in steps around a ring,
which has one of its keys at a time.

What a cell has, where it is a choice:

  XA    the normed hidden vector, or with latent attention the normed latent vectors and the
        rotated features of the keys: all that weights of `attention_norms` compute
  KA    queries, keys and values of its heads
  AO    the output of its heads. As a sum over keys: the numerators and denominators of softmax,
        which add up
  D     the hidden vector of each token and, for each expert of the group, the weight of its choice,
        0 if the token is not routed to it: so experts weight their outputs, and the gradient of
        the weights comes back with dD
  KX    what D has, and the two products of each expert
  ST    of each token the sum of the exponentials, and the logit of its label
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F

from .step_model import Model, Shares, Tensors, parameters, pieces

Coordinates = tuple[int, ...]
Numbers = dict[Coordinates, torch.Tensor]
LEARNING_RATE, MOMENTUM = 0.1, 0.9


class Missing(Exception):
    """A computation does not read what it needs."""


class Cells:
    """What is known of one tensor: the numbers of cells."""

    def __init__(self, dimensions: tuple[str, ...], numbers: Numbers | None = None) -> None:
        self.dimensions = dimensions
        self.numbers = numbers if numbers is not None else {}

    def at(self, key: Coordinates) -> dict[str, int]:
        return dict(zip(self.dimensions, key, strict=True))

    def where(self, **fixed: int) -> Cells:
        return Cells(self.dimensions, {
            key: value for key, value in self.numbers.items()
            if all(self.at(key).get(name, at) == at for name, at in fixed.items())})

    def places(self, *names: str) -> list[dict[str, int]]:
        """The coordinates in these dimensions that occur."""
        found = {tuple((n, self.at(key)[n]) for n in names if n in self.dimensions)
                 for key in self.numbers}
        return [dict(place) for place in sorted(found)]

    def one(self, name: str) -> int:
        (place,) = self.places(name)
        return place[name]


def gradients(function: Callable[..., torch.Tensor], operands: list[torch.Tensor],
              of_output: torch.Tensor) -> list[torch.Tensor]:
    """The gradient by each operand, of the output's."""
    leaves = [operand.detach().requires_grad_() for operand in operands]
    with torch.enable_grad():
        output = function(*leaves)
    found = torch.autograd.grad(output, leaves, of_output.reshape(output.shape), allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, found, strict=True)]


def normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight


def rotated(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Rotary positions of [sequence, token, head, feature]."""
    half = x.shape[-1] // 2
    rate = torch.exp(torch.arange(half, dtype=x.dtype) * (-math.log(10000.0) / half))
    angle = (positions.to(x.dtype)[:, None] * rate)[None, :, None, :]
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)


class Kernels:
    """The computations of a plan, whose tensors have these dimensions."""

    def __init__(self, model: Model, sequences: int, tensors: dict[str, tuple[str, ...]],
                 sums: dict[str, tuple[str, ...]], sizes: dict[str, int]) -> None:
        self.model, self.sequences = model, sequences
        self.tensors, self.sums, self.sizes = tensors, sums, sizes
        self.shares = Shares(**{name: sizes.get(name, 1) for name in ("ff", "voc", "eg", "et")})
        self.blocks = sizes["tok"] * sizes.get("te", 1)
        self.tokens = model.sequence // self.blocks  # of a block
        self.shapes = {name: w.to("meta") for name, w in parameters(model).items()}
        self.losses: Numbers = {}

    # ---------------------------------------------------------------- sizes

    def size(self, tensor: str) -> int:
        """How many numbers a cell of the tensor has."""
        if tensor[:2] in ("W_", "O_", "G_"):
            return self._shard_size(tensor)
        model, shares = self.model, self.shares
        heads, keys = model.heads // shares.ff, model.kv_heads // shares.ff
        key = keys * (2 * model.head_dim + model.rope)
        experts = model.experts // shares.eg
        width = {
            "I": 1, "L": 1, "Z": model.vocabulary // shares.voc, "ST": 2,
            "MI": 1, "ML": 1, "MZ": model.vocabulary // shares.voc, "MST": 2,
            "KA": heads * (model.head_dim + model.rope) + key, "KV": key, "KT": key,
            "AO": heads * model.head_dim, "KM": 2 * (model.ffn // shares.ff),
            "KS": 2 * (model.shared * model.ffn // shares.ff), "D": model.hidden + experts,
            "KX": model.hidden + experts * (1 + 2 * (model.ffn // shares.et)),
        }.get(tensor.removeprefix("d"), model.hidden)
        if tensor == "AO" and self.sums["AO"]:
            width += heads
        if "key" in self.tensors[tensor]:
            return self.sequences * (model.sequence // self.sizes["key"]) * width
        return self.sequences * self.tokens * width

    def _shard_size(self, tensor: str) -> int:
        zeros = dict.fromkeys(self.tensors[tensor], 0)
        layer = self.model.layers_with(tensor[2:])[0]
        parts = pieces(self.model, tensor[2:], layer, zeros, self.shares, self.shapes)
        return math.ceil(sum(p.numel() for p in parts.values()) / self._shards(tensor)[1])

    def _shards(self, tensor: str) -> tuple[str, int]:
        (name,) = [d for d in self.tensors[tensor] if d in ("z", "ze")]
        return name, self.sizes[name]

    # ---------------------------------------------------------------- weights

    def weight_cells(self, tensor: str, layer: int, whole: Tensors) -> Cells:
        """All cells of W_group[layer], O_group[layer] or G_group[layer], of the model's `whole`."""
        cells = Cells(self.tensors[tensor])
        others = [d for d in cells.dimensions if d not in ("z", "ze")]
        for place in itertools.product(*(range(self.sizes[d]) for d in others)):
            at = dict(zip(others, place, strict=True))
            parts = pieces(self.model, tensor[2:], layer, at, self.shares, whole)
            cells.numbers |= self._sharded(tensor, at, parts)
        return cells

    def _sharded(self, tensor: str, at: dict[str, int], parts: Tensors) -> Numbers:
        name, count = self._shards(tensor)
        flat = torch.cat([part.reshape(-1) for part in parts.values()])
        flat = F.pad(flat, (0, self.size(tensor) * count - flat.numel()))
        return {self.key(tensor, **at, **{name: k}): shard
                for k, shard in enumerate(flat.chunk(count))}

    def _weights(self, operands: dict[str, Cells], group: str, **at: int) -> Tensors:
        tensor = f"W_{group}"
        cells = self._of(operands, tensor).where(**at)
        name, count = self._shards(tensor)
        place = {d: cells.one(d) for d in cells.dimensions if d != name}
        layer = self.model.layers_with(group)[0]
        shapes = pieces(self.model, group, layer, place, self.shares, self.shapes)
        flat = torch.cat([cells.numbers[self.key(tensor, **place, **{name: k})]
                          for k in range(count)])
        found, begin = {}, 0
        for part, shape in shapes.items():
            found[part] = flat[begin:begin + shape.numel()].view(shape.shape)
            begin += shape.numel()
        return found

    # ---------------------------------------------------------------- activations

    def key(self, tensor: str, **at: int) -> Coordinates:
        return tuple(at[d] for d in self.tensors[tensor])

    def _of(self, operands: dict[str, Cells], tensor: str) -> Cells:
        if tensor not in operands:
            raise Missing(tensor)
        return operands[tensor]

    def _sequence(self, operands: dict[str, Cells], tensor: str,
                  **fixed: int) -> tuple[torch.Tensor, list[dict[str, int]]]:
        """[sequence, token, feature] of all blocks that are read, and where these are."""
        cells = self._of(operands, tensor).where(**fixed)
        keys = sorted(cells.numbers, key=lambda key: self._block(cells.at(key)))
        rows = [cells.numbers[key].view(self.sequences, -1, self.size(tensor) // self.sequences
                                        // self._length(tensor)) for key in keys]
        samples = {cells.at(key)["sample"] for key in keys}
        assert len(samples) == 1, f"{tensor} of samples {sorted(samples)}"
        return torch.cat(rows, 1), [cells.at(key) for key in keys]

    def _length(self, tensor: str) -> int:
        if "key" in self.tensors[tensor]:
            return self.model.sequence // self.sizes["key"]
        return self.tokens

    def _block(self, at: dict[str, int]) -> int:
        if "key" in at:
            return at["key"]
        return at["tok"] * self.sizes.get("te", 1) + at.get("te", 0)

    def _positions(self, tensor: str, places: list[dict[str, int]]) -> torch.Tensor:
        length = self._length(tensor)
        return torch.cat([torch.arange(length) + length * self._block(at) for at in places])

    def _cut(self, tensor: str, x: torch.Tensor, places: list[dict[str, int]],
             **more: int) -> Numbers:
        """The cells of a sequence, one for each place."""
        parts = x.flatten(2).chunk(len(places), 1)
        return {self.key(tensor, **{**at, **more}): part.reshape(-1)
                for at, part in zip(places, parts, strict=True)}

    # ---------------------------------------------------------------- dispatch

    def compute(self, outputs: list[str], operands: dict[str, Cells]) -> dict[str, Numbers]:
        """The cells of all outputs, or more. Raises Missing."""
        names = [name for name in outputs if not name.startswith("G_")] or outputs
        # Attention computes the gradients of queries and of other ranks' keys together, a module
        # those of a hidden vector and of an embedding.
        (name,) = set(names) - {"dKV", "dME"}
        with torch.no_grad():
            return getattr(self, f"_compute_{name}")(operands)

    # ---------------------------------------------------------------- embedding and head

    def _words(self, operands: dict[str, Cells]) -> tuple[str, torch.Tensor, int]:
        group = "head" if "W_head" in operands else "embedding"
        words = self._weights(operands, group)["words"]
        return group, words, self._of(operands, f"W_{group}").one("voc") * len(words)

    @staticmethod
    def _letter(operands: dict[str, Cells], tensor: str) -> str:
        """M of tensors of modules for further tokens."""
        return "M" if f"M{tensor}" in operands or f"dM{tensor}" in operands else ""

    def _compute_PE(self, operands: dict[str, Cells]) -> dict[str, Numbers]:
        m = self._letter(operands, "I")
        ids, places = self._sequence(operands, f"{m}I")
        _, words, first = self._words(operands)
        local = ids[..., 0].long() - first
        inside = (local >= 0) & (local < len(words))
        rows = words[local.clamp(0, len(words) - 1)] * inside[..., None]
        return {f"{m}PE": self._cut("PE", rows, places)}

    def _compute_G_embedding(self, operands: dict[str, Cells]) -> dict[str, Numbers]:
        if "dZ" in operands or "dMZ" in operands:  # as the head
            return self._compute_G_head(operands)
        m = self._letter(operands, "I")
        ids, _ = self._sequence(operands, f"{m}I")
        of_rows, _ = self._sequence(operands, "dME" if m else "dH")
        # No table is read: which words are this rank's is what the gradient says.
        numbers: Numbers = {}
        size = self.model.vocabulary // self.shares.voc
        for voc in range(self.shares.voc):
            words = torch.zeros(size, self.model.hidden, dtype=of_rows.dtype)
            local = ids[..., 0].long() - voc * size
            inside = (local >= 0) & (local < size)
            words.index_add_(0, local[inside], of_rows[inside])
            numbers |= self._sharded("G_embedding", {"voc": voc}, {"words": words})
        return {"G_embedding": numbers}

    def _compute_XF(self, operands: dict[str, Cells]) -> dict[str, Numbers]:
        return self._norm(operands, "XF", "H", "final_norm")

    def _compute_MXF(self, operands: dict[str, Cells]) -> dict[str, Numbers]:
        return self._norm(operands, "MXF", "H", "mtp_norm")

    def _compute_Z(self, operands: dict[str, Cells]) -> dict[str, Numbers]:
        m = self._letter(operands, "XF")
        x, places = self._sequence(operands, f"{m}XF")
        _, words, first = self._words(operands)
        return {f"{m}Z": self._cut("Z", x @ words.T, places, voc=first // len(words))}

    def _labels(self, operands: dict[str, Cells],
                first: int, words: int) -> tuple[torch.Tensor, torch.Tensor]:
        labels, _ = self._sequence(operands, f"{self._letter(operands, 'L')}L")
        local = labels[..., 0].long() - first
        return local.clamp(0, words - 1), (local >= 0) & (local < words)

    def _compute_ST(self, operands: dict[str, Cells]) -> dict[str, Numbers]:
        m = self._letter(operands, "Z")
        z, places = self._sequence(operands, f"{m}Z")
        first = self._of(operands, f"{m}Z").one("voc") * z.shape[-1]
        local, inside = self._labels(operands, first, z.shape[-1])
        chosen = z.gather(-1, local[..., None])[..., 0] * inside
        return {f"{m}ST": self._cut("ST", torch.stack([z.exp().sum(-1), chosen], -1), places)}

    def _compute_dZ(self, operands: dict[str, Cells]) -> dict[str, Numbers]:
        m = self._letter(operands, "Z")
        z, places = self._sequence(operands, f"{m}Z")
        sums, _ = self._sequence(operands, f"{m}ST")
        voc = self._of(operands, f"{m}Z").one("voc")
        local, inside = self._labels(operands, voc * z.shape[-1], z.shape[-1])
        weight = self.model.module_weight / self.model.modules if m else 1
        of_token = weight / (self.sequences * self.model.sequence)
        for at, token in zip(places, sums.chunk(len(places), 1), strict=True):
            loss = (token[..., 0].log() - token[..., 1]).sum() * of_token
            key = self.key("ST", **at)  # with the losses of all modules
            self.losses[key] = self.losses.get(key, torch.zeros_like(loss)) + loss
        share = z.exp() / sums[..., :1]
        share.scatter_add_(-1, local[..., None], -inside[..., None].to(z.dtype))
        return {f"d{m}Z": self._cut("dZ", share * of_token, places, voc=voc)}

    def _compute_dXF(self, operands: dict[str, Cells]) -> dict[str, Numbers]:
        m = self._letter(operands, "Z")
        of_z, places = self._sequence(operands, f"d{m}Z")
        x, _ = self._sequence(operands, f"{m}XF")
        group, words, first = self._words(operands)
        of_x, of_words = gradients(lambda x, w: x @ w.T, [x, words], of_z)
        at = {"voc": first // len(words)}
        return {f"d{m}XF": self._cut("dXF", of_x, places),
                f"G_{group}": self._sharded(f"G_{group}", at, {"words": of_words})}

    _compute_MPE, _compute_MZ, _compute_MST = _compute_PE, _compute_Z, _compute_ST
    _compute_dMZ, _compute_dMXF = _compute_dZ, _compute_dXF

    # ---------------------------------------------------------------- modules for further tokens

    def _compute_ME(self, operands: dict[str, Cells]) -> dict[str, Numbers]:
        x, places = self._sequence(operands, "MPE")
        return {"ME": self._cut("ME", x, places)}

    @staticmethod
    def _join(x: torch.Tensor, embedded: torch.Tensor, hidden_norm: torch.Tensor,
              embedding_norm: torch.Tensor, projection: torch.Tensor) -> torch.Tensor:
        return torch.cat([normed(x, hidden_norm), normed(embedded, embedding_norm)],
                         -1) @ projection.T

    def _joined(self, operands: dict[str, Cells]
                ) -> tuple[list[torch.Tensor], list[dict[str, int]], Tensors]:
        x, places = self._sequence(operands, "H")
        embedded, _ = self._sequence(operands, "ME")
        weights = self._weights(operands, "mtp")
        return [x, embedded, *weights.values()], places, weights

    def _compute_dJ(self, operands: dict[str, Cells]) -> dict[str, Numbers]:
        terms, places, weights = self._joined(operands)
        of_h, _ = self._sequence(operands, "dH")
        of_x, of_embedded, *of_weights = gradients(self._join, terms, of_h)
        parts = dict(zip(weights, of_weights, strict=True))
        return {"dJ": self._cut("dJ", of_x, places), "dME": self._cut("dME", of_embedded, places),
                "G_mtp": self._sharded("G_mtp", {}, parts)}

    # ---------------------------------------------------------------- norms and residuals

    def _norm(self, operands: dict[str, Cells], output: str, tensor: str,
              group: str) -> dict[str, Numbers]:
        x, places = self._sequence(operands, tensor)
        weight = self._weights(operands, group)["norm"]
        return {output: self._cut(output, normed(x, weight), places)}

    def _norm_backward(self, operands: dict[str, Cells], tensor: str, of_output: torch.Tensor,
                       group: str) -> tuple[torch.Tensor, list[dict[str, int]], Numbers]:
        x, places = self._sequence(operands, tensor)
        weights = self._weights(operands, group)
        function = normed if len(weights) == 1 else self._latents
        of_x, *of_weights = gradients(function, [x, *weights.values()], of_output)
        parts = dict(zip(weights, of_weights, strict=True))
        return of_x, places, self._sharded(f"G_{group}", {}, parts)

    def _latents(self, x: torch.Tensor, norm: torch.Tensor, q_down: torch.Tensor,
                 q_norm: torch.Tensor, kv_down: torch.Tensor,
                 kv_norm: torch.Tensor) -> torch.Tensor:
        """As wide as the hidden vector, which is more than they need."""
        x = normed(x, norm)
        q, kv = normed(x @ q_down.T, q_norm), x @ kv_down.T
        kv, rope = kv.split([self.model.kv_rank, self.model.rope], -1)
        found = torch.cat([q, normed(kv, kv_norm), rope], -1)
        return F.pad(found, (0, self.model.hidden - found.shape[-1]))

    def _compute_XA(self, operands: dict[str, Cells]) -> dict[str, Numbers]:
        if not self.model.kv_rank:
            return self._norm(operands, "XA", "H", "attention_norms")
        x, places = self._sequence(operands, "H")
        weights = self._weights(operands, "attention_norms")
        return {"XA": self._cut("XA", self._latents(x, *weights.values()), places)}

    def _compute_XM(self, operands: dict[str, Cells]) -> dict[str, Numbers]:
        return self._norm(operands, "XM", "A", "mlp_norms")

    def _compute_A(self, operands: dict[str, Cells]) -> dict[str, Numbers]:
        x, places = self._sequence(operands, "H")
        return {"A": self._cut("A", x + self._sequence(operands, "PA")[0], places)}

    def _compute_H(self, operands: dict[str, Cells]) -> dict[str, Numbers]:
        if "PE" in operands:
            x, places = self._sequence(operands, "PE")
            return {"H": self._cut("H", x, places)}
        if "ME" in operands:
            terms, places, _ = self._joined(operands)
            return {"H": self._cut("H", self._join(*terms), places)}
        x, places = self._sequence(operands, "A")
        if "PS" in operands:
            x = x + self._sequence(operands, "PS")[0]
        if "Y" not in operands:
            x = x + self._sequence(operands, "PM")[0]
        else:
            for group in range(self.shares.eg):
                x = x + self._sequence(operands, "Y", eg=group)[0]
        return {"H": self._cut("H", x, places)}

    def _compute_dH(self, operands: dict[str, Cells]) -> dict[str, Numbers]:
        m = self._letter(operands, "XF")
        if f"d{m}XF" in operands:
            of_x, _ = self._sequence(operands, f"d{m}XF")
            group = "mtp_norm" if m else "final_norm"
            found, places, of_weight = self._norm_backward(operands, "H", of_x, group)
            if "dJ" in operands:
                found = found + self._sequence(operands, "dJ")[0]
            return {"dH": self._cut("dH", found, places), f"G_{group}": of_weight}
        of_x, _ = self._sequence(operands, "dXA")
        found, places, of_weight = self._norm_backward(operands, "H", of_x, "attention_norms")
        found = found + self._sequence(operands, "dA")[0]
        return {"dH": self._cut("dH", found, places), "G_attention_norms": of_weight}

    def _compute_dA(self, operands: dict[str, Cells]) -> dict[str, Numbers]:
        of_h, _ = self._sequence(operands, "dH")
        result = {}
        of_x = torch.zeros_like(of_h)
        if "dD" in operands:
            of_x, result["G_router"] = self._route_backward(operands)
        if "dXM" in operands or "dD" not in operands:
            of_x = of_x + self._sequence(operands, "dXM")[0]
        found, places, of_weight = self._norm_backward(operands, "A", of_x, "mlp_norms")
        result["G_mlp_norms"] = of_weight
        return {"dA": self._cut("dA", found + of_h, places), **result}

    # ---------------------------------------------------------------- attention

    def _heads(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Queries, keys and values of a share of the heads."""
        dim, wide = self.model.head_dim, self.model.head_dim + self.model.rope
        q, k = self.model.heads // self.shares.ff, self.model.kv_heads // self.shares.ff
        parts = x.split([q * wide, k * wide, k * dim], -1)
        return [t.unflatten(-1, (n, -1)) for t, n in zip(parts, (q, k, k), strict=True)]

    def _attention_weights(self, operands: dict[str, Cells], ff: int) -> list[torch.Tensor]:
        weights = self._weights(operands, "attention", ff=ff)
        found = [weights[name] for name in weights if name != "wo"]
        if self.model.head_norms:
            found += self._weights(operands, "head_norms").values()
        return found

    def _queries(self, positions: torch.Tensor) -> Callable[..., torch.Tensor]:
        dim = self.model.head_dim
        if self.model.kv_rank:
            return self._latent_queries(positions)

        def function(x: torch.Tensor, wq: torch.Tensor, wk: torch.Tensor, wv: torch.Tensor,
                     *norms: torch.Tensor) -> torch.Tensor:
            q, k, v = ((x @ w.T).unflatten(-1, (-1, dim)) for w in (wq, wk, wv))
            if norms:
                q, k = normed(q, norms[0]), normed(k, norms[1])
            q, k = rotated(q, positions), rotated(k, positions)
            return torch.cat([t.flatten(2) for t in (q, k, v)], -1)

        return function

    def _latent_queries(self, positions: torch.Tensor) -> Callable[..., torch.Tensor]:
        model = self.model
        wide = model.head_dim + model.rope

        def function(x: torch.Tensor, q_up: torch.Tensor, kv_up: torch.Tensor) -> torch.Tensor:
            of_q, of_kv, rope = x[..., :model.q_rank + model.kv_rank + model.rope].split(
                [model.q_rank, model.kv_rank, model.rope], -1)
            q = (of_q @ q_up.T).unflatten(-1, (-1, wide))
            k, v = (of_kv @ kv_up.T).unflatten(-1, (-1, 2 * model.head_dim)).chunk(2, -1)
            q, turned = q.split([model.head_dim, model.rope], -1)
            q = torch.cat([q, rotated(turned, positions)], -1)
            rope = rotated(rope[:, :, None], positions).expand(-1, -1, k.shape[2], -1)
            return torch.cat([t.flatten(2) for t in (q, torch.cat([k, rope], -1), v)], -1)

        return function

    def _compute_KA(self, operands: dict[str, Cells]) -> dict[str, Numbers]:
        x, places = self._sequence(operands, "XA")
        function = self._queries(self._positions("XA", places))
        found: Numbers = {}
        for at in self._of(operands, "W_attention").places("ff"):
            qkv = function(x, *self._attention_weights(operands, at["ff"]))
            found |= self._cut("KA", qkv, places, **at)
        return {"KA": found}

    def _compute_KV(self, operands: dict[str, Cells]) -> dict[str, Numbers]:
        found: Numbers = {}
        for at in self._of(operands, "KA").places("ff"):
            qkv, places = self._sequence(operands, "KA", **at)
            kv = torch.cat([t.flatten(2) for t in self._heads(qkv)[1:]], -1)
            key = places[0]["tok"] * self.sizes["key"] // self.sizes["tok"]
            found[self.key("KV", sample=places[0]["sample"], key=key, **at)] = kv.reshape(-1)
        return {"KV": found}

    def _core(self, seen: torch.Tensor) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
        """Numerators and denominators of softmax, of the queries [i, j] sees."""
        def function(q: torch.Tensor, k: torch.Tensor,
                     v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            weight = self._exponentials(q, k, seen)
            v = v.repeat_interleave(q.shape[2] // v.shape[2], 2)
            return torch.einsum("bhqk,bkhd->bqhd", weight, v), weight.sum(-1).transpose(1, 2)

        return function

    def _exponentials(self, q: torch.Tensor, k: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        k = k.repeat_interleave(q.shape[2] // k.shape[2], 2)
        score = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(q.shape[-1])
        return torch.where(seen, score.exp(), torch.zeros_like(score))

    def _attended(self, operands: dict[str, Cells], ff: int
                  ) -> tuple[list[torch.Tensor], torch.Tensor, list[dict[str, int]]]:
        """Queries, keys and values; which keys a query sees; the places of the queries."""
        qkv, places = self._sequence(operands, "KA", ff=ff)
        q, k, v = self._heads(qkv)
        positions = self._positions("KA", places)
        of_keys = positions
        if "KV" in operands:
            kv, keys = self._sequence(operands, "KV", ff=ff)
            heads = self.model.kv_heads // self.shares.ff
            k, v = (t.unflatten(-1, (heads, -1)) for t in kv.split(
                [heads * k.shape[-1], heads * v.shape[-1]], -1))
            of_keys = self._positions("KV", keys)
        else:
            assert len(places) == self.blocks, "attention reads neither all tokens nor other keys"
        return [q, k, v], of_keys[None, :] <= positions[:, None], places

    def _compute_AO(self, operands: dict[str, Cells]) -> dict[str, Numbers]:
        found: Numbers = {}
        for at in self._of(operands, "KA").places("ff"):
            qkv, seen, places = self._attended(operands, at["ff"])
            top, bottom = self._core(seen)(*qkv)
            if self.sums["AO"]:
                out = torch.cat([top.flatten(2), bottom], -1)
            else:
                out = (top / bottom[..., None]).flatten(2)
            found |= self._cut("AO", out, places, **at)
        return {"AO": found}

    def _output(self, operands: dict[str, Cells],
                ff: int) -> tuple[torch.Tensor, torch.Tensor, list[dict[str, int]]]:
        """The output of attention, and the denominators if it has them."""
        out, places = self._sequence(operands, "AO", ff=ff)
        if not self.sums["AO"]:
            return out, torch.empty(0), places
        heads = self.model.heads // self.shares.ff
        top, bottom = out.split([heads * self.model.head_dim, heads], -1)
        top = top.unflatten(-1, (heads, -1)) / bottom[..., None]
        return top.flatten(2), bottom, places

    def _compute_PA(self, operands: dict[str, Cells]) -> dict[str, Numbers]:
        total, places = None, []
        for at in self._of(operands, "W_attention").places("ff"):
            out, _, places = self._output(operands, at["ff"])
            part = out @ self._weights(operands, "attention", **at)["wo"].T
            total = part if total is None else total + part
        assert total is not None
        return {"PA": self._cut("PA", total, places)}

    def _compute_dAO(self, operands: dict[str, Cells]) -> dict[str, Numbers]:
        of_a, places = self._sequence(operands, "dA")
        found: Numbers = {}
        for at in self._of(operands, "W_attention").places("ff"):
            wo = self._weights(operands, "attention", **at)["wo"]
            found |= self._cut("dAO", of_a @ wo, places, **at)
        return {"dAO": found}

    def _compute_dKA(self, operands: dict[str, Cells]) -> dict[str, Numbers]:
        found: Numbers = {}
        of_keys: Numbers = {}
        for at in self._of(operands, "KA").places("ff"):
            qkv, seen, places = self._attended(operands, at["ff"])
            of_out, _ = self._sequence(operands, "dAO", **at)
            of_out = of_out.unflatten(-1, (-1, self.model.head_dim))
            if self.sums["dKA"]:
                of_q, of_k, of_v = self._ring_step(operands, at["ff"], qkv, seen, of_out)
            else:
                core = self._core(seen)

                def whole(*qkv: torch.Tensor,
                          core: Callable[..., tuple[torch.Tensor, torch.Tensor]] = core
                          ) -> torch.Tensor:
                    top, bottom = core(*qkv)
                    return top / bottom[..., None]

                of_q, of_k, of_v = gradients(whole, qkv, of_out)
            if "KV" in operands:
                of_kv = torch.cat([of_k.flatten(2), of_v.flatten(2)], -1)
                keys = self._sequence(operands, "KV", **at)[1]
                of_keys |= self._cut("dKV", of_kv, keys)
                _, k, v = self._heads(self._sequence(operands, "KA", **at)[0])
                of_k, of_v = torch.zeros_like(k), torch.zeros_like(v)
            of_qkv = torch.cat([t.flatten(2) for t in (of_q, of_k, of_v)], -1)
            found |= self._cut("dKA", of_qkv, places, **at)
        return {"dKA": found, "dKV": of_keys}

    def _ring_step(self, operands: dict[str, Cells], ff: int, qkv: list[torch.Tensor],
                   seen: torch.Tensor, of_out: torch.Tensor) -> list[torch.Tensor]:
        """The gradients by the queries, and by the keys and values that are here."""
        q, k, v = qkv
        out, bottom, _ = self._output(operands, ff)
        out = out.unflatten(-1, (-1, self.model.head_dim))
        share = self._exponentials(q, k, seen) / bottom.transpose(1, 2)[..., None]
        group = q.shape[2] // k.shape[2]
        wide = v.repeat_interleave(group, 2)
        inner = (of_out * out).sum(-1).transpose(1, 2)[..., None]
        of_score = share * (torch.einsum("bqhd,bkhd->bhqk", of_out, wide) - inner)
        of_score = of_score / math.sqrt(q.shape[-1])
        of_q = torch.einsum("bhqk,bkhd->bqhd", of_score, k.repeat_interleave(group, 2))
        of_k = torch.einsum("bhqk,bqhd->bkhd", of_score, q)
        of_v = torch.einsum("bhqk,bqhd->bkhd", share, of_out)
        return [of_q, *(t.unflatten(2, (-1, group)).sum(3) for t in (of_k, of_v))]

    def _compute_dKT(self, operands: dict[str, Cells]) -> dict[str, Numbers]:
        found: Numbers = {}
        for at in self._of(operands, "dKV").places("ff", "key"):
            of_kv, keys = self._sequence(operands, "dKV", **at)
            blocks = self.sizes["tok"] // self.sizes["key"]
            places = [{"sample": keys[0]["sample"], "tok": at["key"] * blocks + tok, "te": te}
                      for tok in range(blocks) for te in range(self.sizes.get("te", 1))]
            found |= self._cut("dKT", of_kv, places, ff=at["ff"])
        return {"dKT": found}

    def _compute_dXA(self, operands: dict[str, Cells]) -> dict[str, Numbers]:
        x, places = self._sequence(operands, "XA")
        of_a, _ = self._sequence(operands, "dA")
        function = self._queries(self._positions("XA", places))
        total = torch.zeros_like(x)
        of_attention: Numbers = {}
        of_norms: list[torch.Tensor] = []
        for at in self._of(operands, "W_attention").places("ff"):
            of_qkv, _ = self._sequence(operands, "dKA", **at)
            if "dKT" in operands:
                of_kv, _ = self._sequence(operands, "dKT", **at)
                of_qkv = of_qkv + F.pad(of_kv, (of_qkv.shape[-1] - of_kv.shape[-1], 0))
            of_x, *of_weights = gradients(function,
                                          [x, *self._attention_weights(operands, at["ff"])], of_qkv)
            out, _, _ = self._output(operands, at["ff"])
            wo = self._weights(operands, "attention", **at)["wo"]
            (of_wo,) = gradients(lambda w, out=out: out @ w.T, [wo], of_a)
            total = total + of_x
            count = 2 if self.model.kv_rank else 3
            parts = {str(k): part for k, part in enumerate([*of_weights[:count], of_wo])}
            of_attention |= self._sharded("G_attention", at, parts)
            if self.model.head_norms:
                of_norms = [a + b for a, b in
                            zip(of_norms or [0, 0], of_weights[count:], strict=True)]
        result = {"dXA": self._cut("dXA", total, places), "G_attention": of_attention}
        if self.model.head_norms:
            parts = dict(zip(("q_norm", "k_norm"), of_norms, strict=True))
            result["G_head_norms"] = self._sharded("G_head_norms", {}, parts)
        return result

    # ---------------------------------------------------------------- MLP

    @staticmethod
    def _up(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return torch.cat([x @ gate.T, x @ up.T], -1)

    @staticmethod
    def _down(kept: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
        gate, up = kept.chunk(2, -1)
        return (F.silu(gate) * up) @ down.T

    def _dense_group(self, operands: dict[str, Cells]) -> tuple[str, str, str]:
        """The MLP or the shared experts: weights, what is kept, the output."""
        return ("shared", "KS", "PS") if "W_shared" in operands else ("mlp", "KM", "PM")

    def _compute_KM(self, operands: dict[str, Cells]) -> dict[str, Numbers]:
        group, kept, _ = self._dense_group(operands)
        x, places = self._sequence(operands, "XM")
        found: Numbers = {}
        for at in self._of(operands, f"W_{group}").places("ff"):
            weights = self._weights(operands, group, **at)
            found |= self._cut(kept, self._up(x, weights["gate"], weights["up"]), places, **at)
        return {kept: found}

    def _compute_PM(self, operands: dict[str, Cells]) -> dict[str, Numbers]:
        group, kept, output = self._dense_group(operands)
        total, places = None, []
        for at in self._of(operands, f"W_{group}").places("ff"):
            x, places = self._sequence(operands, kept, **at)
            part = self._down(x, self._weights(operands, group, **at)["down"])
            total = part if total is None else total + part
        assert total is not None
        return {output: self._cut(output, total, places)}

    _compute_KS, _compute_PS = _compute_KM, _compute_PM

    def _compute_dXM(self, operands: dict[str, Cells]) -> dict[str, Numbers]:
        group, kept, _ = self._dense_group(operands)
        of_h, places = self._sequence(operands, "dH")
        x, _ = self._sequence(operands, "XM")
        total = torch.zeros_like(x)
        found: Numbers = {}
        for at in self._of(operands, f"W_{group}").places("ff"):
            weights = self._weights(operands, group, **at)
            products, _ = self._sequence(operands, kept, **at)
            of_products, of_down = gradients(self._down, [products, weights["down"]], of_h)
            of_x, of_gate, of_up = gradients(
                self._up, [x, weights["gate"], weights["up"]], of_products)
            total = total + of_x
            parts = {"gate": of_gate, "up": of_up, "down": of_down}
            found |= self._sharded(f"G_{group}", at, parts)
        return {"dXM": self._cut("dXM", total, places), f"G_{group}": found}

    # ---------------------------------------------------------------- halves of a backward

    # That of the weights is computed from what that of the inputs reads; so are both here.

    def _compute_G_attention(self, operands: dict[str, Cells]) -> dict[str, Numbers]:
        return self._compute_dXA(operands)

    def _compute_G_mlp(self, operands: dict[str, Cells]) -> dict[str, Numbers]:
        return self._compute_dXM(operands)

    _compute_G_shared = _compute_G_mlp

    def _compute_G_experts(self, operands: dict[str, Cells]) -> dict[str, Numbers]:
        return self._compute_dD(operands)

    def _compute_G_head(self, operands: dict[str, Cells]) -> dict[str, Numbers]:
        m = self._letter(operands, "Z")
        of_z, _ = self._sequence(operands, f"d{m}Z")
        x, _ = self._sequence(operands, f"{m}XF")
        of_words = torch.einsum("bto,bti->oi", of_z, x)
        group = "embedding" if self.model.tied else "head"
        at = {"voc": self._of(operands, f"d{m}Z").one("voc")}
        return {f"G_{group}": self._sharded(f"G_{group}", at, {"words": of_words})}

    # ---------------------------------------------------------------- experts

    def _router(self, operands: dict[str, Cells]) -> torch.Tensor:
        return torch.cat([self._weights(operands, "router", eg=eg)["router"]
                          for eg in range(self.shares.eg)])

    def _route(self, x: torch.Tensor, router: torch.Tensor) -> torch.Tensor:
        """The tokens for one group of experts after the other."""
        share, chosen = (x @ router.T).softmax(-1).topk(self.model.top_k)
        share = share / share.sum(-1, keepdim=True)
        weight = torch.zeros(*x.shape[:-1], len(router), dtype=x.dtype).scatter(-1, chosen, share)
        groups = [torch.cat([x, part], -1) for part in weight.chunk(self.shares.eg, -1)]
        return torch.stack(groups)

    def _compute_D(self, operands: dict[str, Cells]) -> dict[str, Numbers]:
        x, places = self._sequence(operands, "XM")
        found: Numbers = {}
        for group, tokens in enumerate(self._route(x, self._router(operands))):
            found |= self._cut("D", tokens, places, eg=group)
        return {"D": found}

    def _route_backward(self, operands: dict[str, Cells]) -> tuple[torch.Tensor, Numbers]:
        x, _ = self._sequence(operands, "XM")
        of_tokens = torch.stack([self._sequence(operands, "dD", eg=group)[0]
                                 for group in range(self.shares.eg)])
        of_x, of_router = gradients(self._route, [x, self._router(operands)], of_tokens)
        found: Numbers = {}
        for group, part in enumerate(of_router.chunk(self.shares.eg)):
            found |= self._sharded("G_router", {"eg": group}, {"router": part})
        return of_x, found

    def _expert_blocks(self, operands: dict[str, Cells], tensor: str
                       ) -> Iterator[tuple[dict[str, int], torch.Tensor]]:
        cells = self._of(operands, tensor)
        for key, numbers in cells.numbers.items():
            yield cells.at(key), numbers.view(self.sequences, self.tokens, -1)

    def _expert_parts(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor,
                                                           torch.Tensor, torch.Tensor]:
        """Hidden vectors, weights, and the products [.., expert, feature] of the rest."""
        hidden, experts = self.model.hidden, self.model.experts // self.shares.eg
        x, weight, rest = tokens.split(
            [hidden, experts, tokens.shape[-1] - hidden - experts], -1)
        return x, weight, *(t.unflatten(-1, (experts, -1)) for t in rest.chunk(2, -1))

    @staticmethod
    def _expert_up(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return torch.cat([torch.einsum("bth,efh->btef", x, w).flatten(2) for w in (gate, up)], -1)

    @staticmethod
    def _expert_down(weight: torch.Tensor, gate: torch.Tensor, up: torch.Tensor,
                     down: torch.Tensor) -> torch.Tensor:
        return torch.einsum("bte,btef,ehf->bth", weight, F.silu(gate) * up, down)

    def _compute_KX(self, operands: dict[str, Cells]) -> dict[str, Numbers]:
        weights = self._weights(operands, "experts")
        et = self._of(operands, "W_experts").one("et")
        found: Numbers = {}
        for at, tokens in self._expert_blocks(operands, "D"):
            x = tokens[..., :self.model.hidden]
            kept = torch.cat([tokens, self._expert_up(x, weights["gate"], weights["up"])], -1)
            found[self.key("KX", **at, et=et)] = kept.reshape(-1)
        return {"KX": found}

    def _compute_Y(self, operands: dict[str, Cells]) -> dict[str, Numbers]:
        down = self._weights(operands, "experts")["down"]
        found: Numbers = {}
        for at, kept in self._expert_blocks(operands, "KX"):
            _, weight, gate, up = self._expert_parts(kept)
            found[self.key("Y", **at)] = self._expert_down(weight, gate, up, down).reshape(-1)
        return {"Y": found}

    def _compute_dY(self, operands: dict[str, Cells]) -> dict[str, Numbers]:
        of_h, places = self._sequence(operands, "dH")
        found: Numbers = {}
        for group in range(self.shares.eg):
            found |= self._cut("dY", of_h, places, eg=group)
        return {"dY": found}

    def _compute_dD(self, operands: dict[str, Cells]) -> dict[str, Numbers]:
        weights = self._weights(operands, "experts")
        place = {name: self._of(operands, "W_experts").one(name) for name in ("eg", "et")}
        of_outputs = {self.key("dD", **at): t for at, t in self._expert_blocks(operands, "dY")}
        found: Numbers = {}
        total = {name: torch.zeros_like(w) for name, w in weights.items()}
        for at, kept in self._expert_blocks(operands, "KX"):
            x, weight, gate, up = self._expert_parts(kept)
            key = self.key("dD", **at)
            of_weight, of_gate, of_up, of_down = gradients(
                self._expert_down, [weight, gate, up, weights["down"]], of_outputs[key])
            of_kept = torch.cat([of_gate.flatten(2), of_up.flatten(2)], -1)
            of_x, of_gate, of_up = gradients(
                self._expert_up, [x, weights["gate"], weights["up"]], of_kept)
            found[key] = torch.cat([of_x, of_weight], -1).reshape(-1)
            for name, part in zip(("gate", "up", "down"), (of_gate, of_up, of_down), strict=True):
                total[name] += part
        return {"dD": found, "G_experts": self._sharded("G_experts", place, total)}
