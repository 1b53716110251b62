"""Programs are run where they can do no harm, and none is paid for looking tested."""

import os
import time

import pytest

from envmask_trl import rules
from envmask_trl.rewards.code import code_of, read_cases, same
from envmask_trl.rewards.sandbox import SandboxLimits, evaluate, network_cut

TESTS = ["assert add(1, 2) == 3", {"call": "add(2, 2)", "equals": 4}]
RIGHT = "def add(a, b):\n    return a + b\n"
LIMITS = SandboxLimits(timeout_s=10.0)
QUICK = SandboxLimits(timeout_s=1.5)  # for what would never end


def paid(program: str, tests=TESTS, **options) -> float | None:
    reward = rules.unit_tests(**{"limits": LIMITS} | options)
    return reward(completions=[f"Here it is:\n```python\n{program}```"], tests=[tests])[0]


CHEATS = {
    "leaves before the tests": "import sys\nsys.exit(0)\n",
    "leaves at once": "import os\nos._exit(0)\n",
    "leaves when called": "def add(a, b):\n    raise SystemExit(0)\n",
    "is equal to everything": "class All(int):\n    __eq__ = lambda s, o: True\n    __hash__ = int.__hash__\n"
    "def add(a, b):\n    return All(0)\n",
    "knows one case": "def add(a, b):\n    return 3\n",
    "writes the verdict itself": "import os\nfor n in range(64):\n    try:\n"
    '        os.write(n, b\'{"number": 0, "value": true}\\n\')\n    except OSError: pass\n'
    "def add(a, b):\n    return 7\n",
    "writes an answer that ends its reader": "import os\nfor n in range(64):\n    try:\n"
    "        os.write(n, b'[' * 99_999 + b'\\n{\"number\": Infinity}\\n')\n    except OSError: pass\n",
    "returns more than a float holds": "def add(a, b):\n    return 10**400\n",
    "patches json": 'import json\njson.dumps = lambda *a, **k: \'{"number": 0, "value": true}\'\ndef add(a, b): pass\n',
    "eats memory": "x = [0] * 10**10\n",
    "does not compile": "def add(a, b) return\n",
    "returns no JSON": "def add(a, b):\n    return {a + b}\n",
}


@pytest.mark.parametrize("program", CHEATS.values(), ids=CHEATS)
def test_a_program_that_does_not_work_is_not_paid_whatever_it_does(program):
    assert paid(program) == 0.0


def test_a_number_beyond_all_floats_is_wrong_and_ends_no_step():
    assert not same(10**400, 1.0) and not same(1.0, 10**400) and same(10**400, 10**400)


@pytest.mark.parametrize("test", ["assert 3 == add(1, 2)", "assert add(1, 2) is None", "assert True is add(1, 2)"])
def test_what_is_equal_to_everything_is_not_paid_whichever_side_the_value_stands_on(test):
    (case,) = read_cases([test])
    assert case.expression == "add(1, 2)" and not case.truth and case.expected in (3, None, True)


@pytest.mark.parametrize("program", ["while True: pass\n", "import time\ntime.sleep(60)\n"])
def test_a_program_that_does_not_end_is_ended(program):
    start_s = time.perf_counter()
    assert paid(program, limits=QUICK) == 0.0
    assert time.perf_counter() - start_s < 15


def test_a_program_that_works_is_paid_and_a_half_right_one_by_its_share():
    assert paid(RIGHT) == 1.0
    assert paid("def add(a, b):\n    return 3\n", partial=True) == 0.5
    assert paid(RIGHT, []) is None and paid("", partial=True) == 0.0


