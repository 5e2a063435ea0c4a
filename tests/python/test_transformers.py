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
from flashjit.transformers import LocalMask, make_mask
from packaging.version import Version  # on which transformers depends
from support import emulating_engine
from transformers.masking_utils import (
    causal_mask_function,
    chunked_causal_mask_function,
    sdpa_mask,
    sliding_window_causal_mask_function,
)

SMALL = {
    "vocab_size": 64, "hidden_size": 128, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 64, "max_position_embeddings": 128, "bos_token_id": 1, "eos_token_id": None,
    "pad_token_id": 0,
}  # fmt: skip
WINDOW = 8  # or a chunk
CAP = 0.5  # of scores, which are small in models with random weights
INSTEAD = r'use attn_implementation="sdpa", or flashjit\.transformers\.register\(fallback="mask"\)'


def setUpModule():
    """All calls on the default engine go to the emulating one."""
    for name in ("attention", "attention_backward"):
        patch = mock.patch.object(flashjit, name, getattr(emulating_engine(), name))
        patch.start()
        unittest.addModuleCleanup(patch.stop)


def make_model(config=None, **options):
    config = config or transformers.LlamaConfig(**SMALL, **options)
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="flashjit", dtype=torch.bfloat16)
    for name, parameter in model.named_parameters():
        if name.endswith("sinks"):
            torch.nn.init.normal_(parameter)  # or they would hardly change the result
    return model.eval()


def make_gemma():
    """One of its layers has a window, the other none."""
    return make_model(transformers.Gemma3TextConfig(
        **SMALL, sliding_window=WINDOW, layer_types=["sliding_attention", "full_attention"],
        query_pre_attn_scalar=64))  # fmt: skip


def make_gemma4():
    """A layer of head dim 256 with a window, and one of 512 without: none is left to others."""
    return make_model(transformers.Gemma4TextConfig(
        **{**SMALL, "head_dim": 256}, sliding_window=WINDOW, layer_types=["sliding_attention", "full_attention"],
        hidden_size_per_layer_input=0))  # fmt: skip


HAS_GEMMA4 = hasattr(transformers, "Gemma4TextConfig")


def make_gpt_oss():
    """With attention sinks in both of its layers. It has one expert, or rounding might choose another one."""
    return make_model(transformers.GptOssConfig(
        **SMALL, sliding_window=WINDOW, layer_types=["sliding_attention", "full_attention"], initializer_range=0.2,
        num_local_experts=1, num_experts_per_tok=1))  # fmt: skip


def make_llama4():
    """One of its layers has chunks, the other none. It has one expert, too."""
    return make_model(transformers.Llama4TextConfig(
        **SMALL, attention_chunk_size=WINDOW, layer_types=["chunked_attention", "full_attention"],
        initializer_range=0.2, intermediate_size_mlp=64, num_local_experts=1, no_rope_layers=[1, 0]))  # fmt: skip


