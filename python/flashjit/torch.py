# SPDX-License-Identifier: Apache-2.0
"""FlashJIT for PyTorch 2.5 or later: operators that torch.compile keeps in its graph, and functions over them.

flashjit.attention takes tensors of PyTorch, too, and costs the host least. What is here is for graphs, gradients,
autocast, and for code that calls torch.nn.functional.scaled_dot_product_attention."""

import importlib
import warnings
import weakref
from typing import Any, Callable, Optional, Sequence, Union

import torch
import torch.nn.attention
from torch import Tensor
from torch.autograd import forward_ad

import flashjit
from flashjit import _tracing
from flashjit._arrays import OPTION_GRADIENTS
from flashjit._functions import to_function
from flashjit._words import in_words

__all__ = ["attention", "attention_backward", "attention_forward", "flex_attention", "scaled_dot_product_attention"]


# Functions travel through graphs as a text, the names of its captures, and these: the tensors first.
_FUNCTION = "str? {0}=None, str[]? {0}_captures=None, Tensor[]? {0}_tensors=None, Scalar[]? {0}_numbers=None"
# The options of both operators, with the types that a schema has for them.
_OPTIONS = (
    "bool causal=False, float? scale=None, SymInt[]? window=None, "
    "SymInt? chunk=None, float? softcap=None, Tensor? alibi_slopes=None, Tensor? sinks=None, Tensor? bias=None, "
    "Tensor? boolean_mask=None, Tensor? documents=None, Tensor? prefix=None, Tensor? tree=None, "
    "Tensor? query_offsets=None, Tensor? key_offsets=None, Tensor? block_mask=None, float? dropout=None, "
    "int? dropout_seed=None, int? dropout_offset=None, Tensor? dropout_state=None, Tensor? dropout_mask=None, "
    "Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_kv=None, Tensor? seqused_q=None, Tensor? seqused_kv=None, "
    "Tensor? leftpad_kv=None, Tensor? batch_indices_kv=None, Tensor? page_table=None, Tensor? k_scale=None, "
    "Tensor? v_scale=None, Tensor? q_scale=None, Tensor? k_rotary=None, SymInt? max_seqlen_q=None, "
    "SymInt? max_seqlen_kv=None, "
    "SymInt? fixed_split_size=None, str? accumulate=None, "
    f"{_FUNCTION.format('score')}, {_FUNCTION.format('mask')}"
)
_NAMES = tuple(option.partition("=")[0].rpartition(" ")[2] for option in _OPTIONS.split(", "))
# What forward only hands on to its backward comes last.
_FOR_BACKWARD = "bool deterministic=False"


@torch.library.custom_op(
    "flashjit::attention_forward",
    mutates_args=(),
    schema=f"(Tensor q, Tensor k, Tensor v, {_OPTIONS}, {_FOR_BACKWARD}) -> (Tensor out, Tensor lse)",
)
def attention_forward(q, k, v, *options, **named_options):
    """The operator: flashjit.attention with its log-sum-exp, (out, lse); of float64 flashjit.reference. deterministic is
    of its gradients."""
    if q.dtype == torch.float64:
        return _from_numpy(flashjit.reference(q, k, v, **_to_keywords(*_for_reference(options, named_options))), q)
    return flashjit.attention(q, k, v, lse=True, **_to_keywords(options, named_options))


@torch.library.custom_op(
    "flashjit::attention_backward",
    mutates_args=(),
    schema="(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, Tensor? dlse, bool[6] wanted, "
    "bool deterministic, "
    f"{_OPTIONS}) -> (Tensor dq, Tensor dk, Tensor dv, Tensor dbias, Tensor dslopes, Tensor dsinks)",
)
def attention_backward(dout, q, k, v, out, lse, dlse, wanted, deterministic, *options, **named_options):
    """The operator: flashjit.attention_backward, whose gradients are empty where they are not wanted; of float64
    flashjit.reference_backward."""
    if q.dtype == torch.float64:
        keywords = _to_keywords(*_for_reference(options, named_options))
        asked = {name: is_wanted for name, is_wanted in zip(OPTION_GRADIENTS, wanted[3:]) if is_wanted}
        gradients = _from_numpy(flashjit.reference_backward(dout, q, k, v, dlse=dlse, **asked, **keywords), q)
        given = {**dict(zip(_NAMES, options)), **named_options}
        of_options = (x.to(given[OPTION_GRADIENTS[name]].dtype) for name, x in zip(asked, gradients[3:]))
        of_rows = (gradient if is_wanted else None for gradient, is_wanted in zip(gradients, wanted[:3]))
        return _in_all_places((*of_rows, *of_options), wanted, q)
    gradients = flashjit.attention_backward(
        _as_rows(dout), q, k, v, out, lse, dlse=None if dlse is None else dlse.contiguous(), **_asked(wanted),
        deterministic=deterministic, **_to_keywords(options, named_options),
    )  # fmt: skip
    return _in_all_places(gradients, wanted, q)


