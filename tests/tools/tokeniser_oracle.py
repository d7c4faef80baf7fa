"""The command's tokenisers against those of others, on generated texts. Run by hand: it needs packages that no check installs.

    pip install tokenizers gguf sentencepiece protobuf numpy
    tokeniser_oracle.py TOOLS_TEST KIND [--model FILE.gguf] [--texts N] [--seed N]

TOOLS_TEST is build/tests/tools_test. KIND and its oracle:

    smollm, llama-bpe, qwen2    the `tokenizers` package with the file's tokens and merges, and the model's pattern; qwen2 with NFC
    llama, gemma                the `sentencepiece` package with the file's tokens and scores; gemma has no space before a text, and
                                user-defined tokens of white space

--model names a file of that kind. Without it a small vocabulary is trained on the texts of this repository and written with the `gguf`
package. Special tokens of llama and gemma are divided off here, for their package knows none in a text. Texts have many scripts, digits, white space, emoji and special tokens; half of them are encoded with special tokens in the
text, half without. Ids must be the same, and decoding must give the same bytes, but for bytes that the vocabulary has no token for,
for texts of qwen2, which come back in the form NFC, and for U+2581, which `sentencepiece` makes a space.

Classes of characters depend on the version of Unicode. Mismatches of texts with a character that is unassigned in this Python's Unicode
are counted apart; with --assigned no such character is generated. Python 3.11 and PCRE2 10.42 both have Unicode 14.
"""

import argparse
import io
import json
import os
import pathlib
import random
import re
import struct
import subprocess
import sys
import tempfile
import unicodedata

import gguf
import sentencepiece
import tokenizers
from sentencepiece import sentencepiece_model_pb2

ROOT = pathlib.Path(__file__).resolve().parents[2]
LLAMA = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
PATTERNS = {"llama-bpe": LLAMA, "qwen2": LLAMA.replace("{1,3}", "")}
SPECIAL = ["<|begin_of_text|>", "<|im_start|>", "<|im_end|>", "<|im_end|>>", "<|eot_id|>"]
USER_DEFINED = ["<tool_call>", "</tool_call>"]
WHITE_SPACE = ["\n\n", "\n\n\n", "\u2581\u2581", "\u2581\u2581\u2581", "\t\t"]
NORMAL, UNKNOWN, CONTROL, USER = 1, 2, 3, 4

# First and last character of scripts and of symbols.
RANGES = [(0x20, 0x7e), (0xa0, 0x17f), (0x370, 0x3ff), (0x400, 0x4ff), (0x530, 0x58f), (0x591, 0x5f4), (0x600, 0x6ff), (0x900, 0x97f),
          (0x980, 0x9ff), (0xb80, 0xbff), (0xe01, 0xe5b), (0xf00, 0xfff), (0x10a0, 0x10ff), (0x1100, 0x11ff), (0x1200, 0x137f),
          (0x13a0, 0x13ff), (0x1780, 0x17ff), (0x1800, 0x18aa), (0x1e00, 0x1eff), (0x1f00, 0x1fff), (0x2000, 0x206f), (0x2070, 0x209c),
          (0x20a0, 0x20bf), (0x2100, 0x218b), (0x2190, 0x23ff), (0x2460, 0x24ff), (0x2500, 0x27bf), (0x3000, 0x303f), (0x3041, 0x30ff),
          (0x3105, 0x312f), (0x3131, 0x318e), (0x4e00, 0x9fff), (0xac00, 0xd7a3), (0xe000, 0xe100), (0xfb00, 0xfdff), (0xfe00, 0xfeff),
          (0xff01, 0xffee), (0x10330, 0x1034a), (0x1d400, 0x1d7ff), (0x1f300, 0x1f64f), (0x1f680, 0x1f6ff), (0x1f900, 0x1f9ff),
          (0x20000, 0x20100), (0xe0100, 0xe01ef)]