def make_models_with_local_masks():
    """Of Qwen's mixture of experts no layer says that it has a window, but the mask does."""
    window = {"sliding_window": WINDOW, "initializer_range": 0.2}
    mixed = {**window, "layer_types": ["sliding_attention", "full_attention"]}
    gemma = {**mixed, "query_pre_attn_scalar": 64}
    configs = (
        transformers.MistralConfig(**SMALL, **window),
        transformers.Gemma2Config(**SMALL, **gemma, attn_logit_softcapping=CAP, final_logit_softcapping=None),
        transformers.Gemma3TextConfig(**SMALL, **gemma),
        transformers.Qwen2MoeConfig(**SMALL, **mixed, use_sliding_window=True, num_experts=2, num_experts_per_tok=1),
    )
    models = {config.model_type: make_model(config) for config in configs}
    return {**models, "gpt_oss": make_gpt_oss(), "llama4": make_llama4()}


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

    def test_fallback_reads_masks_from_memory(self):
        flashjit.transformers.register(fallback="mask")
        padding = torch.ones(2, 16, dtype=torch.long)
        padding[0, 13:] = 0
        packed = torch.arange(16).remainder(8).unsqueeze(0)
        for name, model in {"plain": make_model(), **make_models_with_local_masks()}.items():
            with self.subTest(name), mock.patch("flashjit.transformers.sdpa_attention_forward") as sdpa:
                peer = "eager" if name in ("gemma2", "gpt_oss") else "sdpa"  # which loses the cap and the sinks
                self.check(model, tokens(16, 2), attention_mask=padding, peer=peer)
                self.check(model, tokens(16), position_ids=packed, use_cache=False, peer=peer)
                sdpa.assert_not_called()
        added = torch.full((1, 1, 16, 16), torch.finfo(torch.bfloat16).min).triu(1)
        self.check(make_model(), tokens(16), attention_mask=added.bfloat16(), peer="eager")

    def test_what_changes_the_result_is_refused_with_and_without_fallback(self):
        for fallback in (None, "mask", "sdpa"):
            flashjit.transformers.register(fallback)
            self.refuse("output_attentions: must not be given, was True: ", make_model(), tokens(8),
                        output_attentions=True)

    def test_fallback_loses_neither_caps_nor_sinks(self):
        flashjit.transformers.register(fallback="sdpa")
        padding = torch.ones(2, 16, dtype=torch.long)
        padding[0, 13:] = 0
        model = make_model(transformers.Gemma2Config(**SMALL, query_pre_attn_scalar=64, attn_logit_softcapping=30.0))
        self.refuse("softcap: must not be given beside a mask .*SDPA.*, was 30.0; .*eager", model, tokens(16, 2),
                    attention_mask=padding)
        self.refuse(r"s_aux: must not be given beside a mask .*SDPA.*, was a tensor of shape \(2,\); .*eager",
                    make_gpt_oss(), tokens(16, 2), attention_mask=padding)



class Trains(Models):
    """Models in training."""

    def gradients(self, model, implementation, dtype):
        """Of all parameters, of the loss of a language model, in f32."""
        model = copy.deepcopy(model).to(dtype).train()
        model.set_attn_implementation(implementation)
        with torch.enable_grad():
            model(tokens(24, 2), labels=tokens(24, 2)).loss.backward()
        return {name: parameter.grad.float() for name, parameter in model.named_parameters()}

    def test_gradients_are_as_near_to_f32_as_those_of_sdpa(self):
        gemma = make_model(transformers.Gemma2Config(**SMALL, query_pre_attn_scalar=64, attn_logit_softcapping=30.0))
        for model in (make_model(transformers.LlamaConfig(**SMALL)), gemma, make_gpt_oss()):
            config = model.config
            peer = "sdpa" if config.model_type == "llama" else "eager"  # the other would lose the cap and the sinks
            exact = self.gradients(model, peer, torch.float32)
            low = self.gradients(model, peer, torch.bfloat16)
            for name, gradient in self.gradients(model, flashjit.transformers.NAME, torch.bfloat16).items():
                with self.subTest(config.model_type, name=name):
                    bound = 2 * (low[name] - exact[name]).abs().max().item() + 1e-5
                    self.assertLess((gradient - exact[name]).abs().max().item(), bound)

    @unittest.skipUnless(HAS_GEMMA4, "this version of transformers has no Gemma 4")
    def test_a_model_of_head_dims_256_and_512_trains(self):
        model = make_gemma4()
        exact = self.gradients(model, "sdpa", torch.float32)
        low = self.gradients(model, "sdpa", torch.bfloat16)
        with mock.patch("flashjit.transformers.sdpa_attention_forward") as sdpa:
            for name, gradient in self.gradients(model, flashjit.transformers.NAME, torch.bfloat16).items():
                with self.subTest(name):
                    bound = 2 * (low[name] - exact[name]).abs().max().item() + 1e-5
                    self.assertLess((gradient - exact[name]).abs().max().item(), bound)
            sdpa.assert_not_called()

    def test_dropout_is_pytorchs_to_seed(self):
        model = make_model(attention_dropout=0.5).train()
        logits = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            logits.append(model(tokens(16)).logits)
        self.assertTrue(torch.equal(logits[0], logits[1]))
        self.assertFalse(torch.equal(logits[0], logits[2]))

    def test_checkpoints_drop_the_same(self):
        gradients = []
        for checkpoints in (False, True):
            model = make_model(attention_dropout=0.5).train()
            if checkpoints:
                model.gradient_checkpointing_enable({"use_reentrant": False})
            torch.manual_seed(5)
            with torch.enable_grad():
                model(tokens(16), labels=tokens(16), use_cache=False).loss.backward()
            gradients.append([parameter.grad for parameter in model.parameters()])
        for one, other in zip(*gradients):
            self.assertTrue(torch.equal(one, other))


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

    @unittest.skipUnless(HAS_GEMMA4, "this version of transformers has no Gemma 4")
    def test_a_model_of_head_dims_256_and_512_generates(self):
        self.check_generate(make_gemma4(), tokens(12), 3)

    def test_static_caches_are_refused(self):
        with self.assertRaisesRegex(flashjit.Unsupported, f"past_key_values: .*DynamicCache.*{INSTEAD}"):
            make_model().generate(tokens(4), max_new_tokens=2, do_sample=False, cache_implementation="static")


