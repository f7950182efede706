# SPDX-License-Identifier: Apache-2.0
"""`ab`: strace's lines, what is made of them, the prediction, and a whole comparison of small commands."""

import json
import os
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from harness import ROOT
from harness.ab import advice, command, equality, predict, profile, session, story, trace, twin
from harness.ab.equality import Digest, Left
from harness.core import shim, statistics
from harness.core.model import LabError

PYTHON = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else sys.executable


def lay(directory: Path, threads: dict[int, str]) -> Path:
    """A recorded trace: one file per thread, as strace -ff leaves it."""
    for thread, text in threads.items():
        (directory / f"t.{thread}").write_text(text)
    return directory / "t"


WRITER = """\
1700000000.000100 execve("/usr/bin/logger", [...], 0x7ffe /* 3 vars */) = 0 <0.000400>
1700000000.001000 openat(AT_FDCWD</w>, "app.log", O_WRONLY|O_CREAT|O_APPEND|O_CLOEXEC, 0666) = 3</w/app.log> <0.000020>
1700000000.001100 write(3</w/app.log>, ""..., 100) = 100 <0.000010>
1700000000.001200 write(3</w/app.log>, ""..., 100) = 100 <0.000010>
1700000000.001300 fsync(3</w/app.log>)      = 0 <0.001000>
1700000000.002500 writev(3</w/app.log>, [...], 2) = 70000 <0.000030>
1700000000.002600 --- SIGCHLD {si_signo=SIGCHLD, si_code=CLD_EXITED} ---
1700000000.002700 openat(AT_FDCWD</w>, "no", O_RDONLY) = -1 ENOENT (No such file or directory) <0.000005>
1700000000.002800 clone(child_stack=NULL, flags=CLONE_CHILD_CLEARTID|SIGCHLD, child_tidptr=0x7f) = 20 <0.000100>
1700000000.004000 wait4(20, [{WIFEXITED(s) && WEXITSTATUS(s) == 0}], 0, NULL) = 20 <0.002000>
1700000000.006100 clock_nanosleep(CLOCK_REALTIME, 0, {tv_sec=0, tv_nsec=1000000}, 0x7ff) = 0 <0.001100>
1700000000.007300 close(3</w/app.log>)      = 0 <0.000010>
1700000000.007400 exit_group(0)             = ?
"""
CHILD = """\
1700000000.003000 write(3</w/app.log>, ""..., 50) = 50 <0.000010>
1700000000.003100 openat(AT_FDCWD</w>, "a\\76\\303\\251", O_RDWR|O_CREAT, 0666) = 4</w/a\\76\\303\\251> <0.000020>
1700000000.003200 pwrite64(4</w/a\\76\\303\\251>, ""..., 4096, 8192) = 4096 <0.000010>
1700000000.003300 dup2(4</w/a\\76\\303\\251>, 1</dev/null>) = 1</w/a\\76\\303\\251> <0.000002>
1700000000.003400 close(4</w/a\\76\\303\\251>) = 0 <0.000002>
1700000000.003500 execve("/usr/bin/filter", [...], 0x7ffe /* 3 vars */) = 0 <0.000300>
1700000000.003900 write(1</w/a\\76\\303\\251>, ""..., 10) = 10 <0.000010>
1700000000.003950 write(1</w/a\\76\\303\\251>, ""..., 10) = 10 <0.000010>
1700000000.003960 exit_group(0)             = ?
"""


@pytest.fixture
def told(tmp_path):
    return story.tell(trace.read(lay(tmp_path, {10: WRITER, 20: CHILD})), "/w")


