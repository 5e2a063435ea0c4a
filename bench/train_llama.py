#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a random Llama-like model by flashjit's attention and by PyTorch's, from the same weights on the same text,
and compares the curves: of the loss, and of the norms of all gradients and of those of the projections to queries, keys
and values. Needs PyTorch and the package flashjit. Exit status 1 if flashjit's curves are not those of PyTorch's SDPA.

The model is written here: RMSNorm, rotary embeddings, grouped heads, SwiGLU, tied embeddings; bf16 autocast over f32
weights, AdamW, warm-up, clipped gradients. Each sequence of the text is of a language of its own: a few letters of the
vocabulary, each with two successors. To whoever sees one token alone all others are equally likely behind it, and no
loss is below log(vocabulary - 1): what is learned beyond is learned through attention.

Noise is what rounding does. SDPA trains with each of its back ends, from the weights and from weights that are moved
by up to half a unit in the last place of bf16, to which autocast rounds them anyway. Back ends alone are too few: two
or three runs may be near each other by chance. Curves are means over windows of steps. In each window flashjit's curve
may be 3 times as far from the mean of SDPA's as one of these was from the mean of the others, in that window or before
it; and noise counts as no less than what bf16 makes of the first window, beside f32. So early windows, where the runs
have not drifted apart, are judged by little noise. That the criterion can fail is shown by flashjit with a wrong
gradient (--wrong), which it must refuse: AdamW hides most of what scales a gradient from the loss, but not from the
norms. What another seed of weights and text does is shown beside."""

import argparse
import collections
import contextlib
import copy
import json
import math
import pathlib
import sys
import time

import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

OURS, OTHER_SEED = "flashjit", "other seed"
PROJECTIONS = ("query", "key", "value")
CURVES = ("loss", "gradients", *PROJECTIONS)  # but for the loss they are norms, which are compared relatively
LIMIT = 3.0  # times the noise; tiny models of 14 seeds had 1.7 at most, and 10 at least where dk was 0.9 of itself
LEAST_LEARNED = 0.5  # nats below what can be had without attention, or curves would say nothing about attention
HALF_UNIT = 2.0**-9  # of bf16, at least of the number itself
UNTIMED = 10  # steps at first, in which kernels are made and allocators fill
NUMBERS = {"steps": 300, "window": 20, "starts": 2, "batch": 8, "seqlen": 1024, "vocabulary": 64, "letters": 4,
           "layers": 12, "hidden": 768, "intermediate": 2944, "heads": 12, "heads-kv": 4, "head-dim": 64, "seed": 0}
WRONG = {"dq": 0.0, "dk": 0.9, "dv": 0.9}  # what --wrong multiplies a gradient by


class Attention(nn.Module):

    def __init__(self, sizes):
        super().__init__()
        self.head_dim = sizes.head_dim
        hidden, rows, rows_kv = sizes.hidden, sizes.heads * sizes.head_dim, sizes.heads_kv * sizes.head_dim
        self.query, self.key, self.value, self.out = (
            nn.Linear(*features, bias=False)
            for features in ((hidden, rows), (hidden, rows_kv), (hidden, rows_kv), (rows, hidden)))

    def forward(self, x, rotation, attend):
        q, k, v = (projection(x).unflatten(2, (-1, self.head_dim)) for projection in (self.query, self.key, self.value))
        return self.out(attend(rotate(q, rotation), rotate(k, rotation), v).flatten(2))


def rotate(rows, rotation):
    """Rotary embedding of [batch, seqlen, heads, head_dim]."""
    cosine, sine = rotation
    a, b = rows.chunk(2, dim=3)
    return torch.cat((a * cosine - b * sine, b * cosine + a * sine), dim=3).type_as(rows)


class SwiGLU(nn.Module):

    def __init__(self, sizes):
        super().__init__()
        self.gate, self.up = (nn.Linear(sizes.hidden, sizes.intermediate, bias=False) for _ in range(2))
        self.down = nn.Linear(sizes.intermediate, sizes.hidden, bias=False)

    def forward(self, x):
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):

    def __init__(self, sizes):
        super().__init__()
        self.norm_attention, self.norm_mlp = (nn.RMSNorm(sizes.hidden) for _ in range(2))
        self.attention, self.mlp = Attention(sizes), SwiGLU(sizes)

    def forward(self, x, rotation, attend):
        x = x + self.attention(self.norm_attention(x), rotation, attend)
        return x + self.mlp(self.norm_mlp(x))


class Llama(nn.Module):
    """attend: a function of q, k and v, [batch, seqlen, heads, head_dim]; may be set anew."""

    def __init__(self, sizes):
        super().__init__()
        self.attend = None
        self.embedding = nn.Embedding(sizes.vocabulary, sizes.hidden)
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(sizes.layers))
        self.norm = nn.RMSNorm(sizes.hidden)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                ends_branch = name.endswith(("out.weight", "down.weight"))  # of which 2 in each layer are added up
                nn.init.normal_(parameter, std=0.02 / (math.sqrt(2 * sizes.layers) if ends_branch else 1))
        frequencies = 10000.0 ** -(torch.arange(0, sizes.head_dim, 2) / sizes.head_dim)
        angles = torch.arange(sizes.seqlen)[:, None, None] * frequencies
        self.register_buffer("rotation", torch.stack((angles.cos(), angles.sin())))

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, self.rotation, self.attend)
        return functional.linear(self.norm(x), self.embedding.weight)


def make_model(arguments, seed):
    torch.manual_seed(seed)
    return Llama(arguments).to(arguments.device)


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


def by_sdpa(back_end, grouped):
    """grouped: whether the back end takes fewer heads of keys; to others each is given as often as it is used."""

    def attend(q, k, v):
        if not grouped:
            k, v = (rows.repeat_interleave(q.shape[2] // rows.shape[2], dim=2) for rows in (k, v))
        views = [rows.transpose(1, 2) for rows in (q, k, v)]
        with sdpa_kernel([back_end]):
            out = functional.scaled_dot_product_attention(*views, is_causal=True, enable_gqa=grouped)
        return out.transpose(1, 2)

    return attend


def by_flashjit(q, k, v):
    """On a CPU by the reference in float64, which is what the operator has there."""
    import flashjit.torch

    if q.device.type == "cpu":
        return flashjit.torch.attention(q.double(), k.double(), v.double(), causal=True).type_as(q)
    return flashjit.torch.attention(q, k, v, causal=True)


def with_wrong(gradient, right=by_flashjit):
    """right: the attend that is right but for this gradient."""

    def attend(q, k, v):
        rows = dict(zip(("dq", "dk", "dv"), (q, k, v)))[gradient]
        if rows.requires_grad:
            rows.register_hook(lambda value: WRONG[gradient] * value)
        return right(q, k, v)

    return attend


def sdpa_sides(arguments):
    """name -> attend, of the back ends that can do it here: the usual one first, last one that can do f32."""
    if arguments.device == "cpu":
        sides = {"flash": (SDPBackend.FLASH_ATTENTION, False), "math": (SDPBackend.MATH, False)}
    else:
        sides = {"flash": (SDPBackend.FLASH_ATTENTION, True), "cudnn": (SDPBackend.CUDNN_ATTENTION, True),
                 "efficient": (SDPBackend.EFFICIENT_ATTENTION, False)}
    found = {}
    for name, side in sides.items():
        shapes = [(1, 128, heads, arguments.head_dim) for heads in (arguments.heads, arguments.heads_kv)]
        given = {"dtype": torch.bfloat16, "device": arguments.device, "requires_grad": True}
        q, k = (torch.ones(shape, **given) for shape in shapes)
        try:
            by_sdpa(*side)(q, k, k).sum().backward()
            found[f"sdpa {name}"] = by_sdpa(*side)
        except RuntimeError as error:
            print(f"sdpa {name}: left out: {str(error).splitlines()[0]}", file=sys.stderr)
    if len(found) < 2:
        raise RuntimeError("noise takes at least two back ends of SDPA")
    return found


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


def train(model, text, arguments, autocast=True):
    """Means of the curves, [windows, CURVES], and steps per second. The host waits for no step."""
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    curves = torch.empty(len(text), len(CURVES), device=arguments.device)
    for step, tokens in enumerate(text):
        if step == min(UNTIMED, len(text) - 1):
            began, timed = seconds(arguments.device), len(text) - step
        for group in optimizer.param_groups:
            group["lr"] = rate_of(arguments, step)
        curves[step] = differentiate(model, tokens, autocast)
        optimizer.step()
    rate = timed / (seconds(arguments.device) - began)
    return windowed(curves.double().cpu(), arguments.window), rate


def windowed(curves, window):
    """Means of so many steps each; [windows, CURVES]."""
    return curves[: len(curves) // window * window].unflatten(0, (-1, window)).mean(1)


def distances(curves, expected):
    """Of the loss in nats, of norms as shares."""
    scale = expected.clone()
    scale[..., 0] = 1
    return (curves - expected).abs() / scale


def noise_of(theirs, floor):
    """[windows, CURVES]: the largest distance of one of SDPA's runs from the mean of the others, until then."""
    of_each = [distances(curves, torch.stack(theirs[:i] + theirs[i + 1:]).mean(0)) for i, curves in enumerate(theirs)]
    return torch.stack(of_each).amax(0).cummax(0).values.maximum(floor)