def _asked(wanted):
    """As flashjit.attention_backward is told which gradients are wanted."""
    into = {name: None if is_wanted else False for name, is_wanted in zip(("dq", "dk", "dv"), wanted)}
    return {**into, **{name: True for name, is_wanted in zip(OPTION_GRADIENTS, wanted[3:]) if is_wanted}}


def _in_all_places(gradients, wanted, q: Tensor):
    """Of q, k and v all, and of options those that are wanted: empty where they are not."""
    of_options = iter(gradients[3:])
    every = (*gradients[:3], *(next(of_options) if is_wanted else None for is_wanted in wanted[3:]))
    return tuple(q.new_empty(0) if gradient is None else gradient for gradient in every)


def _from_numpy(arrays, like: Tensor):
    return tuple(torch.from_numpy(array).to(like.device) for array in arrays)


def _for_reference(options, named_options):
    """In host memory, and numbers of float64 in float32, which is what there is of slopes, sinks and biases."""

    def move(value):
        if isinstance(value, Tensor):
            return value.cpu().float() if value.dtype == torch.float64 else value.cpu()
        return [move(element) for element in value] if isinstance(value, (list, tuple)) else value

    return [move(value) for value in options], {name: move(value) for name, value in named_options.items()}


def _as_rows(tensor: Tensor) -> Tensor:
    """As kernels read them: autograd makes gradients of whatever strides, those of sum() are all 0, and anywhere."""
    *strides, of_elements = tensor.stride()
    if of_elements == 1 and all(stride % 8 == 0 for stride in strides) and tensor.data_ptr() % 16 == 0:
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


def _to_keywords(options, named_options):
    """Options of an operator as flashjit.attention takes them."""
    keywords = {**dict(zip(_NAMES, options)), **named_options}
    keywords.pop("deterministic", None)
    for name, kind in (("score", flashjit.Score), ("mask", flashjit.Mask)):
        parts = (keywords.pop(f"{name}_{part}", None) for part in ("captures", "tensors", "numbers"))
        keywords[name] = _to_function(kind, keywords.pop(name, None), *parts)
    return keywords


def _to_function(kind, text, captures, tensors, numbers):
    names, values = captures or (), (*(tensors or ()), *(numbers or ()))
    if len(names) != len(values):
        raise flashjit.InvalidArgument(f"captures: must be {len(values)} names, one of each value, were {len(names)}")
    return None if text is None else kind(text, **dict(zip(names, values)))


def _to_arguments(name: str, function: "Union[flashjit.Score, flashjit.Mask, None]") -> "dict[str, Any]":
    """Of the operator."""
    if function is None:
        return {}
    for capture, tensor in function.tensors:
        _require_tensor(f"{name}: capture {capture}", tensor, "a torch.Tensor, a float, an int or a bool")
    return {
        name: function.text,
        f"{name}_captures": [capture for capture, _ in (*function.tensors, *function.numbers)],
        f"{name}_tensors": [tensor for _, tensor in function.tensors],
        f"{name}_numbers": [number for _, number in function.numbers],
    }


def _require_tensor(name: str, value: "Any", must: str) -> None:
    """Before the operator, whose dispatcher would refuse it in its own words."""
    if not isinstance(value, Tensor):
        raise flashjit.InvalidArgument(f"{name}: must be {must}, was {type(value).__name__}")


def _require_one_device(q, k, v, options, named_options):
    """PyTorch asks for shapes alone where any tensor is on meta, and would give out memory that nobody wrote."""
    given = {"k": k, "v": v, **dict(zip(_NAMES, options)), **named_options}
    for name, value in given.items():
        for tensor in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(tensor, Tensor) and tensor.device != q.device:
                raise flashjit.InvalidArgument(f"{name}: must be on {q.device} like q, was on {tensor.device}")


