# SPDX-License-Identifier: Apache-2.0
# Completion of fastwrite(1) for bash.  bash-completion loads it by its name when it is first needed.

# Of `fastwrite VERB`: the candidates for a word, options or what belongs behind one.
_fastwrite_words()
{
	local verb=$1 word=$2
	local both='--help --usage --version' rules='--config= --paths= --set='
	local keys='sync= relaxed_ms= ordered_ms= journal= mem= block= lag_ms= visibility= writers= flush=
		prealloc= prealloc_mode= staging= small= adapt= stdio='

	case $word in
	--on-error=*) echo --on-error={warn,stop} ;;
	--set=sync=*) echo --set=sync={fdatasync,fsync,journal,relaxed,off,ordered} ;;
	--set=visibility=*) echo --set=visibility={lag,strict} ;;
	--set=writers=*) echo --set=writers={auto,exclusive,shared} ;;
	--set=flush=*) echo --set=flush={auto,direct,buffered} ;;
	--set=prealloc_mode=*) echo --set=prealloc_mode={keep,off} ;;
	--set=adapt=* | --set=stdio=*) echo "${word%=*}"={on,off} ;;
	--set=*=*) ;;
	--set=*) printf -- '--set=%s ' $keys ;;
	-*)
		case $verb in
		run) echo "$both $rules --on-error= --stats --stats= --verbose" ;;
		recover) echo "$both $rules --all --dry-run --force --json --quiet" ;;
		status) echo "$both --count= --json --prometheus --watch --watch=" ;;
		config) echo "$both $rules --json" ;;
		check) echo "$both $rules --file --json --program" ;;
		enable) echo "$both $rules --root= --yes" ;;
		disable) echo "$both --root= --yes" ;;
		'') echo "$both" ;;
		esac
		;;
	*) [[ $verb ]] || echo 'run recover status config check enable disable help version' ;;
	esac
}

_fastwrite_services()
{
	systemctl list-unit-files "*.service" 2>/dev/null | grep -o "^[^ ]*\.service"
}

_fastwrite()
{
	local line=${COMP_LINE:0:COMP_POINT} now=${COMP_WORDS[COMP_CWORD]} verb= command= i
	local word=${line##*[[:space:]]}
	# bash begins a new word at each '=' and ':', and replaces only that one
	[[ $now == [=:] ]] && now=
	local begun=${word%"$now"}

	for ((i = 1; i < COMP_CWORD; i++)); do
		if [[ ${COMP_WORDS[i]} == -* || ${COMP_WORDS[i]} == [=:] ]] ||
			[[ ${COMP_WORDS[i - 1]} == [=:] ]]; then
			continue
		elif [[ ! $verb ]]; then
			verb=${COMP_WORDS[i]}
		elif [[ ${COMP_WORDS[i - 1]} != -[cop] ]]; then
			command=${COMP_WORDS[i]}
		fi
	done
	if [[ $line =~ [[:space:]]-o[[:space:]]+[^[:space:]]*$ && ! $command ]]; then
		word=--set=$word begun=--set=$begun
	fi

	case $word in
	--config=* | --stats=* | --root=* | --set=staging=*)
		mapfile -t COMPREPLY < <(compgen -f -- "$now")
		compopt -o filenames
		return
		;;
	esac
	if [[ $verb == @(enable|disable) && $word != -* ]]; then
		mapfile -t COMPREPLY < <(compgen -W "$(_fastwrite_services)" -- "$now")
		return
	fi
	if [[ $verb == run && $command ]] || [[ $verb && $word != -* ]]; then
		if [[ $verb == run && ! $command ]]; then
			mapfile -t COMPREPLY < <(compgen -c -- "$now")
		else
			mapfile -t COMPREPLY < <(compgen -f -- "$now")
		fi
		compopt -o filenames
		return
	fi
	mapfile -t COMPREPLY < <(compgen -W "$(_fastwrite_words "$verb" "$word")" -- "$word")
	COMPREPLY=("${COMPREPLY[@]#"$begun"}")
	[[ ${COMPREPLY[0]} == *= ]] && compopt -o nospace
}

complete -F _fastwrite fastwrite
