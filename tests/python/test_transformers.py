# SPDX-License-Identifier: Apache-2.0
"""flashjit.transformers on an engine that emulates, with models of some thousand random weights. Needs PyTorch,
transformers and NVRTC."""

import copy
import unittest
from unittest import mock

try:
    import torch
    import transformers
except ImportError as error:
    raise unittest.SkipTest(f"PyTorch and transformers cannot be imported: {error}") from error

import flashjit
import flashjit.transformers
from flashjit.transformers import SlidingWindow, make_mask
from support import emulating_engine
from transformers.masking_utils import causal_mask_function, sdpa_mask, sliding_window_causal_mask_function

SMALL = {
    "vocab_size": 64, "hidden_size": 128, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 64, "max_position_embeddings": 128, "bos_token_id": 1, "eos_token_id": None,
    "pad_token_id": 0,
}  # fmt: skip
WINDOW = 8
INSTEAD = r'use attn_implementation="sdpa", or flashjit\.transformers\.register\(fallback="sdpa"\)'


def setUpModule():
    """All calls on the default engine go to the emulating one."""
    patch = mock.patch.object(flashjit, "attention", emulating_engine().attention)
    patch.start()
    unittest.addModuleCleanup(patch.stop)


def make_model(config=None, **options):
    config = config or transformers.LlamaConfig(**SMALL, **options)
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="flashjit", dtype=torch.bfloat16)
    return model.eval()


def make_gemma():
    """One of its layers has a window, the other none."""
    return make_model(transformers.Gemma3TextConfig(
        **SMALL, sliding_window=WINDOW, layer_types=["sliding_attention", "full_attention"],
        query_pre_attn_scalar=64))  # fmt: skip


def make_models_with_windows():
    """Of Qwen's mixture of experts no layer says that it has a window, but the mask does."""
    window = {"sliding_window": WINDOW, "initializer_range": 0.2}
    mixed = {**window, "layer_types": ["sliding_attention", "full_attention"]}
    gemma = {**mixed, "query_pre_attn_scalar": 64}
    configs = (
        transformers.MistralConfig(**SMALL, **window),
        transformers.Gemma2Config(**SMALL, **gemma, attn_logit_softcapping=None, final_logit_softcapping=None),
        transformers.Gemma3TextConfig(**SMALL, **gemma),
        transformers.Qwen2MoeConfig(**SMALL, **mixed, use_sliding_window=True, num_experts=2, num_experts_per_tok=1),
    )
    return {config.model_type: make_model(config) for config in configs}


def tokens(length, batch=1):
    return torch.randint(2, 64, (batch, length), generator=torch.Generator().manual_seed(5))


class Models(unittest.TestCase):
    def setUp(self):
        flashjit.transformers.register()

    def run(self, result=None):
        with torch.no_grad():
            return super().run(result)

    def logits(self, model, implementation, dtype, *arguments, **options):
        model = copy.deepcopy(model).to(dtype)
        model.set_attn_implementation(implementation)
        return model(*arguments, **options).logits.float()

    def check(self, model, *arguments, peer="sdpa", **options):
        """As near to f32 as the peer is."""
        exact = self.logits(model, peer, torch.float32, *arguments, **options)
        error = {
            name: (self.logits(model, name, torch.bfloat16, *arguments, **options) - exact).abs().max().item()
            for name in ("flashjit", peer)
        }
        self.assertLess(error["flashjit"], 2 * error[peer])

    def refuse(self, message, model, *arguments, **options):
        with self.assertRaisesRegex(flashjit.Unsupported, message):
            model(*arguments, **options)