def _require_no_tangent(name: str, tensor: Tensor) -> None:
    """Which an operator would drop."""
    if torch.compiler.is_compiling() or forward_ad._current_level < 0:
        return
    if forward_ad.unpack_dual(tensor).tangent is not None:
        raise flashjit.Unsupported(f"{name}: must have no tangent, as there is no forward-mode derivative")


@attention_forward.register_fake
def _shapes(q, k, v, *options, **named_options):
    _require_one_device(q, k, v, options, named_options)
    *batch, seqlen_q, heads_q, _ = q.shape  # packed sequences have no batch
    return (
        q.new_empty((*batch, seqlen_q, heads_q, v.shape[-1]), dtype=torch.bfloat16 if _is_of_8_bits(q) else q.dtype),
        q.new_empty(
            (*batch, heads_q, seqlen_q),
            dtype=torch.float32 if _is_of_8_bits(q) else torch.promote_types(q.dtype, torch.float32),
        ),
    )


@attention_backward.register_fake
def _shapes_of_gradients(dout, q, k, v, out, lse, dlse, wanted, deterministic, *options, **named_options):
    keywords = {**dict(zip(_NAMES, options)), **named_options}
    of_options = (keywords.get(option) for option in OPTION_GRADIENTS.values())
    return tuple(
        torch.empty_like(tensor, memory_format=torch.contiguous_format) if is_wanted else q.new_empty(0)
        for tensor, is_wanted in zip((q, k, v, *of_options), wanted)
    )


def _keep(ctx, inputs, output):
    """What a backward needs: tensors where autograd watches over them, in lists too, and what else there is."""
    tensors = []

    def put(value):
        if isinstance(value, Tensor):
            tensors.append(value)
            return _Place(len(tensors) - 1)
        return [put(element) for element in value] if isinstance(value, (list, tuple)) else value

    ctx.kept = [put(value) for value in (*output, *inputs)]
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors)


class _Place(int):
    """Of a tensor among those that are saved."""


def _backward(ctx, dout, dlse):
    saved = ctx.saved_tensors  # once, as checkpoints compute them again for it

    def take(value):
        if isinstance(value, _Place):
            return saved[value]
        return [take(element) for element in value] if isinstance(value, list) else value

    out, lse, q, k, v, *options = (take(value) for value in ctx.kept)
    keywords = dict(zip(_NAMES, options))
    is_asked = any(options[len(_NAMES) :])  # to be deterministic
    needed = dict(zip(_NAMES, ctx.needs_input_grad[3:]))
    _require_no_gradient(needed, keywords)
    options = {**keywords, "fixed_split_size": None}.values()  # by which no gradient differs
    wanted = [*ctx.needs_input_grad[:3], *(needed.get(option, False) for option in OPTION_GRADIENTS.values())]
    dout = torch.zeros_like(out) if dout is None else dout
    deterministic = is_asked or _is_deterministic(keywords if wanted[3] else {}, out)
    every = attention_backward(dout, q, k, v, out, lse, dlse, wanted, deterministic, *options)
    gradients = [gradient if is_wanted else None for gradient, is_wanted in zip(every, wanted)]
    of_options = dict(zip(OPTION_GRADIENTS.values(), gradients[3:]))
    others = ([None] * len(option) if _is_tensors(option) else of_options.get(name) for name, option in keywords.items())
    # Older versions of PyTorch leave out last arguments that are as by default, and want no gradients of them.
    return (*gradients[:3], *others, None)[: len(ctx.needs_input_grad)]


def _is_deterministic(options: "dict[str, Any]", out: Tensor) -> bool:
    """As PyTorch's switch says. options: with a bias whose gradient is wanted; where that is a sum in any order, the
    switch may have it that users are warned."""
    if not torch.are_deterministic_algorithms_enabled():
        return False
    bias, starts = options.get("bias"), options.get("cu_seqlens_q")
    if bias is None:
        return True
    # Rows of a bias are one, or those of the longest of packed sequences, which is no matter of shapes.
    batch, queries = (out.shape[0], out.shape[1]) if starts is None else (starts.shape[0] - 1, 2)
    is_shared = any(one < every for one, every in zip(bias.shape, (batch, out.shape[-2], queries)))
    if not is_shared or not torch.is_deterministic_algorithms_warn_only_enabled():
        return True
    warnings.warn("flashjit.torch.attention: the gradient of a bias that batch entries, heads or queries share is not "
                  "deterministic, nor is that of q beside it")
    return False


