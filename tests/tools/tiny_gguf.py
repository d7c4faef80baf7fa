"""Models in GGUF with random weights, small enough to be written by a test: byte-level vocabulary, ChatML or Gemma turns."""

import array
import random
import struct

MARKS = {"chatml": ["<|im_start|>", "<|im_end|>"], "gemma": ["<start_of_turn>", "<end_of_turn>"]}
UINT32, FLOAT32, BOOL, STRING, ARRAY = 4, 6, 7, 8, 9
F32 = 0
WIDTH, FFN, Q_HEADS, KV_HEADS, DIM = 64, 96, 4, 2, 32
VOCABULARY = 262  # 256 bytes, three control tokens, three merges.


def _text(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value):
    if isinstance(value, bool):
        return struct.pack("<I?", BOOL, value)
    if isinstance(value, int):
        return struct.pack("<II", UINT32, value)
    if isinstance(value, float):
        return struct.pack("<If", FLOAT32, value)
    if isinstance(value, str):
        return struct.pack("<I", STRING) + _text(value)
    if not value or isinstance(value[0], str):
        return struct.pack("<IIQ", ARRAY, STRING, len(value)) + b"".join(map(_text, value))
    return struct.pack("<IIQ", ARRAY, 5, len(value)) + struct.pack(f"<{len(value)}i", *value)


def _byte_texts():
    """GPT-2's printable character of each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def write(path, architecture="llama", seed=1, layers=2, context=1024, window=8):
    """A model of width 64 with 4 query heads on 2 KV heads of 32. Tokens that end an answer are never the likeliest."""
    width, ffn, q_heads, kv_heads, dim = WIDTH, FFN, Q_HEADS, KV_HEADS, DIM
    marks = MARKS["gemma" if architecture == "gemma3" else "chatml"]
    tokens = _byte_texts() + ["<|endoftext|>", *marks]
    values = {
        "general.architecture": architecture, "general.name": f"tiny {architecture}",
        "block_count": layers, "context_length": context, "embedding_length": width, "feed_forward_length": ffn,
        "attention.head_count": q_heads, "attention.head_count_kv": kv_heads, "attention.key_length": dim,
        "attention.value_length": dim, "attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 10000.0,
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2", "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * 256 + [3] * 3, "tokenizer.ggml.merges": ["h e", "l l", "he ll"],
        "tokenizer.ggml.bos_token_id": 256, "tokenizer.ggml.eos_token_id": 256,
        "tokenizer.chat_template": "{{ '" + marks[0] + "' + message['role'] + '\n' + message['content'] + '" + marks[1] + "' }}",
    }
    tokens += ["he", "ll", "hell"]
    values["tokenizer.ggml.token_type"] += [1] * 3
    if architecture == "gemma3":
        values["attention.sliding_window"] = window
    scoped = {key if key.split(".")[0] in ("general", "tokenizer") else f"{architecture}.{key}": value
              for key, value in values.items()}
    weights = tensors(architecture, seed, layers, len(tokens))
    head, data = [], b""
    for name, shape, numbers in weights:
        head.append(_text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, F32, len(data)))
        data += numbers.tobytes() + bytes(-len(numbers) * 4 % 32)
    front = b"GGUF" + struct.pack("<IQQ", 3, len(weights), len(scoped))
    front += b"".join(_text(key) + _value(value) for key, value in scoped.items()) + b"".join(head)
    path.write_bytes(front + bytes(-len(front) % 32) + data)
    return path


def tensors(architecture="llama", seed=1, layers=2, vocabulary=VOCABULARY):
    """What write() puts into a file: (name, shape with the fastest dimension first, array of float32) of each tensor."""
    dice = random.Random(seed)
    width, ffn, q_heads, kv_heads, dim = WIDTH, FFN, Q_HEADS, KV_HEADS, DIM
    result = []

    def add(name, *shape, gain=1.0, mean=0.0):
        count = 1
        for extent in shape:
            count *= extent
        spread = gain / shape[0] ** 0.5 if len(shape) > 1 else gain
        result.append((name, shape, array.array("f", [mean + spread * dice.gauss(0, 1) for _ in range(count)])))

    add("token_embd.weight", width, vocabulary, gain=8.0)
    for i in range(layers):
        add(f"blk.{i}.attn_norm.weight", width, gain=0.1, mean=1.0)
        for part, rows in (("q", q_heads * dim), ("k", kv_heads * dim), ("v", kv_heads * dim)):
            add(f"blk.{i}.attn_{part}.weight", width, rows, gain=1.5)
            if architecture == "qwen2":
                add(f"blk.{i}.attn_{part}.bias", rows, gain=0.3)
        if architecture in ("qwen3", "gemma3"):
            add(f"blk.{i}.attn_q_norm.weight", dim, gain=0.1, mean=1.0)
            add(f"blk.{i}.attn_k_norm.weight", dim, gain=0.1, mean=1.0)
        add(f"blk.{i}.attn_output.weight", q_heads * dim, width)
        if architecture == "gemma3":
            add(f"blk.{i}.post_attention_norm.weight", width, gain=0.1, mean=1.0)
            add(f"blk.{i}.post_ffw_norm.weight", width, gain=0.1, mean=1.0)
        add(f"blk.{i}.ffn_norm.weight", width, gain=0.1, mean=1.0)
        add(f"blk.{i}.ffn_gate.weight", width, ffn)
        add(f"blk.{i}.ffn_up.weight", width, ffn)
        add(f"blk.{i}.ffn_down.weight", ffn, width)
    add("output_norm.weight", width, gain=0.1, mean=1.0)
    add("output.weight", width, vocabulary, gain=4.0)
    for never in range(256, 259):
        result[-1][2][never * width:(never + 1) * width] = array.array("f", [0.0] * width)
    return result