DIGITS = "0123456789" * 3 + "٠٣٩०९๓৩０９²³½⅓ⅧⅫ①㊿〇零𝟗𐒠"
SPACES = " " * 12 + "\t\n\n\r\v\f\x85\xa0\u1680\u180e\u2003\u200b\u2028\u2029\u202f\u205f\u3000\ufeff"
EMOJI = ["😀", "👍🏽", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪", "❤️", "1️⃣", "☕", "🧑🏿‍🚀", "⛔️"]
MARKS = ["'s", "'T", "'re", "'LL", "'ſ", "’s", "'", "n't", "...", "!?", "—", "//", "/*", "</s>", "<s>", "<0x0A>", "{}", "();", "->", "e\u0301", "A\u030a"]
# What normal forms change: marks out of order, jamo, ligatures, singletons, and compositions that are excluded.
FORMS = ["e\u0301\u0323", "a\u0323\u0302\u0301", "\u1ed9\u0301", "\u1112\u1161\u11ab", "\uac00\u11a8", "\u1100\uac00", "\ufb01", "\ufb2a", "\u212b", "\u2126",
         "\u212a", "\u0340", "\u0344", "\u0958", "\u0915\u093c", "\u0b47\u0b3e", "\u0cca\u0cd5", "\u2adc", "\uf900", "\u3099", "\u304b\u3099", "\u0301",
         "\U0001d15e", "\U0001d157\U0001d165\U0001d16e", "\U000110b9\U000110ba", "\u1e9b\u0323", "<|im_end|>\u0338", "<tool_call>\u0338"]


def texts_of_the_repository():
    return [path.read_text() for path in sorted(ROOT.glob("docs/*.md")) + sorted(ROOT.glob("src/*/*.cc"))]


def text_of_all_scripts(draw, words=3000):
    return " ".join("".join(draw.choice(draw.choice(ASSIGNED)) for _ in range(draw.randint(1, 8))) for _ in range(words))


def assigned(first, last):
    return [chr(code) for code in range(first, last + 1) if unicodedata.category(chr(code)) not in ("Cn", "Cs")]


ASSIGNED = [assigned(*bounds) for bounds in RANGES]


def text(draw, words, specials, only_assigned):
    parts = []
    for _ in range(draw.randint(1, 14)):
        kind = draw.random()
        if kind < 0.25:
            parts.append(draw.choice(words))
        elif kind < 0.4:
            parts.append("".join(draw.choice(draw.choice(ASSIGNED)) for _ in range(draw.randint(1, 3))))
        elif kind < 0.55:
            script = draw.choice(ASSIGNED)
            parts.append("".join(draw.choice(script) for _ in range(draw.randint(1, 10))))
        elif kind < 0.65:
            parts.append("".join(draw.choice(DIGITS) for _ in range(draw.randint(1, 8))))
        elif kind < 0.82:
            parts.append("".join(draw.choice(SPACES) for _ in range(draw.randint(1, 4))))
        elif kind < 0.86:
            parts.append(draw.choice(EMOJI))
        elif kind < 0.93:
            parts.append(draw.choice(draw.choice([MARKS, FORMS])))
        elif kind < 0.97:
            special = draw.choice(specials)
            parts.append(special if draw.random() < 0.8 else special[:-1])
        elif kind < 0.98:
            parts.append(chr(draw.randint(0, 0x1f)))
        else:
            code = draw.choice([draw.randint(0x80, 0x2ffff), draw.randint(0x80, 0x10ffff)])
            if not 0xd800 <= code <= 0xdfff and not (only_assigned and unicodedata.category(chr(code)) == "Cn"):
                parts.append(chr(code))
        if draw.random() < 0.3:
            parts.append(" ")
    return "".join(parts)


def alternatives(tokens):
    return re.compile("(" + "|".join(map(re.escape, sorted(tokens, key=len, reverse=True)) if tokens else ["(?!)"]) + ")")


class Bpe:
    """The `tokenizers` package with the tokens and merges of a file."""

    def __init__(self, path, kind):
        fields = gguf.GGUFReader(path).fields
        value = lambda key: fields[f"tokenizer.ggml.{key}"].contents()
        if (value("model"), value("pre")) != ("gpt2", kind):
            sys.exit(f"oracle: {path} is of kind {value('model')}, {value('pre')}")
        tokens, types = value("tokens"), value("token_type")
        ids = {token: number for number, token in enumerate(tokens)}
        merges = [tuple(merge.split(" ")) for merge in value("merges")]
        self.tokenizer = tokenizer_of(kind, tokenizers.models.BPE(vocab=ids, merges=merges, ignore_merges=kind == "llama-bpe"))
        self.tokenizer.add_special_tokens([token for token, kind in zip(tokens, types) if kind == CONTROL])
        self.tokenizer.add_tokens([tokenizers.AddedToken(token, normalized=False) for token, kind in zip(tokens, types) if kind == USER])
        self.specials = [token for token, kind in zip(tokens, types) if kind in (CONTROL, USER)]
        self.normalises = kind == "qwen2"
        user_defined = [token for token, kind in zip(tokens, types) if kind == USER]
        self.divide = [alternatives(user_defined), alternatives(self.specials)]
        self.missing = {byte for byte in range(256) if byte_character(byte) not in ids}

    def encode(self, given, parse_special):
        self.tokenizer.encode_special_tokens = not parse_special
        return self.tokenizer.encode(given, add_special_tokens=False).ids

    def decoded(self, given, parse_special):
        if self.normalises:
            # Special tokens divide what is normalised.
            divide = self.divide[parse_special]
            given = "".join(unicodedata.normalize("NFC", part) for part in divide.split(given))
        return bytes(byte for byte in given.encode() if byte not in self.missing)


class SentencePiece:
    """The `sentencepiece` package with the tokens and scores of a file."""

    def __init__(self, path):
        fields = gguf.GGUFReader(path).fields
        value = lambda key: fields[f"tokenizer.ggml.{key}"].contents()
        if value("model") != "llama":
            sys.exit(f"oracle: {path} is of kind {value('model')}")
        proto = sentencepiece_model_pb2.ModelProto()
        proto.trainer_spec.model_type = sentencepiece_model_pb2.TrainerSpec.BPE
        proto.trainer_spec.byte_fallback = True
        proto.normalizer_spec.name = "identity"
        self.adds_space = "tokenizer.ggml.add_space_prefix" not in fields or value("add_space_prefix")
        proto.normalizer_spec.add_dummy_prefix = self.adds_space
        proto.normalizer_spec.remove_extra_whitespaces = False
        tokens, types = value("tokens"), value("token_type")
        for token, score, kind in zip(tokens, value("scores"), types):
            proto.pieces.add(piece=token.replace(" ", "\u2581") if kind == USER else token, score=score, type=kind)
        # The package wants a token for the unknown, which files of Gemma have as a control token.
        unknown = types.index(UNKNOWN) if UNKNOWN in types else value("unknown_token_id")
        proto.pieces[unknown].type = UNKNOWN
        proto.trainer_spec.unk_id, proto.trainer_spec.unk_piece = unknown, tokens[unknown]
        self.processor = sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())
        control = {token: number for number, (token, kind) in enumerate(zip(tokens, types)) if kind == CONTROL}
        self.specials = [*control, *(token for token, kind in zip(tokens, types) if kind == USER)]
        self.control = control
        self.divide = alternatives(control)

    def encode(self, given, parse_special):
        ids = []
        for index, part in enumerate(self.divide.split(given) if parse_special else [given]):
            ids += [self.control[part]] if index % 2 else self.processor.encode(part)
        return ids

    def decoded(self, given, parse_special):
        return given.replace("\u2581", " ").encode()


