# SPDX-License-Identifier: Apache-2.0
"""The peers that compare_peers.py runs. Each takes tensors of PyTorch, [batch, seqlen, heads, head_dim], and comes with
PyTorch or in a package that may not be here."""

import functools
import importlib
import importlib.metadata

SDPA = {"cudnn": "CUDNN_ATTENTION", "fa2": "FLASH_ATTENTION", "efficient": "EFFICIENT_ATTENTION"}  # the back ends of PyTorch
PACKAGES = {  # module, distribution
    "flash_attn": ("flash_attn", "flash-attn"),
    "fa3": ("flash_attn_interface", "flash-attn-3"),
    "fa4": ("flash_attn.cute", "flash-attn-4"),
}
PEERS = {
    "cudnn": "cuDNN",
    "fa2": "FlashAttention-2 of PyTorch",
    "flash_attn": "FlashAttention-2",
    "fa3": "FlashAttention-3",
    "fa4": "FlashAttention-4",
}
FLEX = "flex"
# Those of the grids gallery and scores. The package has all of FlashAttention-2, PyTorch what it compiles of it.
GALLERY_PEERS = {FLEX: "FlexAttention"}
RAGGED_PEERS = {"fa2": PEERS["fa2"]}
DECODE_PEERS = {name: PEERS[name] for name in ("cudnn", "fa2")}
BACKWARD_PEERS = E4M3_PEERS = DECODE_PEERS
LARGE_PEERS = {"efficient": "PyTorch's memory-efficient back end"}
ALL_BACKWARD_PEERS = {**BACKWARD_PEERS, **LARGE_PEERS}  # of whom the latter stand beside head dims above 256 alone
SCORE_PEERS = {**GALLERY_PEERS, **{name: PEERS[name] for name in ("cudnn", "fa2", "flash_attn")}}


def function(name):
    """flash_attn_func of a package. What a package that does not fit this machine raises is its own affair."""
    return importlib.import_module(PACKAGES[name][0]).flash_attn_func


def flex_module():
    """PyTorch's, from 2.5 on."""
    return importlib.import_module("torch.nn.attention.flex_attention")


def reason(error):
    """One line, which an error without words does not have itself."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def missing(name):
    """Why the peer cannot be run; None if it can."""
    try:
        name in SDPA or name == FLEX and flex_module() or function(name)
    except Exception as error:
        return reason(error)
    return None


def version(name):
    """Of the package that the peer is from; None when PyTorch has it or the package does not say."""
    try:
        return importlib.metadata.version(PACKAGES[name][1]) if name in PACKAGES else None
    except importlib.metadata.PackageNotFoundError:
        return None


def launcher(torch, name, q, k, v, causal, **options):
    """A function without arguments that enqueues one call and returns its output. options: of a package's function."""
    return (sdpa if name in SDPA else packaged)(torch, name, q, k, v, causal, **options)


def sdpa(torch, name, q, k, v, causal):
    back_end = getattr(torch.nn.attention.SDPBackend, SDPA[name])
    views = [tensor.transpose(1, 2) for tensor in (q, k, v)]  # the same memory as [batch, heads, seqlen, head_dim]
    grouped = {"enable_gqa": True} if q.shape[2] != k.shape[2] else {}
    attention = torch.nn.functional.scaled_dot_product_attention

    def launch():
        with torch.nn.attention.sdpa_kernel([back_end]):
            return attention(*views, is_causal=causal, **grouped).transpose(1, 2)

    return launch


def packaged(_, name, q, k, v, causal, **options):
    attention = function(name)
    # Unasked FlashAttention-3 does not split the keys of a head over several blocks; 0 lets it choose.
    split = {"num_splits": 0} if name == "fa3" and q.shape[1] == 1 else {}

    def launch():
        out = attention(q, k, v, causal=causal, **split, **options)
        return out[0] if isinstance(out, tuple) else out

    return launch


def fa2_operator(torch, q, k, v, window_size=(None, None), alibi_slopes=None):
    """FlashAttention-2 of PyTorch, causal, with what its operator takes and scaled_dot_product_attention does not."""
    attention = torch.ops.aten._flash_attention_forward
    options = {"window_size_left": window_size[0], "window_size_right": window_size[1], "alibi_slopes": alibi_slopes}

    def launch():
        return attention(q, k, v, None, None, q.shape[1], k.shape[1], 0.0, True, False, **options)[0]

    return launch


def fa2_backward(torch, dout, q, k, v, causal, window=None):
    """FlashAttention-2 of PyTorch: runs its forward and returns a function that enqueues its backward alone, by the operator
    that autograd calls, and returns (dq, dk, dv). window: keys before the query's own."""
    lengths = q.shape[1], k.shape[1]
    options = {} if window is None else {"window_size_left": window, "window_size_right": 0}
    out, lse, state, unused, _ = torch.ops.aten._flash_attention_forward(q, k, v, None, None, *lengths, 0.0, causal, False,
                                                                        **options)
    backward = torch.ops.aten._flash_attention_backward
    return lambda: backward(dout, q, k, v, out, lse, None, None, *lengths, 0.0, causal, state, unused, **options)


