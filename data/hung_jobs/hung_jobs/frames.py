"""The stacks of calls: program points of the training script, and torch's frames below them."""

SITE = "/usr/local/lib/python3.11/site-packages/torch/"

# Program points: file, function, line, caller. The lines of a job are shifted per file.
POINTS = {
    "main": ("train.py", "<module>", 241, None),
    "train": ("train.py", "train", 187, "main"),
    "step": ("train.py", "train_step", 131, "train"),
    "init.bcast": ("train.py", "broadcast_parameters", 62, "main"),
    "init.barrier": ("train.py", "setup", 48, "main"),
    "data": ("train.py", "train_step", 104, "train"),
    "data.bcast": ("data.py", "next_batch", 73, "data"),
    "data.extra": ("data.py", "refill", 95, "data.bcast"),
    "fwd": ("pipeline.py", "forward_step", 58, "step"),
    "bwd": ("pipeline.py", "backward_step", 83, "step"),
    "attn.ag": ("model.py", "gather_sequence", 112, "attn"),
    "attn.rs": ("model.py", "scatter_sequence", 127, "attn"),
    "attn": ("model.py", "attention", 203, "layer"),
    "mlp": ("model.py", "mlp", 231, "layer"),
    "mlp.ar": ("model.py", "row_parallel_linear", 149, "mlp"),
    "attn.ar": ("model.py", "row_parallel_linear", 149, "attn"),
    "mlp.ag": ("model.py", "gather_sequence", 112, "mlp"),
    "mlp.rs": ("model.py", "scatter_sequence", 127, "mlp"),
    "layer": ("model.py", "forward", 262, "fwd"),
    "head": ("model.py", "vocab_parallel_cross_entropy", 298, "fwd"),
    "cp.ring": ("model.py", "ring_attention_exchange", 176, "attn"),
    "cp.ag": ("model.py", "gather_kv", 168, "attn"),
    "ep.dispatch": ("moe.py", "dispatch", 44, "mlp"),
    "ep.combine": ("moe.py", "combine", 67, "mlp"),
    "fsdp.ag": ("fsdp_wrap.py", "unshard", 81, "layer"),
    "fsdp.rs": ("fsdp_wrap.py", "reduce_grad", 139, "autograd"),
    "fsdp.bag": ("fsdp_wrap.py", "unshard", 81, "autograd"),
    "autograd": (SITE + "autograd/function.py", "apply", 311, None),
    "b.attn": ("model.py", "backward", 155, "autograd"),
    "b.mlp": ("model.py", "backward", 134, "autograd"),
    "b.ep1": ("moe.py", "backward", 91, "autograd"),
    "b.ep2": ("moe.py", "backward", 97, "autograd"),
    "b.cp": ("model.py", "backward", 189, "autograd"),
    "pp.recv_f": ("pipeline.py", "recv_forward", 117, "pp"),
    "pp.send_f": ("pipeline.py", "send_forward", 129, "pp"),
    "pp.recv_b": ("pipeline.py", "recv_backward", 141, "pp"),
    "pp.send_b": ("pipeline.py", "send_backward", 153, "pp"),
    "pp.sfrb": ("pipeline.py", "send_forward_recv_backward", 168, "pp"),
    "pp.sbrf": ("pipeline.py", "send_backward_recv_forward", 184, "pp"),
    "pp": ("train.py", "train_step", 126, "train"),
    "grad.dp": ("optim.py", "reduce_gradients", 57, "grad"),
    "grad.rep": ("optim.py", "reduce_replicas", 71, "grad"),
    "grad.ep": ("optim.py", "reduce_expert_gradients", 64, "grad"),
    "grad.emb": ("optim.py", "reduce_embedding_gradients", 88, "grad"),
    "grad.norm": ("optim.py", "clip_grad_norm", 109, "grad"),
    "grad": ("train.py", "train_step", 139, "train"),
    "log.loss": ("train.py", "log_loss", 151, "train"),
    "ckpt.barrier": ("checkpoint.py", "save", 39, "ckpt"),
    "ckpt.gather": ("checkpoint.py", "gather_metadata", 28, "ckpt"),
    "ckpt": ("train.py", "train", 195, "main"),
    "ckpt.rank0": ("checkpoint.py", "save_on_rank_0", 52, "ckpt"),
    "eval.bcast": ("train.py", "evaluate", 172, "evalp"),
    "eval.reduce": ("train.py", "evaluate", 179, "evalp"),
    "evalp": ("train.py", "train", 201, "main"),
    "wrong.op": ("model.py", "gather_or_reduce", 219, "layer"),
    "wrong.group": ("model.py", "reduce_on_default_group", 224, "layer"),
    "exch.send": ("halo.py", "exchange", 33, "exch"),
    "exch.recv": ("halo.py", "exchange", 34, "exch"),
    "exch": ("train.py", "train_step", 112, "train"),
    "metrics.loss": ("metrics.py", "reduce_loss", 31, "step"),
    "metrics.tokens": ("metrics.py", "reduce_tokens", 44, "step"),
    "eval.group": ("eval.py", "reduce_metrics", 22, "evalp"),
}
# The frames inside torch.distributed, by what the entry records: function, file, line.
TORCH_CALLS = {
    "all_reduce": (("all_reduce", "distributed/distributed_c10d.py", 3010),),
    "all_reduce_barrier": (("barrier", "distributed/distributed_c10d.py", 4851),),
    "barrier": (("barrier", "distributed/distributed_c10d.py", 4851),),
    "broadcast": (("broadcast", "distributed/distributed_c10d.py", 2826),),
    "reduce": (("reduce", "distributed/distributed_c10d.py", 3144),),
    "_all_gather_base": (("all_gather_into_tensor", "distributed/distributed_c10d.py", 4022),),
    "_reduce_scatter_base": (("reduce_scatter_tensor", "distributed/distributed_c10d.py", 4598),),
    "all_gather": (("all_gather", "distributed/distributed_c10d.py", 3931),),
    "all_to_all": (("all_to_all_single", "distributed/distributed_c10d.py", 4701),),
    "send": (("isend", "distributed/distributed_c10d.py", 2551),),
    "recv": (("irecv", "distributed/distributed_c10d.py", 2590),),
    "bsend": (("isend", "distributed/distributed_c10d.py", 2551),
              ("batch_isend_irecv", "distributed/distributed_c10d.py", 2768)),
    "brecv": (("irecv", "distributed/distributed_c10d.py", 2590),
              ("batch_isend_irecv", "distributed/distributed_c10d.py", 2768)),
    "coalesced": (("_coalescing_manager", "distributed/distributed_c10d.py", 2700),
                  ("__exit__", "contextlib.py", 144),
                  ("batch_isend_irecv", "distributed/distributed_c10d.py", 2766)),
}
MODULE_CALL = (("_call_impl", "nn/modules/module.py", 1790),
               ("_wrapped_call_impl", "nn/modules/module.py", 1779))


