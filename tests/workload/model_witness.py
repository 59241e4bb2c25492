#!/usr/bin/env python3
"""Counts the parameters of the models of data/models, in the modules that `transformers` builds.

    model_witness.py            compare with data/models/parameters.csv; exit 1 if a count differs
    model_witness.py --write    write data/models/parameters.csv

The modules are built on the device "meta", which has shapes and no memory. No shape is computed
here: every count is the numel() of a tensor that the model class allocated. Tied weights count
once. Needs torch and transformers >= 5.23 (for MtpModel), and exits with 77 without them. ctest
does not run this; its tests read the CSV."""

import argparse
import csv
import json
import re
import sys
from collections import Counter
from pathlib import Path

try:
    import torch
    import transformers
    from transformers.modeling_layers import MtpModel
except ImportError as error:
    print(f"model_witness: {error}")
    sys.exit(77)

MODELS = Path(__file__).resolve().parents[2] / "data/models"
TABLE = MODELS / "parameters.csv"

# The first match names the part of a parameter.
PARTS = [(part, re.compile(pattern)) for part, pattern in (
    ("embedding", r"\b(embed_tokens|embed_in|wte)\.weight$"),
    ("position_embedding", r"\bwpe\.weight$"),
    ("head", r"^lm_head\.weight$"),
    ("attention_norms", r"\.self_attn\.(q|k|q_a|kv_a)_(layer)?norm\.weight$"),
    ("norms", r"\b(\w*norm|ln_\w)\.(weight|bias)$"),
    ("attention", r"\.(self_attn|attention|attn)\."),
    ("router", r"\.mlp\.(gate|router)\.(weight|bias)$"),
    ("shared_experts", r"\.mlp\.shared_experts\."),
    ("experts", r"\.mlp\.experts\."),
    ("mlp", r"\.mlp\."),
)]
LAYER = re.compile(r"\.(?:h|layers)\.(\d+)\.")


def part_of(name):
    return next(part for part, pattern in PARTS if pattern.search(name))


def build(config):
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    (expected,) = config.architectures
    if type(model).__name__ != expected:
        sys.exit(f"{expected}: transformers built a {type(model).__name__}")
    return model


def mtp_parameters(model, modules):
    """Parameters of the modules of multi-token prediction, without those of the main model."""
    shared = {id(tensor) for tensor in model.parameters()}
    with torch.device("meta"):
        mtp = MtpModel(model, modules)
    return sum(tensor.numel() for tensor in mtp.parameters() if id(tensor) not in shared)


def count(config):
    """Parameters of each part, then the sums and subsets that SOURCES.md defines."""
    model = build(config)
    parts, layers, biases, idle = Counter(), Counter(), 0, 0
    for name, tensor in model.named_parameters():
        part, number = part_of(name), tensor.numel()
        parts[part] += number
        if layer := LAYER.search(name):
            layers[int(layer[1])] += number
        if name.endswith("bias"):
            biases += number
        if part == "experts":
            experts = tensor.shape[0]
            idle += number // experts * (experts - config.num_experts_per_tok)
    router_bias = sum(tensor.numel() for name, tensor in model.named_buffers()
                      if name.endswith("e_score_correction_bias"))
    modules = getattr(config, "num_nextn_predict_layers", 0)
    extra = {
        "total": parts.total(),
        "activated": parts.total() - idle,
        "first_layer": layers[0],
        "last_layer": layers[max(layers)],
        "biases": biases,
        "router_bias": router_bias,
        "mtp": mtp_parameters(model, modules) if modules else 0,
    }
    ordered = {part: parts[part] for part, _ in PARTS}
    return {name: number for name, number in (ordered | extra).items() if number}


def rows():
    for path in sorted(MODELS.glob("*.json")):
        config = transformers.AutoConfig.for_model(**json.loads(path.read_text()))
        for part, number in count(config).items():
            yield [path.stem, part, str(number), transformers.__version__]


def main():
    parser = argparse.ArgumentParser(description="counts parameters with transformers")
    parser.add_argument("--write", action="store_true", help="write parameters.csv")
    arguments = parser.parse_args()
    table = [["model", "part", "count", "transformers"], *rows()]
    if arguments.write:
        with TABLE.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(table)
        return
    with TABLE.open(newline="") as file:
        stored = list(csv.reader(file))
    counted, listed = ({tuple(row[:3]) for row in rows_of} for rows_of in (table, stored))
    for row in sorted(counted - listed):
        print(f"{' '.join(row)}: not in {TABLE.name}")
    for row in sorted(listed - counted):
        print(f"{' '.join(row)}: only in {TABLE.name}")
    print(f"{len(counted) - 1} counts, {len(counted ^ listed)} differ")
    sys.exit(counted != listed)


if __name__ == "__main__":
    main()