def _require_no_gradient(needed: "dict[str, Any]", options: "dict[str, Any]") -> None:
    must = "must not require a gradient, which there is for q, k, v, bias, alibi_slopes and sinks alone; pass"
    for name, needs in needed.items():
        if needs is True and name not in OPTION_GRADIENTS.values():
            raise flashjit.Unsupported(f"{name}: {must} {name}.detach()")
        if isinstance(needs, (list, tuple)) and any(needs):
            function = name.partition("_")[0]
            capture = options[f"{function}_captures"][list(needs).index(True)]
            raise flashjit.Unsupported(f"{function}: capture {capture}: {must} {capture}.detach()")


def _is_tensors(option: Any) -> bool:
    """A list that autograd wants a list of gradients for."""
    return isinstance(option, list) and all(isinstance(element, Tensor) for element in option)


def _backward_of_backward(ctx, *gradients):
    raise flashjit.Unsupported("flashjit::attention_backward has no gradients itself: it is differentiated only once")


attention_forward.register_autograd(_backward, setup_context=_keep)
attention_backward.register_autograd(_backward_of_backward)


class _Attention(torch.autograd.Function):
    """Both operators as a node of autograd's graph, for calls that nobody else watches."""

    @staticmethod
    def forward(ctx, names, options, deterministic, q, k, v, *tensors):
        """names: of options that are tensors; options: the others."""
        out, lse = flashjit.attention(q, k, v, lse=True, **options, **dict(zip(names, tensors)))
        ctx.names, ctx.options, ctx.deterministic = names, options, deterministic
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(out, lse, q, k, v, *tensors)
        return out, lse

    @staticmethod
    def backward(ctx, dout, dlse):
        out, lse, q, k, v, *tensors = ctx.saved_tensors
        options = {**ctx.options, **dict(zip(ctx.names, tensors)), "fixed_split_size": None}
        needed = dict(zip(("q", "k", "v", *ctx.names), ctx.needs_input_grad[3:]))
        wanted = [needed.get(name, False) for name in ("q", "k", "v", *OPTION_GRADIENTS.values())]
        dout = torch.zeros_like(out) if dout is None else dout
        dlse = None if dlse is None else dlse.contiguous()
        deterministic = ctx.deterministic or _is_deterministic(options if wanted[3] else {}, out)
        # Derivatives of these are for the operator to refuse, and graphs that only backward is in for it to stand in.
        if torch.is_grad_enabled() or not _is_unwatched(q, k, v, dout, *tensors):
            functions = {**_to_arguments("score", options.pop("score")), **_to_arguments("mask", options.pop("mask"))}
            gradients = attention_backward(dout, q, k, v, out, lse, dlse, wanted, deterministic, **options, **functions)
        else:
            into = _asked(wanted)
            of_call = flashjit.attention_backward(_as_rows(dout), q, k, v, out, lse, dlse=dlse,
                                                  deterministic=deterministic, **into, **options)
            gradients = _in_all_places(of_call, wanted, q)
        by_name = dict(zip(("q", "k", "v", *OPTION_GRADIENTS.values()), gradients))
        return None, None, None, *(by_name[name] if needed[name] else None for name in needed)


def _is_unwatched(*tensors: Tensor) -> bool:
    """Whether no graph but autograd's is recorded, and torch.func transforms nothing. Then the operators' dispatch,
    which costs the host more than the launches, can be left out."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or torch._C._len_torch_dispatch_stack() > 0:
        return False
    if torch._C._are_functorch_transforms_active():
        return False
    if tensors[0].dtype == torch.float64:  # which the operator gives to the reference
        return False
    return all(type(tensor) in (Tensor, torch.nn.Parameter) for tensor in tensors)


def _are_plain(q: Tensor, k: Tensor, v: Tensor, *indices: Optional[Tensor]) -> bool:
    """Whether flashjit.attention may have them as they are, which refuses rows that are not contiguous."""
    for index in indices:
        if index is not None and type(index) is not Tensor:
            return False
    return type(q) is type(k) is type(v) is Tensor and not torch.compiler.is_compiling()


def _is_unrecorded(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether nobody watches plain tensors: what _is_unwatched and others find out, for the host in a tenth of the
    time."""
    return (
        not (torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad))
        and not torch._C._is_any_autocast_enabled()
        and torch._C._len_torch_dispatch_stack() == 0
        and not torch._C._are_functorch_transforms_active()
        and not torch._C._is_tracing()
    )  # fmt: skip