Judgement = collections.namedtuple("Judgement", ("times_noise", "window", "distance", "noise"))


def judge(curves, theirs, floor):
    """curve -> the Judgement of its worst window: distance over noise, and these, there."""
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
        self.curves, self.steps_per_second, self.judgements = {}, {}, {}
        self.sdpa = sdpa_sides(arguments)
        self.usual = f"{next(iter(self.sdpa))} 1"
        self.floor = None

    def parameters(self):
        return sum(parameter.numel() for parameter in self.model.parameters())

    def run(self, side, attend, model=None, text=None):
        model, text = copy.deepcopy(self.model) if model is None else model, self.text if text is None else text
        model.attend = attend
        self.curves[side], self.steps_per_second[side] = train(model, text, self.arguments)
        print(f"{side}: {self.steps_per_second[side]:.2f} steps/s, loss at the end {self.curves[side][-1, 0]:.4f}",
              flush=True)

    def run_sdpa(self):
        """All whose differences are noise; returns their curves."""
        torch.manual_seed(self.arguments.seed)
        for start in range(self.arguments.starts):
            for side, attend in self.sdpa.items():
                self.run(f"{side} {start + 1}", attend, moved(self.model) if start > 0 else None)
        return list(self.curves.values())

    def rounding(self):
        """The distance, of each curve, of bf16 from f32 in the first window."""
        model = copy.deepcopy(self.model)
        model.attend = list(self.sdpa.values())[-1]  # which has f32, too
        exact, _ = train(model, self.text[: self.arguments.window], self.arguments, autocast=False)
        return distances(self.curves[self.usual][0], exact[0])

    def run_all(self):
        theirs = self.run_sdpa()
        self.floor = self.rounding()
        seed = self.arguments.seed + 1
        attend = next(iter(self.sdpa.values()))
        self.run(OTHER_SEED, attend, make_model(self.arguments, seed), make_text(self.arguments, seed))
        self.run(OURS, by_flashjit)
        for gradient in self.arguments.wrong:
            self.run(f"wrong {gradient}", with_wrong(gradient))
        self.judgements = {side: judge(curves, theirs, self.floor)
                           for side, curves in list(self.curves.items())[len(theirs):]}

    def failures(self):
        learned = without_attention(self.arguments) - self.curves[self.usual][-1, 0].item()
        failures = []
        if not learned >= LEAST_LEARNED:
            failures.append(f"{self.usual} learned {learned:.3f} nats, less than {LEAST_LEARNED}")
        if not is_within_noise(self.judgements[OURS]):
            failures.append("flashjit's curves are not those of SDPA")
        for gradient in self.arguments.wrong:
            if is_within_noise(self.judgements[f"wrong {gradient}"]):
                failures.append(f"a wrong {gradient} was not found")
        return failures

    def record(self):
        import flashjit

        sizes = (*(name.replace("-", "_") for name in NUMBERS), "learning_rate")
        rounded = {side: curves.T.tolist() for side, curves in self.curves.items()}
        return {
            "device": "cpu" if self.arguments.device == "cpu" else torch.cuda.get_device_name(0),
            "torch": torch.__version__, "version": flashjit.__version__, "parameters": self.parameters(),
            "sizes": {name: getattr(self.arguments, name) for name in sizes},
            "without_attention": without_attention(self.arguments),
            "limit": LIMIT, "rounding": dict(zip(CURVES, self.floor.tolist())),
            "steps_per_second": {side: round(rate, 3) for side, rate in self.steps_per_second.items()},
            "final_loss": {side: curves[-1, 0].item() for side, curves in self.curves.items()},
            "judgements": {side: {curve: judgement._asdict() for curve, judgement in judgements.items()}
                           for side, judgements in self.judgements.items()},
            "curves": {side: {curve: [float(f"{value:.6g}") for value in values] for curve, values in zip(CURVES, rows)}
                       for side, rows in rounded.items()},
            "failures": self.failures(),
        }  # fmt: skip


