"""`kvcache bench accuracy` on models with random weights, beside a perplexity computed here.

    accuracy.py TOOL
"""

import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.dom.minidom

import tiny_gguf

TOOL = sys.argv.pop(1)
DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"
TEXT = "Boats moor at C; dogs wear a lead!"  # Without a merge of the vocabulary: a token is a byte.
FIELDS = {"bench", "library", "cpu", "isa", "threads", "model", "weights", "kv_dtype", "keep_tokens", "bytes_per_token", "text", "tokens",
          "window", "stride", "perplexity", "seconds"}
ASKED = {"right", "questions", "wrong"}


class Llama:
    """The forward pass of a tiny llama in double precision, one token after another."""

    def __init__(self):
        self.weights = {}
        for name, shape, numbers in tiny_gguf.tensors():
            rows = len(numbers) // shape[0]
            self.weights[name] = [numbers[i * shape[0]:(i + 1) * shape[0]] for i in range(rows)]
        self.keys, self.values = [[], []], [[], []]

    def product(self, name, row):
        return [sum(a * b for a, b in zip(weights, row)) for weights in self.weights[name]]

    def norm(self, name, row):
        scale = 1 / math.sqrt(sum(x * x for x in row) / len(row) + 1e-5)
        return [x * scale * w for x, w in zip(row, self.weights[name][0])]

    @staticmethod
    def heads(row, position=None):
        """A row as heads, neighbours rotated by the position."""
        dim = tiny_gguf.DIM
        row = list(row)
        for i in range(0, len(row) if position is not None else 0, 2):
            angle = position * 10000.0 ** (-(i % dim) / dim)
            a, b = row[i], row[i + 1]
            row[i], row[i + 1] = a * math.cos(angle) - b * math.sin(angle), a * math.sin(angle) + b * math.cos(angle)
        return [row[i:i + dim] for i in range(0, len(row), dim)]

    def logits(self, token):
        hidden = list(self.weights["token_embd.weight"][token])
        for layer in range(2):
            name = f"blk.{layer}."
            normed, position = self.norm(name + "attn_norm.weight", hidden), len(self.keys[layer])
            self.keys[layer].append(self.heads(self.product(name + "attn_k.weight", normed), position))
            self.values[layer].append(self.heads(self.product(name + "attn_v.weight", normed)))
            attended = []
            for h, query in enumerate(self.heads(self.product(name + "attn_q.weight", normed), position)):
                kv = h * tiny_gguf.KV_HEADS // tiny_gguf.Q_HEADS
                scores = [sum(a * b for a, b in zip(query, key[kv])) / tiny_gguf.DIM ** 0.5 for key in self.keys[layer]]
                weights = [math.exp(score - max(scores)) for score in scores]
                attended += [sum(w * value[kv][i] for w, value in zip(weights, self.values[layer])) / sum(weights)
                             for i in range(tiny_gguf.DIM)]
            hidden = [a + b for a, b in zip(hidden, self.product(name + "attn_output.weight", attended))]
            normed = self.norm(name + "ffn_norm.weight", hidden)
            gates, ups = self.product(name + "ffn_gate.weight", normed), self.product(name + "ffn_up.weight", normed)
            gated = [gate / (1 + math.exp(-gate)) * up for gate, up in zip(gates, ups)]
            hidden = [a + b for a, b in zip(hidden, self.product(name + "ffn_down.weight", gated))]
        return self.product("output.weight", self.norm("output_norm.weight", hidden))


def perplexity(ids, window, stride):
    """As the page defines it: window k begins at k * stride, and judges what no earlier one has."""
    total, judged = 0.0, 1
    for begin in range(0, len(ids), stride):
        model, end = Llama(), min(begin + window, len(ids))
        for i in range(begin, end - 1):
            logits = model.logits(ids[i])
            if i + 1 >= judged:
                largest = max(logits)
                total += largest + math.log(sum(math.exp(x - largest) for x in logits)) - logits[ids[i + 1]]
        judged = max(judged, end)
    return math.exp(total / (len(ids) - 1))