def train_sentencepiece(kind, texts, path):
    lines = [line for content in texts for line in content.split("\n")]
    white_space = WHITE_SPACE if kind == "gemma" else []
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, model_type="bpe", vocab_size=8000, byte_fallback=True, character_coverage=0.995,
        normalization_rule_name="identity", remove_extra_whitespaces=False, add_dummy_prefix=kind == "llama", control_symbols=SPECIAL,
        user_defined_symbols=USER_DEFINED + white_space, allow_whitespace_only_pieces=True, minloglevel=2)
    proto = sentencepiece_model_pb2.ModelProto.FromString(model.getvalue())
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list([one.piece for one in proto.pieces])
    writer.add_token_scores([one.score for one in proto.pieces])
    writer.add_token_types([one.type for one in proto.pieces])
    writer.add_add_space_prefix(kind == "llama")
    write(writer)


def byte_character(byte):
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return chr(byte) if byte in visible else chr(256 + sum(other not in visible for other in range(byte)))


def tokenizer_of(kind, model):
    made = tokenizers.Tokenizer(model)
    pre = tokenizers.pre_tokenizers
    if kind == "qwen2":
        made.normalizer = tokenizers.normalizers.NFC()
    if kind == "smollm":
        made.pre_tokenizer = pre.Sequence([pre.Digits(individual_digits=True), pre.ByteLevel(add_prefix_space=False, use_regex=True)])
    else:
        made.pre_tokenizer = pre.Sequence([pre.Split(tokenizers.Regex(PATTERNS[kind]), "isolated"),
                                           pre.ByteLevel(add_prefix_space=False, use_regex=False)])
    return made