def print_curves(comparison):
    """The loss of each side, window by window."""
    sides = list(comparison.curves)
    print("loss, steps".ljust(14) + "".join(f"{side:>18}" for side in sides))
    window = comparison.arguments.window
    for i, losses in enumerate(zip(*(comparison.curves[side][:, 0].tolist() for side in sides))):
        print(f"{i * window + 1} to {(i + 1) * window}".ljust(14) + "".join(f"{loss:18.4f}" for loss in losses))


def print_judgements(comparison):
    window = comparison.arguments.window
    print(f"criterion: in each window a curve is at most {LIMIT:g} times the noise from the mean of SDPA's; the worst:")
    for side, judgements in comparison.judgements.items():
        for curve, worst in judgements.items():
            print(f"{side:12} {curve:10} {worst.distance:9.2e} from the mean, noise {worst.noise:9.2e}: "
                  f"{worst.times_noise:8.2f} times, steps {worst.window * window + 1} to {(worst.window + 1) * window}")
    print("; ".join(comparison.failures()) or "flashjit's curves are those of SDPA within noise", flush=True)


def parse_arguments(given=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    for name, default in NUMBERS.items():
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help="%(default)s")
    parser.add_argument("--learning-rate", type=float, default=6e-4, metavar="RATE", help="at its peak (%(default)s)")
    parser.add_argument("--wrong", nargs="*", choices=tuple(WRONG), default=("dk", ), metavar="GRADIENT",
                        help=f"train with each of these wrong, too, of {', '.join(WRONG)} (dk)")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the results there")
    arguments = parser.parse_args(given)
    if arguments.starts < 1:
        parser.error(f"--starts: must be at least 1, was {arguments.starts}")
    if not 1 <= arguments.window <= arguments.steps:
        parser.error(f"--window: must be from 1 to {arguments.steps}, the steps, was {arguments.window}")
    if not 3 <= arguments.letters <= arguments.vocabulary:
        parser.error(f"--letters: must be from 3 to {arguments.vocabulary}, the vocabulary, was {arguments.letters}")
    return arguments


def compare(arguments):
    comparison = Comparison(arguments)
    print(f"{comparison.parameters() / 1e6:.1f} M parameters, {arguments.steps} steps of {arguments.batch} sequences "
          f"of {arguments.seqlen} tokens; without attention the loss is {without_attention(arguments):.4f} at least",
          flush=True)
    comparison.run_all()
    print_curves(comparison)
    print_judgements(comparison)
    return comparison.record()


def main():
    arguments = parse_arguments()
    try:
        record = compare(arguments)
    except RuntimeError as error:
        sys.exit(f"train_llama: {error}")
    if arguments.json:
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")
    sys.exit(1 if record["failures"] else 0)


if __name__ == "__main__":
    main()
