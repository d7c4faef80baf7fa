"""Models with random weights in every type that the command reads, written by the `gguf` package."""

import gguf
import numpy as np

WIDTH, FFN, Q_HEADS, KV_HEADS, DIM, VOCABULARY, CONTEXT, WINDOW = 256, 512, 4, 2, 64, 320, 512, 40
LAYERS = {"llama": 3, "qwen2": 3, "qwen3": 3, "gemma3": 7}  # The sixth of gemma3 is the first without a window.
TYPES = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"]
# Of a block of 256 random elements: its bytes, where its 16-bit scales lie, and its elements' deviation for scales of one. Of two scales
# the second is of what is taken away, whose mean is made that of the elements.
SUPER_BLOCKS = {"Q4_K": (144, (0, 2), 260.0, 7.5), "Q5_K": (176, (0, 2), 510.0, 15.5), "Q6_K": (210, (208,), 1366.0, None)}


def _super_blocks(kind, rows, columns, deviation, random):
    """Every bit is random but those of the scales."""
    size, places, of_ones, least = SUPER_BLOCKS[kind]
    blocks = random.integers(0, 256, (rows * columns // 256, size), np.uint8)
    scales = deviation / of_ones * random.uniform(0.5, 1.4, len(blocks))
    for place, factor in zip(places, (1.0, least)):
        blocks[:, place:place + 2] = (scales * factor).astype(np.float16)[:, None].view(np.uint8)
    return blocks.reshape(rows, -1)


def write(path, architecture, kind, seed):
    """A file whose matrices are of type `kind`."""
    random = np.random.default_rng(seed)
    stored = gguf.GGMLQuantizationType[kind]
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name(f"random {architecture}")
    writer.add_block_count(LAYERS[architecture])
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(Q_HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(DIM)
    writer.add_value_length(DIM)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(20000.0)
    if architecture == "llama":
        writer.add_rope_dimension_count(DIM)
    if architecture == "gemma3":
        writer.add_sliding_window(WINDOW)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([f"t{index}" for index in range(VOCABULARY)])

    def vector(name, count, mean, deviation):
        writer.add_tensor(name, (mean + deviation * random.standard_normal(count)).astype(np.float32))

    def matrix(name, rows, columns, gain=1.2):
        deviation = gain / columns ** 0.5
        if kind in SUPER_BLOCKS:
            data = _super_blocks(kind, rows, columns, deviation, random)
        else:
            data = gguf.quants.quantize((deviation * random.standard_normal((rows, columns))).astype(np.float32), stored)
        writer.add_tensor(name, data, raw_dtype=stored)

    matrix("token_embd.weight", VOCABULARY, WIDTH, gain=4.0)
    vector("output_norm.weight", WIDTH, 1.0, 0.2)
    # Those of gemma3 and qwen2 are tied to the embedding.
    if architecture in ("llama", "qwen3"):
        matrix("output.weight", VOCABULARY, WIDTH, gain=4.0)
    for layer in range(LAYERS[architecture]):
        at = f"blk.{layer}."
        for norm in ("attn_norm", "ffn_norm", *(("post_attention_norm", "post_ffw_norm") if architecture == "gemma3" else ())):
            vector(f"{at}{norm}.weight", WIDTH, 1.0, 0.2)
        if architecture in ("gemma3", "qwen3"):
            for norm in ("attn_q_norm", "attn_k_norm"):
                vector(f"{at}{norm}.weight", DIM, 1.0, 0.2)
        for part, heads in (("q", Q_HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            matrix(f"{at}attn_{part}.weight", heads * DIM, WIDTH)
            if architecture == "qwen2":
                vector(f"{at}attn_{part}.bias", heads * DIM, 0.0, 0.3)
        matrix(f"{at}attn_output.weight", WIDTH, Q_HEADS * DIM)
        matrix(f"{at}ffn_gate.weight", FFN, WIDTH)
        matrix(f"{at}ffn_up.weight", FFN, WIDTH)
        matrix(f"{at}ffn_down.weight", WIDTH, FFN)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
