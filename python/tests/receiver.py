"""Offers memory, says where, and prints what it holds once somebody has written."""

import ctypes

from mooncake.engine import TransferEngine

engine = TransferEngine()
engine.initialize("localhost", "P2PHANDSHAKE", "tcp", "")
memory = ctypes.create_string_buffer(1 << 20)
assert engine.register_memory(ctypes.addressof(memory), len(memory)) == 0
print(f"localhost:{engine.get_rpc_port()} {ctypes.addressof(memory)} {len(memory)}", flush=True)
input()
print(memory.value.decode()[:64], flush=True)
assert engine.unregister_memory(ctypes.addressof(memory)) == 0
