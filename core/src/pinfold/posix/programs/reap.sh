# Ends every process that carries the mark $1 (NAME=VALUE, or its beginning) in its environment, and
# the groups they lead or are in: TERM, $2 seconds of grace, then KILL, again and again until none is
# left. With $2 empty nothing is signalled: it waits for them. Says `some` if there were any. It goes
# on when nobody listens any more.
read -r line </proc/self/stat
set -- "$1" "$2" ${line##*) }
mine=$5
mark=$1 grace=$2
scan() {
  pids= groups=
  for file in $(grep -l -- "$mark" /proc/[0-9]*/environ 2>/dev/null); do
    pid=${file#/proc/} pid=${pid%/environ}
    line=
    read -r line <"/proc/$pid/stat" || continue
    set -- ${line##*) }
    [ "$1" = Z ] && continue
    pids="$pids $pid"
    if [ "$3" -gt 1 ] && [ "$3" != "$mine" ]; then
      case " $groups " in *" -$3 "*) ;; *) groups="$groups -$3" ;; esac
    fi
  done 2>/dev/null
}
trap '' PIPE HUP
round=0 calm=0 timer=
printf 'ok\n'
if [ "$grace" ] && [ "$grace" != 0 ]; then
  sleep "$grace" >/dev/null 2>&1 &
  timer=$!
fi
while [ $calm -lt 2 ]; do
  scan
  if [ "$pids" ]; then
    calm=0
    if [ "$grace" ]; then
      # All to a group at once: none of it can fork away in between.
      if [ -z "$timer" ] || ! kill -0 "$timer"; then
        timer=
        for target in $groups $pids; do kill -KILL $target; done
      elif [ $round = 0 ]; then
        for target in $groups $pids; do kill -TERM $target; done
      fi 2>/dev/null
    fi
    round=$((round + 1))
    sleep 0.1 2>/dev/null || sleep 1
  else
    calm=$((calm + 1)) # twice in a row: a process that forked and ended in between hides its child
  fi
done
[ -z "$timer" ] || kill "$timer" 2>/dev/null
if [ $round -gt 0 ]; then printf some; fi
finish
