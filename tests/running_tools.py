"""A tool runner and tools that answer, wait or hang. Knows no rollout."""

import asyncio
import subprocess
import sys
import textwrap
import time

from envmask_trl.rollout.tools import ToolJob, ToolRunner
from envmask_trl.trajectory import ToolCall, ToolResult

FOREVER_S = 1e6


def run(runner: ToolRunner, tool, arguments=None, name="tool") -> ToolResult:
    [[result]] = runner.run(
        [ToolJob((ToolCall("call00000", name, {} if arguments is None else arguments),), {name: tool})]
    )
    return result


def job(*names, ordered=(), **tools) -> ToolJob:
    calls = tuple(ToolCall(f"call{index:05}", name, {}) for index, name in enumerate(names))
    return ToolJob(calls, tools, frozenset(ordered))


def run_program(text: str) -> subprocess.CompletedProcess:
    imports = """
        import asyncio, os, signal, threading, time
        from envmask_trl.rollout.tools import ToolJob, ToolRunner
        from envmask_trl.trajectory import ToolCall
    """
    program = textwrap.dedent(imports) + textwrap.dedent(text)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=10)


def weather(city: str, unit: str = "C") -> str:
    return f"7 {unit} in {city}"


async def async_weather(city: str) -> str:
    await asyncio.sleep(0)
    return f"7 C in {city}"


def slow():
    time.sleep(0.2)
    return "slow"


async def async_slow():
    await asyncio.sleep(0.2)
    return "slow"


def hang():
    time.sleep(FOREVER_S)


async def async_hang():
    await asyncio.sleep(FOREVER_S)


async def block_the_loop():
    time.sleep(FOREVER_S)
