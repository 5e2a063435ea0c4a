#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a random model like Llama or Gemma by flashjit's attention and by PyTorch's, from the same weights on the same
text, and compares the curves: of the loss, and of the norms of all gradients and of those of the projections to queries,
keys and values; then the tokens per second. Needs PyTorch and the package flashjit. Exit status 1 if flashjit's curves are
not those of PyTorch's peers: of SDPA, which takes windows as masks, or with capped scores (--softcap) of FlexAttention and
of plain operations.

The models are in training_models.py; bf16 autocast over f32 weights, AdamW, warm-up, clipped gradients. Each sequence of
the text is of a language of its own: a few letters of the vocabulary, each with two successors. To whoever sees one token
alone all others are equally likely behind it, and no loss is below log(vocabulary - 1): what is learned beyond is learned
through attention.

Noise is what rounding does. Each peer trains from the weights and from weights that are moved by up to half a unit in the
last place of bf16, to which autocast rounds them anyway. Peers alone are too few: two or three runs may be near each other
by chance. Curves are medians of spans of steps: in some runs of every side a few steps have norms ten times as large, by
chance, which would be most of a mean. In each span flashjit's curve may be 3 times as far from the mean of
theirs as one of these was from the mean of the others, in that span or before it; and noise counts as no less than what
bf16 makes of the first span, beside f32. So early spans, where the runs have not drifted apart, are judged by little
noise. That the criterion can fail is shown by flashjit with a wrong gradient (--wrong), which it must refuse: AdamW hides
most of what scales a gradient from the loss, but not from the norms. What another seed of weights and text does is shown
beside.

Tokens per second are of longer steps, in which the GPU is slower than the host; the sides take turns."""

import argparse
import collections
import contextlib
import copy
import functools
import json
import math
import pathlib
import random
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from training_models import GEMMA, LLAMA, SIZES, Decoder

OURS, OTHER_SEED = "flashjit", "other seed"
PROJECTIONS = ("query", "key", "value")
CURVES = ("loss", "gradients", *PROJECTIONS)  # but for the loss they are norms, which are compared relatively
LIMIT = 3.0  # times the noise; tiny models of 14 seeds had 1.7 at most, and 10 at least where dk was 0.9 of itself
LEAST_LEARNED = 0.5  # nats below what can be had without attention, or curves would say nothing about attention
HALF_UNIT = 2.0**-9  # of bf16, at least of the number itself
NUMBERS = {"steps": 300, "span": 20, "starts": 3, "batch": 8, "seqlen": 1024, "vocabulary": 64, "letters": 4, "seed": 0,
           "timed-batch": 48, "timed-steps": 8, "rounds": 4}
WARM_UP = 2  # steps before those that are timed
WRONG = {"dq": 0.0, "dk": 0.9, "dv": 0.9}  # what --wrong multiplies a gradient by


def make_model(arguments, seed):
    torch.manual_seed(seed)
    return Decoder(arguments).to(arguments.device)


def moved(model):
    """A copy with other weights, which bf16 hardly tells from these."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 1 + HALF_UNIT * (2 * torch.rand_like(parameter) - 1)
    return model


def make_text(arguments, seed):
    """[steps, batch, seqlen + 1]. A language has its letters in a circle: behind one is the next, or the one after."""
    generator = torch.Generator().manual_seed(seed)
    count, letters = arguments.steps * arguments.batch, arguments.letters
    alphabets = torch.rand(count, arguments.vocabulary, generator=generator).topk(letters, dim=1).indices
    strides = torch.randint(1, 3, (count, arguments.seqlen + 1), generator=generator)
    tokens = alphabets.gather(1, strides.cumsum(1) % letters)
    return tokens.unflatten(0, (arguments.steps, arguments.batch)).to(arguments.device)


def without_attention(arguments):
    """The least loss."""
    return math.log(arguments.vocabulary - 1)


# --- Attention: functions of q, k and v, [batch, seqlen, heads, head_dim], and of a window ----------------------------


@functools.lru_cache(maxsize=None)
def seen(seqlen, window, device):
    """[query, key]: whether the query sees the key."""
    behind = torch.arange(seqlen, device=device)[:, None] - torch.arange(seqlen, device=device)
    return (behind >= 0) & (behind < (window or seqlen))