class Prefill(Models):
    def test_is_that_of_sdpa(self):
        model = make_model()
        self.check(model, tokens(16, batch=2))
        self.check(model, tokens(16), attention_mask=torch.ones(1, 16, dtype=torch.long))

    def test_attention_is_computed_by_flashjit(self):
        attention = flashjit.transformers.attention
        with mock.patch("flashjit.transformers.attention", wraps=attention) as spy:
            make_model()(tokens(16))
        self.assertEqual(spy.call_count, SMALL["num_hidden_layers"])

    def test_compiles_to_one_graph(self):
        model = make_model()
        expected = model(tokens(16)).logits
        torch.compiler.reset()
        compiled = torch.compile(model, fullgraph=True, backend="eager")
        self.assertTrue(torch.equal(compiled(tokens(16)).logits, expected))

    def test_masks_that_cannot_be_expressed_are_refused(self):
        model = make_model()
        padding = torch.ones(2, 16, dtype=torch.long)
        padding[0, :3] = 0
        self.refuse(f"attention_mask: must have no padding; .*{INSTEAD}", model, tokens(16, 2), attention_mask=padding)
        given = torch.ones(1, 1, 16, 16, dtype=torch.bool)
        self.refuse(rf"attention_mask: must be None in each layer, was .*\(1, 1, 16, 16\).*{INSTEAD}", model,
                    tokens(16), attention_mask=given)
        packed = torch.arange(16).remainder(8).unsqueeze(0)
        self.refuse(f"mask: .* packed sequences.*{INSTEAD}", model, tokens(16), position_ids=packed, use_cache=False)

    def test_fallback_leaves_masks_to_sdpa(self):
        flashjit.transformers.register(fallback="sdpa")
        padding = torch.ones(2, 16, dtype=torch.long)
        padding[0, 13:] = 0
        self.check(make_model(), tokens(16, 2), attention_mask=padding)
        self.check(make_gemma(), tokens(16, 2), attention_mask=padding)

    def test_what_changes_the_result_is_refused_with_and_without_fallback(self):
        gemma2 = transformers.Gemma2Config(**SMALL, query_pre_attn_scalar=64, attn_logit_softcapping=30.0)
        for fallback in (None, "sdpa"):
            flashjit.transformers.register(fallback)
            self.refuse("softcap: must not be given, was 30.0: .*eager", make_model(gemma2), tokens(8))
            self.refuse("dropout: must not be given, was 0.5: .*eval", make_model(attention_dropout=0.5).train(),
                        tokens(8))

    def test_training_is_refused_at_the_backward_pass(self):
        with torch.enable_grad():
            logits = make_model().train()(tokens(16)).logits
            with self.assertRaisesRegex(flashjit.Unsupported, "no backward yet"):
                logits.sum().backward()


class Generate(Models):
    def check_generate(self, model, prompt, new_tokens):
        """Greedily; the logits of each step are as near to f32 as those of SDPA."""
        options = {"max_new_tokens": new_tokens, "do_sample": False, "return_dict_in_generate": True,
                   "output_logits": True}  # fmt: skip
        generated = model.generate(prompt, **options)
        steps = torch.stack(generated.logits, dim=1).float()
        self.assertEqual(steps.shape[1], new_tokens)
        everything = generated.sequences[:, :-1]
        exact = self.logits(model, "sdpa", torch.float32, everything)[:, prompt.shape[1] - 1 :]
        sdpa = self.logits(model, "sdpa", torch.bfloat16, everything)[:, prompt.shape[1] - 1 :]
        self.assertLess((steps - exact).abs().max().item(), 2 * (sdpa - exact).abs().max().item())

    def test_is_that_of_sdpa(self):
        self.check_generate(make_model(), tokens(5, batch=2), 6)

    def test_window_may_be_passed_one_token_at_a_time(self):
        self.check_generate(make_gemma(), tokens(6), 5)

    def test_static_caches_are_refused(self):
        with self.assertRaisesRegex(flashjit.Unsupported, f"past_key_values: .*DynamicCache.*{INSTEAD}"):
            make_model().generate(tokens(4), max_new_tokens=2, do_sample=False, cache_implementation="static")


