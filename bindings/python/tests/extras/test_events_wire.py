"""Events become vLLM's messages: the bytes are those of the schema, and applying them gives what the pool holds."""

import pytest

msgspec = pytest.importorskip("msgspec")
pytest.importorskip("zmq")

from events_consumer import SCHEMAS, Consumer  # noqa: E402
from events_pool import BLOCK, HOST, Pool, root  # noqa: E402
from kvcache.errors import InvalidArgument  # noqa: E402
from kvcache.events_publisher_wire import ENCODINGS, Group, Namespace, Translator  # noqa: E402


def translate(pool, **options):
    return Translator(**options).messages(pool.poll())


def short(hash):
    return int.from_bytes(hash[24:], "big")


@pytest.mark.parametrize("encoding", ["map", "array"])
@pytest.mark.parametrize("tag, values", [
    ("BlockStored", dict(block_hashes=[1, 2**64 - 1], parent_block_hash=None, token_ids=[7] * 8, block_size=4,
                         lora_id=None, medium="GPU", lora_name=None)),
    ("BlockStored", dict(block_hashes=[b"\x00" * 32], parent_block_hash=b"\xff" * 32, token_ids=[], block_size=16,
                         lora_id=3, medium="CPU", lora_name="adapter", extra_keys=[["adapter", "tenant"]], group_idx=0,
                         kv_cache_spec_kind="sliding_window", kv_cache_spec_sliding_window=1024)),
    ("BlockRemoved", dict(block_hashes=[5], medium="GPU")),
    ("BlockRemoved", dict(block_hashes=[5], medium=None, group_idx=2)),
    ("AllBlocksCleared", {}),
])
def test_an_event_has_the_bytes_of_the_schema(encoding, tag, values):
    kinds = {kind.__name__: kind for kind in SCHEMAS[encoding]}
    encode = msgspec.msgpack.encode
    assert encode(ENCODINGS[encoding](tag, values)) == encode(kinds[tag](**values))


def test_consecutive_blocks_become_one_event():
    pool = Pool()
    keys = pool.store(list(range(3 * BLOCK)))
    (tag, values), = translate(pool)
    assert tag == "BlockStored"
    assert values["block_hashes"] == [short(key) for key in keys]
    assert values["parent_block_hash"] is None
    assert values["token_ids"] == list(range(3 * BLOCK))
    assert values["block_size"] == BLOCK
    assert values["medium"] == "GPU"


def test_a_branch_names_the_block_it_leaves_from():
    pool = Pool()
    stem = pool.store([1] * BLOCK)
    pool.store([1] * BLOCK + [2] * BLOCK)
    pool.store([1] * BLOCK + [3] * BLOCK)
    first, second = [values for _, values in translate(pool)]
    assert first["token_ids"] == [1] * BLOCK + [2] * BLOCK  # the stem and its first branch follow each other
    assert second["parent_block_hash"] == short(stem[0])
    assert second["token_ids"] == [3] * BLOCK


def test_interleaved_groups_become_one_event_each():
    pool = Pool(groups=2)
    keys = pool.store(list(range(2 * BLOCK)))
    groups = [Group("full_attention"), Group("sliding_window", 8)]
    messages = translate(pool, groups=groups)
    assert [values["group_idx"] for _, values in messages] == [0, 1]
    assert all(len(values["block_hashes"]) == len(keys) for _, values in messages)
    assert [values["kv_cache_spec_kind"] for _, values in messages] == ["full_attention", "sliding_window"]
    assert [values["kv_cache_spec_sliding_window"] for _, values in messages] == [None, 8]


def test_a_recurrent_state_is_a_group_behind_the_others():
    pool = Pool(groups=2)
    pool.store([1] * BLOCK, groups=[-1])
    (_, values), = translate(pool, groups=[Group(), Group()])
    assert values["group_idx"] == 2
    assert values["kv_cache_spec_kind"] == "mamba"


def test_a_recurrent_state_without_known_groups_is_refused():
    pool = Pool()
    pool.store([1] * BLOCK, groups=[-1])
    with pytest.raises(InvalidArgument, match="group -1"):
        translate(pool)