def _wants_gradients(tensors: "Sequence[Tensor]") -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def _is_one_node(given: "Sequence[Tensor]", named: "dict[str, Tensor]") -> bool:
    """Whether autograd's own node will do: functions capture none of the given tensors, nothing wants a gradient that
    has none, and all is on one device, in memory. named: options among them."""
    has_captures = len(given) > 3 + len(named)
    wants_none = all(name in OPTION_GRADIENTS.values() or not tensor.requires_grad for name, tensor in named.items())
    device = given[0].device
    has_memory = device.type != "meta" and all(tensor.device == device for tensor in given)
    return not has_captures and wants_none and has_memory


def _is_of_8_bits(tensor: Tensor) -> bool:
    return tensor.dtype in (torch.float8_e4m3fn, torch.float8_e5m2)


def _as_autocast_wants(q: Tensor, k: Tensor, v: Tensor) -> "tuple[Tensor, Tensor, Tensor]":
    device = q.device.type
    # On meta there is no autocast to ask about, and PyTorch 2.5 cannot compile the question whether there is.
    if device == "meta" or not torch.is_autocast_enabled(device) or q.dtype == torch.float64:
        return q, k, v
    dtype = torch.get_autocast_dtype(device)
    # What is stored in 8 bits has scales of its own.
    q, k, v = (rows if _is_of_8_bits(rows) else rows.to(dtype) for rows in (q, k, v))
    return q, k, v


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    window: Optional[Sequence[int]] = None,
    chunk: Optional[int] = None,
    scale: Optional[float] = None,
    softcap: Optional[float] = 0.0,
    alibi_slopes: Optional[Tensor] = None,
    sinks: Optional[Tensor] = None,
    bias: Optional[Tensor] = None,
    boolean_mask: Optional[Tensor] = None,
    documents: Optional[Tensor] = None,
    prefix: Optional[Tensor] = None,
    tree: Optional[Tensor] = None,
    score: "Union[flashjit.Score, str, None]" = None,
    mask: "Union[flashjit.Mask, str, None]" = None,
    query_offsets: Optional[Tensor] = None,
    key_offsets: Optional[Tensor] = None,
    block_mask: Optional[Tensor] = None,
    dropout: Optional[float] = 0.0,
    dropout_seed: int = 0,
    dropout_offset: int = 0,
    dropout_state: Optional[Tensor] = None,
    dropout_mask: Optional[Tensor] = None,
    cu_seqlens_q: Optional[Tensor] = None,
    cu_seqlens_kv: Optional[Tensor] = None,
    seqused_q: Optional[Tensor] = None,
    seqused_kv: Optional[Tensor] = None,
    leftpad_kv: Optional[Tensor] = None,
    batch_indices_kv: Optional[Tensor] = None,
    page_table: Optional[Tensor] = None,
    k_scale: Optional[Tensor] = None,
    v_scale: Optional[Tensor] = None,
    q_scale: Optional[Tensor] = None,
    k_rotary: Optional[Tensor] = None,
    max_seqlen_q: Optional[int] = 0,
    max_seqlen_kv: Optional[int] = 0,
    fixed_split_size: Optional[int] = 0,
    accumulate: Optional[str] = "exact",
    deterministic: bool = False,
    lse: bool = False,
) -> "Union[Tensor, tuple[Tensor, Tensor]]":
    """flashjit.attention inside PyTorch: torch.compile keeps it in one graph, autocast applies to it, and q, k, v, bias,
    alibi_slopes and sinks get gradients, those of flashjit.attention_backward: head dims that it has no kernels for raise
    Unsupported at once, what else it has none for in the backward, and so does another option that requires a gradient.
    They are deterministic with deterministic, and where torch.use_deterministic_algorithms says so. Of float64 it is
    flashjit.reference, with its gradients, on the CPU: for torch.autograd.gradcheck; slopes, sinks and biases are rounded
    to float32 there.

    q is [batch, seqlen_q, heads_q, head_dim], k and v are [batch, seqlen_kv, heads_kv, ...]; returns
    [batch, seqlen_q, heads_q, head_dim_v]. With causal, query i sees the keys up to i + seqlen_kv - seqlen_q. With
    window, (left, right), it sees at most left keys before that one, that key itself, and at most right keys after it;
    -1 is all on that side. With chunk, it sees of each so many keys only those that this one is among. With softcap,
    scores become softcap * tanh(score / softcap). With alibi_slopes, float32 [heads_q] or [batch, heads_q], the score
    of key j loses slope * |i + seqlen_kv - seqlen_q - j| after that. With sinks, of the same shapes, the softmax of
    each row has one more score, that no key stands for. With cu_seqlens_q, int32 [batch + 1], q and what is returned
    are sequences one behind the other, [total, heads_q, ...]; likewise k and v with cu_seqlens_kv. With page_table,
    int32 [batch, entries], k and v are [pages, page_size, heads_kv, ...]. With lse, returns (out, lse), and what depends
    on either has gradients. The other options are those of
    flashjit.attention; a flashjit.Score or flashjit.Mask captures tensors of PyTorch. Seeds and offsets are from 0 to
    2**63 - 1 here, and do not come from PyTorch's generators: torch.randint gives a dropout_state that does. Raises
    what flashjit.attention raises.
    """
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        _require_tensor(name, tensor, "a torch.Tensor")
        _require_no_tangent(name, tensor)
    if isinstance(k_rotary, Tensor):
        k_rotary, _, _ = _as_autocast_wants(k_rotary, k, v)
    q, k, v = _as_autocast_wants(q, k, v)
    score, mask = to_function(flashjit.Score, score), to_function(flashjit.Mask, mask)
    tensors = {
        "alibi_slopes": alibi_slopes, "sinks": sinks, "bias": bias, "boolean_mask": boolean_mask,
        "documents": documents, "prefix": prefix, "tree": tree, "query_offsets": query_offsets,
        "key_offsets": key_offsets, "block_mask": block_mask, "dropout_state": dropout_state,
        "dropout_mask": dropout_mask, "cu_seqlens_q": cu_seqlens_q, "cu_seqlens_kv": cu_seqlens_kv,
        "seqused_q": seqused_q, "seqused_kv": seqused_kv, "leftpad_kv": leftpad_kv,
        "batch_indices_kv": batch_indices_kv, "page_table": page_table,
        "k_scale": k_scale, "v_scale": v_scale, "q_scale": q_scale, "k_rotary": k_rotary,
    }  # fmt: skip
    options = {
        "window": window, "chunk": chunk, "softcap": softcap, "dropout": dropout, "dropout_seed": dropout_seed,
        "dropout_offset": dropout_offset, "max_seqlen_q": max_seqlen_q, "max_seqlen_kv": max_seqlen_kv,
        "fixed_split_size": fixed_split_size, "accumulate": accumulate,
    }  # fmt: skip
    given = [tensor for tensor in tensors.values() if tensor is not None]
    for function in (score, mask):
        given += [] if function is None else [tensor for _, tensor in function.tensors]
    has_rotary = isinstance(k_rotary, Tensor) and q.dtype != torch.float64  # of which the reference makes gradients
    if has_rotary and _wants_gradients([tensor for tensor in (q, k, v, *given) if isinstance(tensor, Tensor)]):
        raise flashjit.Unsupported(
            "k_rotary: must not be given where a gradient is required, it has no backward kernels yet")
    if _is_unwatched(q, k, v, *given):
        every = {**options, "causal": causal, "scale": scale, "score": score, "mask": mask}
        if not _wants_gradients((q, k, v, *given)):
            return flashjit.attention(q, k, v, lse=lse, **every, **tensors)
        named = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        if _is_one_node((q, k, v, *given), named):
            both = _Attention.apply(tuple(named), every, deterministic, q, k, v, *named.values())
            return both if lse else both[0]
    for name, tensor in tensors.items():
        if tensor is not None:
            _require_tensor(name, tensor, "a torch.Tensor or None")
    functions = {**_to_arguments("score", score), **_to_arguments("mask", mask)}
    both = attention_forward(q, k, v, causal, scale, **options, **tensors, **functions, deterministic=deterministic)
    return both if lse else both[0]


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Optional[Tensor] = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Optional[float] = None,
    enable_gqa: bool = False,
) -> Tensor:
    """torch.nn.functional.scaled_dot_product_attention by FlashJIT, for what FlashJIT can do of it.

    query is [batch, heads_q, seqlen_q, head_dim], key and value are [batch, heads_kv, seqlen_kv, ...], in any strides
    with a contiguous last dimension; nothing is copied. Returns [batch, heads_q, seqlen_q, head_dim_v], which is a view
    of [batch, seqlen_q, heads_q, head_dim_v] memory. With is_causal, query i sees the keys up to i, as PyTorch has it.

    attn_mask is bool, False where a query does not see a key, or floating-point, added to scores; it is read where it
    is unless its last dimension has to be repeated.

    Raises InvalidArgument where PyTorch's function, too, would refuse, and Unsupported for dropout_p and a causal mask
    over fewer keys than queries. Messages of the library name query, key and value q, k and v, and give their shapes as
    [batch, seqlen, heads, head_dim]; attn_mask is boolean_mask or bias.
    """
    _check_ranks(query=query, key=key, value=value)
    if dropout_p != 0.0:
        raise flashjit.Unsupported(
            f"dropout_p: must be 0, was {dropout_p}; use torch.nn.functional.scaled_dot_product_attention"
        )
    if attn_mask is not None and is_causal:
        raise flashjit.InvalidArgument("attn_mask: must be None beside is_causal, was a tensor; put both into the mask")
    _check_heads(query, key, enable_gqa)
    if is_causal and query.shape[2] != key.shape[2]:
        key, value = _visible_keys(query, key, value)
    q, k, v = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
    if attn_mask is None and _are_plain(q, k, v) and _is_unrecorded(q, k, v) and q.dtype != torch.float64:
        return flashjit.attention(q, k, v, causal=is_causal, scale=scale).transpose(1, 2)  # as attention() would call it
    masks = {} if attn_mask is None else _as_mask_or_bias(attn_mask, key.shape[2])
    return attention(q, k, v, causal=is_causal, scale=scale, **masks).transpose(1, 2)