class Accuracy(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.root = pathlib.Path(cls.folder.name)
        cls.model = tiny_gguf.write(cls.root / "tiny.gguf", context=8192)
        cls.text = cls.root / "text.txt"
        cls.text.write_text(TEXT)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def run_tool(self, *arguments, model=None, environment=None):
        model = ("--model", model or self.model) if environment is None else ()
        return subprocess.run([TOOL, "bench", "accuracy", *model, *map(str, arguments)], capture_output=True, text=True,
                              timeout=300, env=environment)

    def report(self, *arguments, model=None):
        done = self.run_tool(*arguments, "--json", model=model)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return json.loads(done.stdout)

    def refused(self, part, status, *arguments, **options):
        done = self.run_tool(*arguments, **options)
        self.assertEqual((done.returncode, done.stdout), (status, ""))
        self.assertIn(part, done.stderr)

    def test_the_report_has_its_fields(self):
        report = self.report()
        self.assertEqual(set(report), FIELDS | ASKED)
        self.assertEqual((report["bench"], report["model"], report["kv_dtype"], report["weights"], report["text"]),
                         ("accuracy", "tiny.gguf", "fp32", "bf16", "handbook"))
        self.assertEqual((report["questions"], report["right"] + len(report["wrong"])), (50, 50))
        self.assertEqual(set(report["wrong"][0]), {"question", "expected", "answer"})
        self.assertEqual(report["bytes_per_token"], 1024)
        self.assertGreater(report["perplexity"], 1)
        self.assertEqual({**self.report("--threads", 1), "seconds": 0, "threads": 0},
                         {**self.report("--threads", 2), "seconds": 0, "threads": 0})

    def test_a_script_draws_reports(self):
        paths = []
        for dtype in ("fp32", "int8"):
            paths.append(self.root / f"{dtype}.json")
            paths[-1].write_text(json.dumps(self.report("--kv-dtype", dtype)))
        drawn = self.root / "accuracy.svg"
        subprocess.run([sys.executable, DOCS / "accuracy_picture.py", drawn, *paths], check=True)
        texts = [text.firstChild.data for text in xml.dom.minidom.parse(str(drawn)).getElementsByTagName("text")]
        self.assertEqual([text for text in texts if text in ("fp32", "fp16", "int8")], ["fp32", "int8"])
        self.assertIn("1,024", texts)
        self.assertIn("right of 50", texts)

    def test_people_get_a_table(self):
        done = self.run_tool(self.text, "--no-questions")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        lines = dict(line.split(None, 1) for line in done.stdout.splitlines())
        self.assertEqual(set(lines), FIELDS)
        self.assertRegex(lines["perplexity"], r"^\d+\.\d{4}$")

    def test_the_perplexity_is_that_of_the_model(self):
        for window, stride in ((1024, 512), (12, 5), (8, 7), (2, 1)):
            with self.subTest(window=window, stride=stride):
                report = self.report(self.text, "--no-questions", "--weights", "fp32", "--window", window, "--stride", stride)
                expected = perplexity(TEXT.encode(), window, stride)
                self.assertEqual((report["tokens"], report["window"], report["stride"]), (len(TEXT), window, stride))
                self.assertLess(abs(report["perplexity"] / expected - 1), 1e-4, expected)

    def test_a_window_over_the_whole_text_needs_no_stride(self):
        whole = {self.report(self.text, "--no-questions", "--window", window, "--stride", stride)["perplexity"]
                 for window, stride in ((1024, 0), (1024, 1), (len(TEXT), 3), (len(TEXT), len(TEXT) - 1))}
        self.assertEqual(len(whole), 1, whole)

    def test_storage_costs_bytes_and_little_else(self):
        exact = self.report(self.text, "--no-questions")["perplexity"]
        for dtype in ("fp16", "bf16"):
            report = self.report(self.text, "--no-questions", "--kv-dtype", dtype)
            self.assertEqual((report["kv_dtype"], report["bytes_per_token"]), (dtype, 512))
            self.assertNotEqual(report["perplexity"], exact)
            self.assertLess(abs(report["perplexity"] / exact - 1), 0.1)
        for dtype in ("int8", "fp8", "fp8_e5m2"):
            report = self.report(self.text, "--no-questions", "--kv-dtype", dtype)
            self.assertEqual(report["kv_dtype"], dtype)
            self.assertTrue(256 < report["bytes_per_token"] < 512, report)
            self.assertNotEqual(report["perplexity"], exact)
            self.assertLess(abs(report["perplexity"] / exact - 1), 0.3)

    def test_each_architecture(self):
        for architecture in ("qwen2", "qwen3", "gemma3"):
            model = tiny_gguf.write(self.root / f"{architecture}.gguf", architecture, layers=7 if architecture == "gemma3" else 2)
            report = self.report(self.text, "--no-questions", "--window", 16, model=model)
            self.assertGreater(report["perplexity"], 1)

    def test_what_cannot_be_used_is_refused(self):
        def file(name, data):
            (self.root / name).write_bytes(data)
            return self.root / name

        self.refused("empty.txt is empty", 2, file("empty.txt", b""))
        self.refused("one.txt has one token", 2, file("one.txt", b"x"))
        self.refused("broken.txt is no UTF-8 at byte 3", 2, file("broken.txt", b"abc\xff\xfe"))
        self.refused("missing.txt: No such file", 2, self.root / "missing.txt")
        self.refused(f"{self.root}: Is a directory", 2, self.root)
        for dtype in ("int4", "nvfp4"):
            self.refused(f"--kv-dtype {dtype}: attention on the CPU reads bf16, fp16, fp32, int8", 2, "--kv-dtype", dtype)
        self.refused("--kv-dtype", 2, "--kv-dtype", "fp33")
        self.refused("--stride 8 has to be less than --window 8", 2, "--window", 8, "--stride", 8)
        self.refused("is no GGUF file", 1, model=__file__)
        self.refused("make demo", 1, environment={**os.environ, "KVCACHE_MODEL_DIR": str(self.root / "nowhere")})
        self.refused("--template", 2, "--template", "jinja")
        small = tiny_gguf.write(self.root / "small.gguf", context=64)
        self.refused("--no-questions", 2, self.text, model=small)
        self.refused("--window 1024: the model was trained for 64 tokens", 2, "--no-questions", model=small)
        self.refused("--device", 1, "--device", "cuda")


if __name__ == "__main__":
    unittest.main()