def test_a_group_beyond_the_known_ones_is_refused():
    pool = Pool(groups=3)
    pool.store([1] * BLOCK)
    with pytest.raises(InvalidArgument, match="group 2, but `groups` has 2"):
        translate(pool, groups=[Group(), Group()])


def test_hashes_can_be_whole():
    pool = Pool()
    keys = pool.store(list(range(BLOCK)))
    (_, values), = translate(pool, hashes="bytes")
    assert values["block_hashes"] == keys


def test_a_moved_block_arrives_before_it_leaves_and_keeps_tokens_and_parent():
    pool = Pool()
    first, second = pool.store([1] * BLOCK + [2] * BLOCK)
    translator = Translator()
    translator.messages(pool.poll())
    pool.move(second, 0, HOST)
    (tag, stored), (other_tag, removed) = translator.messages(pool.poll())
    assert (tag, other_tag) == ("BlockStored", "BlockRemoved")
    assert stored["medium"] == "CPU"
    assert stored["token_ids"] == [2] * BLOCK
    assert stored["parent_block_hash"] == short(first)
    assert removed == {"block_hashes": [short(second)], "medium": "GPU", "group_idx": 0}
    assert translator.held() == pool.held()


def test_neighbouring_removals_become_one_event():
    pool = Pool()
    keys = pool.store(list(range(3 * BLOCK)))
    translator = Translator()
    translator.messages(pool.poll())
    for key in reversed(keys):
        pool.remove(key, 0)
    assert translator.messages(pool.poll()) == [
        ("BlockRemoved", {"block_hashes": [short(key) for key in reversed(keys)], "medium": "GPU", "group_idx": 0})]
    assert not translator.blocks


def test_a_block_stored_again_after_its_removal_stays():
    pool = Pool()
    key, = pool.store([1] * BLOCK)
    pool.remove(key, 0)
    pool.store([1] * BLOCK)
    messages = translate(pool)
    assert [tag for tag, _ in messages] == ["BlockStored", "BlockRemoved", "BlockStored"]


def test_nothing_before_a_clear_is_told():
    pool = Pool()
    pool.store([1] * BLOCK)
    pool.clear()
    pool.store([2] * BLOCK)
    messages = translate(pool)
    assert [tag for tag, _ in messages] == ["AllBlocksCleared", "BlockStored"]


def test_unknown_tokens_are_an_empty_list():
    pool = Pool()
    pool.store(list(range(2 * BLOCK)))
    events = pool.poll()
    for event in events:
        event.tokens = None
    (_, values), = Translator().messages(events)
    assert values["token_ids"] == []
    assert len(values["block_hashes"]) == 2


def test_a_namespace_brings_its_names_to_all_its_blocks():
    pool = Pool()
    translator = Translator()
    translator.add_namespace(b"tenant", Namespace(cache_salt="salt", lora_name="adapter", lora_id=4))
    pool.store([1] * (2 * BLOCK), salt=b"tenant")
    pool.store([1] * BLOCK, salt=b"unheard of")
    (_, known), (_, unknown) = translator.messages(pool.poll())
    assert known["parent_block_hash"] is None
    assert (known["lora_id"], known["lora_name"]) == (4, "adapter")
    assert known["extra_keys"] == [["adapter", "salt"], ["adapter"]]
    assert unknown["parent_block_hash"] == short(root(b"unheard of"))
    assert (unknown["lora_name"], unknown["extra_keys"]) == (None, None)


def test_an_event_of_an_unknown_type_is_refused_by_number():
    pool = Pool()
    pool.store([1] * BLOCK)
    event, = pool.poll()
    event.type = "lost"
    with pytest.raises(InvalidArgument, match="event 1: its type 'lost'"):
        Translator().messages([event])


def test_the_consumer_of_these_tests_notices_a_gap():
    consumer = Consumer()
    encode = msgspec.msgpack.encode
    consumer.apply(0, encode([0.0, [ENCODINGS["map"]("BlockStored", dict(
        block_hashes=[1], token_ids=[], block_size=4, medium="GPU"))], None]))
    assert consumer.held == {(1, "GPU", None)}
    consumer.apply(2, encode([0.0, [], None]))
    assert consumer.lost == [1]
