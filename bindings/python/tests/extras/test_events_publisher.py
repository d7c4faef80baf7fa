"""Whatever happens to pool, ring and network: a subscriber that applies the messages holds what the pool holds."""

import os
import random
import time

import pytest

msgspec = pytest.importorskip("msgspec")
zmq = pytest.importorskip("zmq")

from events_consumer import END_OF_REPLAY, Consumer, Subscriber  # noqa: E402
from events_pool import BLOCK, DEVICE, HOST, Pool  # noqa: E402
from kvcache.errors import InvalidArgument  # noqa: E402
from kvcache.events_publisher import EventPublisher  # noqa: E402
from kvcache.events_publisher_wire import Group  # noqa: E402

MEDIA = {"device": "GPU", "host": "CPU"}


@pytest.fixture
def context():
    with zmq.Context() as context:
        yield context


@pytest.fixture
def subscribed(context):
    """A function that makes a publisher and a subscriber on the loopback address, connected."""
    opened = []

    def connect(cache, subscriber_options=None, **options):
        options = {"replay_endpoint": "tcp://127.0.0.1:*", "groups": [Group()], **options}
        publisher = EventPublisher(cache, "tcp://127.0.0.1:*", context=context, **options)
        opened.append(publisher)
        subscriber = join(publisher, **options)
        opened.append(subscriber)
        return publisher, subscriber

    def join(publisher, topic="", encoding="map", **_):
        subscriber = Subscriber(context, publisher.endpoint, publisher.replay_endpoint, topic, encoding)
        opened.append(subscriber)
        settle()
        return subscriber

    connect.join = join
    yield connect
    for one in opened:
        one.close()


def settle():
    """A PUB socket drops what it sends before a subscription has arrived. A subscriber with replays makes up for one that comes later."""
    time.sleep(0.2)


def wire(pool, hashes="int"):
    """What a consumer of the pool's messages holds."""
    convert = {"int": lambda key: int.from_bytes(key[24:], "big"), "bytes": lambda key: key}[hashes]
    return {(convert(key), MEDIA[tier], group if group >= 0 else pool.groups) for key, group, tier in pool.held()}


@pytest.mark.parametrize("encoding", ["map", "array"])
@pytest.mark.parametrize("hashes", ["int", "bytes"])
def test_a_subscriber_holds_what_the_pool_holds(subscribed, encoding, hashes):
    pool = Pool()
    publisher, subscriber = subscribed(pool, encoding=encoding, hashes=hashes, topic="kv-events")
    keys = pool.store(list(range(10 * BLOCK)))
    publisher.poll()
    pool.remove(keys[-1], 0)
    pool.move(keys[-2], 0, HOST)
    publisher.poll()
    consumer = subscriber.receive(publisher.sequence)
    assert consumer.held == wire(pool, hashes)
    assert consumer.lost == []
    assert publisher.held() == pool.held()


def first_message(context, pool, patience):
    """The frames that a publisher of the pool begins with; None: the subscription came later than the message."""
    endpoint = f"inproc://events-{patience}"
    with EventPublisher(pool, endpoint, context=context, topic="kv-events", data_parallel_rank=3, groups=[Group()]) as publisher:
        with context.socket(zmq.SUB) as sub:
            sub.subscribe("kv-events")
            sub.connect(endpoint)
            time.sleep(patience)
            assert publisher.poll() == 0  # the first message tells all there is
            return sub.recv_multipart() if sub.poll(1000 * patience) else None


def test_a_message_is_topic_number_and_batch(context):
    pool = Pool()
    pool.store([1] * BLOCK)
    before = time.time()
    frames = None
    for patience in (0.2, 1, 5, 25):  # seconds; nothing says when a subscription has arrived
        frames = frames or first_message(context, pool, patience)
    assert frames[:2] == [b"kv-events", (0).to_bytes(8, "big")]
    stamp, events, rank = msgspec.msgpack.decode(frames[2])
    assert before <= stamp <= time.time()
    assert [event["type"] for event in events] == ["AllBlocksCleared", "BlockStored"]
    assert rank == 3


def test_a_step_without_events_sends_nothing(subscribed):
    pool = Pool()
    publisher, _ = subscribed(pool)
    publisher.poll()
    assert publisher.sequence == 1  # AllBlocksCleared: subscribers forget an earlier publisher
    assert publisher.poll() == 0
    assert publisher.sequence == 1


def test_lost_events_make_everything_new(subscribed):
    pool = Pool(capacity=8)
    publisher, subscriber = subscribed(pool)
    publisher.poll()
    pool.store(list(range(5 * BLOCK)))
    assert publisher.poll() == 5
    keys = pool.store(list(range(100, 100 + 20 * BLOCK)))  # twelve of these events are overwritten
    pool.remove(keys[-1], 0)
    assert publisher.poll() == 0
    assert publisher.resyncs == 2
    consumer = subscriber.receive(publisher.sequence)
    assert consumer.held == wire(pool)
    pool.store([9] * BLOCK)
    assert publisher.poll() == 1  # and goes on from there
    assert subscriber.receive(publisher.sequence).held == wire(pool)


