"""The Pythonic interface."""

import array
import asyncio
import unittest

import tideway


class Transfers(unittest.TestCase):
    def setUp(self):
        self.e = self.enterContext(tideway.Engine())
        self.f = self.enterContext(tideway.Engine("localhost"))
        self.memory = bytearray(bytes(range(256)) * 16)
        self.there = self.enterContext(self.f.register(self.memory))
        self.peer = self.e.open(self.f.name)

    def test_bytes(self):
        into = bytearray(4096)
        self.peer.read(into, self.there.address)
        self.assertEqual(into, self.memory)
        self.peer.write(b"xyz", self.there.address + 5)
        self.assertEqual(self.memory[5:8], b"xyz")
        numbers = array.array("Q", [7, 8, 9])
        self.peer.write(numbers, self.there.address)
        self.assertEqual(self.memory[:24], numbers.tobytes())
        self.peer.read(memoryview(into)[100:124], self.there.address)
        self.assertEqual(into[100:124], numbers.tobytes())

    def test_async(self):
        async def both():
            into = bytearray(64)
            await self.peer.write_async(b"a" * 64, self.there.address)
            await self.peer.read_async(into, self.there.address)
            return into

        self.assertEqual(asyncio.run(both()), b"a" * 64)

    def test_errors(self):
        with self.assertRaises(tideway.Error) as caught:
            self.peer.read(bytearray(8), 4096)
        self.assertEqual(caught.exception.reason, "not_registered")
        self.assertIn("0x1000", caught.exception.detail)
        self.assertFalse(caught.exception.in_doubt)
        with self.assertRaises(tideway.Error):
            self.e.open("127.0.0.1:1")
        with self.assertRaises(BufferError):
            self.peer.read(b"read-only", self.there.address)
        with self.assertRaises(BufferError):  # registered memory stays where it is
            self.memory.extend(b"more")
        with self.assertRaises(tideway.Error) as caught:
            self.f.register(self.memory)
        self.assertIn("overlaps", str(caught.exception))

    def test_what_is_there(self):
        found = self.peer.buffers()
        self.assertEqual([(b.address, b.length) for b in found], [(self.there.address, 4096)])
        self.assertTrue(self.peer.explain(self.there.address, 64)["chosen"])
        self.assertEqual(self.e.inspect()["state"], "open")
        self.assertGreater(self.e.probe(self.f.name), 0)

    def test_messages(self):
        self.e.notify(self.f.name, "weights", "v7")
        self.assertEqual(self.f.notifications(), [("weights", "v7")])

    def test_closed(self):
        engine = tideway.Engine()
        engine.close()
        engine.close()
        with self.assertRaises(tideway.Error):
            engine.open(self.f.name)


if __name__ == "__main__":
    unittest.main()