@pytest.mark.parametrize(
    "program",
    [
        "import socket\nsocket.create_connection(('127.0.0.1', 9))",
        "import os\nos.system('true')",
        "import subprocess\nsubprocess.run(['true'])",
        "import os\nos.fork()",
        "import multiprocessing\nmultiprocessing.get_context('spawn').Process(target=print).start()",
        "import sys\ndel sys.modules['_posixsubprocess']\nimport _posixsubprocess",
        "import __main__\n__main__.inside = lambda *_: True\nopen('{outside}', 'w')",
        "import os\nos.kill(os.getppid(), 9)",
        "import ctypes",
        "open('{outside}', 'w')",
        "import os\nos.remove('{outside}')",
        "import os\nos.rename('{outside}', 'mine')",
        "import os\nopen('mine', 'w').close()\nos.rename('mine', '{outside}')",
        "import os\nos.symlink('{outside}', 'mine')\nopen('mine', 'w')",
        "import shutil\nshutil.rmtree('{folder}')",
        "import os\nd = os.open('{folder}', os.O_RDONLY)\nos.remove('kept.txt', dir_fd=d)",
    ],
)
def test_a_program_reaches_nothing_outside_of_its_directory(tmp_path, program):
    outside = tmp_path / "kept.txt"
    outside.write_text("kept")
    (outcome,) = evaluate(program.format(outside=outside, folder=tmp_path), ["1"], limits=LIMITS)
    assert "PermissionError" in outcome.error and "allowed" in outcome.error
    assert outside.read_text() == "kept"


def test_a_program_sees_no_environment_and_its_directory_is_gone_afterwards(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    seen, folder = evaluate("import os\nopen('a', 'w').write('b')", ["dict(os.environ)", "os.getcwd()"], limits=LIMITS)
    assert "secret" not in str(seen.value) and "OPENAI_API_KEY" not in seen.value
    assert folder.value and not os.path.exists(folder.value)


def test_there_is_no_network_where_the_system_can_cut_it():
    if not network_cut():
        pytest.skip("this system does not let a user cut a network")
    (outcome,) = evaluate("", ["[n for _, n in __import__('socket').if_nameindex() if n != 'lo']"], limits=LIMITS)
    assert outcome.value == [] or "PermissionError" in outcome.error


def test_all_tests_have_their_own_outcome():
    first, second, third = evaluate(RIGHT, ["add(1, 2)", "add(1, 'x')", "add((1,), (2,))"], limits=LIMITS)
    assert first.value == 3 and second.error.startswith("TypeError") and third.value == [1, 2]


def test_the_last_block_is_the_program_and_an_answer_without_one_is_it_whole():
    assert code_of("```python\na\n```\nbetter:\n```py\nb\n```") == "b\n"
    assert code_of("no fence") == "no fence" and code_of("```python\ncut off") == "cut off"


def test_tests_come_in_two_forms_and_anything_else_is_named():
    cases = read_cases('["assert f(1) == [1, 2]", "assert abs(f(2) - 1) < 0.1", {"call": "f()", "equals": {"a": 1}}]')
    assert [(case.expression, case.expected, case.truth) for case in cases] == [
        ("f(1)", [1, 2], False),
        ("bool(abs(f(2) - 1) < 0.1)", True, True),
        ("f()", {"a": 1}, False),
    ]
    assert read_cases("assert f() == 'x'")[0].expected == "x"
    for wrong, shown in ((["import math"], "import math"), ("5", "5")):
        with pytest.raises(ValueError, match=rf"unit_tests found the test '{shown}', expected one `assert \.\.\.`"):
            read_cases(wrong)
    assert read_cases('{"call": "f()", "equals": 1}')[0].expected == 1
    assert read_cases(["assert f() == 1e999"])[0].truth  # no JSON holds it: decided inside, or none could pass


def test_setup_runs_before_the_program():
    reward = rules.unit_tests(setup_column="setup", limits=LIMITS)
    code = "def area(r): return math.pi * r"
    assert reward(completions=[code], tests=[["assert area(1) == 3.141592653589793"]], setup=["import math"]) == [1.0]


def test_values_are_compared_as_json():
    assert same([1, {"a": 0.1 + 0.2}], [1, {"a": 0.3}])
    assert not same(True, 1) and not same([1], [1, 2]) and not same({"a": 1}, {"b": 1}) and same(2.0, 2)


def test_no_worker_is_refused_before_any_program_runs():
    with pytest.raises(ValueError, match="unit_tests got workers=0, expected a whole number, at least 1"):
        rules.unit_tests(workers=0)


@pytest.mark.parametrize("options", [{"timeout_s": 0}, {"memory_mb": 1}])
def test_limits_under_which_nothing_runs_are_refused(options):
    with pytest.raises(ValueError, match="cannot run anything"):
        SandboxLimits(**options)