class Windows(Models):
    """Prefill and decoding over more tokens than the window has, beside the models' own eager attention."""

    def setUp(self):
        super().setUp()
        self.models = make_models_with_windows()

    def check_steps(self, model, *lengths, cache=None):
        """The logits of tokens that are given in pieces of these lengths."""
        prompt = tokens(sum(lengths), batch=2)
        exact = self.logits(model, "eager", torch.float32, prompt)
        error = {}
        for name in ("flashjit", "eager"):
            piecewise = copy.deepcopy(model)
            piecewise.set_attn_implementation(name)
            past = transformers.DynamicCache(config=cache)
            pieces = [piecewise(piece, past_key_values=past).logits for piece in prompt.split(lengths, dim=1)]
            error[name] = (torch.cat(pieces, dim=1).float() - exact).abs().max().item()
        self.assertLess(error["flashjit"], 2 * error["eager"])

    def test_prefill(self):
        for name, model in self.models.items():
            for length in (WINDOW, WINDOW + 1, 3 * WINDOW - 1):
                with self.subTest(name, length=length):
                    self.check(model, tokens(length, batch=2), peer="eager")

    def test_prefill_and_steps_with_a_cache_of_the_window(self):
        for name, model in self.models.items():
            with self.subTest(name):
                self.check_steps(model, 13, 1, 1, 5, 1, cache=model.config)
                self.check_steps(model, 5, 2, 1, 1, 1, 9, cache=model.config)

    def test_prefill_and_steps_with_a_cache_of_all_keys(self):
        for name, model in self.models.items():
            with self.subTest(name):
                self.check_steps(model, 13, 1, 5, 1)

    def test_layers_with_a_window_are_computed_by_flashjit_without_a_mask(self):
        attention = flashjit.transformers.attention
        for name, windows in (("mistral", [(7, 0), (7, 0)]), ("gemma3_text", [(7, 0), None])):
            with mock.patch("flashjit.transformers.attention", wraps=attention) as spy:
                self.models[name](tokens(16), attention_mask=torch.ones(1, 16, dtype=torch.long))
            self.assertEqual([call.kwargs.get("window") for call in spy.call_args_list], windows)

    def test_compile_to_one_graph(self):
        for name, model in self.models.items():
            with self.subTest(name):
                expected = model(tokens(16)).logits
                torch.compiler.reset()
                compiled = torch.compile(model, fullgraph=True, backend="eager")
                self.assertTrue(torch.equal(compiled(tokens(16)).logits, expected))

    def test_with_more_to_the_mask_are_refused(self):
        model = self.models["mistral"]
        padding = torch.ones(2, 16, dtype=torch.long)
        padding[0, 13:] = 0
        self.refuse(f"attention_mask: must have no padding; .*{INSTEAD}", model, tokens(16, 2), attention_mask=padding)
        packed = torch.arange(16).remainder(8).unsqueeze(0)
        self.refuse(f"mask: .* packed sequences.*{INSTEAD}", model, tokens(16), position_ids=packed, use_cache=False)

    def test_static_caches_are_refused(self):
        for name, model in self.models.items():
            for length in (WINDOW - 1, WINDOW, WINDOW + 1):
                with self.subTest(name, length=length), self.assertRaisesRegex(
                    flashjit.Unsupported, f"(past_key_values: .*fixed size|mask: .* a static cache).*{INSTEAD}"
                ):
                    model.generate(tokens(length), max_new_tokens=2, do_sample=False, cache_implementation="static")

    def test_fallback_leaves_static_caches_to_sdpa(self):
        flashjit.transformers.register(fallback="sdpa")
        options = {"max_new_tokens": 4, "do_sample": False, "disable_compile": True, "cache_implementation": "static",
                   "return_dict_in_generate": True, "output_logits": True}  # fmt: skip
        for name, model in self.models.items():
            generated = model.generate(tokens(13), **options)
            steps = torch.stack(generated.logits, dim=1).float()
            everything = generated.sequences[:, :-1]
            exact, eager = (
                self.logits(model, "eager", dtype, everything)[:, 12:] for dtype in (torch.float32, torch.bfloat16)
            )
            with self.subTest(name):
                self.assertLess((steps - exact).abs().max().item(), 2 * (eager - exact).abs().max().item())

    def test_keys_are_those_of_the_mask(self):
        q, k = torch.zeros(1, 2, 4, 64), torch.zeros(1, 2, 20, 64)
        with self.assertRaisesRegex(flashjit.Unsupported, "^key: must have 19 tokens like the mask, had 20; use"):
            flashjit.transformers.attention_forward(torch.nn.Module(), q, k, k, SlidingWindow(7, 19))