class LocalMasks(Models):
    """Prefill and decoding over more tokens than the window or chunk has, beside the models' own eager attention."""

    def setUp(self):
        super().setUp()
        self.models = make_models_with_local_masks()

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

    def test_prefill_and_steps_with_a_cache_of_these_keys(self):
        for name, model in self.models.items():
            with self.subTest(name):
                self.check_steps(model, 13, 1, 1, 5, 1, cache=model.config)
                self.check_steps(model, 5, 2, 1, 1, 1, 9, cache=model.config)

    def test_prefill_and_steps_with_a_cache_of_all_keys(self):
        for name, model in self.models.items():
            with self.subTest(name):
                self.check_steps(model, 13, 1, 5, 1)

    def options_of_layers(self, name, option, **options):
        attention = flashjit.transformers.attention
        with mock.patch("flashjit.transformers.attention", wraps=attention) as spy:
            self.models[name](tokens(16), **options)
        return [call.kwargs.get(option) for call in spy.call_args_list]

    def test_layers_with_one_are_computed_by_flashjit_without_a_mask(self):
        unpadded = torch.ones(1, 16, dtype=torch.long)
        for name, windows in (("mistral", [(7, 0), (7, 0)]), ("gemma3_text", [(7, 0), None])):
            self.assertEqual(self.options_of_layers(name, "window", attention_mask=unpadded), windows)
        self.assertEqual(self.options_of_layers("llama4", "chunk", attention_mask=unpadded), [WINDOW, None])

    def test_scores_are_capped_in_all_layers(self):
        self.assertEqual(self.options_of_layers("gemma2", "softcap"), [CAP, CAP])

    def test_sinks_are_in_all_layers(self):
        sinks = [layer.self_attn.sinks for layer in self.models["gpt_oss"].model.layers]
        for given, wanted in zip(self.options_of_layers("gpt_oss", "sinks"), sinks, strict=True):
            self.assertTrue(torch.equal(given, wanted.float()))

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
        del self.models["gemma2"], self.models["gpt_oss"]  # SDPA would lose the cap and the sinks
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

    def test_fallback_reads_the_masks_of_static_caches(self):
        flashjit.transformers.register(fallback="mask")
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
            flashjit.transformers.attention_forward(torch.nn.Module(), q, k, k, LocalMask(19, (7, 0)))