def train_bpe(kind, texts, path):
    made = tokenizer_of(kind, tokenizers.models.BPE())
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=8000, initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
                                             show_progress=False)
    made.train_from_iterator(texts, trainer)
    vocabulary = made.get_vocab()
    tokens = sorted(vocabulary, key=vocabulary.get)
    model = json.loads(made.to_str())["model"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(kind)
    writer.add_token_list(tokens + SPECIAL + USER_DEFINED)
    writer.add_token_types([NORMAL] * len(tokens) + [CONTROL] * len(SPECIAL) + [USER] * len(USER_DEFINED))
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]])
    write(writer)


def write(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def ours(program, model, texts, folder):
    """Ids and decoded bytes of each text, from the C++ side."""
    given, answer = folder / "texts", folder / "ids"
    with open(given, "wb") as file:
        for content, parse_special in texts:
            content = content.encode()
            file.write(struct.pack("<BI", parse_special, len(content)) + content)
    done = subprocess.run([program, "--gtest_also_run_disabled_tests", "--gtest_filter=TokeniserOracle.*"], capture_output=True, text=True,
                          env={**os.environ, "KVC_TOKENISER_FILES": f"{model}\n{given}\n{answer}"})
    if done.returncode:
        sys.exit(f"oracle: {done.stdout}{done.stderr}")
    data, at = answer.read_bytes(), 0

    def take(unit):
        nonlocal at
        size, = struct.unpack_from("<I", data, at)
        part = data[at + 4:at + 4 + size * unit]
        at += 4 + size * unit
        return part

    for _ in texts:
        ids = take(4)
        yield list(struct.unpack(f"<{len(ids) // 4}i", ids)), take(1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("kind", choices=["smollm", *PATTERNS, "llama", "gemma"])
    parser.add_argument("--model")
    parser.add_argument("--texts", type=int, default=100000)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--assigned", action="store_true")
    options = parser.parse_args()
    draw = random.Random(options.seed)
    print(f"{options.kind}: seed {options.seed}, Unicode {unicodedata.unidata_version} here")
    by_score = options.kind in ("llama", "gemma")
    repository = texts_of_the_repository()
    words = " ".join(repository).split()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        model = options.model or str(folder / "model.gguf")
        if not options.model:
            train = train_sentencepiece if by_score else train_bpe
            train(options.kind, [*repository, text_of_all_scripts(draw)], model)
        oracle = SentencePiece(model) if by_score else Bpe(model, options.kind)
        texts = [(text(draw, words, oracle.specials, options.assigned), draw.random() < 0.5) for _ in range(options.texts)]
        mismatches, unassigned_texts, tokens, unassigned = 0, 0, 0, set()
        for (content, parse_special), (ids, decoded) in zip(texts, ours(options.program, model, texts, folder)):
            expected = oracle.encode(content, parse_special)
            tokens += len(ids)
            if ids == expected and decoded == oracle.decoded(content, parse_special):
                continue
            new = [character for character in content if unicodedata.category(character) == "Cn"]
            unassigned.update(new)
            unassigned_texts += bool(new)
            mismatches += not new
            if not new and mismatches <= 10:
                print(f"{content!r} (special tokens: {parse_special})\n  theirs {expected}\n  ours   {ids}\n  decoded {decoded!r}")
        print(f"{options.kind}: {len(texts)} texts, {tokens} tokens, {mismatches} mismatches")
        if unassigned:
            print(f"{unassigned_texts} more have characters unassigned here: {' '.join(f'U+{ord(one):04X}' for one in sorted(unassigned))}")
    sys.exit(1 if mismatches else 0)


if __name__ == "__main__":
    main()
