"""`kvcache plan`: figures that were worked out by hand, models by their config.json, and how it says no."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.dom.minidom

TOOL = sys.argv.pop(1)
CONFIGS = pathlib.Path(__file__).parent.parent / "capi" / "hf_configs"
LLAMA = ["--layers", "32", "--kv-heads", "8", "--head-dim", "128"]


def run(*arguments):
    return subprocess.run([TOOL, "plan", *map(str, arguments)], capture_output=True, text=True, timeout=300)


def config(name):
    return CONFIGS / f"{name}.json"


def without_rope_tables(plan):
    """Families that are read by their keys leave rotations to the model, so their tables take no host memory."""
    return {key: value for key, value in plan.items() if not key.startswith("host_bytes")}


class Plan(unittest.TestCase):
    def planned(self, *arguments):
        done = run(*arguments, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr, "")
        return json.loads(done.stdout)

    def refused(self, status, part, *arguments):
        done = run(*arguments)
        self.assertEqual(done.returncode, status, done.stderr)
        self.assertEqual(done.stdout, "")
        self.assertIn(part, done.stderr)

    def test_32_layers_of_8_heads_of_128_fill_16_gib_with_one_request(self):
        plan = self.planned(*LLAMA, "--memory", "16GiB", "--max-len", 131072)
        self.assertEqual(plan["num_pages"], 8192)
        self.assertEqual(plan["page_size"], 16)
        self.assertEqual(plan["concurrency"], 1)
        self.assertEqual(plan["max_tokens"], 131072)
        self.assertEqual(plan["waste"], 0)
        self.assertEqual(len(plan["groups"]), 1)
        self.assertNotIn("ranks", plan)

    def test_quantised_storage_holds_as_many_pages_as_its_bytes_say(self):
        # Per token and head: K and V of 128 elements with a float32 scale each, or a scale byte per 16 elements.
        bytes_of = {"bf16": 512, "fp16": 512, "fp32": 1024, "fp8": 256, "fp8_e5m2": 256, "int8": 264, "int4": 136, "nvfp4": 144}
        for name, row in bytes_of.items():
            with self.subTest(name):
                plan = self.planned(*LLAMA, "--memory", "16GiB", "--max-len", 32768, "--kv-dtype", name)
                self.assertEqual(plan["num_pages"], 2**34 // (32 * 8 * 16 * row))
                self.assertEqual(plan["concurrency"], plan["num_pages"] / 2048)

    def test_memory_is_written_in_many_ways(self):
        for text in ("10000000000", "10GB", "10000MB"):
            plan = self.planned(*LLAMA, "--memory", text, "--max-len", 8192)
            self.assertEqual((plan["num_pages"], plan["concurrency"]), (4768, 9.3125), text)

    def test_units_of_1024_and_of_1000_are_told_apart(self):
        pages = {text: self.planned(*LLAMA, "--memory", text, "--max-len", 8192)["num_pages"] for text in ("24G", "24GiB", "24GB", "24gb")}
        self.assertEqual(pages["24G"], pages["24GiB"])
        self.assertEqual(pages["24GB"], pages["24gb"])
        self.assertEqual(pages["24GiB"] - pages["24GB"], 2**34 * 3 // 2 // 2**21 - 24 * 10**9 // 2**21)
        self.refused(2, "'24' has no unit and would be bytes: write 24GiB", *LLAMA, "--memory", "24")

    def warned(self, *arguments):
        done = run(*arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(done.stderr.startswith("kvcache plan: warning: "), done.stderr)
        return done.stdout, done.stderr

    def test_a_budget_that_is_one_byte_short_plans_what_fits_and_warns(self):
        layers = ["--layers", 16, "--kv-heads", 8, "--head-dim", 128, "--max-len", 131072]
        whole = self.planned(*layers, "--memory", 2**33)
        self.assertEqual((whole["num_pages"], whole["fits"], whole["planned_len"]), (8192, True, 131072))
        text, warning = self.warned(*layers, "--memory", 2**33 - 1)
        self.assertIn("a request of 131,072 tokens needs 8,192 pages, there are 8,191: this is the plan for --max-len 131056", warning)
        self.assertIn("Requests of 131,056 tokens at once: 1.00", text)
        plan = json.loads(self.warned(*layers, "--memory", 2**33 - 1, "--json")[0])
        self.assertEqual((plan["fits"], plan["max_len"], plan["planned_len"], plan["num_pages"]), (False, 131072, 131056, 8191))
        self.assertEqual((plan["longest_request"], plan["concurrency"]), (131056, 1))

    def test_what_fits_is_planned_for_every_model_of_the_tests(self):
        shorter = 0
        for path in sorted(CONFIGS.glob("*.json")):
            with self.subTest(path.stem):
                done = run(path, "--memory", "3GiB", "--max-len", 1048576, "--json")
                self.assertEqual(done.returncode, 0, done.stderr)
                plan = json.loads(done.stdout)
                self.assertEqual(bool(done.stderr), not plan["fits"])
                self.assertNotIn("config.", done.stderr)
                self.assertGreaterEqual(plan["concurrency"], 1)
                self.assertGreaterEqual(plan["longest_request"], plan["planned_len"])
                shorter += not plan["fits"]
        self.assertGreater(shorter, 20)

    def test_of_pipeline_stages_the_tightest_says_what_fits(self):
        plan = json.loads(self.warned(*LLAMA, "--memory", "1GiB", "--max-len", 131072, "--pp", 3, "--json")[0])
        self.assertEqual(plan["planned_len"], 16 * plan["num_pages"])
        self.assertEqual(plan["num_pages"], min(rank["num_pages"] for rank in plan["ranks"]))

    def test_prompts_come_in_chunks_of_8192_tokens_unless_told_otherwise(self):
        gemma = [config("gemma-3-27b"), "--memory", "24GiB"]
        plan = self.planned(*gemma)
        self.assertEqual(plan["max_tokens_per_forward"], 8192)
        self.assertGreater(plan["concurrency"], 1)
        self.assertEqual([group["window"] for group in plan["groups"]][0], 1024)
        self.assertEqual(plan, self.planned(*gemma, "--max-tokens-per-forward", 8192))
        self.assertIn("A forward has at most 8,192 new tokens (--max-tokens-per-forward)", run(*gemma).stdout)
        text, warning = self.warned(*gemma, "--max-tokens-per-forward", 0)
        self.assertIn("Prompts in chunks (--max-tokens-per-forward) need fewer pages", warning)
        self.assertIn("A prompt comes in one forward, whatever its length", text)

    def test_a_window_longer_than_the_context_is_no_reason_for_the_hint(self):
        phi = [config("phi-3-mini-128k"), "--memory", "24GiB", "--max-tokens-per-forward", 0]
        self.assertGreater(self.planned(*phi, "--max-len", 4096)["groups"][0]["window"], 131072)
        self.assertNotIn("Prompts in chunks", self.warned(*phi)[1])

    def test_known_families_are_listed_and_others_are_assumed_to_be_one_of_them(self):
        listed = subprocess.run([TOOL, "plan", "--families"], capture_output=True, text=True, timeout=300)
        self.assertEqual((listed.returncode, listed.stderr), (0, ""))
        rows = dict(line.split(maxsplit=1) for line in listed.stdout.splitlines())
        names = list(rows)
        self.assertEqual(names, sorted(names))
        self.assertEqual(len({line.index(rows[name]) for name, line in zip(names, listed.stdout.splitlines())}), 1, "columns")
        for name, keeps in (("llama", "K and V of every token"), ("deepseek_v3", "latents (MLA)"), ("mamba2", "states"),
                            ("gemma3", "K and V; some layers in a window"), ("arcee", "as its keys say"),
                            ("whisper", "K and V of its tokens and of an encoder's")):
            self.assertEqual(rows[name], keeps)
        for path in CONFIGS.glob("*.json"):
            read = json.loads(path.read_text())
            inner = next((read[name] for name in ("text_config", "llm_config", "thinker_config") if name in read), read)
            self.assertIn(inner.get("model_type", read["model_type"]), names)
        llama = json.loads(config("llama-3.1-8b").read_text())
        with tempfile.TemporaryDirectory() as folder:
            other = pathlib.Path(folder) / "config.json"
            for wrapped in (False, True):
                strange = {**llama, "model_type": "novel", "kv_groups_map": 3}
                other.write_text(json.dumps({"model_type": "novel_vl", "text_config": strange} if wrapped else strange))
                self.refused(1, "kv_groups_map could change what a layer keeps, and no rule for an unknown model_type reads it. "
                             "--families lists what is known; --assume llama", other, "--memory", "24GiB")
                text, warning = self.warned(other, "--memory", "24GiB", "--assume", "llama", "--json")
                self.assertIn("'novel' is read as 'llama'", warning)
                self.assertEqual(json.loads(text), self.planned(config("llama-3.1-8b"), "--memory", "24GiB"))
                del strange["kv_groups_map"]
                other.write_text(json.dumps({"model_type": "novel_vl", "text_config": strange} if wrapped else strange))
                text, warning = self.warned(other, "--memory", "24GiB", "--json")
                self.assertIn("kvcache plan: warning: model_type 'novel' is not known: it is read by its keys: num_attention_heads, "
                              "num_key_value_heads, ", warning)
                self.assertEqual(warning.count("\n"), 1)
                self.assertEqual(without_rope_tables(json.loads(text)), without_rope_tables(self.planned(config("llama-3.1-8b"), "--memory", "24GiB")))
            other.write_text(json.dumps({**llama, "model_type": "arcee"}))
            self.assertEqual(without_rope_tables(self.planned(other, "--memory", "24GiB")),
                             without_rope_tables(self.planned(config("llama-3.1-8b"), "--memory", "24GiB")))
            other.write_text(json.dumps({"model_type": "novel"}))
            self.refused(1, "'novel' is not supported: it is not known, and without num_hidden_layers its keys do not say what it keeps. "
                         "--families", other, "--memory", "24GiB")
        self.refused(1, "--assume = 'qwen2' is for a model_type that is not known, and 'llama' is: leave it out", config("llama-3.1-8b"), "--memory", "24GiB", "--assume", "qwen2")
        self.refused(2, "--assume", config("gpt2"), "--memory", "24GiB", "--assume", "clippy")
        self.refused(2, "--assume is for a config.json", *LLAMA, "--memory", "24GiB", "--assume", "llama")

    def test_layers_of_multi_token_prediction_are_counted_when_asked_for(self):
        deepseek = [config("deepseek-v3"), "--memory", "80GiB", "--max-len", 8192]
        plain, drafting = self.planned(*deepseek), self.planned(*deepseek, "--mtp", 1)
        self.assertEqual((plain["mtp_layers"], drafting["mtp_layers"]), (0, 1))
        self.assertEqual(drafting["bytes_per_token"] * 61, plain["bytes_per_token"] * 62)
        self.assertEqual(drafting["num_pages"], 80 * 2**30 // (16 * 62 * 576 * 2))
        self.assertIn("Layer 61 predicts further tokens (MTP).", run(*deepseek, "--mtp", 1).stdout)
        self.assertNotIn("MTP", run(*deepseek).stdout)
        stages = self.planned(*deepseek, "--mtp", 1, "--pp", 4)["ranks"]
        self.assertEqual([(rank["layer_begin"], rank["layer_end"]) for rank in stages], [(0, 16), (16, 31), (31, 46), (46, 62)])
        self.refused(1, "--mtp = 2 out of range: num_nextn_predict_layers = 1", *deepseek, "--mtp", 2)
        self.refused(1, "model_type 'llama' has no MTP layers", config("llama-3.1-8b"), "--memory", "1GiB", "--mtp", 1)
        self.refused(2, "--mtp is for a config.json", *LLAMA, "--memory", "1GiB", "--mtp", 1)
        self.refused(2, "--mtp", *deepseek, "--mtp", 0)

    def test_context_parallel_ranks_deal_out_the_tokens_of_a_request(self):
        deepseek = [config("deepseek-v3"), "--memory", "40GiB", "--max-len", 131072, "--tp", 8]
        one, eight = self.planned(*deepseek), self.planned(*deepseek, "--cp", 8)
        self.assertEqual((one["num_pages"], one["request_pages"], one["cp_size"]), (38199, 8192, 1))
        self.assertEqual((eight["num_pages"], eight["request_pages"], eight["cp_size"]), (38199, 1024, 8))
        self.assertEqual(eight["concurrency"], 38199 / 1024)
        self.assertEqual(eight["longest_request"], 38199 * 16 * 8)
        self.assertEqual([rank["context_rank"] for rank in eight["ranks"]], list(range(8)))
        self.assertIn("ranks        8 deal out a sequence's tokens", run(*deepseek, "--cp", 8).stdout)
        llama = [config("llama-3.1-8b"), "--memory", "24GiB", "--max-len", 8192]
        copies = self.planned(*llama, "--tp", 16, "--cp", 2)
        self.assertEqual(copies["num_pages"], 24 * 2**30 // (32 * 2 * 128 * 2 * 16))
        self.assertEqual(copies["request_pages"], 8192 // 32)
        self.assertEqual([rank["context_rank"] for rank in copies["ranks"]], [0, 1] * 8)
        self.refused(1, "--cp 2: layer 0 has 8 kv heads, of which --tp 8 makes 1 copy to deal", *llama, "--tp", 8, "--cp", 2)
        self.refused(1, "--cp 3: layer 0 has 8 kv heads, of which --tp 16 makes 2 copies", *llama, "--tp", 16, "--cp", 3)
        self.refused(1, "--cp 4: layer 0 keeps latents, of which --tp 2 makes 2 copies", *deepseek[:-2], "--tp", 2, "--cp", 4)
        self.refused(1, "window = 1024 is not supported with --cp = 2", config("gemma-3-4b"), "--memory", "24GiB", "--tp", 8, "--cp", 2)
        self.refused(2, "--cp", *deepseek, "--cp", 0)

    def test_a_draft_model_shares_the_memory_and_keeps_the_same_tokens(self):
        llama = [config("llama-3.1-8b"), "--memory", "24GiB", "--max-len", 32768]
        plan = self.planned(*llama, "--draft", config("qwen2.5-7b"))
        per_token = 2 * 128 * 2 * (32 * 8 + 28 * 4)
        self.assertEqual((plan["bytes_per_token"], plan["draft_layers"]), (per_token, 28))
        self.assertEqual(plan["num_pages"], 24 * 2**30 // (16 * per_token))
        self.assertEqual(plan["request_pages"], 32768 // 16)
        self.assertIn("Layers 32 to 59 are the draft model's.", run(*llama, "--draft", config("qwen2.5-7b")).stdout)
        ranks = self.planned(*llama, "--draft", config("qwen2.5-7b"), "--pp", 2, "--tp", 4)["ranks"]
        self.assertEqual([(rank["layer_begin"], rank["layer_end"]) for rank in ranks[::4]], [(0, 16), (16, 60)])
        halved = self.planned(*llama, "--draft", config("qwen2.5-7b"), "--kv-dtype", "fp8")
        self.assertEqual(halved["bytes_per_token"] * 2, per_token)
        # Layers of a draft model that read those of another read its own.
        shared = self.planned(*llama, "--draft", config("gemma-3n-e4b"))
        alone = self.planned(config("gemma-3n-e4b"), "--memory", "24GiB", "--max-len", 32768)
        self.assertEqual(shared["bytes_per_token"], 131072 + alone["bytes_per_token"])
        short = [config("llama-3.1-8b"), "--memory", "24GiB", "--draft", config("gpt2"), "--json"]
        text, warning = self.warned(*short)
        self.assertIn("the draft model has 1,024 tokens at most, the model 131,072", warning)
        self.assertEqual(json.loads(text)["max_len"], 1024)
        self.refused(1, "--draft: layer 1 attends to an encoder", *llama, "--draft", config("t5-large"))
        self.refused(1, "cannot read no-such-file", *llama, "--draft", "no-such-file")

    def test_a_stage_of_states_alone_has_the_pages_that_it_is_given(self):
        jamba = [config("jamba-v0.1"), "--memory", "8GiB", "--max-len", 8192, "--pp", 16]
        self.refused(1, "no layer here keeps anything that grows: give --pages", *jamba)
        whole = self.planned(*jamba, "--pages", 10**8)
        two = [rank for rank in whole["ranks"] if rank["page_bytes"] == 0]
        self.assertEqual(len(two), 12)
        self.assertEqual({rank["num_pages"] for rank in two}, {10**8})
        self.assertEqual(whole["num_pages"], min(rank["num_pages"] for rank in whole["ranks"] if rank["page_bytes"]))
        self.assertNotEqual(whole["page_bytes"], 0)
        few = self.planned(*jamba, "--pages", 2000)
        self.assertEqual((few["num_pages"], few["num_pages_with_one_more_gib"]), (2000, 2000))
        slot = max(rank["state_slot_bytes"] for rank in two)
        self.assertLessEqual(few["concurrency"], 2**33 // slot / 2)
        self.refused(1, "--memory = 1048576 holds", config("jamba-v0.1"), "--memory", "1MiB", "--max-len", 16, "--pp", 16, "--pages", 10)
        self.refused(2, "--pages", *jamba, "--pages", 0)

    def test_a_close_name_is_suggested_for_a_typing_error(self):
        def said(*arguments):
            done = subprocess.run([TOOL, *map(str, arguments)], capture_output=True, text=True, timeout=300)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            return done.stderr
        self.assertIn("kvcache: did you mean 'plan' for 'plam'?\n", said("plam", "--memory", "1GiB"))
        self.assertIn("kvcache: did you mean '--kv-dtype' for '--kv-dtpe'?\n", said("plan", *LLAMA, "--memory", "1GiB", "--kv-dtpe", "fp8"))
        self.assertIn("kvcache: did you mean '--kv-dtype' for '--kv-dtpe'?\n", said("plan", *LLAMA, "--memory", "1GiB", "--kv-dtpe=fp8"))
        self.assertIn("kvcache: did you mean '--version' for '--versoin'?\n", said("--versoin"))
        self.assertNotIn("did you mean", said("perceptron"))
        self.assertNotIn("did you mean", said("plan", *LLAMA, "--memory", "1GiB", "--layers", "x"))
        with tempfile.TemporaryDirectory() as folder:
            other = pathlib.Path(folder) / "config.json"
            other.write_text(json.dumps({"model_type": "lama"}))
            self.refused(1, "a known one is 'llama'", other, "--memory", "1GiB")

    def test_a_figure_shows_pages_by_group_and_requests_by_length(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "plan.svg"
            for name, lines in (("gemma-3-27b", ["every token", "window 1,024"]), ("jamba-v0.1", ["every token", "states before"]),
                                ("whisper-large-v3", ["every token", "encoder"]), ("mamba-2.8b", ["states before"])):
                done = run(config(name), "--memory", "24GiB", "--svg", file)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertTrue(done.stdout.endswith(f"wrote {file}\n"), done.stdout)
                figure = xml.dom.minidom.parse(str(file))
                self.assertEqual(figure.documentElement.tagName, "svg")
                words = " ".join(text.firstChild.data for text in figure.getElementsByTagName("text") if text.firstChild)
                for part in ["What 24.00 GiB hold", "Pages of one request", "Requests at once", *lines]:
                    self.assertIn(part, words)
            self.planned(config("gpt2"), "--memory", "1GiB", "--svg", file)
            self.refused(1, "--svg: cannot write", config("gpt2"), "--memory", "1GiB", "--svg", pathlib.Path(folder) / "no" / "where.svg")

    def test_a_rotation_that_grows_with_the_sequence_is_left_to_the_model(self):
        llama = json.loads(config("llama-3.1-8b").read_text())
        with tempfile.TemporaryDirectory() as folder:
            other = pathlib.Path(folder) / "config.json"
            other.write_text(json.dumps({**llama, "max_position_embeddings": 4096, "rope_scaling": {"type": "dynamic", "factor": 2.0}}))
            text, warning = self.warned(other, "--memory", "24GiB", "--json")
            self.assertIn("rope_scaling.type = 'dynamic': rotations are left to the model", warning)
            plan = json.loads(text)
            self.assertEqual((plan["max_len"], plan["bytes_per_token"]), (8192, 131072))

    def test_states_alone_have_no_longest_request(self):
        self.assertIn("Longest single request: no limit.\n", run(config("mamba-2.8b"), "--memory", "24GiB").stdout)

    def test_ranks_share_the_fewest_pages_that_any_has(self):
        plan = self.planned(*LLAMA, "--memory", "4GiB", "--max-len", 8192, "--pp", 3, "--tp", 2)
        self.assertEqual(len(plan["ranks"]), 6)
        slices = [(rank["layer_begin"], rank["layer_end"]) for rank in plan["ranks"]]
        self.assertEqual(slices, [(0, 11), (0, 11), (11, 22), (11, 22), (22, 32), (22, 32)])
        self.assertEqual(plan["num_pages"], 2**32 // (11 * 4 * 16 * 512))
        self.assertEqual(plan["num_pages"], min(rank["num_pages"] for rank in plan["ranks"]))
        self.assertEqual(plan["ranks"][4]["num_pages"], 2**32 // (10 * 4 * 16 * 512))

    def test_more_tensor_parallel_ranks_than_kv_heads_hold_copies(self):
        one_each = self.planned(config("llama-3.1-8b"), "--memory", "24GiB", "--tp", 8)
        copies = self.planned(config("llama-3.1-8b"), "--memory", "24GiB", "--tp", 16)
        self.assertEqual(one_each["num_pages"], copies["num_pages"])
        self.refused(1, "--tp 3 does not divide the 32 query heads of layer 0", config("llama-3.1-8b"), "--memory", "24GiB", "--tp", 3)

    def test_every_configuration_of_the_tests_can_be_planned(self):
        for path in sorted(CONFIGS.glob("*.json")):
            with self.subTest(path.stem):
                plan = self.planned(path, "--memory", "80GiB", "--max-len", 4096, "--max-cross-len", 1500)
                self.assertGreater(plan["concurrency"], 1)
                self.assertLess(plan["waste"], 0.25)
                text = run(path, "--memory", "80GiB", "--max-len", 4096)
                self.assertEqual(text.returncode, 0, text.stderr)
                self.assertIn("Requests of 4,096 tokens at once", text.stdout)

    def test_encoder_tokens_are_counted_when_their_number_is_known(self):
        t5 = [config("t5-large"), "--memory", "8GiB"]
        self.assertIn("Encoder tokens are not counted", run(*t5).stdout)
        known = run(*t5, "--max-cross-len", 512)
        self.assertNotIn("Encoder tokens", known.stdout)
        self.assertIn("of 64 pages each", known.stdout)
        self.assertNotIn("Encoder tokens", run(config("whisper-large-v3"), "--memory", "8GiB").stdout)

    def test_states_can_be_set_aside(self):
        shared = self.planned(config("qwen3-next-80b"), "--memory", "24GiB", "--max-len", 32768)
        aside = self.planned(config("qwen3-next-80b"), "--memory", "24GiB", "--max-len", 32768, "--state-slots", 16)
        self.assertEqual(shared["num_pages"] - aside["num_pages"], -(-16 * shared["state_slot_bytes"] // shared["page_bytes"]))

    def test_the_summary_speaks_of_requests(self):
        text = run(*LLAMA, "--memory", "16GiB", "--max-len", 131072).stdout
        self.assertIn("16.00 GiB hold 8,192 pages.", text)
        self.assertIn("Requests of 131,072 tokens at once: 1.00, of 8,192 pages each.", text)
        self.assertIn("512 tokens: 256; 2,048 tokens: 64; 8,192 tokens: 16; 32,768 tokens: 4; 131,072 tokens: 1.", text)
        self.assertIn("One GiB more: 512 pages", text)

    def test_host_memory_is_told_beside_the_pool_for_the_requests_that_fit(self):
        longest = [*LLAMA, "--memory", "16GiB", "--max-len", 131072]
        plan = self.planned(*longest)
        one, many = plan["host_bytes_by_requests"]
        self.assertEqual((one["requests"], many["requests"]), (1, 256))
        self.assertGreater(one["host_bytes"], plan["pool_bytes"])
        self.assertGreater(many["host_bytes"], one["host_bytes"])
        self.assertLess(many["host_bytes"], 2 * plan["pool_bytes"])
        self.assertEqual(plan["host_bytes"], many["host_bytes"])
        text = run(*longest).stdout
        self.assertRegex(text, r"Host memory of a cache on a CPU, beside its pool: at most [0-9.]+ [KMG]iB with 1 request at once, "
                               r"[0-9.]+ [KMG]iB with 256 requests at once\.\n")
        swapping = self.planned(*longest, "--host-memory", "2GiB")
        self.assertGreaterEqual(swapping["host_bytes"] - plan["host_bytes"], 2 << 30)
        self.assertIn("; host pages included.", run(*longest, "--host-memory", "2GiB").stdout)
        # Requests shorter than the shortest listed length: one bound.
        short = self.planned(*LLAMA, "--memory", "1GiB", "--max-len", 256)
        self.assertEqual([host["requests"] for host in short["host_bytes_by_requests"]], [32])
        self.assertIn("beside the pool of a rank", run(*longest, "--tp", 2).stdout)

    def test_what_cannot_be_planned_exits_with_1(self):
        self.refused(1, "cannot read no-such-file", "no-such-file", "--memory", "1GiB")
        self.refused(1, "not JSON", __file__, "--memory", "1GiB")
        self.refused(1, "latents", config("deepseek-v3"), "--memory", "80GiB", "--kv-dtype", "nvfp4")
        self.refused(1, "--pp 33", *LLAMA, "--memory", "80GiB", "--pp", 33)
        self.refused(1, "--memory = 1000000 holds no page", *LLAMA, "--memory", "1MB")
        self.refused(1, "--host-memory = 1000000 holds no page", *LLAMA, "--memory", "1GiB", "--host-memory", "1MB")

    def test_bad_options_exit_with_2(self):
        self.refused(2, "config.json", "--memory", "1GiB")
        self.refused(2, "config.json", config("gpt2"), *LLAMA, "--memory", "1GiB")
        self.refused(2, "--kv-heads", "--memory", "1GiB", "--layers", 3)
        self.refused(2, "not an amount of memory", *LLAMA, "--memory", "1 GiBs")
        self.refused(2, "not an amount of memory", *LLAMA, "--memory", "0")
        self.refused(2, "--memory", *LLAMA)
        self.refused(2, "int3", *LLAMA, "--memory", "1GiB", "--kv-dtype", "int3")
        self.refused(2, "exclude each other", *LLAMA, "--memory", "1GiB", "--window", 8, "--window-every", 2, "--full-every", 2)

    @unittest.skipUnless(pathlib.Path("/dev/full").exists(), "no /dev/full here")
    def test_output_that_does_not_arrive_is_a_failure(self):
        for arguments in ([*LLAMA, "--memory", "1GiB"], [*LLAMA, "--memory", "1GiB", "--json"], ["--help"]):
            for output in ("> /dev/full", ">&-"):
                with self.subTest(arguments=arguments, output=output):
                    done = subprocess.run(["sh", "-c", f'"$0" "$@" {output}', TOOL, "plan", *arguments], capture_output=True, text=True)
                    self.assertEqual(done.returncode, 1, done.stderr)
                    self.assertIn("kvcache: cannot write the output", done.stderr)


if __name__ == "__main__":
    unittest.main()
