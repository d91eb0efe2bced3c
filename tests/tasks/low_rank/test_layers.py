"""Factorised layers in a model, latents in its cache, and folders of compressed models."""

import pytest
import torch
import transformers

from tasks.language_models.cache import KeyValueCache
from tasks.low_rank.attention import attention_blocks
from tasks.low_rank.checkpoints import load_compressed, load_factors, save_compressed, save_factors
from tasks.low_rank.collector import LayerStatistics
from tasks.low_rank.factorisations import HeadFactors
from tasks.low_rank.latent_attention import LatentAttention, attend_once, cache_latents, latents_cached
from tasks.low_rank.layers import PerHeadLowRankLinear, install, installed, low_rank_module, merged, put
from tasks.low_rank.methods import cache_ratio, parameter_ratio, spectra_of, truncated
from tests.tasks.low_rank.tiny import HEAD, HIDDEN, KV_HEADS, LAYERS, QUERY_HEADS, VOCABULARY, randn, tiny_ids, tiny_model

ALL = ("q", "k", "v")


def statistics() -> list[LayerStatistics]:
    x = randn(200, HIDDEN, seed=5)
    ones = {p: torch.ones(h, HIDDEN, HEAD) for p, h in (("q", QUERY_HEADS), ("k", KV_HEADS), ("v", KV_HEADS))}
    return [LayerStatistics(x.T @ x / 200, x.abs().mean(0), ones) for _ in range(LAYERS)]


def factors(model, method="head_white", kept=0.5, projections=ALL):
    blocks = attention_blocks(model)
    return truncated(method, spectra_of(method, blocks, statistics(), projections), blocks, kept, projections=projections)


def test_blocks_know_their_heads():
    blocks = attention_blocks(tiny_model())
    assert [block.name for block in blocks] == ["model.layers.0.self_attn", "model.layers.1.self_attn"]
    assert [blocks[0].heads(p) for p in ALL] == [QUERY_HEADS, KV_HEADS, KV_HEADS]
    assert blocks[0].weight("k").shape == (KV_HEADS, HIDDEN, HEAD)


def test_models_without_separate_projections_are_refused():
    with pytest.raises(ValueError, match="no attention with q_proj"):
        attention_blocks(torch.nn.Linear(3, 3))
    model = tiny_model()
    model.model.layers[0].self_attn.head_dim = 7
    with pytest.raises(ValueError, match=r"k_proj has 16 rows, .* head_dim 7|q_proj has 48 rows, .* head_dim 7"):
        attention_blocks(model)


@pytest.mark.parametrize("method", ["svd", "asvd", "svdllm", "fwsvd", "qsvd", "head_svd", "head_white"])
def test_a_full_rank_model_is_the_dense_model(method):
    model, ids = tiny_model(), tiny_ids(2, 10)
    blocks = attention_blocks(model)
    full = HEAD if method.startswith("head") else HIDDEN if method in ("qsvd",) else KV_HEADS * HEAD
    found = truncated(method, spectra_of(method, blocks, statistics(), ("k", "v")), blocks, 0.5, projections=("k", "v"), rank=min(full, 32))
    dense = model(ids).logits
    with installed(model, found):
        torch.testing.assert_close(model(ids).logits, dense, atol=1e-4, rtol=1e-4)
    assert torch.equal(model(ids).logits, dense)


@pytest.mark.parametrize("method", ["qsvd", "svdllm", "head_white"])
def test_factors_in_layers_and_their_product_as_weight_are_one_function(method):
    model, ids = tiny_model(), tiny_ids(2, 10)
    dense = model(ids).logits
    found = factors(model, method)
    with installed(model, found):
        as_layers = model(ids).logits
    with merged(model, found):
        as_weights = model(ids).logits
    torch.testing.assert_close(as_layers, as_weights, atol=1e-4, rtol=1e-4)
    assert float((as_layers - dense).abs().max()) > 1e-2
    assert torch.equal(model(ids).logits, dense)