@pytest.mark.parametrize(
    ("line", "name", "result", "path", "seconds"),
    [
        ('1.5 write(1</a/b>, ""..., 3) = 3 <0.000007>', "write", 3, "", 7e-6),
        ('1.5 openat(AT_FDCWD</a>, "b", O_WRONLY) = 7</a/b> <0.000002>', "openat", 7, "/a/b", 2e-6),
        (
            "1.5 fcntl(3</a>, F_GETFL) = 0x8002 (flags O_RDWR|O_LARGEFILE) <0.000001>",
            "fcntl",
            0x8002,
            "",
            1e-6,
        ),
        (
            "1.5 read(0, 0x7ff, 100) = ? ERESTARTSYS (To be restarted if SA_RESTART is set) <0.5>",
            "read",
            None,
            "",
            0.5,
        ),
        ("1.5 exit_group(0) = ?", "exit_group", None, "", 0),
        ('1.5 unlink("x) = 9") = -1 EACCES (Permission denied) <0.000001>', "unlink", -1, "", 1e-6),
    ],
)
def test_a_line_is_a_call(line, name, result, path, seconds):
    found = trace.parse(5, line)
    assert (found.name, found.result, found.path, found.seconds) == (name, result, path, seconds)


@pytest.mark.parametrize(
    "line", ["1.5 +++ exited with 0 +++", "1.5 --- SIGCHLD {} ---", "1.5 write(1, <unfinished ...>", ""]
)
def test_what_is_no_finished_call_is_left_out(line):
    assert trace.parse(5, line) is None


def test_arguments_are_split_at_the_outermost_level():
    assert trace.split('3</a, b>, "x, \\"y", {a=1, b=[2, 3]}, A<B>|C') == [
        "3</a, b>",
        '"x, \\"y"',
        "{a=1, b=[2, 3]}",
        "A<B>|C",
    ]
    assert trace.descriptor("12</tmp/a \\76b>") == (12, "/tmp/a >b")
    assert trace.name('"caf\\303\\251"') == "café"


def test_no_trace_is_an_error(tmp_path):
    with pytest.raises(LabError, match="may it trace here"):
        list(trace.read(tmp_path / "t"))


def test_counts_of_strace():
    table = """% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 60.00    0.000600           1       600           write
 40.00    0.000400          10        40         7 openat
------ ----------- ----------- --------- --------- ----------------
100.00    0.001000           1       640         7 total
"""
    assert trace.counts(table) == {"write": 600, "openat": 40}


def test_a_story_follows_forks_execs_and_copies_of_descriptors(told):
    assert told.programs == ["", "/usr/bin/logger", "/usr/bin/filter"]
    assert [d.path for d in told.descriptions] == ["/w/app.log", "/w/a>é"]
    assert told.descriptions[1].inherited and not told.descriptions[0].inherited
    kinds = [[o.kind for o in node.operations] for node in told.nodes]
    assert kinds == [
        [story.EXEC],
        [story.OPEN, story.WRITE, story.WRITE, story.FSYNC, story.WRITE, story.FORK, story.WAIT, story.SLEEP,
         story.CLOSE],
        [story.WRITE, story.OPEN, story.PWRITE, story.EXEC],
        [story.WRITE, story.WRITE],
    ]  # fmt: skip
    second = told.nodes[1].operations[2]
    assert (second.a, second.append, second.calls) == (100, True, 1)
    assert second.think == pytest.approx(90e-6, abs=1e-6)


def test_a_profile_counts_what_can_be_staged(told):
    log, other = profile.make(told).files
    assert (log.path, log.writes, log.bytes, log.appended, log.syncs) == ("/w/app.log", 4, 70250, 4, 1)
    assert log.stageable == 2  # the first passes, and so does the large one
    assert log.writers == {10, 20} and log.typical_bytes == 128
    assert (other.writes, other.positioned, other.inherited, other.stageable) == (3, 2, 2, 0)


def test_advice_names_files_and_obstacles(told):
    found = profile.make(told)
    told_advice = advice.advise(found, {})
    assert told_advice.rule.paths == ("/w/app.log",) and told_advice.rule.keys == {}
    assert any("given the open file" in line for line in told_advice.obstacles)
    assert any("large already" in line for line in told_advice.obstacles)


