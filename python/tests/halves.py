"""The two halves of a transfer between processes, as the C programs have them.

halves.py serve             prints its name and an address, waits for a message
halves.py use NAME ADDRESS  reads what is there, writes its first byte, sends one
"""

import sys
import time

import tideway

SIZE = 1 << 20
PATTERN = bytes(i * 31 & 255 for i in range(SIZE))


def serve(engine):
    memory = bytearray(PATTERN)
    with engine.register(memory) as registered:
        print(engine.name, registered.address, flush=True)
        while not (got := engine.notifications()):
            time.sleep(0.001)
        print(f"{got[0].name}: {got[0].body}, first byte {memory[0]}", flush=True)


def use(engine, name, address):
    memory = bytearray(SIZE)
    peer = engine.open(name)
    peer.read(memory, address)
    assert memory == PATTERN
    memory[0] = 42
    peer.write(memory, address)
    engine.notify(name, "use", "written")
    print("moved", flush=True)


with tideway.Engine() as own:
    if sys.argv[1] == "serve":
        serve(own)
    else:
        use(own, sys.argv[2], int(sys.argv[3]))
