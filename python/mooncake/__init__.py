"""Mooncake's Python module by Tideway: see mooncake.engine."""