def test_no_rule_for_programs_that_cannot_be_preloaded(told):
    found = advice.advise(profile.make(told), {"/usr/bin/logger": "statically linked"})
    assert found.rule is None and "statically linked" in found.obstacles[0]
    verdict, sentence = advice.verdict(found, None, profile.make(told))
    assert verdict == advice.NO and sentence.startswith(
        "The shim will not help: app.log and 1 more: written by /usr/bin/logger"
    )


def a_file(path, **more):
    base = {"writes": 100, "small": 100, "stageable": 99, "bytes": 10_000, "writers": {1}, "programs": {"/p"}}
    return profile.File(path, **{**base, **more})


def a_profile(*files):
    return profile.Profile(list(files), story.Special(), ["/p"], 1)


@pytest.mark.parametrize(
    ("asked", "keys"),
    [
        ("same", {}),
        ("recovered", {"sync": "journal"}),
        ("relaxed", {"sync": "relaxed"}),
        ("off", {"sync": "off"}),
    ],
)
def test_durability_is_only_weakened_when_asked(asked, keys):
    assert advice.advise(a_profile(a_file("/w/a", syncs=5)), {}, asked).rule.keys == keys
    assert advice.advise(a_profile(a_file("/w/a")), {}, asked).rule.keys == {}


def test_files_that_others_read_are_shown_to_them_at_once():
    assert advice.advise(a_profile(a_file("/w/a", watched=True)), {}).rule.keys == {"visibility": "strict"}


READER = """\
1700000000.%s openat(AT_FDCWD</w>, "app.log", O_RDONLY) = 3</w/app.log> <0.000020>
1700000000.%s read(3</w/app.log>, ""..., 100) = 100 <0.000010>
1700000000.%s exit_group(0)             = ?
"""


@pytest.mark.parametrize(
    ("times", "watched"), [(("003000", "003100", "003200"), True), (("008000", "008100", "008200"), False)]
)
def test_only_who_reads_while_it_is_written_watches(tmp_path, times, watched):
    """Who opens a file after it was closed, as a linker does, needs nothing."""
    told = story.tell(trace.read(lay(tmp_path, {10: WRITER, 20: READER % times})), "/w")
    assert profile.make(told).files[0].watched == watched


@pytest.mark.parametrize(
    ("paths", "others", "expected"),
    [
        (["/w/a.log"], [], ("/w/a.log",)),
        (["/w/a.log", "/w/b.log"], ["/w/c.csv"], ("/w/*.log",)),
        (["/w/a:[1].log"], [], ("/w/a\\:\\[1\\].log",)),
        ([f"/w/{n}/x.o" for n in range(9)], ["/w/y.d"], ("/w/**.o",)),
        ([f"/w/{n}/x{n}" for n in range(9)], [], ("/w/**",)),
    ],
)
def test_patterns_are_few_and_narrow(paths, others, expected):
    assert advice.patterns(paths, others) == expected


def test_a_rule_is_what_the_library_takes(tmp_path):
    built = shim.find()
    if isinstance(built, str):
        pytest.skip(built)
    rule = advice.Rule(("/w/a\\:\\[1\\]*.log", "/w/**.o"), {"sync": "journal", "visibility": "strict"})
    (tmp_path / "rule.ini").write_text(rule.ini())
    for argv, env in ((["-c", tmp_path / "rule.ini"], {}), ([], rule.env())):
        done = subprocess.run(
            [built.command, "config", "--json", *argv], env=env, capture_output=True, text=True
        )
        assert done.returncode == 0 and not done.stderr, done.stderr
        assert "journal" in done.stdout and "/w/**.o" in done.stdout