@unittest.skipIf(
    Version(transformers.__version__) < Version("5.19"), f"transformers must be 5.19, was {transformers.__version__}"
)
class ContinuousBatching(Models):
    """generate_batch() beside the models' own eager attention on each sequence alone."""

    LENGTHS = (5, 17, 3, 30)  # of prompts: more than a batch has room for, so that some wait and one comes in parts

    def run_batches(self, model, implementation="flashjit", **options):
        """What generate_batch() gives, and for each call of attention its options and the numbers of queries that its
        sequences had: the tensors are others by the next step."""
        calls = []
        attention = flashjit.transformers.attention

        def recorded(*arrays, **options):
            offsets = options.get("cu_seqlens_q")
            calls.append((options, None if offsets is None else offsets.diff().tolist()))
            return attention(*arrays, **options)

        model.set_attn_implementation(implementation)
        with mock.patch("flashjit.transformers.attention", recorded):
            results = model.generate_batch(
                [tokens(length)[0].tolist() for length in self.LENGTHS],
                generation_config=transformers.GenerationConfig(
                    max_new_tokens=8, do_sample=False, eos_token_id=-1, pad_token_id=0),
                continuous_batching_config=transformers.ContinuousBatchingConfig(
                    page_size=8, num_blocks=32, max_batch_tokens=24, return_logprobs=True, **options),
            )  # fmt: skip
        return list(results.values()), calls

    def check_batches(self, model, results):
        """The log-probability of each token that was chosen is as near to that in f32 as eager attention's is."""
        error = {"flashjit": 0.0, "eager": 0.0}
        self.assertEqual(len(results), len(self.LENGTHS))
        for result in results:
            chosen = torch.tensor(result.generated_tokens)
            everything = torch.tensor([result.prompt_ids + result.generated_tokens[:-1]])
            exact, eager = (
                self.logits(model, "eager", dtype, everything)[0, -len(chosen) :].log_softmax(-1)[range(8), chosen]
                for dtype in (torch.float32, torch.bfloat16)
            )
            for name, values in (("flashjit", torch.tensor(result.logprobs)), ("eager", eager)):
                error[name] = max(error[name], (values - exact).abs().max().item())
        self.assertLess(error["flashjit"], 2 * error["eager"])

    def test_is_that_of_each_sequence_alone(self):
        models = make_models_with_local_masks()
        del models["llama4"]  # continuous batching knows no chunks
        for name, model in {"llama": make_model(initializer_range=0.2), **models}.items():
            with self.subTest(name):
                self.check_batches(model, self.run_batches(model)[0])

    def test_prompts_and_steps_share_ragged_batches(self):
        _, calls = self.run_batches(make_gemma())
        queries = [lengths for _, lengths in calls if lengths]
        self.assertEqual(len(queries), len(calls))
        self.assertTrue(any(min(lengths) == 1 < max(lengths) for lengths in queries))
        self.assertEqual({options["window"] for options, _ in calls}, {None, (WINDOW - 1, 0)})

    def test_steps_read_the_pages_of_the_cache(self):
        _, calls = self.run_batches(make_model())
        tables = [options["page_table"] for options, lengths in calls if not lengths]
        self.assertGreater(len(tables), 0)
        self.assertLess(len(tables), len(calls))

    def test_batches_may_be_padded_and_compiled(self):
        model = make_model(initializer_range=0.2)
        eager = transformers.CompileConfig(backend="eager", mode=None, fullgraph=False)
        torch.compiler.reset()
        results, _ = self.run_batches(model, varlen_compile_config=eager, decode_compile_config=eager)
        self.check_batches(model, results)

    def test_what_stands_behind_a_padded_batch_reaches_no_sequence(self):
        """Rows of no sequence may be anything, as nobody writes them."""
        attention = flashjit.transformers.attention
        padding = []

        def poisoned(q, *arrays, **options):
            out = attention(q, *arrays, **options).clone()
            if (offsets := options.get("cu_seqlens_q")) is not None:
                padding.append(len(q) - int(offsets[-1]))
                out[offsets[-1] :] = float("nan")
            return out

        eager = transformers.CompileConfig(backend="eager", mode=None, fullgraph=False)
        models = make_models_with_local_masks()
        del models["llama4"]
        for name, model in models.items():
            with self.subTest(name), mock.patch("flashjit.transformers.attention", poisoned), \
                    mock.patch("torch._dynamo.config.disable", True):  # it pads, and nothing is compiled
                padding.clear()
                results, _ = self.run_batches(model, varlen_compile_config=eager, decode_compile_config=eager)
                self.assertGreater(max(padding), 0)
            self.check_batches(model, results)

    def test_graphs_are_left_out_and_refused(self):
        """Where there are graphs at all, as on a GPU, transformers captures some by default."""
        model = make_model()
        with self.assertRaisesRegex(flashjit.Unsupported, "use_cuda_graph must be False or None .*, was True"):
            self.run_batches(model, use_cuda_graph=True)
        model.set_attn_implementation("flashjit")
        config = transformers.ContinuousBatchingConfig(page_size=8, num_blocks=32)
        with mock.patch.object(flashjit.transformers.initialization, "get_accelerator_graph_name", lambda: "cuda"):
            with model.continuous_batching_context_manager(continuous_batching_config=config) as manager:
                self.assertEqual(manager.continuous_batching_config.cuda_graph_booleans, (False, False))

    def test_name_may_have_the_prefix_of_paged_implementations(self):
        model = make_model()
        plain, prefixed = (self.run_batches(model, name)[0] for name in ("flashjit", "paged|flashjit"))
        for one, other in zip(plain, prefixed):
            self.assertEqual(one.logprobs, other.logprobs)

    def test_model_is_as_before_once_its_manager_has_stopped(self):
        model = make_model()
        expected = model(tokens(16)).logits
        self.run_batches(model)
        self.assertTrue(torch.equal(model(tokens(16)).logits, expected))

    def test_other_calls_are_refused_until_then(self):
        model = make_model()
        model.set_attn_implementation("flashjit_packed")
        self.refuse("cu_seq_lens_q: must be given while continuous batching .*, was None; stop", model, tokens(8))

    def test_what_changes_the_result_is_refused(self):
        q = torch.zeros(1, 2, 4, 64)
        with self.assertRaisesRegex(flashjit.Unsupported, "output_attentions: must not be given, was True"):
            flashjit.transformers.packed_attention_forward(
                torch.nn.Module(), q, q, q, None, cu_seq_lens_q=torch.tensor([0, 4]), output_attentions=True)  # fmt: skip

    def test_sequences_that_pad_a_batch_change_no_page(self):
        """A batch that is captured in a graph has as many sequences as the graph: those behind the last have no keys,
        and no pages."""
        cache = torch.randn(2, 5, 8, 1, 64, generator=torch.Generator().manual_seed(7)).half()
        q, k, v = torch.randn(3, 1, 1, 4, 64, generator=torch.Generator().manual_seed(8)).half()
        table = torch.tensor([[4, 2], [3, -1], [-1, -1], [-1, -1]], dtype=torch.int32)
        lengths = torch.tensor([0, 11, 19, 19, 19], dtype=torch.int32)
        k_cache, v_cache = cache.clone()
        out, _ = flashjit.transformers.packed_attention_forward(
            torch.nn.Module(), q, k, v, None, cu_seq_lens_q=torch.arange(5), cu_seq_lens_k=lengths, block_table=table,
            k_cache=k_cache, v_cache=v_cache)  # fmt: skip
        for pages, before, new in ((k_cache, cache[0], k), (v_cache, cache[1], v)):
            expected = before.clone()
            expected[2, 2], expected[3, 7] = new[0, :, 0], new[0, :, 1]
            self.assertTrue(torch.equal(pages, expected))
        keys, values = (pages[[4, 2]].flatten(0, 1)[None, :11] for pages in (k_cache, v_cache))
        alone = flashjit.attention(q[:, :, :1].transpose(1, 2), keys, values)
        self.assertLess((out[:, :1] - alone).abs().max().item(), 2e-3)


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

    def with_chunk(self, size, **options):
        return transformers.Llama4TextConfig(attention_chunk_size=size, **options)

    def test_chunks_over_all_keys_are_none(self):
        self.assert_none(1, 8, 8, local_size=8, config=self.with_chunk(8))
        self.assertIsNotNone(make_mask(1, 9, 9, local_size=8, config=self.with_chunk(8)))
        self.assertIsNotNone(
            make_mask(1, 1, 8, q_offset=20, kv_offset=13, local_size=8, config=self.with_chunk(8))
        )  # fmt: skip

    def test_chunks_of_the_size_of_a_window_are_refused(self):
        either = self.with_chunk(8, sliding_window=8)
        self.assert_none(1, 8, 8, local_size=8, config=either)
        message = "local attention: must be a causal sliding window or causal chunks, .* 21 tokens, was over 8; pass"
        self.refuse(message, 1, 1, 8, q_offset=20, kv_offset=13, local_size=8, config=either)
        self.refuse("local attention", 1, 9, 9, local_size=8, config=either)

    def test_chunks_whose_first_keys_are_lost_are_refused(self):
        self.refuse("local attention", 1, 1, 7, q_offset=23, kv_offset=17, local_size=8, config=self.with_chunk(8))

    def visible(self, mask, queries, keys):
        """What calls with these options show, on the layer's keys."""
        own, key = torch.arange(keys - queries, keys).unsqueeze(1) - mask.first, torch.arange(keys) - mask.first
        seen = (key >= 0) & (key <= own)
        if mask.window:
            seen &= key >= own - mask.window[0]
        if mask.chunk:
            seen &= key // mask.chunk == own // mask.chunk
        return seen

    def test_masks_are_those_of_transformers(self):
        no_padding = torch.zeros(1, dtype=torch.int)
        for size in (1, 2, 8):
            kinds = ((self.with_window(size), sliding_window_causal_mask_function(size)),
                     (self.with_chunk(size), chunked_causal_mask_function(size, no_padding)))  # fmt: skip
            for queries, before in ((9, 0), (32, 0), (1, 20), (2, 20), (11, 20), (1, 23), (2, 23), (1, 24)):
                for keys in {before + queries, min(before, size - 1) + queries}:
                    for config, function in kinds:
                        if keys <= size:
                            continue
                        with self.subTest(config.model_type, size=size, queries=queries, before=before, keys=keys):
                            sizes = {"q_offset": before, "kv_offset": before + queries - keys, "local_size": size}
                            mask = make_mask(1, queries, keys, **sizes, config=config)
                            self.assertEqual(mask.keys, keys)
                            wanted = sdpa_mask(1, queries, keys, **sizes, allow_is_causal_skip=False,
                                               mask_function=function)  # fmt: skip
                            self.assertTrue(torch.equal(self.visible(mask, queries, keys), wanted[0, 0]))

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
        self.refuse("padding", 2, 1, 8, q_offset=20, kv_offset=13, local_size=8, attention_mask=unpadded,
                    config=self.with_chunk(8))  # fmt: skip

    def test_fallback_writes_masks_that_sdpa_would_make_do_without(self):
        mask = make_mask(1, 4, 32, fallback="sdpa", mask_function=causal_mask_function)
        expected = torch.ones(4, 32, dtype=torch.bool).tril()
        self.assertTrue(torch.equal(mask, expected.expand(1, 1, 4, 32)))

    def test_fallback_is_one_of_three(self):
        with self.assertRaisesRegex(flashjit.InvalidArgument, "fallback: must be None, .*was 'eager'"):
            flashjit.transformers.register("eager")


if __name__ == "__main__":
    unittest.main()