@torch.compiler.disable
@in_words({"q": "query", "k": "key", "v": "value", "mask": "block_mask", "score": "score_mod"})
def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: "Optional[Callable[..., Any]]" = None,
    block_mask: Any = None,
    scale: Optional[float] = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: "Optional[dict[str, Any]]" = None,
    *,
    return_aux: Any = None,
) -> "Union[Tensor, tuple[Tensor, Any]]":
    """torch.nn.attention.flex_attention.flex_attention by FlashJIT, without torch.compile.

    query is [batch, heads_q, seqlen_q, head_dim], key and value are [batch, heads_kv, seqlen_kv, ...]; returns a view of
    [batch, seqlen_q, heads_q, head_dim_v] memory, with return_lse or return_aux beside the log-sum-exp, as PyTorch has
    them. score_mod and the mask_mod of block_mask become texts (flashjit.Score, flashjit.Mask): they are called in each
    call with values that stand for scores and indices, and may compute, compare, choose by torch.where and index tensors
    with these, which get no gradients. A number that they capture is part of the text: another one is another kernel.
    kernel_options make no difference.

    Raises Unsupported, with the line of the function, where it does what no text can say.
    """
    _check_ranks(query=query, key=key, value=value)
    _check_heads(query, key, enable_gqa)
    if getattr(return_aux, "max_scores", False):
        raise flashjit.Unsupported("return_aux: max_scores must be False, as no kernel returns them, was True")
    q, k, v = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
    options = {} if block_mask is None else _as_blocks(block_mask, q, k)
    if score_mod is not None:
        options["score"] = score = _tracing.score_of(score_mod)
        for name, tensor in score.tensors:
            if torch.is_grad_enabled() and tensor.requires_grad:
                raise flashjit.Unsupported(
                    f"score: capture {name}: must not require a gradient, which there is for query, key and value alone; "
                    "detach() it"
                )
    wants_lse = return_lse or getattr(return_aux, "lse", False)
    out = attention(q, k, v, scale=scale, lse=wants_lse, **options)
    out, lse = out if wants_lse else (out, None)
    out = out.transpose(1, 2)
    if return_aux is not None:
        return out, _flex_attention().AuxOutput(lse=lse)
    return (out, lse) if return_lse else out


