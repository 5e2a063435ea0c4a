# SPDX-License-Identifier: Apache-2.0
"""The models that training.py trains: decoders like those of Llama 3 and of Gemma 3, of 100 M parameters as SIZES has
them. Attention is a function that is set from outside. Needs PyTorch."""

import math

import torch
from torch import nn
from torch.nn import functional

LLAMA, GEMMA = "llama", "gemma"
# window: of five layers in six, in tokens. Gemma's are those of Gemma 3 270M but for its vocabulary.
SIZES = {
    LLAMA: {"layers": 12, "hidden": 768, "intermediate": 2944, "heads": 12, "heads-kv": 4, "head-dim": 64, "window": 0},
    GEMMA: {"layers": 18, "hidden": 640, "intermediate": 2048, "heads": 4, "heads-kv": 1, "head-dim": 256, "window": 512},
}
LAYERS_OF_WINDOW = 6  # the last of them sees all tokens


def rotate(rows, rotation):
    """Rotary embedding of [batch, seqlen, heads, head_dim]."""
    cosine, sine = rotation
    a, b = rows.chunk(2, dim=3)
    return torch.cat((a * cosine - b * sine, b * cosine + a * sine), dim=3).type_as(rows)


class Attention(nn.Module):
    """window: the tokens that a query sees, with its own; 0: all before it."""

    def __init__(self, sizes, window):
        super().__init__()
        self.head_dim, self.window = sizes.head_dim, window
        hidden, rows, rows_kv = sizes.hidden, sizes.heads * sizes.head_dim, sizes.heads_kv * sizes.head_dim
        self.query, self.key, self.value, self.out = (
            nn.Linear(*features, bias=False)
            for features in ((hidden, rows), (hidden, rows_kv), (hidden, rows_kv), (rows, hidden)))
        norms = [nn.RMSNorm(sizes.head_dim) if sizes.like == GEMMA else nn.Identity() for _ in range(2)]
        self.norm_query, self.norm_key = norms

    def forward(self, x, rotation, attend):
        q, k, v = (projection(x).unflatten(2, (-1, self.head_dim)) for projection in (self.query, self.key, self.value))
        q, k = (rotate(rows, rotation) for rows in (self.norm_query(q), self.norm_key(k)))
        return self.out(attend(q, k, v, self.window).flatten(2))


class GatedMlp(nn.Module):
    """SwiGLU of Llama, GeGLU of Gemma."""

    def __init__(self, sizes):
        super().__init__()
        self.gate, self.up = (nn.Linear(sizes.hidden, sizes.intermediate, bias=False) for _ in range(2))
        self.down = nn.Linear(sizes.intermediate, sizes.hidden, bias=False)
        self.activation = nn.GELU("tanh") if sizes.like == GEMMA else nn.SiLU()

    def forward(self, x):
        return self.down(self.activation(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    """Norms before each branch, and behind each in Gemma."""

    def __init__(self, sizes, window):
        super().__init__()
        self.norm_attention, self.norm_mlp = (nn.RMSNorm(sizes.hidden) for _ in range(2))
        behind = [nn.RMSNorm(sizes.hidden) if sizes.like == GEMMA else nn.Identity() for _ in range(2)]
        self.norm_attended, self.norm_fed = behind
        self.attention, self.mlp = Attention(sizes, window), GatedMlp(sizes)

    def forward(self, x, rotation, attend):
        x = x + self.norm_attended(self.attention(self.norm_attention(x), rotation, attend))
        return x + self.norm_fed(self.mlp(self.norm_mlp(x)))


class Decoder(nn.Module):
    """attend: a function of q, k and v, [batch, seqlen, heads, head_dim], and of a window; may be set anew."""

    def __init__(self, sizes):
        super().__init__()
        self.attend = None
        self.scale = math.sqrt(sizes.hidden) if sizes.like == GEMMA else 1.0  # of embedded tokens
        self.embedding = nn.Embedding(sizes.vocabulary, sizes.hidden)
        is_last = [(i + 1) % LAYERS_OF_WINDOW == 0 for i in range(sizes.layers)]
        self.layers = nn.ModuleList(Layer(sizes, 0 if last else sizes.window) for last in is_last)
        self.norm = nn.RMSNorm(sizes.hidden)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                ends_branch = name.endswith(("out.weight", "down.weight"))  # of which 2 in each layer are added up
                nn.init.normal_(parameter, std=0.02 / (math.sqrt(2 * sizes.layers) if ends_branch else 1))
        frequencies = 10000.0 ** -(torch.arange(0, sizes.head_dim, 2) / sizes.head_dim)
        angles = torch.arange(sizes.seqlen)[:, None, None] * frequencies
        self.register_buffer("rotation", torch.stack((angles.cos(), angles.sin())))

    def forward(self, tokens):
        x = self.scale * self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, self.rotation, self.attend)
        return functional.linear(self.norm(x), self.embedding.weight)
