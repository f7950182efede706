# SPDX-License-Identifier: Apache-2.0
"""A container with an init system: systemd starts the boot unit, then the program, and stops both in order."""

from __future__ import annotations

from lib.support import ROOT

from surroundings.container import Container
from surroundings.life import PID_AT, Day, word

CONFIGS = ROOT / "configs"
CONFIGURATION = "etc/fastwrite.ini"
PROGRAM_UNIT = """[Unit]
Wants=fastwrite-recover.service
After=fastwrite-recover.service

[Service]
# the boot unit is done: the test looks at the files before the program does
ExecStartPre=/bin/sh /fw/before.sh
ExecStart=/bin/sh /fw/start.sh
StandardError=truncate:/fw/program.out
TimeoutStopSec=5
"""
BEFORE = """systemctl --no-pager --full status fastwrite-recover.service >/fw/unit.out 2>&1
: >/fw/recovered
until [ -e /fw/gate ]; do sleep 0.02; done
"""
UNITS = {"sysinit.target": "fastwrite-recover.service", "multi-user.target": "program.service"}


class BootedDay(Day):
    """Each round is a boot of nspawn's own boot id, and ends with a kill or a shutdown."""

    def prepare_root(self) -> None:
        units = self.root / "etc/systemd/system"
        for source in CONFIGS.glob("fastwrite-recover*.service.in"):
            (units / source.stem).write_text(source.read_text().replace("@BINDIR@", "/fw"))
        (units / "program.service").write_text(PROGRAM_UNIT)
        for target, unit in UNITS.items():
            wants = units / f"{target}.wants"
            wants.mkdir(exist_ok=True)
            link = wants / unit
            link.unlink(missing_ok=True)
            link.symlink_to(f"/etc/systemd/system/{unit}")
        keys = "\n".join(f"{key} = {value}" for key, value in self.set.items())
        (self.root / CONFIGURATION).write_text(f"[rule data]\npaths = {self.inside}/data/**\n{keys}\n")

    def systemd(self) -> None:
        (player,) = self.players
        self.prepare_root()
        command = self.program(player, self.numbered_from(player))
        (self.shared / "start.sh").write_text(f"exec {command}\n")
        (self.shared / "before.sh").write_text(BEFORE)
        recovered, gate = self.shared / "recovered", self.shared / "gate"
        for path in (recovered, gate, *self.shared.glob("*.out")):
            path.unlink(missing_ok=True)
        stops = self.dice.random() < 0.5
        with Container(self.engine, self.root, self.shared, {self.volume: self.inside}) as box:
            box.until(recovered.exists, "the boot unit was done")
            self.check(self.players, "after the boot unit")
            gate.touch()
            self.begin(box, self.players, "after the restart")
            self.let_write(box, player)
            if self.dice.random() < 0.3:
                box.kill(word(player.log, PID_AT))
            if stops:
                box.shut_down()
            else:
                box.kill_all()
        self.over(self.players)
        if stops:
            self.check(self.players, "after a shutdown, in which the shutdown unit recovers")