def test_a_large_snapshot_comes_in_several_messages(subscribed):
    pool = Pool()
    keys = pool.store(list(range(100 * BLOCK)))
    publisher, subscriber = subscribed(pool, batch_events=16)
    publisher.poll()
    assert publisher.sequence == 7
    consumer = subscriber.receive(publisher.sequence)
    assert consumer.held == wire(pool)
    tags = [type(event).__name__ for event in consumer.events]
    assert tags.count("AllBlocksCleared") == 1 and tags[0] == "AllBlocksCleared"
    assert len(consumer.held) == len(keys)


def test_missed_messages_are_replayed(subscribed):
    pool = Pool()
    publisher, _ = subscribed(pool)
    for prompt in range(5):
        pool.store([prompt] * BLOCK)
        publisher.poll()
    late = subscribed.join(publisher)
    pool.store([77] * BLOCK)
    publisher.poll()
    consumer = late.receive(publisher.sequence)
    assert consumer.lost == []
    assert consumer.held == wire(pool)


def test_a_replay_begins_where_it_is_asked_to(subscribed):
    pool = Pool()
    publisher, subscriber = subscribed(pool)
    for prompt in range(6):
        pool.store([prompt] * BLOCK)
        publisher.poll()
    assert publisher.sequence == 6  # the first prompt is in the first message
    assert subscriber.ask(4) == [4, 5]
    assert subscriber.ask(6) == []
    assert subscriber.ask(END_OF_REPLAY) == []


def test_a_replay_of_more_than_is_kept_is_followed_by_everything_anew(subscribed):
    pool = Pool()
    publisher, _ = subscribed(pool, buffer_steps=3)
    for prompt in range(8):
        pool.store([prompt] * BLOCK)
        publisher.poll()
    late = subscribed.join(publisher)
    assert late.ask(0) == [5, 6, 7]
    assert late.consumer.held != wire(pool)
    publisher.poll()  # of an idle pool
    consumer = late.receive(publisher.sequence)
    assert consumer.held == wire(pool)
    resyncs = publisher.resyncs
    assert late.ask(0) == [6, 7, 8]  # the snapshot is among them: nobody has to send it again
    publisher.poll()
    assert publisher.resyncs == resyncs


def test_a_replay_is_served_while_the_publisher_is_idle_and_ends_for_bad_requests_too(subscribed, context):
    pool = Pool()
    publisher, subscriber = subscribed(pool)
    publisher.poll()
    for frames in ([b"", b"short"], [b"no delimiter"], [b"", b"12345678", b"too much"], [b""]):
        subscriber.replay.send_multipart(frames)
    assert subscriber.ask(0) == [0]


def test_a_long_replay_arrives_whole_and_a_client_that_does_not_read_it_stops_nobody(subscribed, context):
    pool = Pool()
    publisher, reader = subscribed(pool, replay_endpoint="inproc://replay")
    for prompt in range(5000):  # more than the queues of two sockets hold
        pool.store([prompt] * BLOCK)
        publisher.poll()
    deaf = subscribed.join(publisher)
    deaf.replay.send_multipart([b"", (0).to_bytes(8, "big")])
    time.sleep(0.2)  # until its queue is full
    assert reader.ask(0) == list(range(5000))
    assert reader.consumer.held == wire(pool)


def test_a_req_socket_gets_the_first_message_of_a_replay(subscribed, context):
    pool = Pool()
    publisher, _ = subscribed(pool)
    publisher.poll()
    with context.socket(zmq.REQ) as req:
        req.linger = 0
        req.connect(publisher.replay_endpoint)
        req.send((0).to_bytes(8, "big"))
        assert req.poll(120_000)
        sequence, payload = req.recv_multipart()
        assert int.from_bytes(sequence, "big") == 0
        assert Consumer().apply(0, payload).events


def test_a_restarted_publisher_tells_consumers_to_forget_the_earlier_one(subscribed):
    pool = Pool()
    publisher, subscriber = subscribed(pool)
    pool.store([1] * BLOCK)
    publisher.poll()
    consumer = subscriber.receive(publisher.sequence)
    pool.clear()
    pool.poll()
    pool.store([2] * BLOCK)
    pool.poll()
    again, other = subscribed(pool)
    again.poll()
    other.consumer.held = set(consumer.held)
    assert other.receive(again.sequence).held == wire(pool)