def test_a_script_has_the_layout_of_the_replay(told):
    made = twin.script(told, overhead=10e-6, waits=0.5)
    magic, nodes, descriptions, operations, longest, at = twin.HEAD.unpack_from(made.data)
    assert (magic, nodes, descriptions, longest) == (twin.MAGIC, 4, 2, 70000)
    found = [
        struct.unpack_from("<IIqq", made.data, twin.HEAD.size + 16 * nodes + 24 * i)
        for i in range(operations)
    ]
    kinds = [f[0] for f in found]
    assert at == twin.HEAD.size + 16 * nodes + 24 * operations
    assert kinds.count(story.WRITE) == 4  # not those of the program that was given the file
    assert [f[2] for f in found if f[0] == story.SLEEP] == [
        pytest.approx(1_100_000, abs=2000)
    ]  # its own sleep is exact
    spins = [f[2] for f in found if f[0] == story.SPIN]
    assert all(ns > 0 for ns in spins) and 80_000 - 1000 < spins[2] < 80_000 + 1000
    assert made.data[at:].split(b"\0")[:2] == [b"/w/app.log", "/w/a>é".encode()]
    assert made.directories == ("/w",)


@pytest.mark.parametrize("per_turn", [0.05, 0.3, 4.0])
def test_the_fit_finds_the_scale(per_turn):
    scale = twin.fit(lambda scale: 0.3 + per_turn * scale)
    assert 0.3 + per_turn * scale == pytest.approx(1, abs=0.021)
    assert twin.fit(lambda scale: 1.2) == 0


def test_the_predicted_interval_holds_what_its_model_draws():
    """Worlds with a known saving: the median of the pairs falls into the interval in nine of ten or more."""
    draw = np.random.default_rng(3)
    inside = 0
    for _ in range(60):
        saved, noise = draw.uniform(0, 0.8), draw.uniform(0.01, 0.08)
        around = lambda value, noise=noise: value * np.exp(noise * draw.standard_normal())  # noqa: E731
        rounds = [(around(1.0), around(1.0), around(1 - saved)) for _ in range(7)]
        pairs = [around(1.0) / around(1 - saved) for _ in range(7)]
        inside += predict.predict(rounds, 7).covers(float(np.median(pairs)))
    assert inside >= 54


def test_a_prediction_says_what_is_saved_and_how_surely():
    quiet = predict.predict([(1.0, 1.0, 0.5)] * 5, 5)
    assert quiet.ratio == pytest.approx(2) and 1.6 < quiet.low < 2 < quiet.high < 2.6
    noisy = predict.predict([(1.0, 1.0, 0.5), (1.3, 1.0, 0.6), (0.8, 1.1, 0.4), (1.0, 0.9, 0.7)], 5)
    assert noisy.high - noisy.low > 2 * (quiet.high - quiet.low)
    # A replay that does not take as long as the command is believed less.
    assert predict.predict([(1.0, 0.7, 0.2)] * 5, 5).high > quiet.high
    with pytest.raises(ValueError, match="three"):
        predict.predict([(1, 1, 1)], 5)


def test_verdicts_follow_the_interval():
    files = a_profile(a_file("/w/a"))
    told = advice.advise(files, {})
    assert advice.verdict(told, predict.predict([(1.0, 1.0, 0.5)] * 5, 5), files)[0] == advice.USE
    assert advice.verdict(told, predict.predict([(1.0, 1.0, 0.999)] * 5, 5), files)[0] == advice.NO
    assert (
        advice.verdict(told, predict.predict([(1.0, 1.1, 1.05), (1, 1, 0.8), (1, 1, 1.0)], 5), files)[0]
        == advice.TRY
    )


@pytest.mark.parametrize(
    ("native", "ruled", "differences", "begins"),
    [
        ([1.0, 1.01, 0.99], [0.34, 0.33, 0.335], False, "Recommended: measured to run 2.96"),
        ([1.0, 1.01, 0.99], [0.34, 0.33, 0.335], True, "Not recommended: under the rule the command left"),
        ([1.0, 1.01, 0.99], [1.5, 1.52, 1.51], False, "Not recommended: measured"),
        ([1.0, 1.3, 0.8], [1.0, 1.0, 1.0], False, "Not decided: measured"),
        ([1.0, 1.0, 1.0], [0.99, 0.99, 0.99], False, "Not worth a rule: measured"),
    ],
)
def test_the_measurement_has_the_last_word(native, ruled, differences, begins):
    compared = statistics.compare([1 / s for s in native], [1 / s for s in ruled])
    said = advice.measured(compared, "Perhaps: predicted to run 1.2 times as fast.", differences)
    assert said.startswith(begins) and "Before that: perhaps: predicted" in said
    assert advice.gains(compared) == (ruled[0] == 0.34)