def test_ratios_count_parameters_and_cache():
    model = tiny_model()
    blocks = attention_blocks(model)
    head, whole, joint = (factors(model, m) for m in ("head_white", "svdllm", "qsvd"))
    r = head[0, "k"].ranks[0]
    assert parameter_ratio(head, blocks) == pytest.approx(r * (HIDDEN + HEAD) / (HIDDEN * HEAD))
    assert cache_ratio(head, blocks) == pytest.approx(r / HEAD)
    R = whole[0, "k"].A.shape[1]
    assert cache_ratio(whole, blocks) == pytest.approx(R / (KV_HEADS * HEAD))
    J, columns = joint[0, "q"].A.shape[1], (QUERY_HEADS + 2 * KV_HEADS) * HEAD
    assert parameter_ratio(joint, blocks) == pytest.approx(J * (HIDDEN + columns) / (HIDDEN * columns))
    assert cache_ratio(joint, blocks) == pytest.approx(J / (2 * KV_HEADS * HEAD))
    mixed = {**head, (0, "k"): HeadFactors(head[0, "k"].A, head[0, "k"].B, (r, r - 1))}
    assert cache_ratio(mixed, blocks) == pytest.approx(r / HEAD - 1 / (LAYERS * 2 * KV_HEADS * HEAD))
    assert cache_ratio({key: f for key, f in head.items() if key[1] == "v"}, blocks) == pytest.approx((1 + r / HEAD) / 2)


def test_a_joint_latent_without_values_is_a_cache_of_keys():
    model = tiny_model()
    blocks = attention_blocks(model)
    found = factors(model, "qsvd", projections=("q", "k"))
    full = KV_HEADS * HEAD
    assert cache_ratio(found, blocks) == pytest.approx((found[0, "k"].A.shape[1] + full) / (2 * full))


def test_global_ranks_need_importances_of_the_methods_own_triples():
    model = tiny_model()
    blocks, known = attention_blocks(model), statistics()
    refused = {"head_svd": "got 'head_svd'", "svdllm": "got 'svdllm'", "head_white": "no importance of 'q', only of nothing"}
    for method, message in refused.items():
        with pytest.raises(ValueError, match=message):
            truncated(method, spectra_of(method, blocks, known), blocks, 0.5, known)
    for layer in known:
        layer.importance["qkv"] = torch.ones(HIDDEN)
    with pytest.raises(ValueError, match="no importance of 'kv', only of qkv"):
        truncated("qsvd", spectra_of("qsvd", blocks, known, ("k", "v")), blocks, 0.5, known, ("k", "v"))


def test_biases_stay_and_bad_shapes_are_refused():
    layer = torch.nn.Linear(6, 8)
    made = low_rank_module(HeadFactors(randn(2, 6, 3), randn(2, 3, 4), (3, 3)), layer)
    x = randn(5, 6)
    torch.testing.assert_close(made(x), x @ HeadFactors(made.A, made.B, (3, 3)).weight().T + layer.bias)
    with pytest.raises(ValueError, match=r"6 -> 12 do not fit the layer of 6 -> 8"):
        low_rank_module(HeadFactors(randn(3, 6, 3), randn(3, 3, 4), (3, 3, 3)), torch.nn.Linear(6, 8, bias=False))
    with pytest.raises(ValueError, match="expected"):
        PerHeadLowRankLinear(randn(2, 6, 3), randn(2, 2, 4))
    with pytest.raises(ValueError, match="bias"):
        PerHeadLowRankLinear(randn(2, 6, 3), randn(2, 3, 4), torch.zeros(3))


