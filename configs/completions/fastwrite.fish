# SPDX-License-Identifier: Apache-2.0
# Completion of fastwrite(1) for fish.

function __fastwrite_begins -d 'no verb yet'
	not __fish_seen_subcommand_from run recover status config check enable disable help version
end

function __fastwrite_has_rules -d 'the verb takes settings'
	__fish_seen_subcommand_from run recover config check enable
end

function __fastwrite_is -d 'the verb is one of these'
	__fish_seen_subcommand_from $argv
end

complete -c fastwrite -n __fastwrite_begins -f
complete -c fastwrite -n __fastwrite_begins -a run -d 'run a program; recover after its death'
complete -c fastwrite -n __fastwrite_begins -a recover -d 'write the staged bytes of dead programs'
complete -c fastwrite -n __fastwrite_begins -a status -d 'show what the running programs stage'
complete -c fastwrite -n __fastwrite_begins -a config -d 'show the settings in force'
complete -c fastwrite -n __fastwrite_begins -a check -d 'can it work for this program, or file?'
complete -c fastwrite -n __fastwrite_begins -a enable -d 'let a systemd service run with the library'
complete -c fastwrite -n __fastwrite_begins -a disable -d 'undo that'
complete -c fastwrite -n __fastwrite_begins -a help -d 'say more about a verb'
complete -c fastwrite -n __fastwrite_begins -a version -d 'print the version'

complete -c fastwrite -s '?' -l help -d 'give help'
complete -c fastwrite -l usage -d 'give a short usage message'
complete -c fastwrite -s V -l version -d 'print the version'

complete -c fastwrite -n __fastwrite_has_rules -s c -l config -r -F -d 'read this configuration file'
complete -c fastwrite -n __fastwrite_has_rules -s p -l paths -r -F -d 'stage files that match'
complete -c fastwrite -n __fastwrite_has_rules -s o -l set -x -d 'set one key' -a "
	sync={fdatasync,fsync,journal,relaxed,off,ordered} relaxed_ms= ordered_ms= journal= mem= block=
	lag_ms= visibility={lag,strict} writers={auto,exclusive,shared} flush={auto,direct,buffered}
	prealloc= prealloc_mode={keep,off} staging= small= adapt={on,off}
	stdio={on,off}"
complete -c fastwrite -n "__fastwrite_is recover status config check" -s j -l json -d 'print JSON'

complete -c fastwrite -n "__fastwrite_is run" -l on-error -x -a 'warn stop' -d 'if the configuration is wrong'
complete -c fastwrite -n "__fastwrite_is run" -l stats -F -d 'print counters at exit'
complete -c fastwrite -n "__fastwrite_is run" -s v -l verbose -d 'say what recovery did'
complete -c fastwrite -n "__fastwrite_is run" -a '(__fish_complete_subcommand)'

complete -c fastwrite -n "__fastwrite_is recover" -s a -l all -d 'look at every place of the configuration'
complete -c fastwrite -n "__fastwrite_is recover" -s f -l force -d 'also write what was put aside'
complete -c fastwrite -n "__fastwrite_is recover" -s n -l dry-run -d 'change nothing'
complete -c fastwrite -n "__fastwrite_is recover" -s q -l quiet -d 'print failures only'

complete -c fastwrite -n "__fastwrite_is status" -l prometheus -d 'print metrics for Prometheus'
complete -c fastwrite -n "__fastwrite_is status" -l watch -d 'print a table again and again'
complete -c fastwrite -n "__fastwrite_is status" -l count -x -d 'end after so many tables'

complete -c fastwrite -n "__fastwrite_is check" -l file -d 'every argument is a file that is written'
complete -c fastwrite -n "__fastwrite_is check" -l program -d 'every argument is a program'

complete -c fastwrite -n "__fastwrite_is enable disable" -l root -r -F -d 'work on the system below this directory'
complete -c fastwrite -n "__fastwrite_is enable disable" -s y -l yes -d 'do not ask'
complete -c fastwrite -n "__fastwrite_is enable disable" -f -a '(systemctl list-unit-files "*.service" 2>/dev/null | grep -o "^[^ ]*\.service")'