def _flex_attention() -> Any:
    """PyTorch's module, whose import takes long: only for who calls it."""
    return importlib.import_module("torch.nn.attention.flex_attention")


def _as_blocks(block_mask: Any, q: Tensor, k: Tensor) -> "dict[str, Any]":
    """mask, and which blocks it leaves, which is found out once for each block_mask."""
    mask_mod = getattr(block_mask, "mask_mod", None)
    if mask_mod is None:
        raise flashjit.InvalidArgument(
            f"block_mask: must be a BlockMask with a mask_mod, or None, was {block_mask!r:.100}"
        )
    if mask_mod is getattr(_flex_attention(), "noop_mask", None):
        return {}
    lengths = (q.shape[1], k.shape[1])
    of_mask = tuple(getattr(block_mask, "seq_lengths", lengths))
    if of_mask != lengths:
        raise flashjit.InvalidArgument(f"block_mask: must be for {lengths} queries and keys, was for {of_mask}")
    mask = _tracing.mask_of(mask_mod)
    if not _is_unwatched(q, k):
        return {"mask": mask}
    known = _BLOCKS.get(block_mask)
    made_of = (mask.text, q.device, *q.shape[:3], *k.shape[1:3])
    if known is None or known[0] != made_of:
        known = _BLOCKS[block_mask] = made_of, flashjit.block_mask(q.detach(), k.detach(), mask=mask)
    return {"mask": mask, "block_mask": known[1]}