def test_rotation_and_quantisers_are_applied_where_they_belong():
    A, B, x = randn(2, 6, 3), randn(2, 3, 4), randn(5, 6)
    turn = torch.linalg.qr(randn(6, 6, seed=9)).Q
    seen = []
    layer = PerHeadLowRankLinear(
        turn @ A, B, input_rotation=turn, quantise_input=lambda t: seen.append(t) or t, quantise_latent=lambda t: seen.append(t) or t
    )
    torch.testing.assert_close(layer(x), PerHeadLowRankLinear(A, B)(x), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(seen[0], x @ turn.T)
    assert seen[1].shape == (5, 2, 3)


@pytest.mark.parametrize("keys", ["whole", "latent"])
def test_latents_in_the_cache_decode_as_reconstruction_does(keys):
    """Prefill, then token by token: B_V folded into the output, and keys rebuilt at their own positions, change nothing."""
    model, ids = tiny_model(), tiny_ids(2, 12)
    install(model, factors(model))
    expected = model(ids).logits
    with latents_cached(model, keys):
        torch.testing.assert_close(model(ids, use_cache=False).logits, expected, atol=1e-4, rtol=1e-4)
        cache = KeyValueCache(model)
        parts = [cache.append(ids[:, :7], keep=0), *(cache.append(ids[:, t : t + 1]) for t in range(7, 12))]
        torch.testing.assert_close(torch.cat(parts, 1), expected, atol=1e-4, rtol=1e-4)
        cached_keys, cached_values = cache.layer(1)
        rank = model.model.layers[1].self_attn.v_proj.rank
        assert cached_values.shape[-1] == rank
        assert cached_keys.shape[-1] == (HEAD if keys == "whole" else rank)
        cache.crop(9)
        torch.testing.assert_close(cache.append(ids[:, 9:10]), expected[:, 9:10], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(model(ids).logits, expected)


@pytest.mark.parametrize("keys", ["whole", "latent"])
@pytest.mark.parametrize("kind", ["mistral", "qwen2"])
def test_sliding_windows_and_biases_decode_as_reconstruction_does(kind, keys):
    sizes = {"hidden_size": HIDDEN, "intermediate_size": 32, "num_hidden_layers": LAYERS, "vocab_size": VOCABULARY, "head_dim": HEAD}
    sizes |= {"num_attention_heads": QUERY_HEADS, "num_key_value_heads": KV_HEADS, "sliding_window": 6}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if kind == "mistral":
            model = transformers.MistralForCausalLM(transformers.MistralConfig(**sizes))
        else:  # the first layer sees everything, the second a window; projections have biases
            model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**sizes, use_sliding_window=True, max_window_layers=1))
        for name, bias in model.named_parameters():
            if name.endswith("bias"):
                bias.data.normal_()
    model, ids = model.eval().requires_grad_(False), tiny_ids(2, 16)
    install(model, factors(model, projections=("k", "v")))
    expected = model(ids).logits
    with latents_cached(model, keys):
        cache = KeyValueCache(model)
        parts = [cache.append(ids[:, :9], keep=0), *(cache.append(ids[:, t : t + 1]) for t in range(9, 16))]
    torch.testing.assert_close(torch.cat(parts, 1), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("keys", ["whole", "latent"])
def test_left_padding_keeps_logical_positions(keys):
    model, ids = tiny_model(), tiny_ids(1, 8)
    install(model, factors(model))
    padded = torch.cat([torch.zeros(1, 3, dtype=torch.long), ids], 1)
    mask = torch.cat([torch.zeros(1, 3, dtype=torch.long), torch.ones(1, 8, dtype=torch.long)], 1)
    positions = (mask.cumsum(1) - 1).clamp_min(0)
    with latents_cached(model, keys):
        plain = model(ids).logits
        cache = KeyValueCache(model)
        cache.append(padded[:, :9], positions=positions[:, :9], attention_mask=mask[:, :9])
        found = [cache.append(padded[:, t : t + 1], positions=positions[:, t : t + 1], attention_mask=mask[:, : t + 1]) for t in (9, 10)]
    torch.testing.assert_close(torch.cat(found, 1), plain[:, -2:], atol=1e-4, rtol=1e-4)


def test_rotating_the_latent_is_not_the_same():
    """A rotary turn of the latent is no turn of the key: the negative of what the kernel must do."""
    C, B, angle = randn(4, 8), randn(8, 8, seed=1), torch.tensor(0.7)
    turn = torch.block_diag(*[torch.tensor([[angle.cos(), -angle.sin()], [angle.sin(), angle.cos()]])] * 4)
    assert float(((C @ turn) @ B - (C @ B) @ turn).abs().max()) > 0.1


def test_values_biases_are_folded_too():
    model, ids = tiny_model(), tiny_ids(1, 8)
    found = factors(model)
    blocks = attention_blocks(model)
    made = {}
    for (layer, p), part in found.items():
        bias = randn(part.A.shape[0] * HEAD, seed=layer) if p == "v" else None
        made[layer, p] = PerHeadLowRankLinear(part.A, part.B, bias)
    put(blocks, made)
    expected = model(ids).logits
    with latents_cached(model):
        torch.testing.assert_close(model(ids).logits, expected, atol=1e-4, rtol=1e-4)


def test_what_cannot_cache_latents_says_so():
    model = tiny_model()
    with pytest.raises(ValueError, match="v_proj is a Linear"):
        cache_latents(model)
    install(model, factors(model, projections=("v",)))
    with pytest.raises(ValueError, match="k_proj is a Linear"):
        cache_latents(model, "latent")
    attention = model.model.layers[0].self_attn
    with pytest.raises(ValueError, match="LlamaAttention"):
        LatentAttention(torch.nn.Linear(2, 2), "whole", None, True)
    assert attention is model.model.layers[0].self_attn


def test_a_cache_filled_elsewhere_is_refused():
    model, ids = tiny_model(), tiny_ids(1, 8)
    install(model, factors(model))
    cache = KeyValueCache(model)
    cache.append(ids[:, :5])
    with latents_cached(model, "latent"), pytest.raises(ValueError, match="prefill it with the compressed model"):
        cache.append(ids[:, 5:6])


@pytest.mark.parametrize("method", ["head_white", "qsvd"])
def test_factors_survive_their_file(method, tmp_path):
    model = tiny_model()
    found = factors(model, method)
    save_factors(tmp_path / "f.safetensors", found)
    read = load_factors(tmp_path / "f.safetensors")
    assert set(read) == set(found)
    for key, ours in read.items():
        assert torch.equal(ours.A, found[key].A)
        assert torch.equal(ours.B, found[key].B)
        assert ours.parameters() == found[key].parameters()


@pytest.mark.parametrize("method", ["head_white", "svdllm"])
def test_compressed_folders_load_as_the_same_function(method, tmp_path):
    model, ids = tiny_model(), tiny_ids(2, 10)
    install(model, factors(model, method))
    expected = model(ids).logits
    save_compressed(model, tmp_path / "m", measured={"kl": 1.0})
    found = load_compressed(tmp_path / "m", dtype="float32")
    assert torch.equal(found(ids).logits, expected)
    assert found.lm_head.weight.data_ptr() == found.model.embed_tokens.weight.data_ptr() or not found.config.tie_word_embeddings
    assert not any(p.requires_grad for p in found.parameters())


def test_folders_that_are_not_compressed_models_are_refused(tmp_path):
    model = tiny_model()
    with pytest.raises(ValueError, match="nothing in this model is factorised"):
        save_compressed(model, tmp_path / "m")
    with pytest.raises(FileNotFoundError, match="not a compressed model"):
        load_compressed(tmp_path)
    install(model, factors(model))
    save_compressed(model, tmp_path / "m")
    note = (tmp_path / "m" / "low_rank.json").read_text()
    (tmp_path / "m" / "low_rank.json").write_text(note.replace('"version": 1', '"version": 9'))
    with pytest.raises(ValueError, match="version 9"):
        load_compressed(tmp_path / "m")


def test_a_rank_beyond_the_full_one_is_cut_with_a_warning():
    model = tiny_model()
    blocks = attention_blocks(model)
    spectra = spectra_of("head_white", blocks, statistics())
    with pytest.warns(UserWarning, match="rank 99 is more"):
        found = truncated("head_white", spectra, blocks, 0.5, rank=99)
    assert found[0, "k"].ranks == (HEAD, HEAD)
    with pytest.raises(ValueError, match="unknown method 'lora'"):
        spectra_of("lora", blocks, statistics())


def test_one_token_attends_as_torch_does_and_honours_masks():
    q, K, V = randn(2, 6, 1, 8), randn(2, 2, 9, 8, seed=1), randn(2, 2, 9, 3, seed=2)
    wide = torch.nn.functional.pad(V, (0, 5))
    mask = torch.arange(9) >= torch.tensor([[0], [4]])
    for given in (None, mask[:, None, None], torch.where(mask, 0.0, -torch.inf)[:, None, None]):
        expected = torch.nn.functional.scaled_dot_product_attention(q, K, wide, attn_mask=given, scale=0.3, enable_gqa=True)[..., :3]
        torch.testing.assert_close(attend_once(q, K, V, given, 0.3), expected.transpose(1, 2), atol=1e-5, rtol=1e-4)


def test_modules_that_cache_latents_are_in_the_models_mode():
    model, ids = tiny_model(), tiny_ids(1, 8)
    install(model, factors(model))
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.9
    expected = model(ids).logits
    with latents_cached(model):
        assert not any(module.training for module in model.modules())
        torch.testing.assert_close(model(ids).logits, expected, atol=1e-4, rtol=1e-4)