def test_events_can_come_from_any_iterable(subscribed):
    pool = Pool()
    publisher, subscriber = subscribed(None)
    pool.store(list(range(5 * BLOCK)))
    assert publisher.publish(iter(pool.poll())) == 5
    assert subscriber.receive(publisher.sequence).held == wire(pool)
    with pytest.raises(InvalidArgument, match="cache None"):
        publisher.poll()


def test_a_gap_in_an_iterable_claims_only_what_came_after_it(subscribed):
    pool = Pool()
    publisher, subscriber = subscribed(None)
    pool.store([1] * BLOCK)
    pool.store([2] * BLOCK)
    key, = pool.store([3] * BLOCK)
    first, _, third = pool.poll()
    assert publisher.publish([first, third]) == 2
    consumer = subscriber.receive(publisher.sequence)
    assert consumer.held == {(int.from_bytes(key[24:], "big"), "GPU", 0)}


def test_an_error_on_the_way_is_followed_by_everything_anew(subscribed):
    pool = Pool()
    publisher, subscriber = subscribed(pool)
    publisher.poll()
    pool.store([1] * BLOCK)
    pool.ring[0].type = "lost"
    pool.store([2] * BLOCK)
    with pytest.raises(InvalidArgument, match="type 'lost'"):
        publisher.poll()
    publisher.poll()
    assert subscriber.receive(publisher.sequence).held == wire(pool)


@pytest.mark.parametrize("name, value", [("encoding", "json"), ("hashes", "hex"), ("buffer_steps", 0), ("hwm", 0),
                                         ("batch_events", -1)])
def test_a_bad_option_is_refused_by_name_and_value(name, value):
    with pytest.raises(InvalidArgument, match=f"{name} is {value!r}"):
        EventPublisher(None, "inproc://unused", **{name: value})


def test_an_address_in_use_leaves_no_socket_behind(context):
    with EventPublisher(None, "tcp://127.0.0.1:*", context=context) as publisher:
        with pytest.raises(zmq.ZMQError):
            EventPublisher(None, publisher.endpoint, context=context)
        with pytest.raises(zmq.ZMQError):
            EventPublisher(None, "tcp://127.0.0.1:*", replay_endpoint=publisher.endpoint, context=context)
    # The fixture's context ends only when every socket is closed.


def test_a_publisher_can_connect_to_a_subscriber_that_binds(context):
    pool = Pool()
    with context.socket(zmq.SUB) as sub:
        sub.subscribe("")
        sub.bind("tcp://127.0.0.1:*")
        endpoint = sub.last_endpoint.decode()
        with EventPublisher(pool, endpoint, connect=True, context=context, groups=[Group()]) as publisher:
            pool.store([1] * BLOCK)
            for _ in range(1200):  # a socket that binds subscribes while it is polled
                publisher.resync()
                if sub.poll(100):
                    break
            consumer = Consumer()
            consumer.apply(0, sub.recv_multipart(zmq.NOBLOCK)[2])
    assert consumer.held == wire(pool)


def test_random_pools_small_rings_and_deaf_subscribers(subscribed):
    seed = int(os.environ.get("KVC_TEST_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
    print(f"KVC_TEST_SEED={seed}")
    dice = random.Random(seed)
    pool = Pool(groups=2, capacity=24)
    groups = [Group(), Group("sliding_window", 8)]
    publisher, subscriber = subscribed(pool, groups=groups, buffer_steps=4, batch_events=7)
    publisher.poll()
    subscriber.receive(publisher.sequence)
    for _ in range(300):
        operation = dice.random()
        if operation < 0.5:
            pool.store([dice.randrange(3) for _ in range(BLOCK * dice.randrange(1, 6))])
        elif operation < 0.55:
            pool.store([dice.randrange(3)] * BLOCK, groups=[-1])
        elif operation < 0.7 and pool.places:
            hash, group = dice.choice(list(pool.places))
            pool.move(hash, group, HOST if pool.places[hash, group] == DEVICE else DEVICE)
        elif operation < 0.98 and pool.places:
            for hash, group in dice.sample(list(pool.places), k=min(len(pool.places), dice.randrange(1, 9))):
                pool.remove(hash, group)
        elif operation > 0.99:
            pool.clear()
        if dice.random() < 0.4:
            publisher.poll()
        if dice.random() < 0.1:  # messages that the subscriber never gets
            while subscriber.sub.poll(50):
                subscriber.sub.recv_multipart()
        if dice.random() < 0.3 and not pool.ring:
            if subscriber.consumer.next < publisher.sequence:
                subscriber.ask(subscriber.consumer.next)
                publisher.poll()
                if subscriber.consumer.next < publisher.sequence:
                    subscriber.receive(publisher.sequence)
            assert subscriber.consumer.held == wire(pool)
            assert publisher.held() == pool.held()
    assert publisher.resyncs > 2
