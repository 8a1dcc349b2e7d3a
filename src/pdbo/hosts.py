"""Runs over many hosts."""

from ._hosts import distributed as distributed
