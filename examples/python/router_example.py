"""Two workers publish what their caches hold; a router sends each prompt where most of it is cached. Bookkeeping only.

    pip install './bindings/python[events]' && python3 examples/python/router_example.py

The router knows nothing of the workers but their messages (docs/events.md). It computes the keys of a prompt's blocks with
`kvcache.prefix_hash`, which gives the same keys in every process.
"""

import kvcache
import msgspec
import zmq
from kvcache.events_publisher import EventPublisher

BLOCK = 16


class Worker:
    """A serving program without a model: computes prompts, publishes events after every step."""

    def __init__(self, address):
        layer = kvcache.Layer(num_q_heads=32, num_kv_heads=8, k_dim=128)
        self.cache = kvcache.Cache(layers=[layer] * 32, num_pages=400, page_size=BLOCK, storage="none",
                                   event_capacity=10_000)
        self.publisher = EventPublisher(self.cache, address)
        self.computed = 0

    def serve(self, tokens):
        found = self.cache.prefix.attach(1, tokens)
        with self.cache.forward([1], [len(tokens) - found], tokens=tokens[found:]):
            pass  # the layers of the model go here
        self.cache.remove(1)
        self.computed += len(tokens) - found
        self.publisher.poll()


class Router:
    def __init__(self, workers):
        self.workers = workers
        self.held = [set() for _ in workers]
        self.sockets = []
        for worker in workers:
            socket = zmq.Context.instance().socket(zmq.SUB)
            socket.subscribe("")
            socket.connect(worker.publisher.endpoint)
            self.sockets.append(socket)

    def listen(self):
        """Apply the messages that are there. A real router looks at the sequence numbers, too."""
        for socket, held in zip(self.sockets, self.held):
            while socket.poll(50):
                topic, sequence, payload = socket.recv_multipart()
                for event in msgspec.msgpack.decode(payload)[1]:
                    if event["type"] == "AllBlocksCleared":
                        held.clear()
                    elif event["type"] == "BlockStored":
                        held.update(event["block_hashes"])
                    elif event["type"] == "BlockRemoved":
                        held.difference_update(event["block_hashes"])

    def choose(self, tokens):
        """The worker that has most leading blocks; of equal ones, the one that has computed least."""
        self.listen()
        keys = [int.from_bytes(key[-8:], "big") for key in kvcache.prefix_hash(tokens, BLOCK)]

        def leading(held):
            return next((i for i, key in enumerate(keys) if key not in held), len(keys))

        hits = [leading(held) for held in self.held]
        best = max(range(len(hits)), key=lambda i: (hits[i], -self.workers[i].computed))
        return self.workers[best], hits[best] * BLOCK


workers = [Worker("inproc://worker-0"), Worker("inproc://worker-1")]  # tcp://... between machines
router = Router(workers)
router.listen()  # subscriptions arrive
prompts = {name: [7 * i + shift for i in range(500)] for name, shift in (("support", 1), ("coding", 3), ("search", 5))}
total = 0
for turn in range(4):
    for name, system_prompt in prompts.items():
        tokens = system_prompt + [turn] * 60
        worker, cached = router.choose(tokens)
        worker.serve(tokens)
        total += len(tokens)
        print(f"turn {turn}, {name:8}: worker {workers.index(worker)}, {cached} of {len(tokens)} tokens cached")

computed = sum(worker.computed for worker in workers)
print(f"{computed} of {total} tokens computed")
for socket in router.sockets:
    socket.close(linger=0)
for worker in workers:
    worker.publisher.close()
# Each system prompt is computed once, on one worker. The questions are not shared, nor is the part block before them.
if computed > 3 * 560 + 9 * (4 + 60):
    raise SystemExit("the router sent prompts to workers that did not have them")
