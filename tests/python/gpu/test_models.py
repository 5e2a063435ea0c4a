# SPDX-License-Identifier: Apache-2.0
"""Models of transformers with random weights: attn_implementation="flashjit" beside a peer in bf16, both measured by
the same weights in f32. Needs a GPU, PyTorch and transformers."""

import copy
import unittest

try:
    import torch
    import transformers
except ImportError as error:
    raise unittest.SkipTest(f"PyTorch and transformers cannot be imported: {error}") from error

import flashjit
import flashjit.transformers
from packaging.version import Version  # on which transformers depends

SIZES = {"vocab_size": 512, "intermediate_size": 1024, "num_hidden_layers": 3, "max_position_embeddings": 4096,
         "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0,
         "tie_word_embeddings": False}  # tied, random models say their last token again, and are sure of it  # fmt: skip
WINDOW = 256  # or a chunk


def heads(head_dim, queries, keys):
    return {"head_dim": head_dim, "num_attention_heads": queries, "num_key_value_heads": keys, "hidden_size": 512}


CONFIGS = {
    "llama": transformers.LlamaConfig(**SIZES, **heads(64, 8, 2)),
    "qwen": transformers.Qwen3Config(**SIZES, **heads(128, 8, 4)),
    "gemma": transformers.GemmaConfig(**SIZES, **heads(256, 4, 1)),
    "gemma2": transformers.Gemma2Config(
        **SIZES, **heads(256, 4, 2), query_pre_attn_scalar=256, sliding_window=WINDOW, initializer_range=0.1,
        attn_logit_softcapping=1.0, final_logit_softcapping=None,
    ),
    "gemma3": transformers.Gemma3TextConfig(
        **SIZES, **heads(256, 4, 2), query_pre_attn_scalar=256, sliding_window=WINDOW,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
    ),
    "gpt_oss": transformers.GptOssConfig(
        **SIZES, **heads(64, 8, 2), sliding_window=WINDOW, num_local_experts=1, num_experts_per_tok=1,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
    "llama4": transformers.Llama4TextConfig(
        **SIZES, **heads(128, 4, 2), attention_chunk_size=WINDOW, num_local_experts=1, intermediate_size_mlp=512,
        layer_types=["chunked_attention", "chunked_attention", "full_attention"], no_rope_layers=[1, 1, 0],
    ),
    "mistral": transformers.MistralConfig(**SIZES, **heads(128, 4, 2), sliding_window=WINDOW),
}  # fmt: skip
if hasattr(transformers, "Gemma4TextConfig"):  # windows at head dim 256, none at 512
    CONFIGS["gemma4"] = transformers.Gemma4TextConfig(
        **SIZES, **heads(256, 4, 2), sliding_window=WINDOW, hidden_size_per_layer_input=0,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
    )  # fmt: skip
LOCAL = [name for name in ("gemma2", "gemma3", "gemma4", "gpt_oss", "llama4", "mistral") if name in CONFIGS]
PEERS = {"gemma2": "eager", "gpt_oss": "eager"}  # others have SDPA, which knows neither caps nor sinks


def tokens(length, batch=1):
    return torch.randint(2, 512, (batch, length), generator=torch.Generator().manual_seed(5)).cuda()


class Models(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.models = {name: cls.make(config, PEERS.get(name, "sdpa")) for name, config in CONFIGS.items()}

    @classmethod
    def tearDownClass(cls):
        del cls.models

    @staticmethod
    def make(config, peer):
        """The config's model for each way of computing it, all with the same weights."""
        torch.manual_seed(3)
        flashjit.transformers.register()
        model = transformers.AutoModelForCausalLM.from_config(
            config, attn_implementation="flashjit", dtype=torch.bfloat16
        )
        for name, parameter in model.named_parameters():
            if name.endswith("sinks"):
                torch.nn.init.normal_(parameter)  # or they would hardly change the result
        models = {"flashjit": model.cuda().eval(), "peer": copy.deepcopy(model), "exact": copy.deepcopy(model).float()}
        for way in ("peer", "exact"):
            models[way].set_attn_implementation(peer)
        return models

    def setUp(self):
        flashjit.transformers.register()

    def run(self, result=None):
        with torch.inference_mode():
            return super().run(result)

    def assert_as_exact(self, name, logits):
        """At most twice the error of the peer, in the worst logit and on average."""
        errors = {way: (logits[way].float() - logits["exact"]).abs() for way in ("flashjit", "peer")}
        for kind, measure in (("largest", torch.max), ("mean", torch.mean)):
            ours, theirs = (measure(errors[way]).item() for way in ("flashjit", "peer"))
            print(f"{name}: {kind} error of a logit: flashjit {ours:.3g}, peer {theirs:.3g}")
            self.assertLess(ours, 2 * theirs)

    def check_prefill(self, name, length, batch=2):
        models = self.models[name]
        self.assert_as_exact(
            f"{name}, prefill of {length}",
            {way: model(tokens(length, batch)).logits for way, model in models.items()},
        )

    def generate(self, model, prompt, count):
        options = {"max_new_tokens": count, "do_sample": False, "return_dict_in_generate": True, "output_logits": True}
        generated = model.generate(prompt, **options)
        return generated.sequences[:, prompt.shape[1] :], torch.stack(generated.logits, dim=1)

    def check_generate(self, name, length, count=48):
        """Rounding may decide between two tokens, and from there on the ways have different inputs: the logits are
        compared up to and with that step."""
        models = self.models[name]
        prompt = tokens(length)
        chosen, logits = {}, {}
        for way in ("flashjit", "peer"):
            chosen[way], logits[way] = self.generate(models[way], prompt, count)
        same = (chosen["flashjit"] == chosen["peer"])[0].long().cumprod(0).sum().item()
        steps = min(same + 1, count)
        logits["exact"] = models["exact"](torch.cat((prompt, chosen["peer"][:, : steps - 1]), dim=1)).logits
        logits["exact"] = logits["exact"][:, length - 1 :]
        self.assert_as_exact(
            f"{name}, {same} of {count} tokens after {length} the same",
            {way: values[:, :steps] for way, values in logits.items()},
        )
        self.assertGreater(same, 0)

    def test_prefill(self):
        for name in ("llama", "qwen", "gemma"):
            for length in (17, 512, 1500):
                with self.subTest(name, length=length):
                    self.check_prefill(name, length)

    def test_generate(self):
        for name in ("llama", "qwen", "gemma"):
            with self.subTest(name):
                self.check_generate(name, 130)

    def test_windows_and_chunks(self):
        for name in LOCAL:
            for length in (WINDOW, WINDOW + 1, 1500):
                with self.subTest(name, length=length):
                    self.check_prefill(name, length)

    def test_generate_past_the_window_or_chunk(self):
        for name in LOCAL:
            for length in (WINDOW - 16, 3 * WINDOW):
                with self.subTest(name, length=length):
                    self.check_generate(name, length)

    def batches(self, model, prompts, count):
        """What generate_batch() gives for prompts that do not fit one batch."""
        results = model.generate_batch(
            prompts,
            generation_config=transformers.GenerationConfig(
                max_new_tokens=count, do_sample=False, eos_token_id=-1, pad_token_id=0),
            continuous_batching_config=transformers.ContinuousBatchingConfig(
                page_size=64, num_blocks=256, max_batch_tokens=512, return_logprobs=True),
        )  # fmt: skip
        self.assertEqual(len(results), len(prompts))
        return list(results.values())

    def check_batches(self, name, lengths, count=24):
        """By the log-probabilities of the tokens that were chosen, in each sequence alone."""
        models = self.models[name]
        results = self.batches(models["flashjit"], [tokens(length)[0].tolist() for length in lengths], count)
        logprobs = {"flashjit": torch.tensor([result.logprobs for result in results])}
        chosen = torch.tensor([result.generated_tokens for result in results]).unsqueeze(2)
        for way in ("peer", "exact"):
            inputs = (torch.tensor([result.prompt_ids + result.generated_tokens[:-1]]).cuda() for result in results)
            logits = torch.stack([models[way](sequence).logits[0, -count:].float() for sequence in inputs]).cpu()
            logprobs[way] = logits.log_softmax(-1).gather(2, chosen).squeeze(2)
        self.assert_as_exact(f"{name}, {len(lengths)} sequences in batches", logprobs)

    @unittest.skipIf(
        Version(transformers.__version__) < Version("5.19"), f"transformers must be 5.19, was {transformers.__version__}"
    )
    def test_continuous_batching(self):
        for name in ("llama", "qwen", "gemma", "gemma2", "gemma3", "gpt_oss", "mistral"):
            with self.subTest(name):
                self.check_batches(name, (5, 700, 64, 1, 130, 260, 3, 511))

    def test_padding_is_refused_or_left_to_sdpa(self):
        mask = torch.ones(2, 64, dtype=torch.long, device="cuda")
        mask[0, :9] = 0
        models = self.models["llama"]
        with self.assertRaisesRegex(flashjit.Unsupported, "attention_mask: must have no padding"):
            models["flashjit"](tokens(64, 2), attention_mask=mask)
        flashjit.transformers.register(fallback="sdpa")
        logits = {way: model(tokens(64, 2), attention_mask=mask).logits for way, model in models.items()}
        self.assert_as_exact("llama, padded", {way: values[:, 9:] for way, values in logits.items()})

    def test_masks_are_read_from_memory_where_that_is_the_fallback(self):
        flashjit.transformers.register(fallback="mask")
        mask = torch.ones(2, 300, dtype=torch.long, device="cuda")
        mask[0, 280:] = 0
        packed = torch.arange(300, device="cuda").remainder(110).unsqueeze(0)
        for name in ("llama", "gemma2", "gpt_oss", "mistral"):
            models = self.models[name]
            with self.subTest(name, mask="padding"):
                logits = {way: model(tokens(300, 2), attention_mask=mask).logits for way, model in models.items()}
                self.assert_as_exact(f"{name}, padded", {way: values[:, :280] for way, values in logits.items()})
            with self.subTest(name, mask="packed sequences"):
                options = {"position_ids": packed, "use_cache": False}
                self.assert_as_exact(
                    f"{name}, packed", {way: model(tokens(300), **options).logits for way, model in models.items()}
                )

    def test_compiled_model_is_one_graph(self):
        for name in ("llama", "qwen", "gemma", "gemma2", "gpt_oss", "llama4", "mistral"):
            with self.subTest(name):
                torch.compiler.reset()
                models = dict(self.models[name])
                models["flashjit"] = torch.compile(models["flashjit"], fullgraph=True)
                self.assert_as_exact(
                    f"{name}, compiled", {way: model(tokens(300)).logits for way, model in models.items()}
                )


if __name__ == "__main__":
    unittest.main()