# By BlockMask.
_BLOCKS: "weakref.WeakKeyDictionary[Any, Any]" = weakref.WeakKeyDictionary()


def _check_ranks(**tensors: Tensor) -> None:
    for name, tensor in tensors.items():
        if tensor.dim() != 4:
            raise flashjit.InvalidArgument(
                f"{name}: must be [batch, heads, seqlen, head_dim], had {tensor.dim()} dimensions; unsqueeze it"
            )


def _check_heads(query: Tensor, key: Tensor, enable_gqa: bool) -> None:
    if not enable_gqa and query.shape[1] != key.shape[1]:
        raise flashjit.InvalidArgument(
            f"key: must have {query.shape[1]} heads like query, had {key.shape[1]}; grouped heads take enable_gqa=True"
        )


def _as_mask_or_bias(attn_mask: Tensor, keys: int) -> "dict[str, Tensor]":
    """What PyTorch broadcasts to [batch, heads, queries, keys]."""
    if attn_mask.dim() > 4:
        raise flashjit.InvalidArgument(f"attn_mask: must have at most 4 dimensions, had {attn_mask.dim()}")
    mask = attn_mask[(None,) * (4 - attn_mask.dim())]
    if mask.shape[3] == 1 and keys != 1:
        mask = mask.expand(*mask.shape[:3], keys)
    if mask.shape[3] > 1 and mask.stride(3) != 1:
        mask = mask.contiguous()
    return {"boolean_mask" if mask.dtype == torch.bool else "bias": mask}


def _visible_keys(query: Tensor, key: Tensor, value: Tensor) -> "tuple[Tensor, Tensor]":
    """PyTorch aligns its causal mask top-left: no query sees the keys beyond as many as there are queries. Without
    them the mask is the one that FlashJIT aligns bottom-right."""
    queries, keys = query.shape[2], key.shape[2]
    if queries > keys:
        raise flashjit.Unsupported(
            f"is_causal: must be False where there are more queries ({queries}) than keys ({keys}); "
            "use torch.nn.functional.scaled_dot_product_attention"
        )
    return key[:, :, :queries], value[:, :, :queries]


def _activate() -> Any:
    from flashjit import _torch_registry

    return _torch_registry.activate()


# From 2.13 on PyTorch has a registry of implementations of FlashAttention, of which users choose one.
if hasattr(torch.nn.attention, "register_flash_attention_impl"):
    torch.nn.attention.register_flash_attention_impl("flashjit", register_fn=_activate)