def cudnn_backward(torch, dout, q, k, v, causal):
    """cuDNN, likewise."""
    dout, q, k, v = (tensor.transpose(1, 2) for tensor in (dout, q, k, v))
    with_lse = True
    out, lse, *of_call, seed, offset, _ = torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, with_lse, 0.0,
                                                                                             causal, False)
    given = dout, q, k, v, out, lse, seed, offset, None, *of_call, 0.0, causal
    backward = torch.ops.aten._scaled_dot_product_cudnn_attention_backward
    return lambda: tuple(gradient.transpose(1, 2) for gradient in backward(*given))


def efficient_backward(torch, dout, q, k, v, causal):
    """PyTorch's memory-efficient back end, likewise."""
    dout, q, k, v = (tensor.transpose(1, 2) for tensor in (dout, q, k, v))
    with_lse, wanted = True, [True, True, True, False]
    out, lse, seed, offset = torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, None, with_lse, 0.0, causal)
    given = dout, q, k, v, None, out, lse, seed, offset, 0.0, wanted, causal
    backward = torch.ops.aten._scaled_dot_product_efficient_attention_backward
    return lambda: tuple(gradient.transpose(1, 2) for gradient in backward(*given)[:3])


BACKWARD = {"cudnn": cudnn_backward, "fa2": fa2_backward, "efficient": efficient_backward}


def deterministic(torch, launch):
    """The same, told by PyTorch's switch to give the same bits in every run. Memory that nobody has written yet stays as it
    is, which PyTorch would fill otherwise."""

    def launch_so():
        memory = torch.utils.deterministic
        before = torch.are_deterministic_algorithms_enabled(), memory.fill_uninitialized_memory
        memory.fill_uninitialized_memory = False
        torch.use_deterministic_algorithms(True)
        try:
            return launch()
        finally:
            torch.use_deterministic_algorithms(before[0])
            memory.fill_uninitialized_memory = before[1]

    return launch_so


def cudnn_masked(torch, q, k, v, bias):
    """cuDNN with a bias and a causal mask as PyTorch's function takes them: the mask as -infinity in the bias, which
    [seqlen, seqlen] is for all batch entries and heads."""
    back_end = torch.nn.attention.SDPBackend.CUDNN_ATTENTION
    views = [tensor.transpose(1, 2) for tensor in (q, k, v)]
    hidden = torch.ones_like(bias, dtype=torch.bool).triu(diagonal=1)
    masked = bias.masked_fill(hidden, float("-inf"))[None, None]
    attention = torch.nn.functional.scaled_dot_product_attention

    def launch():
        with torch.nn.attention.sdpa_kernel([back_end]):
            return attention(*views, attn_mask=masked).transpose(1, 2)

    return launch


def cudnn_biased(torch, q, k, v, bias):
    """cuDNN with a bias and a causal mask of its own, which PyTorch's function refuses and the operator under it takes:
    no block above the diagonal is computed."""
    views = [tensor.transpose(1, 2) for tensor in (q, k, v)]
    attention, as_tensor = torch.ops.aten._scaled_dot_product_cudnn_attention, bias[None, None]

    def launch():
        return attention(*views, as_tensor, False, is_causal=True)[0].transpose(1, 2)

    return launch


def flex(torch, q, k, v, score, mask, batch=None, heads=None, sinks=None):
    """FlexAttention with functions of a score and of a position, compiled for these sizes, with its block mask made
    beforehand; mask: None shows all keys. batch, heads: those that masks tell apart, None if all are alike. sinks: as
    users of FlexAttention have them, by the log-sum-exp."""
    module = flex_module()
    # Each cell is compiled for itself: what stays of others is tried first at every call, and there is a limit to it.
    torch.compiler.reset()
    views = [tensor.transpose(1, 2) for tensor in (q, k, v)]
    blocks = mask and flex_blocks(torch, mask, batch, heads, q.shape[1], k.shape[1], q.device)

    def with_sinks(q, k, v, block_mask, score_mod):
        out, lse = module.flex_attention(q, k, v, score_mod=score_mod, block_mask=block_mask, return_lse=True)
        return out * torch.sigmoid(lse - sinks[:, None])[..., None].to(out.dtype)

    attention = torch.compile(module.flex_attention if sinks is None else with_sinks, dynamic=False)

    def launch():
        return attention(*views, block_mask=blocks, score_mod=score).transpose(1, 2)

    return launch


def flex_blocks(torch, mask, batch, heads, seqlen_q, seqlen_kv, device):
    """The block mask of one call, made head by head: for all at once it holds every head's mask in memory, and compiling
    that away takes minutes at some lengths."""
    module = flex_module()
    make = functools.partial(module.create_block_mask, B=batch, H=None, Q_LEN=seqlen_q, KV_LEN=seqlen_kv, device=device)
    if not heads:
        return make(mask)
    made = [make(functools.partial(mask_of_head, mask, torch.tensor(head, device=device))) for head in range(heads)]
    parts = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")
    return module.BlockMask.from_kv_blocks(
        *(torch.cat([getattr(of_head, part) for of_head in made], dim=1) for part in parts),
        BLOCK_SIZE=made[0].BLOCK_SIZE, mask_mod=mask, seq_lengths=(seqlen_q, seqlen_kv))


def mask_of_head(mask, head, batch, _, query, key):
    return mask(batch, head, query, key)


def flex_block_mask(torch, mask, batch, seqlen, device):
    """A function that makes a block mask, by the compiled form of PyTorch's function."""
    make = torch.compile(flex_module().create_block_mask, dynamic=False)
    return lambda: make(mask, batch, None, seqlen, seqlen, device=device)
