"""A cache's own events over real sockets: a subscriber always equals cache.events.snapshot()."""

import os
import random

import numpy as np
import pytest

pytest.importorskip("msgspec")
zmq = pytest.importorskip("zmq")

from events_consumer import Subscriber  # noqa: E402
from kvcache import Cache, Config, Layer, Plan, State  # noqa: E402
from kvcache.events_publisher import EventPublisher, groups_of  # noqa: E402
from kvcache.events_publisher_wire import Group, namespace_root  # noqa: E402

FULL = Layer(num_q_heads=2, num_kv_heads=2, k_dim=8, dtype="float32")
WINDOWED = Layer(num_q_heads=2, num_kv_heads=2, k_dim=8, window=8, dtype="float32")
STATE = Layer(kind="state", states=[State([4, 4])])
MODELS = {"full": [FULL, FULL], "windows": [FULL, WINDOWED, WINDOWED], "states": [FULL, STATE]}
MEDIA = {"device": "GPU", "host": "CPU"}


def make_cache(layers, *, num_pages, event_capacity, host_pages=0):
    fields = dict(layers=layers, page_size=4, num_pages=num_pages, event_capacity=event_capacity)
    page_bytes = Plan(Config(**fields)).info.page_bytes
    return Cache(host_byte_budget=host_pages * page_bytes, **fields)


def run(cache, tokens, salt=b"", chunk=None):
    """Compute a prompt as a serving program does, what is cached left out, and let go of the sequence."""
    layers = cache.plan.config.layers
    begin = cache.prefix.attach(1, tokens, salt=salt)
    while begin < len(tokens):
        end = min(begin + (chunk or len(tokens)), len(tokens))
        rows = np.zeros((end - begin, 2, 8), np.float32)
        with cache.forward([1], [end - begin], tokens=tokens[begin:end]) as forward:
            for index, layer in enumerate(layers):
                if layer.kind == "state":
                    forward.state_set(index, 0, np.zeros((1, 4, 4), np.float32))
                else:
                    forward.kv_append(index, rows, rows)
        begin = end
    cache.remove(1)


def held(cache):
    return {(event.hash, event.group, event.tier) for event in cache.events.snapshot()[0]}


def wire(cache):
    groups = cache.plan.info.num_groups
    return {(int.from_bytes(hash[24:], "big"), MEDIA[tier], group if group >= 0 else groups)
            for hash, group, tier in held(cache)}


@pytest.fixture
def connected():
    """A function that joins a publisher and a subscriber over the process's memory."""
    with zmq.Context() as context:
        opened = []

        def connect(cache, **options):
            name = f"inproc://events-{len(opened)}"
            publisher = EventPublisher(cache, name, replay_endpoint=f"{name}-replay", context=context, **options)
            opened.append(publisher)
            subscriber = Subscriber(context, publisher.endpoint, publisher.replay_endpoint)
            opened.append(subscriber)
            return publisher, subscriber

        yield connect
        for one in opened:
            one.close()


def test_the_first_block_of_a_namespace_has_its_root_as_parent():
    cache = make_cache([FULL], num_pages=16, event_capacity=16)
    run(cache, [1, 2, 3, 4])
    run(cache, [1, 2, 3, 4], salt=b"tenant")
    assert [event.parent for event in cache.events.poll()] == [namespace_root(), namespace_root(b"tenant")]


def test_tokens_and_parents_on_the_wire_are_those_of_the_prompts(connected):
    cache = make_cache([FULL], num_pages=64, event_capacity=64)
    publisher, subscriber = connected(cache)
    publisher.add_namespace(b"tenant", lora_name="adapter")
    publisher.poll()
    run(cache, list(range(12)))
    run(cache, list(range(8)) + [50, 51, 52, 53])
    run(cache, list(range(8)), salt=b"tenant")
    publisher.poll()
    consumer = subscriber.receive(publisher.sequence)

    def prompt_of(key):
        """Tokens from the first block to this one, as a router puts them together."""
        tokens = []
        while key is not None:
            tokens = consumer.tokens[key] + tokens
            key = consumer.parents[key]
        return tokens

    ends = consumer.tokens.keys() - set(consumer.parents.values())
    assert sorted(map(prompt_of, ends)) == [list(range(8)), list(range(12)), list(range(8)) + [50, 51, 52, 53]]
    assert [event.lora_name for event in consumer.events if hasattr(event, "lora_name")] == [None, None, "adapter"]


def test_an_evicted_block_goes_to_the_host_and_comes_back(connected):
    cache = make_cache([FULL], num_pages=16, event_capacity=64, host_pages=8)
    publisher, subscriber = connected(cache)
    run(cache, list(range(16)))
    publisher.poll()
    cache.prefix.evict(2)
    publisher.poll()
    consumer = subscriber.receive(publisher.sequence)
    assert sorted(medium for _, medium, _ in consumer.held) == ["CPU", "CPU", "GPU", "GPU"]
    run(cache, list(range(16)) + [99])
    publisher.poll()
    assert {medium for _, medium, _ in subscriber.receive(publisher.sequence).held} == {"GPU"}


def test_groups_are_told_as_the_plan_has_them():
    def told(*layers):
        return groups_of(Plan(Config(layers=layers, num_pages=64, page_size=4)))

    assert told(FULL, FULL) == [Group("full_attention")]
    assert Group("sliding_window", 8) in told(FULL, WINDOWED)
    latent = dict(kind="mla", num_q_heads=2, latent_rank=16, latent_rope_dim=8)
    assert told(Layer(**latent)) == [Group("mla_attention")]
    assert told(Layer(window=4, **latent)) == [Group("sliding_window_mla", 4)]
    assert told(Layer(num_q_heads=2, num_kv_heads=2, k_dim=8, chunk=16)) == [Group("chunked_local_attention")]


def test_a_cache_without_events_is_refused_by_the_library(connected):
    publisher, _ = connected(make_cache([FULL], num_pages=4, event_capacity=0))
    with pytest.raises(Exception, match="event_capacity"):
        publisher.poll()


@pytest.mark.parametrize("model", MODELS)
def test_random_prompts_equal_the_snapshot(connected, model):
    seed = int(os.environ.get("KVC_TEST_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
    print(f"KVC_TEST_SEED={seed}")
    dice = random.Random(seed)
    cache = make_cache(MODELS[model], num_pages=96, event_capacity=32, host_pages=24)
    publisher, subscriber = connected(cache, batch_events=10)
    block = cache.plan.info.prefix_block
    compared = 0
    for _ in range(400):
        operation = dice.random()
        if operation < 0.9:
            tokens = [dice.randrange(2) for _ in range(dice.randrange(1, min(60, 6 * block)))]
            run(cache, tokens, salt=dice.choice([b"", b"tenant"]), chunk=dice.choice([None, block]))
        elif operation < 0.99:
            cache.prefix.evict(dice.randrange(1, 12))
        else:
            cache.prefix.reset()
        if dice.random() < 0.4:
            publisher.poll()
            consumer = subscriber.receive(publisher.sequence)
            assert consumer.held == wire(cache)
            assert publisher.held() == held(cache)
            compared += len(consumer.held) > 0
    assert compared > 50
    assert publisher.resyncs > 1, "the ring was never too small"