def a_run(status=0, **files):
    return Left({n: Digest(b, lines, 5) for n, (b, lines) in files.items()}, status)


def test_outputs_are_compared_as_strictly_as_native_runs_agree():
    native = [a_run(same=("1", "x"), order=("1", "x"), differs=("1", "x"), gone=("1", "x")),
              a_run(same=("1", "x"), order=("2", "x"), differs=("2", "y"))]  # fmt: skip
    assert equality.ways(native) == {
        "same": equality.BYTES, "order": equality.LINES, "differs": equality.EXCLUDED, "gone": equality.EXCLUDED,
    }  # fmt: skip
    good = a_run(same=("1", "x"), order=("3", "x"), differs=("9", "z"))
    assert equality.differences(native, good) == []
    bad = a_run(3, same=("2", "x"), order=("3", "y"), more=("1", "x"))
    assert [line.split(":")[0] for line in equality.differences(native, bad)] == [
        "ended with 3, natively with 0", "differs", "order", "same",
    ]  # fmt: skip


def test_a_file_too_many_is_a_difference_where_native_runs_make_the_same_files():
    run, more = a_run(a=("1", "x")), a_run(a=("1", "x"), b=("1", "x"))
    assert equality.differences([run, run], more) == ["b: is made or changed, natively it is not"]
    assert equality.differences([run, a_run(a=("1", "x"), c=("1", "x"))], more) == []


def test_a_digest_knows_the_lines_in_any_order(tmp_path):
    for name, text in (("a", b"1\n2\n3\n"), ("b", b"3\n1\n2\n"), ("c", b"3\n1\n2\n2\n")):
        (tmp_path / name).write_bytes(text)
    a, b, c = (equality.digest(tmp_path / name) for name in "abc")
    assert a.bytes != b.bytes and a.lines == b.lines != c.lines


def test_only_what_changed_is_an_output(tmp_path):
    for name in ("kept", "changed"):
        (tmp_path / name).write_text("1")
    before = equality.state(tmp_path)
    (tmp_path / "changed").write_text("22")
    (tmp_path / "new.tmp").write_text("3")
    (tmp_path / ".fastwrite").mkdir()
    (tmp_path / ".fastwrite" / "arena").write_text("")
    output = tmp_path.parent / "output"
    output.write_text("")
    found = equality.left(tmp_path, before, 0, output)
    assert set(found.files) == {"changed", "new.tmp", equality.STANDARD_OUTPUT}
    assert found.staging == (".fastwrite/arena",)
    assert set(equality.left(tmp_path, before, 0, output, ["ch*"]).files) == {
        "changed",
        equality.STANDARD_OUTPUT,
    }


def rewrite(path, text):
    """As `cp -p` and `tar x` do: the time of the earlier file comes back."""
    found = path.stat()
    path.write_text(text)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


def replace(path, text):
    """The same under another inode."""
    found = path.stat()
    other = path.with_name("other")
    other.write_text(text)
    os.utime(other, ns=(found.st_atime_ns, found.st_mtime_ns))
    other.rename(path)