class Masks(unittest.TestCase):
    """make_mask alone: what transformers asks for, and whether None or a window answers it."""

    def assert_none(self, *arguments, **options):
        self.assertIsNone(make_mask(*arguments, **options))

    def refuse(self, message, *arguments, **options):
        with self.assertRaisesRegex(flashjit.Unsupported, message):
            make_mask(*arguments, **options)

    def test_causal_masks_end_at_the_last_key(self):
        self.assert_none(1, 16, 16)
        self.assert_none(1, 4, 20, q_offset=16)
        self.refuse("past_key_values", 1, 4, 32, q_offset=16)
        self.refuse("past_key_values", 1, 4, 20, q_offset=torch.tensor(16))

    def test_full_masks_are_over_any_number_of_keys(self):
        full = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": True}
        self.assert_none(1, 4, 32, **full)
        self.refuse("local attention", 1, 32, 32, local_size=8, config=self.with_window(8), **full)

    def with_window(self, size):
        return transformers.MistralConfig(sliding_window=size)

    def test_windows_over_all_keys_are_none(self):
        self.assert_none(1, 8, 8, local_size=8)
        self.assert_none(1, 1, 8, q_offset=20, kv_offset=13, local_size=8)

    def test_chunks_are_over_all_keys(self):
        chunked = transformers.MistralConfig(attention_chunk_size=8, sliding_window=8)
        self.assert_none(1, 8, 8, local_size=8, config=chunked)
        message = "local attention: must be a causal sliding window, or over all 21 tokens, was over 8; pass fewer"
        self.refuse(message, 1, 1, 8, q_offset=20, kv_offset=13, local_size=8, config=chunked)
        self.refuse("local attention", 1, 9, 9, local_size=8, config=chunked)

    def test_windows_are_those_of_transformers(self):
        for size in (1, 2, 8):
            for queries, before in ((9, 0), (32, 0), (1, 20), (2, 20), (11, 20)):
                for keys in {before + queries, min(before, size - 1) + queries}:
                    if keys <= size:
                        continue
                    with self.subTest(size=size, queries=queries, before=before, keys=keys):
                        sizes = {"q_offset": before, "kv_offset": before + queries - keys, "local_size": size}
                        window = make_mask(1, queries, keys, **sizes, config=self.with_window(size))
                        self.assertEqual(window.keys, keys)
                        behind = torch.arange(keys) - (torch.arange(queries).unsqueeze(1) + keys - queries)
                        wanted = sdpa_mask(1, queries, keys, **sizes, allow_is_causal_skip=False,
                                           mask_function=sliding_window_causal_mask_function(size))
                        self.assertTrue(torch.equal((behind >= -window.left) & (behind <= 0), wanted[0, 0]))

    def test_windows_that_the_config_does_not_have_are_refused(self):
        for size, config in ((8, None), (8, transformers.LlamaConfig()), (8, self.with_window(9)),
                             (0, self.with_window(0)), (-1, self.with_window(-1))):
            self.refuse("local attention", 1, 16, 16, local_size=size, config=config)

    def test_windows_end_at_the_last_key(self):
        config = self.with_window(8)
        self.refuse("past_key_values", 1, 4, 32, q_offset=16, local_size=8, config=config)
        self.refuse("past_key_values", 1, 1, 8, q_offset=torch.tensor(20), local_size=8, config=config)

    def test_only_padding_of_these_keys_counts(self):
        unpadded = torch.ones(2, 21, dtype=torch.bool)
        unpadded[1, 2] = False
        self.assert_none(2, 1, 8, q_offset=20, kv_offset=13, local_size=8, attention_mask=unpadded)
        self.refuse("padding", 2, 1, 21, q_offset=20, attention_mask=unpadded)

    def test_fallback_writes_masks_that_sdpa_would_make_do_without(self):
        mask = make_mask(1, 4, 32, fallback="sdpa", mask_function=causal_mask_function)
        expected = torch.ones(4, 32, dtype=torch.bool).tril()
        self.assertTrue(torch.equal(mask, expected.expand(1, 1, 4, 32)))

    def test_fallback_is_none_or_sdpa(self):
        with self.assertRaisesRegex(flashjit.InvalidArgument, "fallback: must be None or .*was 'eager'"):
            flashjit.transformers.register("eager")


if __name__ == "__main__":
    unittest.main()