class Frames:
    """Stacks of a job, innermost frame first.

    Equal frames are one dict, so that the pickle memoizes them. `prefix` is the folder of the
    training script; with `empty_reducer`, the gradient buckets have no frames.
    """

    def __init__(self, rng, empty_reducer, prefix):
        self.shift = {}
        self.rng, self.prefix, self.empty_reducer = rng, prefix, empty_reducer
        self.frame, self.stack = {}, {}
        for point, (file, _, _, _) in POINTS.items():
            if not file.startswith("/"):
                self.shift.setdefault(file, None)
        for file in sorted(self.shift):
            self.shift[file] = rng.randrange(0, 60)

    def one(self, name, file, line):
        """The frame with these values, always the same dict."""
        key = (name, file, line)
        if key not in self.frame:
            self.frame[key] = {"name": name, "filename": file, "line": line}
        return self.frame[key]

    def line(self, pt):
        """FILE.py:LINE of the innermost user frame, or None when the call has no user frame."""
        if pt is None or (self.empty_reducer and pt == "grad.dp"):
            return None
        file, _, line, _ = POINTS[pt]
        return f"{file}:{line + self.shift[file]}"

    def of(self, op, pt):
        """The stack of a call of `op` at program point `pt`."""
        key = (op, pt)
        found = self.stack.get(key)
        if found is not None:
            return found
        if pt is None or (self.empty_reducer and pt == "grad.dp"):
            # DDP's reducer runs in a C++ autograd thread without Python frames.
            self.stack[key] = []
            return self.stack[key]
        frames = []
        calls = TORCH_CALLS.get(op, ((op, "distributed/distributed_c10d.py", 2500),))
        for name, file, line in calls:
            frames.append(self.one(name, file if file == "contextlib.py" else SITE + file, line))
        if op not in ("bsend", "brecv", "coalesced"):
            frames.append(self.one("wrapper", SITE + "distributed/c10d_logger.py", 83))
        while pt:
            file, name, line, parent = POINTS[pt]
            if file.startswith("/"):
                frames.append(self.one(name, file, line))
            else:
                frames.append(self.one(name, self.prefix + file, line + self.shift[file]))
            if pt == "layer":
                frames += [self.one(n, SITE + f, l) for n, f, l in MODULE_CALL]
            pt = parent
        self.stack[key] = frames
        return frames