@pytest.mark.parametrize(
    ("native", "other", "said"),
    [
        (lambda d: (d / "b").unlink(), lambda d: None, ["b: is not removed, natively it is"]),
        (lambda d: None, lambda d: (d / "b").unlink(), ["b: is removed, natively it is not"]),
        (lambda d: rewrite(d / "a", "22"), lambda d: rewrite(d / "a", "23"),
         ["a: differs (2 bytes, natively 2)"]),
        (lambda d: replace(d / "a", "22"), lambda d: replace(d / "a", "23"),
         ["a: differs (2 bytes, natively 2)"]),
        (lambda d: (d / "new").mkdir(), lambda d: None, ["new: is not made or changed, natively it is"]),
        (lambda d: (d / "new").symlink_to("a"), lambda d: (d / "new").symlink_to("b"),
         ["new: link to b, natively link to a"]),
        (lambda d: (d / "new").symlink_to("sub"), lambda d: None, ["new: is not made or changed, natively it is"]),
        (lambda d: (d / "sub").chmod(0o711), lambda d: (d / "sub").chmod(0o700),
         ["sub: directory, mode 700, natively directory, mode 711"]),
        (lambda d: (d / "a").chmod(0o600), lambda d: None, ["a: is not made or changed, natively it is"]),
        (lambda d: os.mkfifo(d / "new", 0o600), lambda d: (d / "new").mkdir(0o700),
         ["new: directory, mode 700, natively pipe, mode 600"]),
        (lambda d: rewrite(d / "sub/c", "22"), lambda d: rewrite(d / "sub/c", "22"), []),
    ],
)  # fmt: skip
def test_every_kind_of_change_is_compared(tmp_path, native, other, said):
    output = tmp_path / "output"
    output.write_text("")

    def run(name, change):
        root = tmp_path / name
        (root / "sub").mkdir(parents=True)
        for file in ("a", "b", "sub/c"):
            (root / file).write_text("11")
        before = equality.state(root)
        time.sleep(0.02)  # a tick of the kernel's clock: the time of change is another
        change(root)
        return equality.left(root, before, 0, output)

    natives = [run("one", native), run("two", native)]
    assert equality.differences(natives, run("other", other)) == said


def test_what_exists_is_compared_where_the_bytes_cannot_be(tmp_path):
    natives = [Left({"log": Digest(text, text, 2, "file, mode 644")}, 0) for text in "ab"]
    assert equality.differences(natives, Left({"log": Digest("c", "c", 3, "file, mode 644")}, 0)) == []
    assert equality.differences(natives, Left({}, 0)) == ["log: is not made or changed, natively it is"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"durability": "some"}, "'some' is none of same"),
        ({"apply": "maybe"}, "'maybe' is none of auto"),
        ({"keys": ["sync"]}, "not KEY=VALUE"),
        ({"keys": ["sync=off"]}, "which files"),
        ({"source": Path("/nowhere")}, "not a directory"),
        ({"argv": ["no-such-program"]}, "not found"),
    ],
)
def test_requests_that_cannot_be_carried_out(more, said):
    base = {"argv": ["true"], "source": None, "prepare": "", "pairs": 3, "paths": None, "keys": None, "config": None,
            "compare": None, "durability": "same", "apply": "auto", "ignore_failure": False}  # fmt: skip
    with pytest.raises(LabError, match=said):
        command.settings(**{**base, **more})


def test_patterns_of_the_user_are_below_the_directory():
    assert session._absolute("!old/**", "/w/run") == "!/w/run/old/**"
    assert session._absolute("{dir}/*.log", "/w/run") == "/w/run/*.log"
    assert session.portable("/w/run/*.log", "/w/run", None, "$PWD") == "$PWD/*.log"
    assert session.portable("/w/run/*.log", "/w/run", Path("/srv"), "$PWD") == "/srv/*.log"


def ab(tmp_path, *args):
    if isinstance(shim.find(), str):
        pytest.skip(shim.find())
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    argv = [
        sys.executable,
        "-m",
        "harness",
        "ab",
        "--dir",
        tmp_path / "work",
        "--out",
        tmp_path / "out",
        *args,
    ]
    done = subprocess.run(list(map(str, argv)), cwd=ROOT, capture_output=True, text=True, timeout=120)
    if "strace may not trace here" in done.stdout:
        pytest.skip(done.stdout.strip())
    return done


APPENDER = (
    "import os,sys\nf=open('a.log','ab',buffering=0)\nfor i in range(4000): f.write(b'%d record\\n' % i)\n"
)


