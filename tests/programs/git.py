# SPDX-License-Identifier: Apache-2.0
"""git: commits, branches, merges, repacking; the history has the same names natively and under the library."""

from __future__ import annotations

from pathlib import Path

from programs.case import Case
from programs.place import NEXT, Place

ENV = {
    "GIT_AUTHOR_NAME": "A",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "C",
    "GIT_COMMITTER_EMAIL": "c@example.org",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
}
# Commits for ever; says each one's name when `git commit` has returned.  What a killed git left locked is what its
# own message tells to remove.
LOOP = """
cd "$1" || exit 1
n=$2
while :; do
	echo "line $n" >> "file$((n % 7))"
	seq $((n % 50 * 40)) > "deep/dir$((n % 5))/number$n"
	git add -A && git commit -q -m "commit $n" || exit 1
	git rev-parse HEAD
	[ $((n % 15)) = 0 ] && { git gc -q --prune=now || exit 1; }
	n=$((n + 1))
done
"""


class Git(Case):
    name = "git, commits and gc"
    needs = {"git": "git"}  # noqa: RUF012
    survives = (
        "every commit whose `git commit` had returned, reachable from the branch; `git fsck --strict` finds "
        "nothing wrong"
    )
    gap = "few bytes: most of its files get one write, and packs writes of 128 KB"

    def git(self, place: Place, *words: str | Path, date: int = 0, **options) -> str:
        dates = {f"GIT_{who}_DATE": f"{1_700_000_000 + date} +0000" for who in ("AUTHOR", "COMMITTER")}
        fast = ("-c", "gc.auto=0", "-c", "init.defaultBranch=main")
        repository = place.data / "repository"
        return place.run("git", *fast, *words, cwd=repository, env={**ENV, **dates}, **options).stdout

    def fill(self, place: Place, number: int) -> None:
        repository = place.data / "repository"
        for i in range(6):
            path = repository / f"dir{i % 3}" / f"file{(number * 7 + i) % 20}"
            path.parent.mkdir(exist_ok=True)
            path.write_text("".join(f"{number} {i} {line}\n" for line in range(number * 13 % 300)))

    def prepare(self, place: Place) -> None:
        (place.data / "repository").mkdir()
        self.git(place, "init", "-q")

    def fsck(self, place: Place, **options) -> None:
        text = self.git(place, "fsck", "--full", "--strict", "--no-dangling", **options)
        assert not text.strip(), f"fsck: {text[:500]}"

    def run(self, place: Place) -> object:
        self.prepare(place)
        last = 12 if place.quick else 80
        for number in range(1, last + 1):
            self.fill(place, number)
            self.git(place, "add", "-A")
            self.git(place, "commit", "-q", "-m", f"commit {number}", date=number)
            if number % 10 == 5:
                self.git(place, "branch", f"side{number}", "HEAD~2")
            if number % 20 == 10:
                self.git(place, "gc", "-q", "--prune=now")
        self.git(place, "tag", "-a", "v1", "-m", "first", date=last)
        self.git(place, "checkout", "-q", "-b", "other", "HEAD~3")
        (place.data / "repository" / "other").write_text("other\n")
        self.git(place, "add", "-A")
        self.git(place, "commit", "-q", "-m", "other", date=last + 1)
        self.git(place, "merge", "-q", "-m", "merge", "main", date=last + 2)
        self.git(place, "repack", "-a", "-d", "-q")
        self.git(place, "gc", "-q", "--aggressive", "--prune=now")
        self.fsck(place)
        self.git(place, "clone", "-q", ".", place.data / "clone")
        assert not place.run("git", "status", "--porcelain", cwd=place.data / "clone", env=ENV).stdout
        return self.git(place, "show-ref"), self.git(place, "ls-tree", "-r", "HEAD")

    def kill(self, place: Place) -> None:
        self.prepare(place)
        repository = place.data / "repository"
        for i in range(5):
            (repository / "deep" / f"dir{i}").mkdir(parents=True)
        script = place.aside / "loop.sh"
        script.write_text(LOOP)
        env = {**ENV, "GIT_AUTHOR_DATE": "1700000000 +0000", "GIT_COMMITTER_DATE": "1700000000 +0000"}
        env.update(GIT_CONFIG_COUNT="1", GIT_CONFIG_KEY_0="gc.auto", GIT_CONFIG_VALUE_0="0")
        loop = place.start("sh", script, repository, "1", env=env)
        wanted = place.dice.randrange(3, 25)
        place.until(lambda: loop.popen.poll() is not None or len(loop.output()) >= wanted, "commits are made")
        place.pause(0.3)
        loop.kill()
        made = loop.output()
        place.bring_back()
        if place.way == NEXT:
            self.git(place, "status", "--porcelain")
        for lock in repository.rglob("*.lock"):
            lock.unlink()
        self.fsck(place)
        history = self.git(place, "rev-list", "--reverse", "HEAD").split()
        assert history[: len(made)] == made, f"{len(made)} commits were made, {len(history)} are there"
        assert len(history) <= len(made) + 1
        self.git(place, "reset", "-q", "--hard")
        # (a gc that was killed counts as running while a process has its number)
        self.git(place, "gc", "-q", "--force")
        self.fsck(place, shim=False)


CASES = [Git()]