def with_all_heads(q, k, v):
    return q, *(rows.repeat_interleave(q.shape[2] // rows.shape[2], dim=2) for rows in (k, v))


def by_sdpa(back_end, grouped):
    """grouped: whether the back end takes fewer heads of keys; to others each is given as often as it is used."""

    def attend(q, k, v, window):
        views = [rows.transpose(1, 2) for rows in ((q, k, v) if grouped else with_all_heads(q, k, v))]
        mask = {"attn_mask": seen(q.shape[1], window, q.device)} if window else {"is_causal": True}
        with sdpa_kernel([back_end]):
            out = functional.scaled_dot_product_attention(*views, **mask, enable_gqa=grouped)
        return out.transpose(1, 2)

    return attend


def by_operations(cap):
    """Plain operations of PyTorch, of scores in float32, as kernels have them."""

    def attend(q, k, v, window):
        q, k, v = (rows.transpose(1, 2) for rows in with_all_heads(q, k, v))
        with torch.autocast(q.device.type, enabled=False):
            exact = torch.promote_types(q.dtype, torch.float32)
            scores = cap * torch.tanh(q.to(exact) @ k.to(exact).transpose(2, 3) * (q.shape[3]**-0.5 / cap))
            weights = scores.masked_fill(~seen(q.shape[2], window, q.device), -math.inf).softmax(3)
            return (weights.type_as(v) @ v).transpose(1, 2)

    return attend


def by_flex_attention(cap):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    compiled = torch.compile(flex_attention, dynamic=False)  # kernels of the sizes at hand, as others have them

    def capped(score, batch, head, query, key):
        return cap * torch.tanh(score / cap)

    @functools.lru_cache(maxsize=None)
    def block_mask(seqlen, window, device):
        def is_seen(batch, head, query, key):
            return (query >= key) & (query - key < (window or seqlen))

        return create_block_mask(is_seen, None, None, seqlen, seqlen, device=device)

    def attend(q, k, v, window):
        views = [rows.transpose(1, 2) for rows in (q, k, v)]
        mask = block_mask(q.shape[1], window, str(q.device))
        return compiled(*views, score_mod=capped, block_mask=mask, enable_gqa=True).transpose(1, 2)

    return attend


def by_flashjit(cap):
    """On a CPU by the reference in float64, which is what the operator has there."""
    import flashjit.torch

    def attend(q, k, v, window):
        options = {"causal": True, "window": (window - 1, 0) if window else None, "softcap": cap}
        if q.device.type == "cpu":
            return flashjit.torch.attention(q.double(), k.double(), v.double(), **options).type_as(q)
        return flashjit.torch.attention(q, k, v, **options)

    return attend


def with_wrong(gradient, right):
    """right: the attend that is right but for this gradient."""

    def attend(q, k, v, window):
        rows = dict(zip(("dq", "dk", "dv"), (q, k, v)))[gradient]
        if rows.requires_grad:
            rows.register_hook(lambda value: WRONG[gradient] * value)
        return right(q, k, v, window)

    return attend


def candidates(arguments):
    """name -> attend, of the peers that may do it: the usual one first, last one that can do f32."""
    if arguments.softcap:
        return {"flex": by_flex_attention(arguments.softcap), "operations": by_operations(arguments.softcap)}
    if arguments.device == "cpu":
        back_ends = {"flash": (SDPBackend.FLASH_ATTENTION, False), "math": (SDPBackend.MATH, False)}
    else:
        back_ends = {"flash": (SDPBackend.FLASH_ATTENTION, True), "cudnn": (SDPBackend.CUDNN_ATTENTION, True),
                     "efficient": (SDPBackend.EFFICIENT_ATTENTION, False)}
    return {f"sdpa {name}": by_sdpa(*back_end) for name, back_end in back_ends.items()}


def find_peers(arguments):
    """Of the candidates those that can do it here."""
    found = {}
    for name, attend in candidates(arguments).items():
        shapes = [(arguments.batch, arguments.seqlen, heads, arguments.head_dim)
                  for heads in (arguments.heads, arguments.heads_kv)]
        given = {"dtype": torch.bfloat16, "device": arguments.device, "requires_grad": True}
        q, k = (torch.ones(shape, **given) for shape in shapes)
        try:
            attend(q, k, k, arguments.window).sum().backward()
            found[name] = attend
        except RuntimeError as error:
            print(f"{name}: left out: {str(error).splitlines()[0]}", file=sys.stderr)
    if len(found) < 2:
        raise RuntimeError("noise takes at least two peers")
    return found


# --- Training ----------------------------------------------------------------------------------------------------------


def differentiate(model, tokens, autocast):
    """One value of each curve. Leaves clipped gradients."""
    device = tokens.device.type
    with torch.autocast(device, torch.bfloat16) if autocast else contextlib.nullcontext():
        logits = model(tokens[:, :-1])
    loss = functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
    model.zero_grad()
    loss.backward()
    norms = [torch.stack([getattr(layer.attention, name).weight.grad.norm() for layer in model.layers]).norm()
             for name in PROJECTIONS]
    return torch.stack((loss.detach(), nn.utils.clip_grad_norm_(model.parameters(), 1.0), *norms))


def rate_of(arguments, step):
    """Of learning: linear to the peak in a tenth of the steps, then a half cosine."""
    warm_up = max(1, arguments.steps // 10)
    if step < warm_up:
        return arguments.learning_rate * (step + 1) / warm_up
    return arguments.learning_rate * (1 + math.cos(math.pi * (step - warm_up) / (arguments.steps - warm_up))) / 2


def seconds(device):
    """The time when the device has done what was queued."""
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter()


def make_optimizer(model):
    return torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.1, fused=True)


def train(model, text, arguments, autocast=True):
    """The curves, [spans, CURVES]. The host waits for no step."""
    optimizer = make_optimizer(model)
    curves = torch.empty(len(text), len(CURVES), device=arguments.device)
    for step, tokens in enumerate(text):
        for group in optimizer.param_groups:
            group["lr"] = rate_of(arguments, step)
        curves[step] = differentiate(model, tokens, autocast)
        optimizer.step()
    return medians_of_spans(curves.double().cpu(), arguments.span)


class Stopwatch:
    """Steps of one model, longer ones than those of the curves."""

    def __init__(self, model, arguments):
        self.model, self.steps = copy.deepcopy(model), arguments.timed_steps
        self.optimizer = make_optimizer(self.model)
        shape = (arguments.timed_batch, arguments.seqlen + 1)
        self.tokens = torch.randint(arguments.vocabulary, shape, device=arguments.device)

    def tokens_per_second(self, attend):
        self.model.attend = attend
        self.run(WARM_UP)  # kernels are made, allocators fill, and the clocks are those of this side
        began = seconds(self.tokens.device.type)
        self.run(self.steps)
        ended = seconds(self.tokens.device.type)
        return self.steps * self.tokens[:, 1:].numel() / (ended - began)

    def run(self, steps):
        for _ in range(steps):
            differentiate(self.model, self.tokens, autocast=True)
            self.optimizer.step()


def medians_of_spans(curves, span):
    """Medians of so many steps each; [spans, CURVES]."""
    return curves.unflatten(0, (-1, span)).quantile(0.5, dim=1)


def distances(curves, expected):
    """Of the loss in nats, of norms as shares."""
    scale = expected.clone()
    scale[..., 0] = 1
    return (curves - expected).abs() / scale


def noise_of(theirs, floor):
    """[spans, CURVES]: the largest distance of one of the peers' runs from the mean of the others, until then."""
    of_each = [distances(curves, torch.stack(theirs[:i] + theirs[i + 1:]).mean(0)) for i, curves in enumerate(theirs)]
    return torch.stack(of_each).amax(0).cummax(0).values.maximum(floor)


Judgement = collections.namedtuple("Judgement", ("times_noise", "span", "distance", "noise"))


def judge(curves, theirs, floor):
    """curve -> the Judgement of its worst span: distance over noise, and these, there."""
    far, noise = distances(curves, torch.stack(theirs).mean(0)), noise_of(theirs, floor)
    worst = (far / noise).max(0)  # NaN is larger than any number
    return {name: Judgement(worst.values[i].item(), worst.indices[i].item(), far[worst.indices[i], i].item(),
                            noise[worst.indices[i], i].item()) for i, name in enumerate(CURVES)}


def is_within_noise(judgements):
    """Written so that NaN fails."""
    return all(judgement.times_noise <= LIMIT for judgement in judgements.values())


class Comparison:
    """Trains all sides, and tells and keeps what each gave."""

    def __init__(self, arguments):
        self.arguments = arguments
        self.model, self.text = make_model(arguments, arguments.seed), make_text(arguments, arguments.seed)
        self.curves, self.rates, self.judgements = {}, {}, {}
        self.peers, self.ours = find_peers(arguments), by_flashjit(arguments.softcap)
        self.usual = f"{next(iter(self.peers))} 1"
        self.floor = None

    def parameters(self):
        return sum(parameter.numel() for parameter in self.model.parameters())

    def run(self, side, attend, model=None, text=None):
        model, text = copy.deepcopy(self.model) if model is None else model, self.text if text is None else text
        model.attend = attend
        self.curves[side] = train(model, text, self.arguments)
        print(f"{side}: loss at the end {self.curves[side][-1, 0]:.4f}", flush=True)

    def run_peers(self):
        """All whose differences are noise; returns their curves."""
        torch.manual_seed(self.arguments.seed)
        for start in range(self.arguments.starts):
            for side, attend in self.peers.items():
                self.run(f"{side} {start + 1}", attend, moved(self.model) if start > 0 else None)
        return list(self.curves.values())

    def rounding(self):
        """The distance, of each curve, of bf16 from f32 in the first span."""
        model = copy.deepcopy(self.model)
        model.attend = list(self.peers.values())[-1]  # which has f32, too
        exact = train(model, self.text[: self.arguments.span], self.arguments, autocast=False)
        return distances(self.curves[self.usual][0], exact[0])

    def run_all(self):
        theirs = self.run_peers()
        self.floor = self.rounding()
        seed = self.arguments.seed + 1
        attend = next(iter(self.peers.values()))
        self.run(OTHER_SEED, attend, make_model(self.arguments, seed), make_text(self.arguments, seed))
        self.run(OURS, self.ours)
        for gradient in self.arguments.wrong:
            self.run(f"wrong {gradient}", with_wrong(gradient, self.ours))
        self.judgements = {side: judge(curves, theirs, self.floor)
                           for side, curves in list(self.curves.items())[len(theirs):]}

    def time_all(self):
        """Tokens per second of each side in each round. They take turns, in an order drawn for each round, so that none is
        always behind the one that leaves the GPU the coolest."""
        draw = random.Random(self.arguments.seed)
        stopwatch, sides = Stopwatch(self.model, self.arguments), [*self.peers.items(), (OURS, self.ours)]
        self.rates = {side: [] for side, _ in sides}
        for _ in range(self.arguments.rounds):
            for side, attend in draw.sample(sides, len(sides)):
                self.rates[side].append(stopwatch.tokens_per_second(attend))

    def failures(self):
        learned = without_attention(self.arguments) - self.curves[self.usual][-1, 0].item()
        failures = []
        if not learned >= LEAST_LEARNED:
            failures.append(f"{self.usual} learned {learned:.3f} nats, less than {LEAST_LEARNED}")
        if not is_within_noise(self.judgements[OURS]):
            failures.append("flashjit's curves are not those of its peers")
        for gradient in self.arguments.wrong:
            if is_within_noise(self.judgements[f"wrong {gradient}"]):
                failures.append(f"a wrong {gradient} was not found")
        return failures

    def record(self):
        """What all parts have in common."""
        import flashjit

        sizes = ("like", "softcap", *(name.replace("-", "_") for name in (*SIZES[LLAMA], *NUMBERS)), "learning_rate")
        return {
            "device": "cpu" if self.arguments.device == "cpu" else torch.cuda.get_device_name(0),
            "torch": torch.__version__, "version": flashjit.__version__, "parameters": self.parameters(),
            "sizes": {name: getattr(self.arguments, name) for name in sizes},
        }  # fmt: skip

    def record_of_curves(self):
        rounded = {side: curves.T.tolist() for side, curves in self.curves.items()}
        return {
            "without_attention": without_attention(self.arguments),
            "limit": LIMIT, "rounding": dict(zip(CURVES, self.floor.tolist())),
            "final_loss": {side: curves[-1, 0].item() for side, curves in self.curves.items()},
            "judgements": {side: {curve: judgement._asdict() for curve, judgement in judgements.items()}
                           for side, judgements in self.judgements.items()},
            "curves": {side: {curve: [float(f"{value:.6g}") for value in values] for curve, values in zip(CURVES, rows)}
                       for side, rows in rounded.items()},
            "failures": self.failures(),
        }  # fmt: skip

    def record_of_rates(self):
        medians = {side: statistics.median(rates) for side, rates in self.rates.items()}
        return {"tokens_per_second": {side: {"median": round(medians[side]), "least": round(min(rates)),
                                             "most": round(max(rates))} for side, rates in self.rates.items()},
                "over": {side: round(medians[OURS] / medians[side], 3) for side in self.peers}}


def print_curves(comparison):
    """The loss of each side, span by span."""
    sides = list(comparison.curves)
    print("loss, steps".ljust(14) + "".join(f"{side:>18}" for side in sides))
    span = comparison.arguments.span
    for i, losses in enumerate(zip(*(comparison.curves[side][:, 0].tolist() for side in sides))):
        print(f"{i * span + 1} to {(i + 1) * span}".ljust(14) + "".join(f"{loss:18.4f}" for loss in losses))


def print_judgements(comparison):
    span = comparison.arguments.span
    print(f"criterion: in each span a curve is at most {LIMIT:g} times the noise from the mean of its peers'; the worst:")
    for side, judgements in comparison.judgements.items():
        for curve, worst in judgements.items():
            print(f"{side:12} {curve:10} {worst.distance:9.2e} from the mean, noise {worst.noise:9.2e}: "
                  f"{worst.times_noise:8.2f} times, steps {worst.span * span + 1} to {(worst.span + 1) * span}")
    print("; ".join(comparison.failures()) or "flashjit's curves are those of its peers within noise", flush=True)


def print_rates(comparison):
    arguments = comparison.arguments
    print(f"tokens per second, {arguments.timed_batch} sequences of {arguments.seqlen} a step: "
          + ", ".join(f"{side} {statistics.median(rates):.0f} ({min(rates):.0f} to {max(rates):.0f})"
                      for side, rates in comparison.rates.items()), flush=True)


def check(arguments, fail):
    """fail: a function of a message that does not return."""
    def require(name, holds, must):
        if not holds:
            fail(f"--{name}: must be {must}, was {getattr(arguments, name.replace('-', '_'))}")

    for name in (*SIZES[LLAMA], *NUMBERS):
        least = {"window": 0, "seed": 0, "seqlen": 2}.get(name, 1)
        require(name, getattr(arguments, name.replace("-", "_")) >= least, f"at least {least}")
    require("heads", arguments.heads % arguments.heads_kv == 0, f"a multiple of --heads-kv, which is {arguments.heads_kv}")
    require("head-dim", arguments.head_dim % 2 == 0, "even")
    require("span", arguments.steps % arguments.span == 0, f"a divisor of the steps, which are {arguments.steps}")
    require("letters", 3 <= arguments.letters <= arguments.vocabulary,
            f"from 3 to {arguments.vocabulary}, the vocabulary")
    require("softcap", 0 <= arguments.softcap < math.inf, "a number of at least 0")
    require("softcap", not arguments.softcap or arguments.device != "cpu",
            "0 on a CPU, where FlexAttention has no gradients")
    require("learning-rate", 0 < arguments.learning_rate < math.inf, "a number above 0")
    require("json", not arguments.json or arguments.json.resolve().parent.is_dir(), "in a folder that exists")


def parse_arguments(given=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--like", choices=(LLAMA, GEMMA), default=LLAMA, help="the model (%(default)s)")
    for name in SIZES[LLAMA]:
        defaults = ", ".join(f"{like} {sizes[name]}" for like, sizes in SIZES.items())
        parser.add_argument(f"--{name}", type=int, metavar="N", help=f"default: {defaults}")
    parser.add_argument("--softcap", type=float, default=0.0, metavar="CAP", help="of scores; 0: none (%(default)s)")
    for name, default in NUMBERS.items():
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help="%(default)s")
    parser.add_argument("--learning-rate", type=float, default=6e-4, metavar="RATE", help="at its peak (%(default)s)")
    parser.add_argument("--wrong", nargs="*", choices=tuple(WRONG), default=("dk", ), metavar="GRADIENT",
                        help=f"train with each of these wrong, too, of {', '.join(WRONG)} (dk)")
    parser.add_argument("--parts", nargs="+", choices=tuple(PARTS), default=tuple(PARTS), metavar="PART",
                        help=f"only these of {', '.join(PARTS)}: curves of several models may be trained side by side")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the results there")
    arguments = parser.parse_args(given)
    for name, default in SIZES[arguments.like].items():
        if getattr(arguments, name.replace("-", "_")) is None:
            setattr(arguments, name.replace("-", "_"), default)
    check(arguments, parser.error)
    return arguments


def compare_curves(comparison):
    arguments = comparison.arguments
    print(f"{comparison.parameters() / 1e6:.1f} M parameters, {arguments.steps} steps of {arguments.batch} sequences "
          f"of {arguments.seqlen} tokens; without attention the loss is {without_attention(arguments):.4f} at least",
          flush=True)
    comparison.run_all()
    print_curves(comparison)
    print_judgements(comparison)
    return comparison.record_of_curves()


def compare_rates(comparison):
    comparison.time_all()
    print_rates(comparison)
    return comparison.record_of_rates()


PARTS = {"curves": compare_curves, "rates": compare_rates}


def compare(arguments):
    comparison = Comparison(arguments)
    record = comparison.record()
    for part in arguments.parts:
        record |= PARTS[part](comparison)
    return record


def main():
    arguments = parse_arguments()
    try:
        record = compare(arguments)
    except RuntimeError as error:
        sys.exit(f"training: {error}")
    if arguments.json:
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")
    sys.exit(1 if record.get("failures") else 0)


if __name__ == "__main__":
    main()