def test_two_appending_processes_from_trace_to_measured_rule(tmp_path):
    program = tmp_path / "appender.py"
    program.write_text(APPENDER)
    shell = f"{PYTHON} {program} & {PYTHON} {program}; wait"
    done = ab(tmp_path, "--pairs", "2", "--apply", "always", "--", "sh", "-c", shell)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "out" / "ab.json").read_text())
    (file,) = found["profile"]["files"]
    assert (file["writes"], file["appended"], len(file["writers"])) == (8000, 8000, 2)
    assert found["rule"]["paths"] == [f"{found['root']}/a.log"]
    # under strace each write is dear enough to be staged, on any machine; what the pairs stage depends on it
    assert found["counts"]["native"]["write"] >= 8000 > 8 * found["counts"]["shim"]["write"]
    assert found["differences"] == [] and "a.log" in found["compared"]
    assert found["prediction"]["low"] <= found["prediction"]["ratio"] <= found["prediction"]["high"]
    assert "What it writes" in (tmp_path / "out" / "ab.md").read_text()
    assert not (tmp_path / "work").exists()


def test_a_rule_of_the_user_stages_in_every_pair(tmp_path):
    program = tmp_path / "appender.py"
    program.write_text(APPENDER)
    shell = f"{PYTHON} {program} & {PYTHON} {program}; wait"
    rule = ("--paths", "{dir}/*.log", "--rule", "adapt=off")
    done = ab(tmp_path, "--pairs", "2", "--apply", "always", *rule, "--", "sh", "-c", shell)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "out" / "ab.json").read_text())
    assert len(found["shimmed"]) >= 2
    assert all(run["shim"]["staged_writes"] >= 7998 for run in found["shimmed"])
    assert found["differences"] == [] and "a.log" in found["compared"]


def test_a_command_that_the_shim_cannot_help(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    (source / "big").write_bytes(bytes(3 << 20))
    done = ab(
        tmp_path, "--pairs", "2", "--in", source, "--", "dd", "if=big", "of=copy", "bs=1M", "status=none"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "The shim will not help: copy: writes of more than 64 KiB" in " ".join(done.stdout.split())


def test_a_rule_of_the_user_that_is_wrong_is_refused(tmp_path):
    done = ab(tmp_path, "--paths", "*", "--rule", "sync=never", "--", "true")
    assert done.returncode == 2 and "sync" in done.stdout and "Traceback" not in done.stderr


def test_a_command_that_fails_is_refused(tmp_path):
    done = ab(tmp_path, "--", "sh", "-c", "exit 4")
    assert done.returncode == 2 and "ended with 4" in done.stdout
    done = ab(tmp_path, "--", "sh", "-c", "echo it is broken >&2; exit 4")
    assert done.returncode == 2 and "ended with 4: it is broken" in done.stdout


def test_standard_input_is_given_to_every_run(tmp_path):
    (tmp_path / "in").write_text("three\nlittle\nlines\n")
    shell = "test $(wc -c) -eq 19"
    assert ab(tmp_path, "--stdin", tmp_path / "in", "--", "sh", "-c", shell).returncode == 0
    assert ab(tmp_path, "--", "sh", "-c", shell).returncode == 2
    done = ab(tmp_path, "--stdin", tmp_path / "none", "--", "true")
    assert done.returncode == 2 and "not a file" in done.stdout


def test_what_cannot_be_helped_is_answered_by_the_trace_and_in_a_pipe_steps_are_told(tmp_path):
    done = ab(tmp_path, "--", "dd", "if=/dev/zero", "of=big", "bs=1M", "count=2", "status=none")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (
        "tracing ..." in done.stdout and "calibrating" not in done.stdout and "pairs ..." not in done.stdout
    )
    found = json.loads((tmp_path / "out" / "ab.json").read_text())
    assert len(found["plain"]) == 1 and found["verdict"] == "no" and not found["shimmed"]
