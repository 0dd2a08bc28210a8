# Runs one command and says what became of it. $1 the slot (a file of ours), $2 the cwd, $3 whether
# there is a stdin, $4 how a signal's death is witnessed, $5 what starts the command: words of setsid
# and env, $6 NAME=VALUE that marks all that is the command's; then NAME=VALUE... where env is among
# the words, the program and its arguments.
#
# A line that begins with the boundary ends the command's own output on both streams, for a child may
# hold them for longer; the rest of the line is the status. Until it has been read the status lies in
# the slot, for those who lose the streams.
slot=$1 cwd=$2 witness=$4 starter=$5 mine=$6
exec 3>&1 4>&2
if [ "$3" ]; then exec 5<&0 </dev/null; else exec 5</dev/null </dev/null; fi
shift 6
room "$slot"
command exec 2>"$slot" || exec 2>/dev/null
say() { printf '%s %s %s %s\n' "$tail" "$1" "$2" "${3-}" >&2; }
trap 'say failed $?' EXIT
cd -P -- "$cwd" && inside "$PWD" || {
  say refused cwd
  trap - EXIT
  exit 125
}
# What is redirected for the command takes files that this shell may not have: without them it would
# pass off its own failure as the command's. It may be ended by that: its word goes first.
say files short
{ :; } <&5 5<&- >&3 3>&- 2>&4 4>&- || exit 125
unset PWD OLDPWD SHLVL
# count_refused: how many processes the control group has refused so far.
count_refused() {
  for events in /sys/fs/cgroup/pids.events /sys/fs/cgroup/pids/pids.events; do
    if [ -r "$events" ] && read -r word count <"$events"; then return; fi
  done
  count=
}
count_refused
before=$count refused=-
mark() {
  # A command may have left the pipe non-blocking and full.
  tries=0
  until printf '%s%s%s\n' "$head" "$tail" "$status"; do
    tries=$((tries + 1))
    [ $tries -le 100 ] || return
    sleep 0.1
  done
}
# A signal to the whole tree ends the witness at once, and the command when it has cleaned up: it
# gets the time that EX-4 gives it before its output is ended.
outlive() {
  tries=0
  while [ $tries -lt 30 ]; do
    tries=$((tries + 1)) others=
    for each in $(unset "${mine%%=*}" && grep -l -- "$mine" /proc/[0-9]*/environ 2>/dev/null); do
      [ "$each" = "/proc/$$/environ" ] || others=1
    done
    [ "$others" ] || break
    sleep 0.1
  done
}
signal= seen=x
case $witness in
  jobs)
    # A handler: a command that signals its group must not end us. Children get the default back.
    trap : HUP INT QUIT USR1 USR2 ALRM TERM
    say started # before it can end us
    $starter -- "$@" <&5 5<&- >&3 3>&- 2>&4 4>&- &
    exec 5<&-
    while :; do
      wait
      jobs >"$slot.jobs"
      read -r job <"$slot.jobs"
      case $job in *' Running'*) ;; *) break ;; esac
    done
    job=${job#*+}
    while :; do case $job in ' '*) job=${job# } ;; *' ') job=${job% } ;; *) break ;; esac; done
    case $job in
      Done) code=0 ;;
      'Done('*) code=${job#'Done('} code=${code%')'} ;;
      *) code=128 signal=$job ;;
    esac
    ;;
  time)
    trap : HUP INT QUIT USR1 USR2 ALRM TERM
    say started
    command time -o "$slot.time" -f '' $starter -- "$@" <&5 5<&- >&3 3>&- 2>&4 4>&-
    code=$?
    [ -s "$slot.time" ] || {
      [ "$code" -gt 128 ] || exit 125 # it could not start the command
      seen= && outlive
    }
    read -r a b c d number <"$slot.time"
    case "$a $b $c $d" in
      'Command terminated by signal') code=$((128 + number)) signal=$number ;;
    esac
    ;;
  *)
    trap : HUP INT QUIT USR1 USR2 ALRM TERM
    say started
    $starter -- "$@" <&5 5<&- >&3 3>&- 2>&4 4>&-
    code=$?
    ;;
esac
trap - EXIT
if [ "$code" != 0 ]; then
  count_refused
  [ "$count" = "$before" ] || refused=refused
fi
status="$code $refused $signal"
[ "$seen" ] && say done "$status"
mark >&3
mark >&4
exit "$code"
