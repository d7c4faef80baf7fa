"""`kvcache inspect` of the file that `kvcache demo` saves, and of a model in GGUF: as text, as JSON, damaged, missing. Argument: the command."""

import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

command = sys.argv[1]


def run(*arguments):
    return subprocess.run([command, *map(str, arguments)], capture_output=True, text=True, timeout=300)


def shown(*arguments):
    result = run("inspect", *arguments)
    assert (result.returncode, result.stderr) == (0, ""), f"{arguments}: {result.returncode}: {result.stderr}"
    return result.stdout


def refused(part, *arguments):
    result = run("inspect", *arguments)
    assert (result.returncode, result.stdout) == (1, ""), f"{arguments}: {result.returncode}: {result.stdout}"
    assert part in result.stderr, result.stderr


with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / "prompt.kvc"
    made = run("demo", "--quick", "--conversations", 2, "--max-new", 4, "--save", path)
    assert made.returncode == 0, made.stderr
    assert list(pathlib.Path(folder).iterdir()) == [path]
    file = json.loads(shown(path, "--json"))
    assert file["bytes"] == path.stat().st_size and len(file["sequences"]) == 1, file
    sequence = file["sequences"][0]
    assert sequence["length"] == 2033 and file["num_pages"] == 128, file
    assert file["fingerprint"].startswith("kvcache-layout-1:"), file
    text = shown(path)
    assert "1 sequence, 128 pages, 0 recurrent states" in text and "2,033" in text and "every digest matches" in text, text
    assert "layers[1].num_kv_heads = 2" in shown(path, "--layout")

    whole = path.read_bytes()
    path.write_bytes(whole[:1000] + bytes([whole[1000] ^ 1]) + whole[1001:])
    refused("digest", path)
    path.write_bytes(whole[:-1])
    refused(str(path), path)
    path.write_bytes(b"")
    refused(str(path), path)
    refused("No such file", path.parent / "missing.kvc")
    refused("no state file", __file__)
print("inspect: ok")


def gguf_text(text):
    return struct.pack("<Q", len(text)) + text.encode()


def gguf_model():
    """A model of two tensors: Q8_0 [2][32] and F32 [3]."""
    values = [gguf_text("general.architecture") + struct.pack("<I", 8) + gguf_text("llama")]
    values += [gguf_text(f"llama.{key}") + struct.pack("<II", 4, value)
               for key, value in (("block_count", 1), ("embedding_length", 32), ("attention.head_count", 4),
                                  ("attention.head_count_kv", 2))]
    tensors = [gguf_text("blk.0.attn_q.weight") + struct.pack("<IQQIQ", 2, 32, 2, 8, 0),
               gguf_text("output_norm.weight") + struct.pack("<IQIQ", 1, 3, 0, 96)]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values)) + b"".join(values + tensors)
    return head + bytes(-len(head) % 32) + bytes(96) + bytes(12)


with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / "model.gguf"
    path.write_bytes(gguf_model())
    model = json.loads(shown(path, "--json"))
    assert (model["architecture"], model["layers"], model["width"], model["q_heads"], model["kv_heads"]) == ("llama", 1, 32, 4, 2), model
    assert model["name"] is None and model["elements"] == 67, model
    assert model["types"]["Q8_0"] == {"tensors": 1, "elements": 64, "bytes": 68}, model
    text = shown(path)
    assert "1 layer of width 32, 4 query heads on 2 KV heads" in text and "architecture llama" in text, text
    assert "blk.0.attn_q.weight Q8_0 [32,2]" in shown(path, "--layout")
    path.write_bytes(gguf_model()[:-1])
    refused('tensor "output_norm.weight" of 12 bytes at 96 of the data reaches beyond the end of the file', path)
    fifo = path.with_name("fifo")
    os.mkfifo(fifo)
    refused("it is a FIFO", fifo)
    path.write_bytes(b"GGUF")
    refused("the file ends inside the version", path)
